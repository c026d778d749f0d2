"""Dialects: how toolchains name and lay out quantized weights inside safetensors files."""

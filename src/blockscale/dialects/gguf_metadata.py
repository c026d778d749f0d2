"""GGUF's metadata on their way through another container: one block of bytes that keeps every exact type."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from ..containers.gguf_values import VALUE_TYPES, GgufValue, gguf_value
from ..errors import FormatError

_MAGIC = b"GGKV0001"
_LENGTHS = struct.Struct("<IBQ")

# general.file_type of files in which most weights have this type; source: llama.h, LLAMA_FTYPE_*.
FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "MXFP4": 38}


def pack_metadata(values: Mapping[str, Any]) -> bytes:
    """Keys and values as bytes: per key its length, the type's length, the value's length, and the three."""
    parts = [_MAGIC]
    for key, value in values.items():
        one = gguf_value(value)
        name, kind = key.encode("utf-8", "surrogateescape"), one.type.encode()
        parts += [_LENGTHS.pack(len(name), len(kind), len(one.raw)), name, kind, one.raw]
    return b"".join(parts)


def unpack_metadata(data: bytes) -> dict[str, GgufValue]:
    """Undo `pack_metadata`.

    Raises:
        FormatError: bytes that it did not make.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise FormatError("these are no packed GGUF metadata", found=data[:8], field="gguf.metadata")
    values: dict[str, GgufValue] = {}
    at = len(_MAGIC)
    while at < len(data):
        if at + _LENGTHS.size > len(data):
            raise _cut_short(at)
        sizes = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        if at + sum(sizes) > len(data):
            raise _cut_short(at)
        name, kind, raw = (data[at + sum(sizes[:i]) : at + sum(sizes[: i + 1])] for i in range(3))
        at += sum(sizes)
        if kind.decode("latin-1") not in VALUE_TYPES:
            raise FormatError(f"unknown value type {kind!r}", found=kind, field="gguf.metadata")
        values[name.decode("utf-8", "surrogateescape")] = GgufValue(kind.decode(), raw)
    return values


def _cut_short(at: int) -> FormatError:
    return FormatError("the packed GGUF metadata end early", found=at, field="gguf.metadata", offset=at)

"""Sources: what a container holds, as named tensors; they join containers and dialects."""

from .base import Reading, Source, TensorInfo
from .folder import list_shards, open_source, without_collection
from .gguf import GgufSource
from .hrry import HrrySource
from .safetensors import SafetensorsSource

__all__ = [
    "GgufSource",
    "HrrySource",
    "Reading",
    "SafetensorsSource",
    "Source",
    "TensorInfo",
    "list_shards",
    "open_source",
    "without_collection",
]

"""The Hurray format: tensor descriptors and buffers, read and written byte for byte, every rule checked."""

from .boxes import BoxReader, box_reader
from .descriptor import TensorDescriptor, find_violations
from .geometry import DYNAMIC
from .layouts import COLUMN_MAJOR, ROW_MAJOR, Layout, strided
from .plan import describe_tensor, plan_array, plan_tensor
from .quantization import (
    MXFP,
    NF4,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    Quantization,
    UnknownQuantization,
)
from .quantization_reader import decode_quantization
from .quantized import HurrayTensor
from .rules import RULES, PermissiveWarning, Rule, rule_id
from .sections import BufferHandle, ExtensionType, Shard, Statistics
from .tensors import (
    Tensor,
    decode_tensor,
    encode_blocks,
    encode_tensor,
    scheme_of,
    validate_buffers,
    validate_values,
)

__all__ = [
    "COLUMN_MAJOR",
    "DYNAMIC",
    "MXFP",
    "NF4",
    "ROW_MAJOR",
    "RULES",
    "BoxReader",
    "BufferHandle",
    "ExtensionType",
    "HurrayTensor",
    "Layout",
    "PerBlockAffine",
    "PerChannelAffine",
    "PerTensorAffine",
    "PermissiveWarning",
    "Quantization",
    "Rule",
    "Shard",
    "Statistics",
    "Tensor",
    "TensorDescriptor",
    "UnknownQuantization",
    "box_reader",
    "decode_quantization",
    "decode_tensor",
    "describe_tensor",
    "encode_blocks",
    "encode_tensor",
    "find_violations",
    "plan_array",
    "plan_tensor",
    "rule_id",
    "scheme_of",
    "strided",
    "validate_buffers",
    "validate_values",
]

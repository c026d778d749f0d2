"""Which tensors are kept as they are when a checkpoint is quantized, and why."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from .checkpoint import Checkpoint, TensorInfo
from .targets import Target

# Names that are left alone by default whatever their rank: not the weights of a matmul.
_KEPT_WORDS = ("norm", "bias")
QUANTIZED_BEFORE = "already quantized"
# What the consumers of a dialect expect to find unquantized.
_KEPT_BY_DIALECT = {
    "gptq": ("embed", "wte", "lm_head"),
    "awq": ("embed", "wte", "lm_head"),
    "compressed-tensors": ("embed", "wte"),
}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def reason_to_keep(
    ckpt: Checkpoint,
    info: TensorInfo,
    include: Sequence[str],
    exclude: Sequence[str],
    *,
    requantize: bool,
) -> str:
    """Why a tensor is not quantized, in a few words; empty if it is.

    Args:
        ckpt: the source.
        info: the tensor.
        include: patterns of names to quantize; empty: the default.
        exclude: patterns of names to keep; they win.
        requantize: whether tensors that are quantized already are quantized again.
    """
    if _matches(info.name, exclude):
        return "excluded"
    if info.quantization and not requantize:
        return QUANTIZED_BEFORE
    if include and not _matches(info.name, include):
        return "not included"
    if not info.quantization and (not info.is_float or ckpt.plain_dtype(info.name) is None):
        return f"{info.dtype} is not a floating-point weight"
    if include:
        return ""
    words = info.name.lower().split(".")[-2:]
    if any(kept in word for word in words for kept in _KEPT_WORDS):
        return "a norm or bias"
    return "" if len(info.shape) in (2, 3) else f"rank {len(info.shape)}"


def is_kept_by_dialect(target: Target, name: str) -> bool:
    """Whether consumers of the target expect a tensor of this name unquantized."""
    words = name.lower().split(".")[-3:]
    return any(kept in word for word in words for kept in _KEPT_BY_DIALECT.get(target.kind, ()))

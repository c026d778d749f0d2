"""Carrying a tensor over as it is: what it becomes in the target, exactly if that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, TensorInfo
from .containers.gguf_values import GgufValue
from .dialects import ggml
from .dialects.gguf_metadata import FILE_TYPES, pack_metadata, unpack_metadata
from .errors import UnsupportedError
from .mx import raise_scales
from .recode import pick_exact, recode, same_numbers
from .schemes import Scheme
from .targets import OutputTensor, Target, candidates, check_tensor
from .tensor import BlockTensor

_BLOB = "gguf.metadata"


@dataclass(frozen=True, slots=True)
class Carried:
    """How a tensor goes over.

    Attributes:
        out: how it will be stored.
        exact: whether every value stays as it is.
        reason: why not.
    """

    out: OutputTensor
    exact: bool = True
    reason: str = ""


def carry(ckpt: Checkpoint, info: TensorInfo, target: Target) -> Carried:
    """Decide how a tensor goes over; reads data only where exactness depends on them.

    Raises:
        BlockscaleError: the target cannot hold it.
    """
    if info.scheme is not None and info.axis is not None:
        return _carry_blocks(ckpt, info, info.scheme, info.axis, target)
    if target.kind == "hrry" and ckpt.kind == "hrry":
        return Carried(OutputTensor(info.name, info.shape, descriptor=ckpt.descriptor(info.name)))
    dtype = ckpt.logical_dtype(info.name)
    if dtype is None:
        raise UnsupportedError(
            f"the dtype {info.dtype} is unknown here",
            found=info.dtype,
            hint="remove the tensor from the source",
        )
    return Carried(check_tensor(target, OutputTensor(info.name, info.shape, dtype)))


def _carry_blocks(ckpt: Checkpoint, info: TensorInfo, row: Scheme, axis: int, target: Target) -> Carried:
    rows = candidates(target, row, info.shape, axis)
    if not rows:
        check_tensor(target, OutputTensor(info.name, info.shape, None, row, axis))
        raise UnsupportedError(f"{target.kind} holds nothing like {row.describe()}")
    out = OutputTensor(info.name, info.shape, None, rows[0], axis)
    if same_numbers(rows[0], row):
        if target.kind in ("gptq", "awq") and row.offset == "zero_point":
            out = replace(out, is_symmetric=_is_symmetric(ckpt, info))
        low = _low_scales(ckpt, info, target)
        return Carried(out) if not low else Carried(out, False, low)
    w = ckpt[info.name]
    if not isinstance(w, BlockTensor):
        raise UnsupportedError("its values have no scheme", tensor=info.name)
    exact, reasons = pick_exact(w, rows)
    if exact is not None:
        return Carried(OutputTensor(info.name, info.shape, None, exact.scheme, axis))
    quantizable = [s for s in rows if s.default_rule] or list(rows)
    nearest = max(quantizable, key=lambda s: s.bits_per_element)
    return Carried(OutputTensor(info.name, info.shape, None, nearest, axis), False, reasons[nearest])


def _is_symmetric(ckpt: Checkpoint, info: TensorInfo) -> bool:
    """Whether every zero point is the middle code, which configs of some dialects say."""
    w = ckpt[info.name]
    middle = 1 << (info.scheme.element.bits - 1) if info.scheme is not None else 0
    return isinstance(w, BlockTensor) and w.row_offsets is not None and bool((w.row_offsets == middle).all())


def _low_scales(ckpt: Checkpoint, info: TensorInfo, target: Target) -> str:
    """MX bytes that a `.hrry` file does not have: the reason, or empty."""
    if target.kind != "hrry" or info.scheme is None or not info.scheme.is_mx or ckpt.kind == "hrry":
        return ""
    w = ckpt[info.name]
    least = 1 - info.scheme.value_exponent
    if not isinstance(w, BlockTensor):
        return ""
    low = int((w.row_scales.view(np.uint8) < least).sum())
    return f"{low} scale bytes are below {least}, which a .hrry file does not have" if low else ""


def recoded(w: BlockTensor, out: OutputTensor, target: Target) -> BlockTensor:
    """The tensor under the scheme it gets; see `carry`."""
    if out.scheme is None or same_numbers(w.scheme, out.scheme):
        return raise_scales(w) if target.kind == "hrry" and w.scheme.is_mx else w
    return recode(w, out.scheme).tensor


def output_metadata(
    ckpt: Checkpoint, target: Target, outs: Sequence[OutputTensor], made: Mapping[str, object]
) -> dict[str, Any]:
    """Key-value metadata of the output: GGUF's survive a way through `.hrry` with their exact types."""
    source = ckpt.metadata
    if target.kind == "gguf":
        values = dict(source) if ckpt.kind == "gguf" else _restored(ckpt)
        return _with_file_type(values, outs)
    if ckpt.kind == "gguf":
        if target.kind != "hrry":
            return {**_readable(source), **{k: str(v) for k, v in made.items()}}
        return {**_readable(source), _BLOB: pack_metadata(source), **made}
    return {**source, **made}


def _restored(ckpt: Checkpoint) -> dict[str, Any]:
    blob = ckpt.metadata.get(_BLOB)
    if isinstance(blob, bytes):
        return dict(unpack_metadata(blob))
    config = ckpt.reading.config
    name = str(config.get("_name_or_path") or ckpt.path.stem)
    return {"general.architecture": str(config.get("model_type", "unknown")), "general.name": name}


def _readable(source: Mapping[str, Any]) -> dict[str, Any]:
    """The short strings of a GGUF header, for people."""
    found = {}
    for key, value in source.items():
        if isinstance(value, GgufValue) and value.type == "string" and len(value.raw) < 256:
            found[f"gguf.{key}"] = str(value.value)
    return found


def _with_file_type(values: dict[str, Any], outs: Sequence[OutputTensor]) -> dict[str, Any]:
    """`general.file_type` says what most of the weights are; kept up to date where it is there."""
    if "general.file_type" not in values:
        return values
    sizes: dict[str, int] = {}
    for out in outs:
        if out.scheme is not None:
            kind = str(ggml.spec_for(out.scheme))
            sizes[kind] = sizes.get(kind, 0) + int(np.prod(out.shape, dtype=object))
    most = max(sizes, key=sizes.__getitem__) if sizes else None
    if most in FILE_TYPES:
        old = values["general.file_type"]
        number = FILE_TYPES[most]
        if not isinstance(old, GgufValue) or int(old.value) % 1024 != number:
            values["general.file_type"] = np.uint32(number)
    return values

"""Carrying a tensor over as it is: what it becomes in the target, exactly if that is possible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, TensorInfo
from .containers.gguf_values import GgufValue
from .dialects.gguf_metadata import FILE_TYPES, pack_metadata, unpack_metadata
from .dialects.own_layout import METADATA_KEY
from .dialects.word_write import is_symmetric
from .errors import UnsupportedError
from .mx import raise_scales
from .recode import converted, is_renaming, pick_exact
from .schemes import Scheme
from .targets import OutputTensor, Target, block_type, candidates, check_tensor, zero_points
from .tensor import BlockTensor

_BLOB = "gguf.metadata"
_TYPES = "gguf.types"
# Types that the scheme in a `.hrry` file does not lead back to.
_TYPES_TO_NOTE = ("Q5_0", "Q5_1")
# Keys of a source's metadata that speak of how its own tensors are stored.
_NOT_CARRIED = (METADATA_KEY, _TYPES)


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
    ckpt.check_values(info.name)  # what `verify` rejects is not passed on
    if target.kind == "gguf" and ckpt.kind == "gguf":
        dtype = ckpt.plain_dtype(info.name)
        return Carried(
            OutputTensor(info.name, info.shape, dtype, info.scheme, info.axis, ggml_type=info.dtype)
        )
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
    if target.kind == "hrry" and dtype.name == "float8_e8m0fnu":
        _check_e8m0(ckpt, info)
    return Carried(check_tensor(target, OutputTensor(info.name, info.shape, dtype)))


def _check_e8m0(ckpt: Checkpoint, info: TensorInfo) -> None:
    """UnsupportedError for bytes that a `.hrry` file does not have in such a tensor."""
    codes = np.asarray(ckpt[info.name]).reshape(-1).view(np.uint8)
    bad = int(np.count_nonzero((codes == 0) | (codes == 255)))
    if bad:
        raise UnsupportedError(
            f"{bad} of {codes.size} E8M0 bytes are 0 or 255",
            found=bad,
            rule="E8M0 bytes of a .hrry file are 1 .. 254",
            hint="safetensors keeps them",
        )


def _carry_blocks(ckpt: Checkpoint, info: TensorInfo, row: Scheme, axis: int, target: Target) -> Carried:
    rows = candidates(target, row, info.shape, axis)
    if not rows:
        check_tensor(target, OutputTensor(info.name, info.shape, None, row, axis))
        raise UnsupportedError(f"{target.kind} holds nothing like {row.describe()}")
    noted = _noted_type(ckpt, info.name) if target.kind == "gguf" else None
    rows = tuple(sorted(rows, key=lambda s: s.name != noted))
    out = OutputTensor(info.name, info.shape, None, rows[0], axis)
    allowed = {s: zero_points(target, s) for s in rows}
    if is_renaming(row, rows[0]) and allowed[rows[0]] is None:
        low = _low_scales(ckpt, info, target)
        return Carried(out) if not low else Carried(out, False, low)
    w = ckpt[info.name]
    if not isinstance(w, BlockTensor):
        raise UnsupportedError("its values have no scheme", tensor=info.name)
    exact, reasons = pick_exact(w, allowed)
    if exact is not None:
        even = target.kind in ("gptq", "awq") and is_symmetric(exact)
        return Carried(OutputTensor(info.name, info.shape, None, exact.scheme, axis, is_symmetric=even))
    # Quantizing again makes zero points from 0 on, which GPTQ v1 does not store.
    lowest = {s: (allowed[s] or (0, 0))[0] for s in rows}
    quantizable = [s for s in rows if s.default_rule and lowest[s] <= 0] or list(rows)
    nearest = max(quantizable, key=lambda s: s.bits_per_element)
    return Carried(OutputTensor(info.name, info.shape, None, nearest, axis), False, reasons[nearest])


def _low_scales(ckpt: Checkpoint, info: TensorInfo, target: Target) -> str:
    """MX bytes that a `.hrry` file does not have: the reason, or empty."""
    if target.kind != "hrry" or info.scheme is None or not info.scheme.is_mx or ckpt.kind == "hrry":
        return ""
    w = ckpt[info.name]
    least = 1 - info.scheme.value_exponent
    if not isinstance(w, BlockTensor):
        return ""
    low = int((w.row_scales.view(np.uint8) < least).sum())
    if not low:
        return ""
    return f"{low:,} of {w.row_scales.size:,} scale bytes are below {least}, which a .hrry file does not have"


def recoded(
    w: BlockTensor, out: OutputTensor, target: Target, *, reason: str = "", threads: int | None = None
) -> BlockTensor:
    """The tensor under the scheme it gets; see `carry`.

    Args:
        w: the tensor.
        out: how it will be stored.
        target: where.
        reason: why that is not exact; empty if it is.
        threads: at most this many threads; None: all processors.
    """
    if out.scheme is None:
        return w
    if w.scheme.is_mx and out.scheme.is_mx and target.kind == "hrry":
        w = raise_scales(w)
    allowed = zero_points(target, out.scheme)
    return converted(w, out.scheme, zero_points=allowed, threads=threads, reason=reason)[0]


def output_metadata(
    ckpt: Checkpoint, target: Target, outs: Sequence[OutputTensor], made: Mapping[str, object]
) -> dict[str, Any]:
    """Key-value metadata of the output: GGUF's survive a way through `.hrry` with their exact types."""
    source = {k: v for k, v in ckpt.metadata.items() if k not in _NOT_CARRIED}
    if target.kind == "gguf":
        values = source if ckpt.kind == "gguf" else _restored(ckpt)
        return _with_file_type(values, outs)
    if ckpt.kind == "gguf":
        if target.kind != "hrry":
            return {**_readable(source), **{k: str(v) for k, v in made.items()}}
        return {**_readable(source), **_types_to_note(ckpt), _BLOB: pack_metadata(source), **made}
    if target.kind == "hrry" and _TYPES in ckpt.metadata:
        source[_TYPES] = ckpt.metadata[_TYPES]
    return {**source, **made}


def _types_to_note(ckpt: Checkpoint) -> dict[str, str]:
    found = {name: info.dtype for name, info in ckpt.infos.items() if info.dtype in _TYPES_TO_NOTE}
    return {_TYPES: json.dumps(found, separators=(",", ":"))} if found else {}


def _noted_type(ckpt: Checkpoint, name: str) -> str | None:
    """Name of the scheme that a tensor had in the GGUF file it came from, where that was noted."""
    try:
        found = json.loads(ckpt.metadata.get(_TYPES, "{}"))
    except (TypeError, ValueError):
        return None
    noted = found.get(name) if isinstance(found, dict) else None
    return noted.lower() if noted in _TYPES_TO_NOTE else None


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
    if "general.file_type" not in values or all(out.ggml_type for out in outs):
        return values
    sizes: dict[str, int] = {}
    for out in outs:
        if out.dtype is None:
            kind = block_type(out)
            sizes[kind] = sizes.get(kind, 0) + int(np.prod(out.shape, dtype=object))
    most = max(sizes, key=sizes.__getitem__) if sizes else None
    if most in FILE_TYPES:
        old = values["general.file_type"]
        number = FILE_TYPES[most]
        if not isinstance(old, GgufValue) or int(old.value) % 1024 != number:
            values["general.file_type"] = np.uint32(number)
    return values

"""ggml's block types, as GGUF files hold them: blocks of a tensor's rows to a BlockTensor and back.

A row of a tensor is whole blocks of 32 elements; a block holds its scale (and minimum) and then its codes.
Source: ggml, `ggml-common.h` (layout) and `ggml-quants.c` (values); gguf package 0.19, `quants.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid
from ..containers.gguf_types import GgmlType, explain_length, ggml_type
from ..errors import InputError, SchemeError, UnsupportedError
from ..tensor import BlockTensor
from .ggml_codes import copy_bytes, halves_to_pairs, pairs_to_halves, read_five_bits, write_five_bits
from .ggml_formats import FORMATS, BlockFormat, can_hold, format_of, same_numbers, scheme_for, spec_for
from .ggml_scales import (
    Place,
    check_bytes,
    check_finite,
    check_five_bits,
    replace_zero_scales,
    restore_zero_scales,
)

__all__ = [
    "FORMATS",
    "BlockFormat",
    "Unpacked",
    "can_hold",
    "dequantize",
    "pack_blocks",
    "scheme_for",
    "spec_for",
    "unpack_blocks",
]

NAME = "ggml"
_ZERO_SCALES = ("ggml", "sign", "keep")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A tensor read from blocks, and what its bytes said otherwise.

    Attributes:
        tensor: the tensor; its values are those of ggml.
        zero_scales: blocks with scale 0, which a BlockTensor cannot hold; they now have scale 1 (minus zero:
            -1) and codes 0, so that their values are the same.
        lost_codes: those among them whose codes were not zero: they meant nothing but the signs of zeros, and
            are gone.
        nan_blocks: MXFP4 blocks with scale byte 255, kept on request.
    """

    tensor: BlockTensor
    zero_scales: int = 0
    lost_codes: int = 0
    nan_blocks: int = 0


def unpack_blocks(
    data: NDArray[np.uint8],
    type_name: str | GgmlType,
    shape: Sequence[int],
    *,
    first_row: int = 0,
    nonfinite: str = "error",
) -> Unpacked:
    """Read blocks, exactly.

    Args:
        data: uint8, the bytes of whole rows, contiguous; any shape.
        type_name: a type of `FORMATS`.
        shape: shape of these rows; the last size is a row's length.
        first_row: number of the first row, for messages about a slab.
        nonfinite: `"error"`, or `"nan-block"`: let MXFP4 blocks with scale byte 255 be NaN blocks.

    Returns:
        The tensor and counts. Values are bit for bit ggml's, except that ggml reads the MXFP4 code for minus
        zero (which it never writes) as plain zero, and, on request, for scale byte 255: NaN by OCP, 2**128 by
        ggml; no quantizer means it (ggml's wraps around below 2**-125).

    Raises:
        UnsupportedError: a type that a BlockTensor cannot hold, with the reason.
        InputError: bytes that are not what the shape takes.
        FormatError: scales or minimums that are NaN or infinite.
    """
    fmt = format_of(type_name)
    shape = tuple(int(n) for n in shape)
    blocks = _as_blocks(data, fmt.type, shape)
    grid = BlockGrid(shape, len(shape) - 1, fmt.scheme.block_size)
    place = Place(grid.blocks_per_row, first_row)
    scales = _parameter(blocks, 0, fmt)
    offsets = _parameter(blocks, fmt.scale_bytes, fmt) if fmt.scheme.offset == "minimum" else None
    nan_blocks = zeros = lost = 0
    packed = _read_codes(blocks, fmt)
    if fmt.scheme.is_mx:
        nan_blocks = check_bytes(scales, place, nonfinite)
    else:
        check_finite(scales, "scale d", place)
        zeros, lost = replace_zero_scales(scales, packed)
    if offsets is not None:
        check_finite(offsets, "minimum m", place)
        offsets = offsets.view(np.float16).reshape(grid.rows, -1)
    scales = scales.view(fmt.scheme.scale.dtype).reshape(grid.rows, -1)
    tensor = BlockTensor(grid, fmt.scheme, packed.reshape(grid.rows, -1), scales, offsets)
    return Unpacked(tensor, zeros, lost, nan_blocks)


def pack_blocks(
    w: BlockTensor, type_name: str | GgmlType | None = None, *, zero_scale: str = "ggml"
) -> NDArray[np.uint8]:
    """Write blocks, exactly.

    Args:
        w: the tensor, or whole rows of it.
        type_name: a type of `FORMATS`; None: what `spec_for` says.
        zero_scale: what blocks get that have scale 1 or -1 and codes 0. `"ggml"`: what ggml and the gguf
            package write for zeros, 0 (minus 0 in Q4_0 and Q5_0); `"sign"`: 0 with the scale's sign, undoing
            `unpack_blocks`; `"keep"`: their scale. The values are equal in any case.

    Returns:
        uint8 `(rows, row_bytes)`.

    Raises:
        UnsupportedError: a tensor that the type cannot hold, with the reason.
        InputError: scales that are zero, NaN or infinite (MX: NaN blocks); codes beyond five bits for Q5_0 or
            Q5_1; another `zero_scale`.
    """
    fmt = _target(w, type_name)
    _check_parameters(w)
    grid = w.grid
    out = np.empty((grid.n_blocks, fmt.type.block_bytes), np.uint8)
    packed = np.ascontiguousarray(w.packed).reshape(grid.n_blocks, -1)
    scales = np.ascontiguousarray(w.row_scales).reshape(-1).view(_stored_dtype(fmt))
    if zero_scale not in _ZERO_SCALES:
        raise InputError(f"zero_scale={zero_scale!r}", found=zero_scale, hint=f"one of {_ZERO_SCALES}")
    if zero_scale != "keep" and not fmt.scheme.is_mx:
        minus = zero_scale == "ggml" and fmt.bias > 0  # ggml divides by -8 or -16 there
        scales = restore_zero_scales(scales, packed, 0x8000 if minus else 0)
    width = fmt.scale_bytes
    copy_bytes(scales.view(np.uint8).reshape(-1, width), out[:, :width])
    if w.row_offsets is not None:
        minimums = np.ascontiguousarray(w.row_offsets).reshape(-1).view(np.uint8)
        copy_bytes(minimums.reshape(-1, width), out[:, width : 2 * width])
    _write_codes(packed, out, fmt)
    return out.reshape(grid.rows, -1)


def dequantize(
    data: NDArray[np.uint8], type_name: str | GgmlType, shape: Sequence[int]
) -> NDArray[np.float32]:
    """The values of any float or quantized type as float32, of the shape given.

    Types of `FORMATS` and plain ones are read here; others (K-quants, I-quants, ternary ...) by the gguf
    package, which must be installed for them.

    Args:
        data: uint8, the bytes of whole rows, contiguous; any shape.
        type_name: the type.
        shape: shape of these rows.

    Raises:
        UnsupportedError: the gguf package is missing, or cannot read the type; or numbers that float32 does
            not hold (integers, float64).
        InputError: bytes that are not what the shape takes.
        FormatError: see `unpack_blocks`.
    """
    kind = ggml_type(type_name)
    if kind.name in FORMATS:
        return np.asarray(unpack_blocks(data, kind, shape).tensor.dequantize(), np.float32)
    blocks = _as_blocks(data, kind, tuple(shape))
    if kind.dtype is None:
        return _dequantize_elsewhere(blocks, kind).reshape(tuple(shape))
    if kind.name not in ("F32", "F16", "BF16"):
        raise UnsupportedError(
            f"{kind.name} is not quantized and does not fit float32", hint="read it as it is"
        )
    return blocks.reshape(-1).view(kind.dtype).astype(np.float32).reshape(tuple(shape))


def _dequantize_elsewhere(blocks: NDArray[np.uint8], kind: GgmlType) -> NDArray[np.float32]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise UnsupportedError(
            f"{kind.name} ({kind.note}) is read by the gguf package, which is not installed",
            found=kind.name,
            hint="pip install gguf",
        ) from None
    try:
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, GGMLQuantizationType[kind.name])
    except (KeyError, NotImplementedError):
        raise UnsupportedError(
            f"the installed gguf package cannot read {kind.name} ({kind.note})", found=kind.name
        ) from None
    return np.asarray(values, np.float32)


def _target(w: BlockTensor, type_name: str | GgmlType | None) -> BlockFormat:
    reason = can_hold(w.scheme, w.shape, w.axis)
    if reason is not None:
        raise UnsupportedError(reason, found=w.scheme.name)
    fmt = FORMATS[str(spec_for(w.scheme))] if type_name is None else format_of(type_name)
    if not same_numbers(fmt.scheme, w.scheme):
        raise SchemeError(
            f"{fmt.type.name} holds {fmt.scheme.describe()}, the tensor is {w.scheme.name} "
            f"({w.scheme.describe()})",
            found=w.scheme.name,
            hint=f"this tensor goes into {spec_for(w.scheme)}",
        )
    return fmt


def _check_parameters(w: BlockTensor) -> None:
    """Scales and minimums mean to ggml what they mean here."""
    w.validate()
    if w.scheme.is_mx:
        bad, what = int(np.count_nonzero(w.row_scales.view(np.uint8) == 255)), "blocks are NaN"
    elif w.row_offsets is not None:
        bad, what = int(np.count_nonzero(~np.isfinite(w.row_offsets))), "minimums are NaN or infinite"
    else:
        return
    if bad:
        raise InputError(f"{bad} {what}", found=bad, field="scales", rule="ggml's blocks cannot say NaN")


def _as_blocks(data: NDArray[np.uint8], kind: GgmlType, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """uint8 `(n_blocks, block_bytes)`, a view where possible."""
    uneven = explain_length(shape, kind.block_size)
    if uneven is not None:
        raise InputError(
            uneven, rule=f"rows of {kind.name} are whole blocks of {kind.block_size}", found=shape
        )
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    need = math.prod(shape) // kind.block_size * kind.block_bytes
    if flat.size != need:
        raise InputError(
            f"{flat.size:,} bytes for {kind.name} of shape {shape}, which takes {need:,}",
            rule="bytes = elements / block size * bytes per block",
            found=flat.size,
        )
    return flat.reshape(-1, kind.block_bytes)


def _stored_dtype(fmt: BlockFormat) -> Any:
    return np.dtype("u1") if fmt.scheme.is_mx else np.dtype("<u2")


def _parameter(blocks: NDArray[np.uint8], at: int, fmt: BlockFormat) -> NDArray[Any]:
    """Scales or minimums as bit patterns: uint8 or uint16 `(n_blocks,)`, a copy."""
    out = np.empty((len(blocks), fmt.scale_bytes), np.uint8)
    copy_bytes(blocks[:, at : at + fmt.scale_bytes], out)
    return out.reshape(-1).view(_stored_dtype(fmt))


def _read_codes(blocks: NDArray[np.uint8], fmt: BlockFormat) -> NDArray[np.uint8]:
    """Canonical packed codes, uint8 `(n_blocks, bytes)`."""
    codes = blocks[:, fmt.codes_at :]
    if fmt.code_bits == 4:
        out = np.empty((len(blocks), 16), np.uint8)
        halves_to_pairs(codes, out, fmt.bias * 0x11)
        return out
    out = np.empty((len(blocks), 32), np.uint8)
    if fmt.code_bits == 8:
        copy_bytes(codes, out)
    else:
        read_five_bits(codes, blocks[:, fmt.high_at : fmt.codes_at], out, fmt.bias)
    return out


def _write_codes(packed: NDArray[np.uint8], out: NDArray[np.uint8], fmt: BlockFormat) -> None:
    codes = out[:, fmt.codes_at :]
    if fmt.code_bits == 4:
        pairs_to_halves(packed, codes, fmt.bias * 0x11)
    elif fmt.code_bits == 8:
        copy_bytes(packed, codes)
    else:
        check_five_bits(packed, fmt.type.name, fmt.bias)
        write_five_bits(packed, codes, out[:, fmt.high_at : fmt.codes_at], fmt.bias)

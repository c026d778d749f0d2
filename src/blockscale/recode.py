"""Changing the scheme of a tensor: without changing a value where possible, else with the error stated.

Lossless steps: other names of the same numbers; signed codes without zero point and unsigned ones with the
middle as zero point; wider codes; wider scales; smaller blocks (scales repeat); minimums that are multiples
of their scale; MX codes that are integers times a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .dialects.carriers import as_signed, as_unsigned
from .dialects.ggml_minimum import with_zero_points, zero_point_schemes
from .errors import BlockscaleError, InputError
from .packing import pack_codes, unpack_codes
from .quantize import quantize
from .schemes import Scheme, scheme
from .tensor import BlockTensor

_SLAB_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Recoded:
    """A tensor under another scheme.

    Attributes:
        tensor: the tensor.
        exact: whether every decoded value is bit for bit the old one.
        largest_error: largest difference of a value.
        mean_error: mean absolute difference.
        reason: why it is not exact; empty if it is.
    """

    tensor: BlockTensor
    exact: bool
    largest_error: float = 0.0
    mean_error: float = 0.0
    reason: str = ""


class NotExact(Exception):
    """A scheme cannot hold the values; the text says why."""


def same_numbers(a: Scheme, b: Scheme) -> bool:
    """True if two schemes mean the same by the same codes, whatever their names and rules."""
    return replace(a, name="", default_rule="") == replace(b, name="", default_rule="")


def recode(w: BlockTensor, target: Scheme, *, rule: str | None = None) -> Recoded:
    """Bring a tensor under a scheme, exactly if possible.

    Args:
        w: the tensor.
        target: the scheme it gets; the blocked axis stays.
        rule: how scales are chosen where values must be quantized again; None: the scheme's default.

    Returns:
        The tensor, whether it is exact, and if not, the errors and the reason.

    Raises:
        BlockscaleError: values that the scheme cannot hold at all.
    """
    try:
        return Recoded(recode_exactly(w, target), True)
    except NotExact as error:
        reason = str(error)
    if w.scheme.offset == "minimum" and target in zero_point_schemes(w.scheme):
        new = with_zero_points(w, target).tensor
    else:
        new = quantize(w.dequantize(), target, axis=w.axis, rule=rule)
    largest, mean = difference(w, new)
    return Recoded(new, largest == 0, largest, mean, reason if largest else "")


def recode_exactly(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Bring a tensor under a scheme without changing a value.

    Raises:
        NotExact: the scheme cannot hold the values; the text says why.
    """
    if same_numbers(w.scheme, target):
        return w if w.scheme == target else replace(w, scheme=target)
    if target.is_mx:
        raise NotExact(f"{w.scheme.name} values are no {target.name} values")
    for step in (
        _from_mx,
        _from_minimum,
        _to_minimum,
        _signedness,
        _smaller_blocks,
        _wider_codes,
        _other_scale,
    ):
        w = step(w, target)
    if not same_numbers(w.scheme, target):
        raise NotExact(f"{w.scheme.describe()} is not {target.describe()}")
    return replace(w, scheme=target)


def difference(a: BlockTensor, b: BlockTensor) -> tuple[float, float]:
    """Largest and mean absolute difference of the decoded values of two tensors of one shape and axis."""
    largest, total = 0.0, 0.0
    step = max(1, _SLAB_ELEMENTS // max(1, a.grid.length))
    for begin in range(0, a.grid.rows, step):
        x, y = (_rows(w, begin, begin + step).dequantize().astype(np.float64) for w in (a, b))
        with np.errstate(invalid="ignore"):
            error = np.abs(x - y)
        error[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        largest = max(largest, float(error.max(initial=0.0)))
        total += float(error.sum())
    return largest, total / a.size if a.size else 0.0


def _rows(w: BlockTensor, begin: int, end: int) -> BlockTensor:
    """Some canonical rows as a matrix."""
    rows = slice(begin, min(end, w.grid.rows))
    grid = BlockGrid((rows.stop - rows.start, w.grid.length), 1, w.grid.block_size)
    offsets = None if w.row_offsets is None else w.row_offsets[rows]
    return BlockTensor(grid, w.scheme, w.packed[rows], w.row_scales[rows], offsets)


def _from_mx(w: BlockTensor, target: Scheme) -> BlockTensor:
    """MX integers and E2M1 (twice its value is an integer) as int8 codes with a power of two as scale."""
    if not w.scheme.is_mx:
        return w
    shift = {"float4_e2m1": -1, "int8": -6, "int4": -2}.get(w.scheme.element.name)
    if shift is None or target.element.name != "int8" or target.offset != "none":
        raise NotExact(f"{w.scheme.name} values are no {target.name} values")
    values = w.scheme.element.values * np.float32(2.0 ** (w.scheme.value_exponent - shift))
    table = values.astype(np.int8).view(np.uint8)
    patterns = unpack_codes(w.packed, w.scheme.element.bits, w.grid.padded_length)
    codes = table[patterns]
    if (np.signbit(values) & (values == 0))[patterns].any():
        raise NotExact("integers have no minus zero")
    exponents = w.row_scales.view(np.uint8).astype(np.int32)
    if (exponents == 255).any():
        raise NotExact("a NaN block has no affine scale")
    scales = np.ldexp(np.float64(1), exponents - 127 + shift)
    return _with_scales(
        w, scheme("int8", block_size=w.block_size, scale=target.scale.name), pack_codes(codes, 8), scales
    )


def _from_minimum(w: BlockTensor, target: Scheme) -> BlockTensor:
    if w.scheme.offset != "minimum":
        return w
    wanted = next((s for s in zero_point_schemes(w.scheme) if same_numbers(s, target)), None)
    if wanted is None:
        raise NotExact(f"{w.scheme.name} adds a minimum per block, {target.name} does not")
    found = with_zero_points(w, wanted)
    if found.largest_error:
        blocks = w.grid.n_blocks - found.exact_blocks
        raise NotExact(f"the minimum is no multiple of the scale in {blocks} of {w.grid.n_blocks} blocks")
    return found.tensor


def _to_minimum(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Zero points as minimums, `m = -s * z`, where float16 holds them: then `s * q + m` is `s * (q - z)`."""
    if target.offset != "minimum" or w.scheme.offset == "minimum":
        return w
    if w.scheme.scale != target.scale:
        raise NotExact(f"{w.scheme.scale.name} scales are no {target.scale.name} scales")
    w = as_unsigned(w)
    zeros = np.zeros((1, 1)) if w.row_offsets is None else w.row_offsets.astype(np.float64)
    wanted = -w.row_scales.astype(np.float64) * zeros
    with np.errstate(over="ignore"):
        minimums = wanted.astype(target.scale.dtype)
    wrong = int(np.count_nonzero(minimums.astype(np.float64) != wanted))
    if wrong:
        raise NotExact(f"scale times zero point does not fit float16 in {wrong} of {wanted.size} blocks")
    return BlockTensor(
        w.grid, replace(w.scheme, offset="minimum"), w.packed, w.row_scales, minimums, w.report
    )


def _signedness(w: BlockTensor, target: Scheme) -> BlockTensor:
    if w.scheme.offset == target.offset and w.scheme.element.kind == target.element.kind:
        return w
    try:
        return as_unsigned(w) if target.element.kind == "uint" else as_signed(w)
    except BlockscaleError as error:
        raise NotExact(error.message) from None


def _smaller_blocks(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Cut blocks: each part keeps the scale and offset of the whole."""
    if w.block_size == target.block_size:
        return w
    if w.block_size < target.block_size:
        raise NotExact(f"blocks of {w.block_size} have more scales than blocks of {target.block_size}")
    times = w.block_size // target.block_size
    grid = BlockGrid(w.grid.shape, w.grid.axis, target.block_size)
    bits = w.scheme.element.bits
    packed = w.packed
    if grid.padded_length != w.grid.padded_length:
        codes = unpack_codes(packed, bits, w.grid.padded_length)[:, : grid.padded_length]
        packed = pack_codes(np.ascontiguousarray(codes), bits)

    def repeat(a: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.repeat(a, times, axis=1)[:, : grid.blocks_per_row])

    offsets = None if w.row_offsets is None else repeat(w.row_offsets)
    smaller = replace(w.scheme, block_size=target.block_size)
    return BlockTensor(grid, smaller, packed, repeat(w.row_scales), offsets, w.report)


def _wider_codes(w: BlockTensor, target: Scheme) -> BlockTensor:
    old, new = w.scheme.element, target.element
    if old.bits == new.bits:
        return w
    codes = unpack_codes(w.packed, old.bits, w.grid.padded_length)
    values = old.values[codes]
    padding = np.arange(w.grid.padded_length) >= w.grid.length
    if values.size and (values.min() < new.min or values.max() > new.max):
        raise NotExact(f"{new.name} holds {new.min:g} .. {new.max:g}, the codes reach beyond")
    wide = values.astype(np.int16).astype(np.uint8) & np.uint8((1 << new.bits) - 1)
    wide[:, padding] = 0
    row = replace(w.scheme, element=new)
    return replace(w, scheme=row, packed=pack_codes(wide, new.bits))


def _other_scale(w: BlockTensor, target: Scheme) -> BlockTensor:
    if w.scheme.scale == target.scale:
        return w
    return _with_scales(w, replace(w.scheme, scale=target.scale), w.packed, w.row_scales.astype(np.float64))


def _with_scales(
    w: BlockTensor, row: Scheme, packed: NDArray[np.uint8], scales: NDArray[np.float64]
) -> BlockTensor:
    with np.errstate(over="ignore"):
        stored = scales.astype(row.scale.dtype)
    wrong = int(np.count_nonzero(stored.astype(np.float64) != scales))
    if wrong:
        raise NotExact(f"{wrong} of {scales.size} scales do not fit {row.scale.name}")
    return BlockTensor(w.grid, row, packed, stored, w.row_offsets, w.report)


def pick_exact(
    w: BlockTensor, candidates: tuple[Scheme, ...]
) -> tuple[BlockTensor | None, dict[Scheme, str]]:
    """The first candidate that holds the tensor exactly, and why those before it do not."""
    reasons: dict[Scheme, str] = {}
    for target in candidates:
        try:
            return recode_exactly(w, target), reasons
        except NotExact as error:
            reasons[target] = str(error)
    if not candidates:
        raise InputError("no scheme of the target fits this tensor")
    return None, reasons

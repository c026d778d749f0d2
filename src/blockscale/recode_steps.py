"""The lossless steps from one scheme to another; each does its part, or nothing, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .dialects.carriers import as_unsigned
from .dialects.ggml_minimum import with_zero_points, zero_point_schemes
from .errors import BlockscaleError
from .packing import pack_codes, unpack_codes
from .schemes import Scheme, scheme
from .tensor import BlockTensor

_CHUNK = 1 << 14  # blocks looked at together: what stays in cache
ZeroPoints = tuple[int, int]
"""Smallest and largest zero point that a target stores."""


class NotExact(Exception):
    """A scheme cannot hold the values; the text says why."""


class UnevenMinimums(NotExact):
    """Minimums are no multiples of their scales: so it is for every target that takes the same form."""


def same_numbers(a: Scheme, b: Scheme) -> bool:
    """True if two schemes mean the same by the same codes, whatever their names and rules."""
    return replace(a, name="", default_rule="") == replace(b, name="", default_rule="")


def from_mx(w: BlockTensor, target: Scheme) -> BlockTensor:
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


def from_minimum(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Minimums as zero points, where they are multiples of their scale."""
    if w.scheme.offset != "minimum":
        return w
    if not has_fit(w):
        raise NotExact("minimums become zero points in whole blocks along the last dimension only")
    wanted = minimum_form(w.scheme, target)
    if wanted is None:
        raise NotExact(f"{w.scheme.name} adds a minimum per block, {target.name} does not")
    blocks, lost = w.grid.n_blocks, _uneven_minimums(w, wanted)
    if lost:
        raise UnevenMinimums(f"the minimum is no multiple of the scale in {lost:,} of {blocks:,} blocks")
    found = with_zero_points(w, wanted)
    if found.largest_error:
        lost = blocks - found.exact_blocks
        raise UnevenMinimums(f"the minimum is no multiple of the scale in {lost:,} of {blocks:,} blocks")
    _check_zeros(w, found.tensor)
    return found.tensor


def minimum_form(row: Scheme, target: Scheme) -> Scheme | None:
    """The scheme with zero points through which one with minimums gets to a target; None: no way."""
    if row.offset != "minimum" or target.offset == "minimum":
        return None
    forms = zero_point_schemes(row)
    return next((s for s in forms if same_numbers(s, target)), forms[0])


def has_fit(w: BlockTensor) -> bool:
    """Whether `with_zero_points` takes the tensor."""
    whole = not w.grid.has_partial_blocks and w.grid.axis == len(w.grid.shape) - 1
    return w.scheme.offset == "minimum" and whole


def _uneven_minimums(w: BlockTensor, wanted: Scheme) -> int:
    """How many blocks surely have a minimum that is no multiple of their scale; a quick look at scales alone.

    Eight-bit codes may be up to 17 times as fine, so that fractions of the scale will do as well. Blocks of
    one value need no multiple.
    """
    if w.row_offsets is None:
        return 0
    finest = {(4, 4): 1, (4, 8): 17, (8, 8): 8}.get((w.scheme.element.bits, wanted.element.bits), 17)
    scales, minimums = w.row_scales.reshape(-1), w.row_offsets.reshape(-1)
    codes, found = w.packed.reshape(w.grid.n_blocks, -1), 0
    for begin in range(0, scales.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        uneven = begin + np.flatnonzero(_is_uneven(scales[part], minimums[part], finest))
        found += int(np.count_nonzero((codes[uneven] != codes[uneven, :1]).any(axis=1)))
    return found


def _is_uneven(scales: NDArray[Any], minimums: NDArray[Any], finest: int) -> NDArray[np.bool_]:
    steps = minimums.astype(np.float64) / scales.astype(np.float64)
    slack, uneven = 1e-5 * (np.abs(steps) + 32), np.ones(steps.shape, bool)
    for k in range(1, finest + 1):
        multiple = k * steps
        uneven &= np.abs(multiple - np.rint(multiple)) > k * slack
    return uneven


def to_minimum(w: BlockTensor, target: Scheme) -> BlockTensor:
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
        raise NotExact(f"scale times zero point does not fit float16 in {wrong:,} of {wanted.size:,} blocks")
    row = replace(w.scheme, offset="minimum")
    new = BlockTensor(w.grid, row, w.packed, w.row_scales, minimums, w.report)
    _check_zeros(w, new)
    return new


def _check_zeros(w: BlockTensor, new: BlockTensor) -> None:
    """Negative scales make minus zeros, which a sum with a minimum does not have."""
    for a, b in ((w, new), (new, w)):
        if (a.row_scales < 0).any():
            x, y = a.dequantize(), b.dequantize()
            if (np.signbit(x) != np.signbit(y)).any():
                raise NotExact("scales are negative, and zeros would change their sign")


def signedness(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Signed codes as unsigned ones with the middle as zero point; zero points folded into signed codes."""
    if w.scheme.offset == target.offset and w.scheme.element.kind == target.element.kind:
        return w
    if target.offset == "none":
        return _fold_zero_points(w, target)
    try:
        return as_unsigned(w)
    except BlockscaleError as error:
        raise NotExact(error.message) from None


def _fold_zero_points(w: BlockTensor, target: Scheme) -> BlockTensor:
    """`s * (q - z)` with `q - z` as the code."""
    new = target.element
    if w.row_offsets is None or w.scheme.is_mx or w.scheme.offset != "zero_point" or new.kind != "int":
        raise NotExact(f"{w.scheme.describe()} is not symmetric, {target.name} is")
    old, grid = w.scheme.element, w.grid
    values = old.values.astype(np.int64)[unpack_codes(w.packed, old.bits, grid.padded_length)]
    zeros = np.repeat(w.row_offsets.astype(np.int64), grid.block_size, axis=1)
    codes = values - zeros[:, : grid.padded_length]
    codes[:, grid.length :] = 0
    if codes.size and not new.min <= codes.min() <= codes.max() <= new.max:
        raise NotExact(
            f"codes less zero points reach from {codes.min()} to {codes.max()}, {new.name} holds "
            f"{new.min:g} .. {new.max:g}"
        )
    row = scheme(f"int{new.bits}", block_size=w.block_size, scale=w.scheme.scale.name)
    return BlockTensor(grid, row, _packed(codes, new.bits), w.row_scales, None, w.report)


def _packed(codes: NDArray[np.int64], bits: int) -> NDArray[np.uint8]:
    return pack_codes(codes.astype(np.uint8) & np.uint8((1 << bits) - 1), bits)


def smaller_blocks(w: BlockTensor, target: Scheme) -> BlockTensor:
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


def wider_codes(w: BlockTensor, target: Scheme) -> BlockTensor:
    """More bits for the same codes; fewer, if they are small."""
    old, new = w.scheme.element, target.element
    if old.bits == new.bits:
        return w
    codes = old.values.astype(np.int64)[unpack_codes(w.packed, old.bits, w.grid.padded_length)]
    if codes.size and (codes.min() < new.min or codes.max() > new.max):
        raise NotExact(f"{new.name} holds {new.min:g} .. {new.max:g}, the codes reach beyond")
    codes[:, w.grid.length :] = 0
    return replace(w, scheme=replace(w.scheme, element=new), packed=_packed(codes, new.bits))


def fitting_zero_points(w: BlockTensor, allowed: ZeroPoints) -> BlockTensor:
    """Codes and zero points raised together until the target stores the zero points."""
    if w.row_offsets is None or w.row_offsets.size == 0 or w.scheme.offset != "zero_point":
        return w
    low, high = int(w.row_offsets.min()), int(w.row_offsets.max())
    if allowed[0] <= low and high <= allowed[1]:
        return w
    element, up = w.scheme.element, allowed[0] - low
    codes = element.values.astype(np.int64)[unpack_codes(w.packed, element.bits, w.grid.padded_length)]
    if up <= 0 or high + up > allowed[1] or codes.max(initial=0) + up > element.max:
        raise NotExact(
            f"zero points reach from {low} to {high}, the target stores {allowed[0]} .. {allowed[1]}"
        )
    codes += up
    codes[:, w.grid.length :] = 0
    return replace(w, packed=_packed(codes, element.bits), row_offsets=w.row_offsets + np.int32(up))


def other_scale(w: BlockTensor, target: Scheme) -> BlockTensor:
    """Scales of another type, where it holds them."""
    if w.scheme.scale == target.scale or w.scheme.offset == "minimum":
        return w
    return _with_scales(w, replace(w.scheme, scale=target.scale), w.packed, w.row_scales.astype(np.float64))


def _with_scales(
    w: BlockTensor, row: Scheme, packed: NDArray[np.uint8], scales: NDArray[np.float64]
) -> BlockTensor:
    with np.errstate(over="ignore"):
        stored = scales.astype(row.scale.dtype)
    wrong = int(np.count_nonzero(stored.astype(np.float64) != scales))
    if wrong:
        raise NotExact(f"{wrong:,} of {scales.size:,} scales do not fit {row.scale.name}")
    return BlockTensor(w.grid, row, packed, stored, w.row_offsets, w.report)

"""The same numbers with signed or unsigned codes: int4 without zero points, uint4 with z = 8 everywhere."""

from __future__ import annotations

import numpy as np

from ..blocks import BlockGrid
from ..errors import UnsupportedError
from ..schemes import scheme
from ..tensor import BlockTensor
from .word_write import is_symmetric
from .words import U8, clear_padding


def as_signed(w: BlockTensor) -> BlockTensor:
    """Subtract the middle code from codes and zero points: uint4 with z = 8 becomes int4 without zero points.

    The values are the same, bit for bit. A tensor that is signed already is returned as it is.

    Raises:
        UnsupportedError: zero points that are not all the middle code.
    """
    element = w.scheme.element
    if element.kind == "int" and w.scheme.offset == "none":
        return w
    if element.kind != "uint" or not is_symmetric(w):
        raise UnsupportedError(
            f"{w.scheme.describe()} is not symmetric",
            rule="only codes whose zero point is the middle everywhere have a signed form",
        )
    row = scheme(f"int{element.bits}", block_size=w.block_size, scale=w.scheme.scale.name)
    return BlockTensor(w.grid, row, _flip(w.packed, w.grid, element.bits), w.row_scales)


def as_unsigned(w: BlockTensor) -> BlockTensor:
    """Add the middle code to codes and zero points: int4 becomes uint4 with z = 8 (or z + 8).

    The values are the same, bit for bit. A tensor that is unsigned already is returned as it is.

    Raises:
        UnsupportedError: codes that are no integers, MX scales, minimums.
    """
    element = w.scheme.element
    if element.kind == "uint" and not w.scheme.is_mx:
        return w
    if element.kind != "int" or w.scheme.is_mx or w.scheme.offset == "minimum":
        raise UnsupportedError(
            f"{w.scheme.describe()} has no unsigned form", rule="affine schemes with integer codes have one"
        )
    row = scheme(f"uint{element.bits}", block_size=w.block_size, scale=w.scheme.scale.name, symmetric=False)
    middle = np.int32(1 << (element.bits - 1))
    zeros = np.full(w.row_scales.shape, middle) if w.row_offsets is None else w.row_offsets + middle
    return BlockTensor(w.grid, row, _flip(w.packed, w.grid, element.bits), w.row_scales, zeros)


def _flip(packed: U8, grid: BlockGrid, bits: int) -> U8:
    """Change the sign bit of every code: adds or subtracts the middle, whatever the code."""
    sign = sum(1 << (at + bits - 1) for at in range(0, 8, bits))
    out = packed ^ np.uint8(sign)
    clear_padding(out, grid.length, bits)
    return out

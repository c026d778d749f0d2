"""Cutting a plain tensor into slabs whose quantized bytes have places of their own in a `.hrry` file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint
from .errors import NonFiniteError
from .hurray import encode_blocks
from .packing import packed_size, unit_codes
from .quantize import find_nonfinite, nonfinite_error
from .tensor import BlockTensor

# Source bytes of a slab: enough for threads to work on, little enough to keep memory flat.
SLAB_BYTES = 16 << 20
# Blocks along an earlier axis: larger slabs, so that each read or write of a line is worth its call.
COLUMN_SLAB_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class Slab:
    """Values to quantize together.

    Attributes:
        x: the values.
        axis: the blocked axis of x.
        at: byte of the code buffer where its codes begin.
        line: distance of its lines in the code buffer, 0 if they lie one after the other.
        first_block: block of the tensor, in the order of the file, that its first block is.
        row_blocks: distance of the first blocks of its rows (lines along the axis), 0 if its blocks lie one
            after the other.
    """

    x: NDArray[Any]
    axis: int
    at: int
    line: int
    first_block: int
    row_blocks: int = 0

    def places(self, w: BlockTensor) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """Buffer, offset and bytes of the quantized slab."""
        codes, *parameters = encode_blocks(w)
        count = w.grid.padded_length if self.line else 1
        for at, data in _pieces(codes, count, self.at, self.line):
            yield "0", at, data
        for i, (data, size) in enumerate(zip(parameters, (w.scheme.scale.bits // 8, 4), strict=False), 1):
            count = w.grid.rows if self.row_blocks else 1
            for at, piece in _pieces(data, count, self.first_block * size, self.row_blocks * size):
                yield str(i), at, piece


def _pieces(
    data: NDArray[np.uint8], count: int, at: int, distance: int
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """So many pieces of one size, at a distance from each other; all at once where they touch."""
    if count == 1 or data.size == count * distance:
        yield at, data
        return
    for i, piece in enumerate(data.reshape(count, -1)):
        yield at + i * distance, piece


def cut(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int) -> Iterator[Slab]:
    """The slabs of a plain tensor; the whole tensor where parts have no places of their own."""
    if grid.rows * grid.length == 0:
        return
    inner = math.prod(grid.shape[grid.axis + 1 :])
    if grid.axis == len(grid.shape) - 1:
        yield from _row_slabs(ckpt, name, grid, bits)
    elif inner > 2 * grid.length and inner % unit_codes(bits) == 0:
        yield from _column_slabs(ckpt, name, grid, bits, inner)
    else:
        yield from _band_slabs(ckpt, name, grid, bits, inner)


def _row_slabs(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int) -> Iterator[Slab]:
    """Blocks along the last axis: rows lie one after the other in every buffer; long ones are cut."""
    length, padded, unit = grid.length, grid.padded_length, unit_codes(bits)
    step = max(1, SLAB_BYTES // (length * _itemsize(ckpt, name)))
    aligned = unit // math.gcd(padded, unit)  # rows that end on a byte
    if step == 1 and aligned == 1:
        yield from _row_pieces(ckpt, name, grid, bits)
        return
    step = -(-step // aligned) * aligned
    for begin in range(0, grid.rows, step):
        x = ckpt.read_rows(name, begin, min(begin + step, grid.rows), length)
        yield Slab(x, 1, packed_size(begin * padded, bits), 0, begin * grid.blocks_per_row)


def _row_pieces(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int) -> Iterator[Slab]:
    """Rows longer than a slab, each cut between blocks."""
    length, size = grid.length, max(grid.block_size, unit_codes(bits))
    step = max(1, SLAB_BYTES // (_itemsize(ckpt, name) * size)) * size
    for row in range(grid.rows):
        for c in range(0, length, step):
            x = ckpt.read_columns(name, (row, row + 1), length, (c, min(c + step, length)))
            at = packed_size(row * grid.padded_length + c, bits)
            yield Slab(x, 1, at, 0, row * grid.blocks_per_row + c // grid.block_size)


def _band_slabs(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int, inner: int) -> Iterator[Slab]:
    """Blocks along an earlier axis: some blocks of all the lines of a `(length, inner)` slice at a time."""
    outer_step = unit_codes(bits) // math.gcd(grid.padded_length * inner, unit_codes(bits))
    if outer_step > 1:  # slices that do not end on bytes: blocks of two or four small codes
        yield Slab(np.asarray(ckpt[name]), grid.axis, 0, 0, 0)
        return
    size = max(grid.block_size, unit_codes(bits))
    step = max(1, COLUMN_SLAB_BYTES // (inner * _itemsize(ckpt, name) * size)) * size
    for outer in range(grid.rows // inner):
        for r in range(0, grid.length, step):
            rows = (outer * grid.length + r, outer * grid.length + min(r + step, grid.length))
            at = packed_size((outer * grid.padded_length + r) * inner, bits)
            block = outer * inner * grid.blocks_per_row + r // grid.block_size
            yield Slab(ckpt.read_rows(name, *rows, inner), 0, at, 0, block, grid.blocks_per_row)


def _column_slabs(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int, inner: int) -> Iterator[Slab]:
    """The same, some lines at a time: for many short ones."""
    width = max(8, COLUMN_SLAB_BYTES // (grid.length * _itemsize(ckpt, name)) // 8 * 8)
    for outer in range(grid.rows // inner):
        rows = (outer * grid.length, (outer + 1) * grid.length)
        for c in range(0, inner, width):
            x = ckpt.read_columns(name, rows, inner, (c, min(c + width, inner)))
            at = packed_size(outer * grid.padded_length * inner + c, bits)
            yield Slab(x, 0, at, packed_size(inner, bits), (outer * inner + c) * grid.blocks_per_row)


def _itemsize(ckpt: Checkpoint, name: str) -> int:
    dtype = ckpt.plain_dtype(name)
    return dtype.itemsize if dtype is not None else 8


def nonfinite_in(ckpt: Checkpoint, name: str, grid: BlockGrid, error: NonFiniteError) -> NonFiniteError:
    """The error for the whole tensor instead of a slab: total count, first index."""
    size = math.prod(grid.shape)
    count, first, value = 0, 0, 0.0
    step = SLAB_BYTES // 8
    for begin in range(0, size, step):
        found = find_nonfinite(ckpt.read_rows(name, begin, min(begin + step, size), 1))
        if found is not None and count == 0:
            first, value = begin + found[1], found[2]
        count += found[0] if found is not None else 0
    if count == 0:
        return error
    index = tuple(int(i) for i in np.unravel_index(first, grid.shape))
    return nonfinite_error(count, size, index, value, error.hint)

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
from .hurray import encode_tensor
from .quantize import find_nonfinite, nonfinite_error
from .tensor import BlockTensor

# Source bytes of a slab: enough for threads to work on, little enough to keep memory flat.
SLAB_BYTES = 16 << 20
# Blocks along an earlier axis: wider slabs, so that each read of a line is worth its call.
COLUMN_SLAB_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class Slab:
    """Values to quantize together.

    Attributes:
        x: the values.
        axis: the blocked axis of x.
        first_row: row of the tensor (a line along its axis) that its first line is.
        at: byte of the code buffer where its codes begin.
        line: distance of its lines in the code buffer, 0 if they lie one after the other.
    """

    x: NDArray[Any]
    axis: int
    first_row: int
    at: int
    line: int

    def places(self, w: BlockTensor) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """Buffer, offset and bytes of the quantized slab."""
        codes, *parameters = encode_tensor(w)[1]
        for at, data in self._lines(codes, w):
            yield "0", at, data
        blocks = w.grid.blocks_per_row
        for i, (data, size) in enumerate(zip(parameters, (w.scheme.scale.bits // 8, 4), strict=False), 1):
            yield str(i), self.first_row * blocks * size, data

    def _lines(self, codes: NDArray[np.uint8], w: BlockTensor) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """At once, or line by line into wider lines."""
        if self.line == 0 or codes.size == self.line * w.grid.padded_length:
            yield self.at, codes
            return
        for i, data in enumerate(codes.reshape(w.grid.padded_length, -1)):
            yield self.at + i * self.line, data


def cut(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int) -> Iterator[Slab]:
    """The slabs of a plain tensor; the whole tensor where parts have no places of their own."""
    if grid.rows * grid.length == 0:
        return
    inner = math.prod(grid.shape[grid.axis + 1 :])
    is_last = grid.axis == len(grid.shape) - 1
    line = (grid.padded_length if is_last else inner) * bits
    if line % (24 if bits == 6 else 8):
        yield Slab(np.asarray(ckpt[name]), grid.axis, 0, 0, 0)
    elif is_last:
        yield from _row_slabs(ckpt, name, grid, bits)
    else:
        yield from _column_slabs(ckpt, name, grid, bits, inner)


def _row_slabs(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int) -> Iterator[Slab]:
    """Blocks along the last axis: rows lie one after the other in every buffer."""
    step = max(1, SLAB_BYTES // (grid.length * _itemsize(ckpt, name)))
    for begin in range(0, grid.rows, step):
        x = ckpt.read_rows(name, begin, min(begin + step, grid.rows), grid.length)
        yield Slab(x, 1, begin, begin * grid.row_bytes(bits), 0)


def _column_slabs(ckpt: Checkpoint, name: str, grid: BlockGrid, bits: int, inner: int) -> Iterator[Slab]:
    """Blocks along an earlier axis: some columns of a `(length, inner)` slice at a time."""
    line = inner * bits // 8
    width = max(8, COLUMN_SLAB_BYTES // (grid.length * _itemsize(ckpt, name)) // 8 * 8)
    for outer in range(grid.rows // inner):
        rows = (outer * grid.length, (outer + 1) * grid.length)
        for c in range(0, inner, width):
            x = ckpt.read_columns(name, rows, inner, (c, min(c + width, inner)))
            at = outer * grid.padded_length * line + c * bits // 8
            yield Slab(x, 0, outer * inner + c, at, line)


def _itemsize(ckpt: Checkpoint, name: str) -> int:
    dtype = ckpt.plain_dtype(name)
    return dtype.itemsize if dtype is not None else 8


def nonfinite_in(ckpt: Checkpoint, name: str, grid: BlockGrid, error: NonFiniteError) -> NonFiniteError:
    """The error for the whole tensor instead of a slab: total count, first index."""
    width, rows = grid.shape[-1], math.prod(grid.shape[:-1])
    count, first, value = 0, 0, 0.0
    step = max(1, SLAB_BYTES // (width * 8))
    for begin in range(0, rows, step):
        found = find_nonfinite(ckpt.read_rows(name, begin, min(begin + step, rows), width))
        if found is not None and count == 0:
            first, value = begin * width + found[1], found[2]
        count += found[0] if found is not None else 0
    if count == 0:
        return error
    index = tuple(int(i) for i in np.unravel_index(first, grid.shape))
    return nonfinite_error(count, math.prod(grid.shape), index, value)

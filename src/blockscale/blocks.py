"""Block geometry: counts, padding and order for any rank, axis and block size.

A tensor of shape `shape` with blocks along `axis` is seen as `rows x length`: the other dimensions in order
make the rows, the axis the length (Hurray format, 3.3: block index = row * blocks_per_row + i // K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import is_integer
from .errors import AxisError, BlockSizeError, InputError
from .packing import packed_size

MAX_RANK = 64
_PADDING = 32


@dataclass(frozen=True)
class BlockGrid:
    """Where the blocks of a tensor lie.

    Attributes:
        shape: shape of the tensor.
        axis: the blocked axis, 0 <= axis < rank.
        block_size: elements per block, a power of two >= 2.
        length: elements along the axis.
        rows: number of lines along the axis.
        blocks_per_row: blocks along the axis, the partial last one included.
    """

    shape: tuple[int, ...]
    axis: int
    block_size: int
    length: int = field(init=False, repr=False, compare=False)
    rows: int = field(init=False, repr=False, compare=False)
    blocks_per_row: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find what is asked for again and again."""
        length = self.shape[self.axis]
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "rows", math.prod(self.outer_shape))
        object.__setattr__(self, "blocks_per_row", -(-length // self.block_size))

    @property
    def n_blocks(self) -> int:
        """Blocks in the whole tensor."""
        return self.rows * self.blocks_per_row

    @property
    def padded_length(self) -> int:
        """Length along the axis rounded up to whole blocks."""
        return self.blocks_per_row * self.block_size

    @property
    def has_partial_blocks(self) -> bool:
        """True if the last block of each row is not full."""
        return self.length % self.block_size != 0

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """The tensor's shape without the axis."""
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The tensor's shape with the axis replaced by the number of blocks along it."""
        return (*self.shape[: self.axis], self.blocks_per_row, *self.shape[self.axis + 1 :])

    def row_bytes(self, bits: int) -> int:
        """Bytes of one packed row in the canonical form, padded to whole blocks."""
        return packed_size(self.padded_length, bits)


def block_grid(shape: tuple[int, ...], axis: int, block_size: int) -> BlockGrid:
    """Check the arguments and make a BlockGrid; negative axes count from the end.

    Raises:
        InputError: rank 0 or above 64.
        AxisError: the axis is outside the tensor.
        BlockSizeError: not a power of two >= 2.
    """
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK:
        raise InputError(
            f"a tensor of rank {rank} has no blocks", found=rank, rule=f"rank is 1 .. {MAX_RANK}"
        )
    if not is_integer(axis) or not -rank <= axis < rank:
        raise AxisError(
            f"axis {axis!r} is outside a tensor of shape {tuple(shape)}",
            found=axis,
            rule=f"-{rank} <= axis < {rank}",
        )
    check_block_size(block_size)
    return BlockGrid(tuple(int(n) for n in shape), int(axis) % rank, int(block_size))


def check_padding(grid: BlockGrid) -> None:
    """BlockSizeError for blocks that are mostly padding, on the whole: they would take memory for nothing."""
    if grid.rows * grid.padded_length > _PADDING * grid.rows * grid.length + (1 << 24):
        enough = 1 << max(1, (grid.length - 1).bit_length())
        raise BlockSizeError(
            f"blocks of {grid.block_size:,} along axis {grid.axis}, which has {grid.length:,} elements: "
            f"{grid.rows:,} rows would be padded to {grid.padded_length:,} each",
            found=grid.block_size,
            rule=f"padding takes at most {_PADDING} times the room of the elements",
            hint=f"block_size={enough} spans the axis",
        )


def check_block_size(block_size: int) -> None:
    """BlockSizeError unless `block_size` is a power of two, 2 .. 2**31."""
    if not is_integer(block_size) or not 2 <= block_size <= 1 << 31 or block_size & (block_size - 1):
        raise BlockSizeError(
            f"block size {block_size!r} is not allowed",
            found=block_size,
            rule="a power of two, at least 2 (Hurray format, 3.6 rule 10)",
            hint="32 is usual; 16, 64 and 128 are common",
        )


def as_rows(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """The array as contiguous rows along `axis`: `(rows, shape[axis])`; a view where nothing must move."""
    last = axis in (-1, array.ndim - 1)
    moved = array if last else np.moveaxis(array, axis, -1)
    if not moved.flags.c_contiguous:
        out = np.empty(moved.shape, array.dtype)
        copy_in_bands(moved, out)
        moved = out
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])


def copy_in_bands(source: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy between arrays of one shape whose memory runs in different orders.

    A few places of the last axis at a time: a band's lines stay in cache, where NumPy's own order of loops
    would touch a new line for each element (some five times slower). Small ml_dtypes copy as plain bytes.
    """
    plain = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[source.dtype.itemsize]
    source, out = source.view(plain), out.view(plain)
    band = max(16, 64 // source.dtype.itemsize)
    for i in range(0, source.shape[-1], band):
        out[..., i : i + band] = source[..., i : i + band]

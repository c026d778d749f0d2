"""Slabs: boxes of a tensor small enough to hold, read one at a time from whatever a checkpoint stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint
from .errors import UnsupportedError
from .packing import packed_size
from .tensor import BlockTensor

SLAB_ELEMENTS = 1 << 21

Slab = tuple[slice, ...]
"""A box: one slice per dimension."""


def split_slabs(
    shape: tuple[int, ...], axis: int | None = None, block_size: int = 1, limit: int = SLAB_ELEMENTS
) -> Iterator[Slab]:
    """Cut a tensor into boxes of at most about `limit` elements, in the order of its elements.

    Args:
        shape: shape of the tensor.
        axis: the blocked axis; boxes end between blocks there, and packed codes on bytes.
        block_size: elements per block.
        limit: elements of a box; one block wide boxes may be larger.

    Yields:
        Slabs that cover the tensor; none for an empty one.
    """
    if 0 in shape:
        return
    unit = max(block_size, 8)  # eight codes of any width end on a byte
    steps = [min(unit, n) if i == axis else 1 for i, n in enumerate(shape)]
    for i in reversed(range(len(shape))):
        room = limit // math.prod(step for j, step in enumerate(steps) if j != i)
        room = room // unit * unit if i == axis else room
        steps[i] = min(shape[i], max(steps[i], room))
        if steps[i] < shape[i]:
            break
    starts = (range(0, n, step) for n, step in zip(shape, steps, strict=True))
    for corner in product(*starts):
        yield tuple(slice(a, min(a + s, n)) for a, s, n in zip(corner, steps, shape, strict=True))


def slab_shape(slab: Slab) -> tuple[int, ...]:
    """Shape of a slab."""
    return tuple(part.stop - part.start for part in slab)


def slab_reader(ckpt: Checkpoint, name: str) -> Callable[[Slab], NDArray[Any]]:
    """A function that reads the (dequantized) values of a slab of a tensor, safe from several threads.

    Plain tensors are read from the file piece by piece, block-scaled ones decoded piece by piece; others
    (packed plain types, schemes without a BlockTensor) are held whole.

    Raises:
        UnsupportedError: complex numbers, or data that must not be interpreted.
    """
    dtype = ckpt.plain_dtype(name)
    if dtype is not None:
        shape, real = ckpt.info(name).shape, _real(dtype)
        return lambda slab: _read_plain(ckpt, name, shape, real, slab)
    tensor = ckpt[name]
    if isinstance(tensor, BlockTensor):
        return lambda slab: cut_block_tensor(tensor, slab).dequantize(threads=1)
    whole = np.asarray(tensor)
    _real(whole.dtype)
    return lambda slab: whole[slab]


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "c":
        raise UnsupportedError(f"{dtype} numbers have no error figures", found=dtype)
    return dtype


def cut_block_tensor(w: BlockTensor, slab: Slab) -> BlockTensor:
    """The part of a BlockTensor in a slab that begins between blocks, as `split_slabs` cuts."""
    grid, bits = w.grid, w.scheme.element.bits
    part = slab[grid.axis]
    cut = BlockGrid(slab_shape(slab), grid.axis, grid.block_size)
    rows = _row_numbers(grid, slab)
    first_byte = packed_size(part.start, bits)
    first_block = part.start // grid.block_size
    columns = slice(first_byte, first_byte + cut.row_bytes(bits))
    blocks = slice(first_block, first_block + cut.blocks_per_row)
    offsets = w.row_offsets
    return BlockTensor(
        cut,
        w.scheme,
        np.ascontiguousarray(w.packed[rows][:, columns]),
        np.ascontiguousarray(w.row_scales[rows][:, blocks]),
        None if offsets is None else np.ascontiguousarray(offsets[rows][:, blocks]),
    )


def _row_numbers(grid: BlockGrid, slab: Slab) -> slice | NDArray[np.intp]:
    """Canonical rows of a slab: a slice (no copy) where they follow each other."""
    outer = slab[: grid.axis] + slab[grid.axis + 1 :]
    if not outer:
        return slice(0, 1)
    lines = np.ix_(*(np.arange(part.start, part.stop) for part in outer))
    rows = np.ravel_multi_index(lines, grid.outer_shape).reshape(-1)
    if rows[-1] - rows[0] + 1 == rows.size:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _read_plain(
    ckpt: Checkpoint, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], slab: Slab
) -> NDArray[Any]:
    """Read a box of a row-major tensor as runs that follow each other in the file."""
    whole = len(shape)  # dimensions from here on are read entirely
    while whole and slab[whole - 1] == slice(0, shape[whole - 1]):
        whole -= 1
    split = max(whole - 1, 0)
    if not shape:
        return ckpt.read_rows(name, 0, 1, 1).reshape(())
    stride = math.prod(shape[split + 1 :])
    run = (slab[split].stop - slab[split].start) * stride
    out = np.empty((math.prod(slab_shape(slab[:split])), run), dtype)
    for i, index in enumerate(product(*(range(p.start, p.stop) for p in slab[:split]))):
        begin = slab[split].start * stride
        for j, at in enumerate(index):
            begin += at * math.prod(shape[j + 1 :])
        out[i] = ckpt.read_rows(name, begin, begin + run, 1)[:, 0]
    return out.reshape(slab_shape(slab))

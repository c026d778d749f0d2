"""Slabs: boxes of a tensor small enough to hold, read one at a time from whatever a checkpoint stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint, TensorInfo
from .errors import UnsupportedError
from .packing import packed_size
from .sources.base import box_runs
from .tensor import BlockTensor

SLAB_ELEMENTS = 1 << 21
_BYTE = 8  # as many codes of any width end on a byte

Slab = tuple[slice, ...]
"""A box: one slice per dimension."""


def split_slabs(
    shape: tuple[int, ...], axis: int | None = None, block_size: int = 1, limit: int | None = None
) -> Iterator[Slab]:
    """Cut a tensor into boxes of at most about `limit` elements, in the order of its elements.

    Args:
        shape: shape of the tensor.
        axis: the blocked axis; boxes end between blocks there, and packed codes on bytes.
        block_size: elements per block.
        limit: elements of a box, None: `SLAB_ELEMENTS`; one block wide boxes may be larger.

    Yields:
        Slabs that cover the tensor; none for an empty one.
    """
    if 0 in shape:
        return
    limit = SLAB_ELEMENTS if limit is None else limit
    unit = max(block_size, _BYTE)
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
    blocks = block_reader(ckpt, name)
    if blocks is not None:
        return partial(_read_blocks, ckpt.info(name), blocks)
    whole = np.asarray(ckpt[name])
    _real(whole.dtype)
    return lambda slab: whole[slab]


def _read_blocks(info: TensorInfo, blocks: Callable[[Slab], BlockTensor], slab: Slab) -> NDArray[Any]:
    """The values of a slab that may begin within blocks: those around it are read whole."""
    axis, size = info.axis or 0, max(info.scheme.block_size if info.scheme else 1, _BYTE)
    part, wide = slab[axis], list(slab)
    first, end = part.start // size * size, min(-(-part.stop // size) * size, info.shape[axis])
    wide[axis] = slice(first, end)
    values = blocks(tuple(wide)).dequantize(threads=1)
    inside = [slice(None)] * len(slab)
    inside[axis] = slice(part.start - first, part.stop - first)
    return values[tuple(inside)]


def block_reader(ckpt: Checkpoint, name: str) -> Callable[[Slab], BlockTensor] | None:
    """A function that reads a slab that begins between blocks; None for what is no BlockTensor."""
    if ckpt.info(name).scheme is None:
        return None
    read = ckpt.boxes(name)
    if read is not None:
        return read
    tensor = ckpt[name]
    return partial(cut_block_tensor, tensor) if isinstance(tensor, BlockTensor) else None


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
    starts, run = box_runs(shape, slab)
    out = np.empty((len(starts), run), dtype)
    for i, begin in enumerate(starts):
        out[i] = ckpt.read_rows(name, begin, begin + run, 1)[:, 0]
    return out.reshape(slab_shape(slab))

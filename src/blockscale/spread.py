"""How an error spreads over the blocks or channels of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .slabs import Slab

QUANTILES = (0.0, 0.01, 0.5, 0.99, 1.0)
_WORST = 5
_CHUNK_ELEMENTS = 1 << 15  # widened at once: stays in a core's cache


@dataclass(frozen=True, slots=True)
class PartErrors:
    """How the error spreads over the blocks or channels of a tensor.

    Attributes:
        per: `block` or `channel` (a line along the axis).
        count: how many there are.
        sqnr_db: SQNR that the shares `QUANTILES` of them do not exceed: the worst, 1 %, median, 99 %, best.
        worst: index (at the tensor's rank; without the axis for channels) and SQNR of the worst ones.
    """

    per: str
    count: int
    sqnr_db: tuple[float, ...]
    worst: tuple[tuple[tuple[int, ...], float], ...]


def block_squares(reference: NDArray[Any], decoded: NDArray[Any], grid: BlockGrid) -> NDArray[np.float64]:
    """Sums of the squared errors and of the squared originals of each block, in little memory.

    Returns:
        float64 `(2, rows, blocks_per_row)`.
    """
    rows, size, blocks = grid.rows, grid.block_size, grid.blocks_per_row
    x_rows, y_rows = (np.moveaxis(v, grid.axis, -1).reshape(rows, grid.length) for v in (reference, decoded))
    out = np.empty((2, rows, blocks))
    columns = max(1, min(blocks, _CHUNK_ELEMENTS // size))
    step = max(1, _CHUNK_ELEMENTS // (columns * size))
    for top, left in product(range(0, rows, step), range(0, blocks, columns)):
        part = (slice(top, top + step), slice(left * size, (left + columns) * size))
        x, y = x_rows[part].astype(np.float64), y_rows[part].astype(np.float64)
        x, y = (np.pad(v, ((0, 0), (0, -v.shape[1] % size))) for v in (x, y))
        x, y = (v.reshape(len(v), -1, size) for v in (x, y))
        with np.errstate(invalid="ignore", over="ignore"):
            for i, v in enumerate((x - y, x)):
                out[i, part[0], left : left + columns] = np.einsum("rbk,rbk->rb", v, v)
    return out


class Spread:
    """SQNR per block or channel, filled slab by slab: blocks lie in one slab, channels may lie in several."""

    def __init__(self, per: str, grid: BlockGrid) -> None:
        self.per = per
        self.grid = grid
        self.worst: list[tuple[float, int]] = []
        self._done = 0
        self._sqnr = np.empty(grid.n_blocks if per == "block" else 0)
        self._sums = np.zeros((2, *grid.outer_shape) if per == "channel" else (2, 0))

    def add(self, slab: Slab, sums: NDArray[np.float64]) -> None:
        """Add the sums per block of a slab, `(2, rows, blocks)`: of the squared errors and originals."""
        grid, part = self.grid, slab[self.grid.axis]
        outer = slab[: grid.axis] + slab[grid.axis + 1 :]
        shape = tuple(p.stop - p.start for p in outer)
        if self.per == "channel":
            self._sums[(slice(0, 2), *outer)] += sums.sum(axis=-1).reshape(2, *shape)
            return
        sqnr = _sqnr(*sums).reshape(-1)
        self._sqnr[self._done : self._done + sqnr.size] = sqnr
        self._done += sqnr.size
        begin = (*(p.start for p in outer), part.start // grid.block_size)
        self._keep_worst(sqnr, (*shape, sums.shape[-1]), begin)

    def _keep_worst(self, sqnr: NDArray[np.float64], shape: tuple[int, ...], begin: tuple[int, ...]) -> None:
        """Keep the worst so far, with their place among all; the axis is the last of `shape` and `begin`."""
        whole = (*self.grid.outer_shape, self.grid.blocks_per_row)[: len(shape)]
        near = np.argpartition(sqnr, _WORST - 1)[:_WORST] if sqnr.size > _WORST else np.arange(sqnr.size)
        for i in near[np.isfinite(sqnr[near])]:
            at = tuple(int(a) + b for a, b in zip(np.unravel_index(i, shape), begin, strict=True))
            self.worst.append((float(sqnr[i]), int(np.ravel_multi_index(at, whole)) if whole else 0))
        self.worst = sorted(self.worst)[:_WORST]

    def errors(self) -> PartErrors:
        """The summary."""
        grid, flat = self.grid, self._sqnr
        shape = (*grid.outer_shape, grid.blocks_per_row) if self.per == "block" else grid.outer_shape
        if self.per == "channel":
            flat = _sqnr(*self._sums).reshape(-1)
            self._keep_worst(flat, grid.outer_shape, (0,) * len(grid.outer_shape))
        last = flat.size - 1
        if last < 0:
            return PartErrors(self.per, 0, (), ())
        at = [round(q * last) for q in QUANTILES]
        flat.partition(sorted(set(at)))
        worst = tuple((self._index(np.unravel_index(i, shape)), value) for value, i in self.worst)
        return PartErrors(self.per, flat.size, tuple(float(flat[i]) for i in at), worst)

    def _index(self, index: tuple[Any, ...]) -> tuple[int, ...]:
        """An index with the axis last, as one of the tensor's order."""
        numbers = [int(n) for n in index]
        if self.per == "block":
            numbers.insert(self.grid.axis, numbers.pop())
        return tuple(numbers)


def _sqnr(error: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(error > 0, error / reference, 0.0)
        return np.asarray(-10 * np.log10(relative))

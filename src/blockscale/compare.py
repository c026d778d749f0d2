"""Comparing two checkpoints: the error of every tensor of B against A, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint, TensorInfo
from .errors import BlockscaleError, InputError, SchemeError
from .metrics import ErrorSums, TensorError, block_squares, sum_errors
from .native import thread_count
from .slabs import Slab, block_reader, slab_reader, split_slabs
from .tensor import BlockTensor

PARTS = ("block", "channel")
QUANTILES = (0.0, 0.01, 0.5, 0.99, 1.0)
_WORST = 5
_FORGET_AFTER = 32  # slabs
_T = TypeVar("_T")
SlabReader = Callable[[Slab], NDArray[Any]]


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


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """One tensor of B against the same one of A.

    Attributes:
        a: what A says of it.
        b: what B says of it.
        sums: the sums that the figures come from.
        parts: the spread over blocks or channels, if asked for.
    """

    a: TensorInfo
    b: TensorInfo
    sums: ErrorSums
    parts: PartErrors | None = None

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.a.name

    @property
    def error(self) -> TensorError:
        """The figures."""
        return self.sums.figures()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two checkpoints compared.

    Attributes:
        tensors: what could be compared, in A's order.
        missing: names that only A has.
        extra: names that only B has.
        failed: names that both have but that cannot be compared, with the reason.
    """

    tensors: tuple[TensorComparison, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> ErrorSums:
        """Sums over all tensors."""
        return sum((t.sums for t in self.tensors), ErrorSums())

    @property
    def quantized_total(self) -> ErrorSums:
        """Sums over the tensors that are quantized in B."""
        return sum((t.sums for t in self.tensors if t.b.quantization), ErrorSums())


def compare_checkpoints(
    a: Checkpoint,
    b: Checkpoint,
    *,
    names: Sequence[str] | None = None,
    per: str | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Compare every tensor that two checkpoints share.

    Args:
        a: the reference; its quantized tensors stand for their decoded values.
        b: what is measured.
        names: only these; None: all.
        per: None, `"block"` or `"channel"`: also how the error spreads.
        threads: at most this many; the figures do not depend on it.
        progress: called with the bytes of A dealt with since the last call.

    Raises:
        InputError: no tensor in common.
        SchemeError: unknown `per`.
    """
    if per is not None and per not in PARTS:
        raise SchemeError(f"unknown per={per!r}", found=per, hint="'block' or 'channel'")
    wanted = set(a) | set(b) if names is None else set(names)
    shared = [name for name in a if name in b.infos and name in wanted]
    if not shared:
        raise _nothing_in_common(a, b)
    if per is not None and all(b.infos[name].scheme is None for name in shared):
        raise InputError(
            "no tensor is block-scaled",
            file=str(b.path),
            field="per",
            hint="leave out --per, or swap A and B",
        )
    done: list[TensorComparison] = []
    failed: dict[str, str] = {}
    for name in shared:
        try:
            done.append(_compare_tensor(a, b, name, per, threads))
        except BlockscaleError as error:
            failed[name] = error.message
        a.forget()
        b.forget()
        if progress is not None:
            progress(a.infos[name].nbytes)
    missing = tuple(name for name in a if name in wanted and name not in b.infos)
    extra = tuple(name for name in b if name in wanted and name not in a.infos)
    return Comparison(tuple(done), missing, extra, failed)


def _nothing_in_common(a: Checkpoint, b: Checkpoint) -> InputError:
    def some(ckpt: Checkpoint) -> str:
        return ", ".join(repr(name) for name in list(ckpt)[:3]) + (" ..." if len(ckpt) > 3 else "")

    return InputError(
        f"no tensor in common: {a.path} has {some(a)}; {b.path} has {some(b)}",
        rule="tensors are compared by name",
        hint="`blockscale inspect` lists the names of each",
    )


def _compare_tensor(
    a: Checkpoint, b: Checkpoint, name: str, per: str | None, threads: int | None
) -> TensorComparison:
    info_a, info_b = a.infos[name], b.infos[name]
    if info_a.shape != info_b.shape:
        raise InputError(f"its shape is {list(info_a.shape)} in A and {list(info_b.shape)} in B")
    read_a, read_b = slab_reader(a, name), block_reader(b, name)
    if read_b is None or info_b.scheme is None or info_b.axis is None:
        slabs = list(split_slabs(info_a.shape))
        job: _PlainJob | _BlockJob = _PlainJob(read_a, slab_reader(b, name))
        grid = None
    else:
        grid = BlockGrid(info_b.shape, info_b.axis, info_b.scheme.block_size)
        slabs = list(split_slabs(info_a.shape, grid.axis, grid.block_size))
        job = _BlockJob(read_a, read_b)
    with _mapper(min(thread_count(threads), len(slabs))) as run:
        sums = sum(_forgetting(run(job.sums, slabs), a, b), ErrorSums())
        if per is None or grid is None or isinstance(job, _PlainJob):
            return TensorComparison(info_a, info_b, sums)
        spread = _Spread(per, grid)
        for slab, part in zip(slabs, _forgetting(run(job.block_sums, slabs), a, b), strict=True):
            spread.add(slab, part)
    return TensorComparison(info_a, info_b, sums, spread.errors())


@contextmanager
def _mapper(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over so many threads; starting one costs more than a small tensor."""
    if threads < 2:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


def _forgetting(results: Iterator[_T], *sources: Checkpoint) -> Iterator[_T]:
    """The results; now and then, the physical memory of what was read through maps is given back."""
    for i, result in enumerate(results, 1):
        yield result
        if i % _FORGET_AFTER == 0:
            for ckpt in sources:
                ckpt.forget()


@dataclass(frozen=True, slots=True)
class _PlainJob:
    """A tensor that is not block-scaled in B: nothing saturates."""

    read_a: SlabReader
    read_b: SlabReader

    def sums(self, slab: Slab) -> ErrorSums:
        return sum_errors(self.read_a(slab).reshape(1, -1), self.read_b(slab).reshape(1, -1))


@dataclass(frozen=True, slots=True)
class _BlockJob:
    """A tensor that is block-scaled in B."""

    read_a: SlabReader
    read_b: Callable[[Slab], BlockTensor]

    def sums(self, slab: Slab) -> ErrorSums:
        part = self.read_b(slab)
        x, y = (
            np.moveaxis(v, part.axis, -1).reshape(part.grid.rows, part.grid.length)
            for v in (self.read_a(slab), part.dequantize(threads=1))
        )
        return sum_errors(x, y, part.limits(), part.block_size)

    def block_sums(self, slab: Slab) -> NDArray[np.float64]:
        """Squared errors and squared originals of each block: `(2, rows, blocks_per_row)`."""
        part = self.read_b(slab)
        return block_squares(self.read_a(slab), part.dequantize(threads=1), part.grid)


class _Spread:
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

"""Comparing two checkpoints: the error of every tensor of B against A, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint, TensorInfo
from .errors import BlockscaleError, InputError, SchemeError
from .metrics import ErrorSums, TensorError, block_sums, sum_errors
from .native import thread_count
from .slabs import Slab, cut_block_tensor, slab_reader, split_slabs
from .tensor import BlockTensor

PARTS = ("block", "channel")
QUANTILES = (0.0, 0.01, 0.5, 0.99, 1.0)
_WORST = 5
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
    read_a, tensor = slab_reader(a, name), _block_tensor(b, name)
    if tensor is None:
        slabs = list(split_slabs(info_a.shape))
        job: _PlainJob | _BlockJob = _PlainJob(read_a, slab_reader(b, name))
    else:
        slabs = list(split_slabs(info_a.shape, tensor.axis, tensor.block_size))
        job = _BlockJob(read_a, tensor)
    with ThreadPoolExecutor(min(thread_count(threads), max(1, len(slabs)))) as pool:
        sums = sum(pool.map(job.sums, slabs), ErrorSums())
        if per is None or not isinstance(job, _BlockJob):
            return TensorComparison(info_a, info_b, sums)
        spread = _Spread(per, job.tensor.grid)
        for slab, part in zip(slabs, pool.map(job.block_sums, slabs), strict=True):
            spread.add(slab, part)
    return TensorComparison(info_a, info_b, sums, spread.errors())


def _block_tensor(ckpt: Checkpoint, name: str) -> BlockTensor | None:
    if ckpt.infos[name].scheme is None:
        return None
    tensor = ckpt[name]
    return tensor if isinstance(tensor, BlockTensor) else None


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
    tensor: BlockTensor

    def sums(self, slab: Slab) -> ErrorSums:
        part = cut_block_tensor(self.tensor, slab)
        x, y = (
            np.moveaxis(v, part.axis, -1).reshape(part.grid.rows, part.grid.length)
            for v in (self.read_a(slab), part.dequantize(threads=1))
        )
        return sum_errors(x, y, part.limits(), part.block_size)

    def block_sums(self, slab: Slab) -> NDArray[np.float64]:
        part = cut_block_tensor(self.tensor, slab)
        return block_sums(self.read_a(slab), part.dequantize(threads=1), part.limits(), part.grid)


class _Spread:
    """Squared errors and squared originals per block or channel, filled slab by slab."""

    def __init__(self, per: str, grid: BlockGrid) -> None:
        self.per = per
        self.grid = grid
        blocks = (grid.blocks_per_row,) if per == "block" else ()
        self.sums = np.zeros((2, *grid.outer_shape, *blocks))

    def add(self, slab: Slab, sums: NDArray[np.float64]) -> None:
        """Add the sums per block of a slab."""
        grid, part = self.grid, slab[self.grid.axis]
        outer = slab[: grid.axis] + slab[grid.axis + 1 :]
        blocks = slice(part.start // grid.block_size, -(-part.stop // grid.block_size))
        for i in range(2):  # error, reference
            column = sums[..., i].reshape(*(p.stop - p.start for p in outer), -1)
            if self.per == "block":
                self.sums[i][(*outer, blocks)] = column
            else:
                self.sums[i][outer] += column.sum(axis=-1)

    def errors(self) -> PartErrors:
        """The summary."""
        error, reference = self.sums
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(error > 0, error / reference, 0.0)
            sqnr = -10 * np.log10(relative)
        if self.per == "block":
            sqnr = np.moveaxis(sqnr, -1, self.grid.axis)
        order = np.argsort(sqnr, axis=None)
        flat, last = sqnr.reshape(-1), sqnr.size - 1
        if last < 0:
            return PartErrors(self.per, 0, (), ())
        quantiles = tuple(float(flat[order[round(q * last)]]) for q in QUANTILES)
        worst = tuple(
            (tuple(int(n) for n in np.unravel_index(i, sqnr.shape)), float(flat[i]))
            for i in order[:_WORST]
            if np.isfinite(flat[i])
        )
        return PartErrors(self.per, sqnr.size, quantiles, worst)

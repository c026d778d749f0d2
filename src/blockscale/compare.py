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
from .metrics import ErrorSums, TensorError, sum_errors
from .slabs import Slab, block_reader, slab_reader, split_slabs
from .spread import PartErrors, Spread, block_squares
from .tensor import BlockTensor
from .threads import thread_count

PARTS = ("block", "channel")
_FORGET_AFTER = 32  # slabs
_T = TypeVar("_T")
SlabReader = Callable[[Slab], NDArray[Any]]


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
        spread = Spread(per, grid)
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

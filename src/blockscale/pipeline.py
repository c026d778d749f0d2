"""The pipeline: weights from a source to a `.hrry` file, a slab at a time, in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .checkpoint import Checkpoint
from .containers.hrry import HrryWriter
from .errors import InputError, NonFiniteError, error_context
from .hurray import encode_tensor
from .plan import Plan, PlanItem
from .quantize import find_nonfinite, nonfinite_error, quantize
from .schemes import Scheme
from .tensor import BlockTensor, QuantizeReport

# Source bytes of a slab: enough for threads to work on, little enough to keep memory flat.
SLAB_BYTES = 16 << 20
# Blocks along an earlier axis: wider slabs, so that each read of a line is worth its call.
COLUMN_SLAB_BYTES = 48 << 20

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TensorResult:
    """What was done with one tensor.

    Attributes:
        item: its line of the plan.
        report: the counted events, for tensors that were quantized.
    """

    item: PlanItem
    report: QuantizeReport | None


def run_quantize(
    ckpt: Checkpoint,
    plan: Plan,
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[TensorResult]:
    """Carry out a plan.

    Memory stays near a few slabs (16 or 48 MiB) whatever the size of a tensor; the exception is a tensor
    whose lines do not end on bytes in the file (say 4-bit codes, blocks along axis 0 and an odd number of
    columns), which is held whole. The file appears under its name only when it is whole.

    Args:
        ckpt: the source the plan was made for.
        plan: from `plan_quantize`.
        output: the `.hrry` file to write.
        overwrite: replace an existing file.
        threads: at most this many threads; the bytes written do not depend on it.
        progress: called with the number of source bytes dealt with since the last call.

    Returns:
        One TensorResult per tensor, in the plan's order.

    Raises:
        OutputError: the output exists, or cannot be written.
        NonFiniteError, ScaleOverflowError: values that the scheme cannot hold; names tensor and index.
    """
    tell = progress or (lambda _bytes: None)
    if os.path.realpath(output) == os.path.realpath(ckpt.path):
        raise InputError("the output is the source itself", file=str(output), hint="another name")
    specs = [(item.name, d) for item, d in zip(plan.items, plan.descriptors, strict=True)]
    with HrryWriter(output, specs, metadata=plan.metadata, overwrite=overwrite) as writer:
        return [_run_item(ckpt, item, writer, threads, tell) for item in plan.items]


def _run_item(
    ckpt: Checkpoint, item: PlanItem, writer: HrryWriter, threads: int | None, tell: Progress
) -> TensorResult:
    with error_context(file=str(ckpt.path), tensor=item.name):
        if item.scheme is None or item.axis is None or item.action == "keep":
            for index, at, data in ckpt.stored_pieces(item.name, SLAB_BYTES):
                writer.write(item.name, index, at, data)
                tell(len(data))
            return TensorResult(item, None)
        job = _Job(ckpt, item, item.scheme, BlockGrid(item.shape, item.axis, item.scheme.block_size), writer)
        report = QuantizeReport(item.rule)
        try:
            for slab in job.slabs():
                report += _write_slab(job, slab, threads)
                tell(slab.x.nbytes)
        except NonFiniteError as error:
            raise _whole_nonfinite_error(job, error) from None
        return TensorResult(item, report)


@dataclass(frozen=True, slots=True)
class _Job:
    """One tensor on its way from the source to the writer."""

    ckpt: Checkpoint
    item: PlanItem
    scheme: Scheme
    grid: BlockGrid
    writer: HrryWriter

    @property
    def inner(self) -> int:
        """Elements between two neighbours along the axis in the source."""
        return math.prod(self.grid.shape[self.grid.axis + 1 :])

    def slabs(self) -> Iterator[_Slab]:
        """Cut the tensor so that each part's bytes have places of their own in the file."""
        grid, bits, inner = self.grid, self.scheme.element.bits, self.inner
        if grid.rows * grid.length == 0:
            return
        line = (grid.padded_length if inner == 1 else inner) * bits
        if line % (24 if bits == 6 else 8):
            yield _Slab(np.asarray(self.ckpt[self.item.name]), grid.axis, 0, 0, 0)
        elif grid.axis == len(grid.shape) - 1:
            yield from self._row_slabs()
        else:
            yield from self._column_slabs(inner)

    def _row_slabs(self) -> Iterator[_Slab]:
        """Blocks along the last axis: rows lie one after the other in every buffer."""
        grid = self.grid
        step = max(1, SLAB_BYTES // (grid.length * self._itemsize()))
        for begin in range(0, grid.rows, step):
            x = self.ckpt.read_rows(self.item.name, begin, min(begin + step, grid.rows), grid.length)
            yield _Slab(x, 1, begin, begin * grid.row_bytes(self.scheme.element.bits), 0)

    def _column_slabs(self, inner: int) -> Iterator[_Slab]:
        """Blocks along an earlier axis: some columns of a `(length, inner)` slice at a time."""
        grid, bits = self.grid, self.scheme.element.bits
        line = inner * bits // 8
        width = max(8, COLUMN_SLAB_BYTES // (grid.length * self._itemsize()) // 8 * 8)
        for outer in range(grid.rows // inner):
            rows = (outer * grid.length, (outer + 1) * grid.length)
            for c in range(0, inner, width):
                x = self.ckpt.read_columns(self.item.name, rows, inner, (c, min(c + width, inner)))
                at = outer * grid.padded_length * line + c * bits // 8
                yield _Slab(x, 0, outer * inner + c, at, line)

    def _itemsize(self) -> int:
        dtype = self.ckpt.plain_dtype(self.item.name)
        return dtype.itemsize if dtype is not None else 8


@dataclass(frozen=True, slots=True)
class _Slab:
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


def _write_slab(job: _Job, slab: _Slab, threads: int | None) -> QuantizeReport:
    lowest = 1 - job.scheme.value_exponent if job.scheme.is_mx else 0  # Hurray has no scale byte 0
    rule, scheme = job.item.rule, job.scheme
    w = quantize(slab.x, scheme, axis=slab.axis, rule=rule, threads=threads, min_scale_byte=lowest)
    codes, *parameters = encode_tensor(w)[1]
    name, writer = job.item.name, job.writer
    for at, data in _lines(slab, np.frombuffer(codes, np.uint8), w):
        writer.write(name, 0, at, data)
    per_row = job.grid.blocks_per_row
    for index, (data, size) in enumerate(zip(parameters, (scheme.scale.bits // 8, 4), strict=False), 1):
        writer.write(name, index, slab.first_row * per_row * size, data)
    return w.report


def _lines(slab: _Slab, codes: NDArray[np.uint8], w: BlockTensor) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Where the code bytes go: at once, or line by line into wider lines."""
    if slab.line == 0 or codes.size == slab.line * w.grid.padded_length:
        yield slab.at, codes
        return
    for i, data in enumerate(codes.reshape(w.grid.padded_length, -1)):
        yield slab.at + i * slab.line, data


def _whole_nonfinite_error(job: _Job, error: NonFiniteError) -> NonFiniteError:
    """The error for the whole tensor instead of a slab: total count, first index."""
    width = job.grid.shape[-1]
    count, first, value = 0, 0, 0.0
    step = max(1, SLAB_BYTES // (width * 8))
    rows = math.prod(job.grid.shape[:-1])
    for begin in range(0, rows, step):
        x = job.ckpt.read_rows(job.item.name, begin, min(begin + step, rows), width)
        found = find_nonfinite(x)
        if found is not None and count == 0:
            first, value = begin * width + found[1], found[2]
        count += found[0] if found is not None else 0
    if count == 0:
        return error
    index = tuple(int(i) for i in np.unravel_index(first, job.grid.shape))
    return nonfinite_error(count, math.prod(job.grid.shape), index, value)

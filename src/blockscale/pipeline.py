"""The pipeline: carries out a plan, a slab at a time, in bounded memory, resumably."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .carry import recoded
from .checkpoint import Checkpoint
from .errors import InputError, NonFiniteError, error_context
from .hurray import HurrayTensor
from .manifest import manifest_bytes
from .outputs import MANIFEST, OutputSet
from .plan import Plan, PlanItem
from .quantize import quantize
from .recode import is_renaming
from .report import QuantizeReport
from .results import Errors, TensorResult, fingerprint, result_as_json, result_from_json
from .schemes import Scheme
from .slab_jobs import SLAB_BYTES, Slab, cut, nonfinite_in
from .target_bytes import encode_rows, encode_whole
from .tensor import BlockTensor

Progress = Callable[[int], None]


def run_plan(
    ckpt: Checkpoint,
    plan: Plan,
    *,
    overwrite: bool = False,
    resume: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[TensorResult]:
    """Carry out a plan.

    A folder also gets a manifest, `blockscale.json`. Memory stays near a few slabs (16 or 48 MiB) whatever
    the size and shape of a tensor, for `.hrry` and GGUF. Held whole are: tensors that go into a dialect of
    safetensors, or change their scheme. Every file appears under its name only when it is whole.

    Args:
        ckpt: the source the plan was made for.
        plan: from `plan_quantize` or `plan_convert`.
        overwrite: replace an existing output.
        resume: keep what is done when interrupted, and go on with an interrupted run.
        threads: at most this many threads; the bytes written do not depend on it.
        progress: called with the number of source bytes dealt with since the last call.

    Returns:
        One TensorResult per tensor, in the plan's order.

    Raises:
        OutputError: the output exists, or cannot be written.
        NonFiniteError, ScaleOverflowError: values that the scheme cannot hold; names tensor and index.
    """
    tell = progress or (lambda _bytes: None)
    _check_not_source(ckpt, plan)
    results = []
    source = fingerprint(ckpt, plan)
    with OutputSet(plan.target.path, plan.layout, source, overwrite=overwrite, resume=resume) as outputs:
        for item in plan.items:
            if item.name in outputs.done:
                result = result_from_json(item, outputs.done[item.name])
                tell(item.nbytes_in)
            else:
                with error_context(file=str(ckpt.path), tensor=item.name):
                    result = _Job(ckpt, plan, item, outputs, threads, tell).run()
                outputs.finish(item.name, result_as_json(result))
                ckpt.forget()
            results.append(result)
        if plan.layout.is_folder:
            outputs.late[MANIFEST] = manifest_bytes(ckpt, plan, results)
    return results


def _check_not_source(ckpt: Checkpoint, plan: Plan) -> None:
    outputs = [plan.target.path]
    if plan.layout.is_folder:
        names = [f.name for f in plan.layout.files] + [*plan.layout.extras, MANIFEST]
        outputs = [plan.target.path / name for name in names]
    sources = {os.path.realpath(p) for p in (*ckpt.paths, *ckpt.reading.companions)}
    for out in outputs:
        if os.path.realpath(out) in sources:
            raise InputError("the output is the source itself", file=str(out), hint="another name")


@dataclass(frozen=True, slots=True)
class _Job:
    """One tensor on its way from the source to the output."""

    ckpt: Checkpoint
    plan: Plan
    item: PlanItem
    outputs: OutputSet
    threads: int | None
    tell: Progress
    errors: Errors = field(default_factory=Errors)

    def run(self) -> TensorResult:
        if self.item.action == "quantize":
            return self._quantize()
        if self.item.out.scheme is not None and not self.item.out.is_carried:
            return self._carry_blocks()
        self._carry_plain()
        return TensorResult(self.item, None, True)

    # ---- plain tensors and what a .hrry file holds as it is

    def _carry_plain(self) -> None:
        name, target, out = self.item.name, self.plan.target, self.item.out
        dtype = self.ckpt.plain_dtype(name)
        same_layout = dtype is not None and (dtype.kind != "b" or target.kind not in ("hrry", "gguf"))
        if out.descriptor is not None or (target.kind == "hrry" and same_layout):
            for index, at, data in self.ckpt.stored_pieces(name, SLAB_BYTES):
                self._write(str(index), at, data)
                self.tell(len(data))
        elif same_layout or out.is_carried:
            part = "0" if target.kind == "gguf" else name
            for at, data in self.ckpt.plain_pieces(name, SLAB_BYTES):
                self._write(part, at, data)
                self.tell(len(data))
        else:
            value = self.ckpt[name]
            if isinstance(value, HurrayTensor | BlockTensor):
                value = value.dequantize()
            self._write_whole(value.astype(out.dtype, copy=False), fresh=False)
            self.tell(self.item.nbytes_in)

    # ---- tensors that are block-scaled already

    def _carry_blocks(self) -> TensorResult:
        item, scheme = self.item, self.item.out.scheme
        info = self.ckpt.info(item.name)
        by_rows = self._writes_rows() and info.scheme is not None and scheme is not None
        if by_rows and info.scheme is not None and scheme is not None and is_renaming(info.scheme, scheme):
            for first, w in self._block_rows():
                self._write_rows(self._ready(w), first, fresh=False)
                self.tell(item.nbytes_in * w.grid.rows // max(1, self._rows()))
        else:
            w = self._whole_blocks()
            self._write_whole(self._ready(w), fresh=False)
            self.tell(item.nbytes_in)
        return TensorResult(item, None, item.action == "keep", self.errors.largest, self.errors.mean)

    def _ready(self, w: BlockTensor) -> BlockTensor:
        is_exact = self.item.action != "recode"
        reason = "" if is_exact else self.item.reason
        new = recoded(w, self.item.out, self.plan.target, reason=reason, threads=self.threads)
        if not is_exact:
            self.errors.add(w, new, self.threads)
        return new

    def _whole_blocks(self) -> BlockTensor:
        value = self.ckpt[self.item.name]
        if not isinstance(value, BlockTensor):
            raise InputError("it is not block-scaled", tensor=self.item.name)
        return value

    def _block_rows(self) -> Iterator[tuple[int, BlockTensor]]:
        """Canonical rows of a tensor with blocks along its last axis, some at a time."""
        rows, whole = self._rows(), None
        step = max(1, SLAB_BYTES // max(1, self.item.nbytes_in // max(1, rows)))
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            part = self.ckpt.rows(self.item.name, begin, end)
            if part is None:
                whole = whole if whole is not None else _as_matrix(self._whole_blocks())
                part = whole[begin:end]
            yield begin, part

    def _rows(self) -> int:
        return math.prod(self.item.shape[:-1])

    # ---- quantizing

    def _quantize(self) -> TensorResult:
        item, scheme, axis = self.item, self.item.scheme, self.item.axis
        if scheme is None or axis is None:
            raise InputError("the plan has no scheme for this tensor", tensor=item.name)
        report = QuantizeReport(item.rule)
        if self.ckpt.info(item.name).quantization:
            return self._requantize()
        if not self._writes_slabs():
            x = self.ckpt[item.name]
            w = self._quantized(np.asarray(x), axis)
            self._write_whole(w, fresh=True)
            self.tell(item.nbytes_in)
            return TensorResult(item, report + w.report)
        grid = BlockGrid(item.shape, axis, scheme.block_size)
        try:
            for slab in cut(self.ckpt, item.name, grid, scheme.element.bits):
                w = self._quantized(slab.x, slab.axis)
                report += w.report
                self._write_slab(slab, w)
                self.tell(slab.x.nbytes)
        except NonFiniteError as error:
            raise nonfinite_in(self.ckpt, item.name, grid, error) from None
        return TensorResult(item, report)

    def _requantize(self) -> TensorResult:
        """Values of a quantized tensor, quantized again; the difference between the two is reported."""
        item, report = self.item, QuantizeReport(self.item.rule)
        info = self.ckpt.info(item.name)
        last = len(item.shape) - 1
        if self._writes_rows() and info.scheme is not None and info.axis == item.axis == last:
            for first, old in self._block_rows():
                w = self._quantized(old.dequantize(threads=self.threads), 1)
                self.errors.add(old, w, self.threads)
                report += w.report
                self._write_rows(w, first, fresh=True)
                self.tell(item.nbytes_in * old.grid.rows // max(1, self._rows()))
        else:
            value = self.ckpt[item.name]
            x = value if isinstance(value, np.ndarray) else value.dequantize()
            w = self._quantized(x, item.axis or 0)
            report += w.report
            self._write_whole(w, fresh=True)
            self.tell(item.nbytes_in)
        return TensorResult(item, report, False, self.errors.largest, self.errors.mean)

    def _quantized(self, x: NDArray[Any], axis: int) -> BlockTensor:
        scheme, least = cast(Scheme, self.item.scheme), 0
        if scheme.is_mx and self.plan.target.kind == "hrry":
            least = 1 - scheme.value_exponent  # Hurray has no scale byte 0
        rule = self.item.rule
        try:
            return quantize(x, scheme, axis=axis, rule=rule, threads=self.threads, min_scale_byte=least)
        except NonFiniteError as error:
            error.hint = f"mend the source; --exclude '{self.item.name}' keeps the tensor as it is"
            raise

    # ---- writing

    def _writes_rows(self) -> bool:
        """Whether rows of the last axis have places of their own in the output."""
        out = self.item.out
        if self.plan.target.kind not in ("hrry", "gguf") or out.scheme is None:
            return False
        grid = BlockGrid(out.shape, out.axis or 0, out.scheme.block_size)
        is_last = grid.axis == len(grid.shape) - 1
        return is_last and grid.padded_length * out.scheme.element.bits % 8 == 0

    def _writes_slabs(self) -> bool:
        return self._writes_rows() or self.plan.target.kind == "hrry"

    def _write(self, part: str, at: int, data: NDArray[np.uint8]) -> None:
        self.outputs.write(self.item.name, part, at, data)

    def _write_rows(self, w: BlockTensor, first_row: int, *, fresh: bool) -> None:
        self._write_blocks(w, first_row * w.grid.blocks_per_row, fresh=fresh)

    def _write_blocks(self, w: BlockTensor, first: int, *, fresh: bool) -> None:
        for part, at, data in encode_rows(self.plan.target, self.item.out, w, first, fresh=fresh):
            self._write(part, at, data)

    def _write_whole(self, value: BlockTensor | NDArray[Any], *, fresh: bool) -> None:
        for part, at, data in encode_whole(self.plan.target, self.item.out, value, fresh=fresh):
            self._write(part, at, data)

    def _write_slab(self, slab: Slab, w: BlockTensor) -> None:
        if self.plan.target.kind == "gguf":
            self._write_blocks(w, slab.first_block, fresh=True)
            return
        for part, at, data in slab.places(w):
            self._write(part, at, data)


def _as_matrix(w: BlockTensor) -> BlockTensor:
    grid = BlockGrid((w.grid.rows, w.grid.length), 1, w.block_size)
    return BlockTensor(grid, w.scheme, w.packed, w.row_scales, w.row_offsets, w.report)

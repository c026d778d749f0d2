"""Summaries: what a checkpoint holds, from headers and scales; codes are read only when asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Checkpoint, TensorInfo
from .containers.hrry import HrryFile
from .elements import ELEMENTS
from .errors import BlockscaleError
from .hurray import UnknownQuantization, rule_id
from .hurray.values import Parameters, read_parameters, value_violations
from .schemes import Scheme
from .tensor import BlockTensor
from .values import (
    CodeStatistics,
    ScaleStatistics,
    code_statistics,
    count_codes,
    cut_ranges,
    scale_statistics,
)

_E8M0 = "F8_E8M0"
_SLAB_BYTES = 16 << 20
# Ends of names under which other toolchains store the parts of one weight.
_FOREIGN_PARTS = {
    ".qweight": "packed codes of a GPTQ or AWQ weight",
    ".qzeros": "packed zero points of a GPTQ or AWQ weight",
    ".g_idx": "group index of a GPTQ weight",
    ".weight_packed": "packed codes of a compressed-tensors weight",
    "_blocks": "packed codes of a gpt-oss MXFP4 weight",
}


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """What can be said of one tensor.

    Attributes:
        info: name, shape, type, size, scheme.
        carrier: how elements smaller than a byte lie in bytes; empty for others.
        scales: statistics of the scales, or None.
        zero_points: smallest and largest zero point, or None.
        codes: statistics of the codes, if asked for and possible.
        notes: what is worth knowing, one line each.
        problems: what is wrong, one line each.
    """

    info: TensorInfo
    carrier: str = ""
    scales: ScaleStatistics | None = None
    zero_points: tuple[int, int] | None = None
    codes: CodeStatistics | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Summarizer:
    """Summaries of the tensors of an open checkpoint."""

    def __init__(self, ckpt: Checkpoint) -> None:
        self._ckpt = ckpt
        self._read = 0
        self._file = HrryFile(ckpt.path, permissive=True) if ckpt.kind == "hrry" else None

    def summarize(self, name: str, *, deep: bool = False) -> TensorSummary:
        """One tensor.

        Args:
            name: of the tensor.
            deep: read its codes too.
        """
        info = self._ckpt.info(name)
        problems: list[str] = []
        try:
            parameters = self._parameters(info)
            problems += self._broken_rules(info, parameters)
        except BlockscaleError as error:
            parameters = Parameters()
            problems.append(error.message)
        scales = None if parameters.scales is None else scale_statistics(parameters.scales)
        zeros = _extremes(parameters.zero_points)
        codes = self._codes(info) if deep else None
        return TensorSummary(
            info,
            _carrier(info),
            scales,
            zeros,
            codes,
            tuple(_notes(info, scales, zeros, codes)),
            tuple(problems),
        )

    def forget(self, read: int) -> None:
        """Now and then, give back the physical memory of what was read through maps: `read` more bytes."""
        self._read += read
        if self._read > _SLAB_BYTES:
            self._read = 0
            self._ckpt.forget()
            if self._file is not None:
                self._file.forget()

    def close(self) -> None:
        """Close what was opened beside the checkpoint."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Summarizer:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _parameters(self, info: TensorInfo) -> Parameters:
        """Scales and zero points, without touching the codes."""
        if self._file is not None:
            d = self._file.descriptor(info.name)
            if d.quantization is None or isinstance(d.quantization, UnknownQuantization):
                return Parameters()
            buffers = [self._file.buffer(info.name, i) for i in range(len(d.buffers))]
            return read_parameters(d, d.quantization, buffers)
        if info.scheme is not None:
            return self._of_blocks(info)
        if info.dtype == _E8M0:
            return Parameters(np.asarray(self._ckpt[info.name]).reshape(-1))
        return Parameters()

    def _of_blocks(self, info: TensorInfo) -> Parameters:
        """Scales and zero points of a block-scaled tensor, some rows at a time where the container can."""
        rows = math.prod(info.shape[:-1]) if info.shape else 0
        step = max(1, _SLAB_BYTES * rows // max(1, info.nbytes))
        slabs = (self._ckpt.rows(info.name, i, min(i + step, rows)) for i in range(0, rows, step))
        first = next(slabs, None)
        if first is None:
            w = self._ckpt[info.name]
            return Parameters(w.row_scales, w.zero_points) if isinstance(w, BlockTensor) else Parameters()
        found = [Parameters(w.row_scales, w.zero_points) for w in chain([first], slabs) if w is not None]
        scales = np.concatenate([p.scales for p in found if p.scales is not None])
        zeros = [p.zero_points for p in found if p.zero_points is not None]
        return Parameters(scales, np.concatenate(zeros) if zeros else None)

    def _broken_rules(self, info: TensorInfo, parameters: Parameters) -> Iterator[str]:
        """What strict reading refuses, and values that no scheme allows."""
        if self._file is None:
            if parameters.scales is not None:
                yield from _scale_problems(info, scale_statistics(parameters.scales))
            return
        d = self._file.descriptor(info.name)
        found = list(d.violations())
        if d.quantization is not None and not isinstance(d.quantization, UnknownQuantization):
            found += value_violations(d, d.quantization, parameters)
        for error in found:
            yield f"{rule_id(error)}: {error.message}"

    def _codes(self, info: TensorInfo) -> CodeStatistics | None:
        """Codes of a tensor whose data buffer holds nothing else."""
        if self._file is None or info.size == 0:
            return None
        d = self._file.descriptor(info.name)
        is_plain = d.layout.name in ("row-major", "column-major") and d.byte_offset == 0
        if d.quantization is None or d.type is None or d.type.name not in ELEMENTS or not is_plain:
            return None
        size = d.buffers[0].byte_size
        chunks = (self._file.read_bytes(info.name, 0, *part) for part in cut_ranges(size))
        return code_statistics(count_codes(chunks, d.type.bits), ELEMENTS[d.type.name], info.size)


def _extremes(zero_points: NDArray[np.int32] | None) -> tuple[int, int] | None:
    if zero_points is None or zero_points.size == 0:
        return None
    return int(zero_points.min()), int(zero_points.max())


def _carrier(info: TensorInfo) -> str:
    """How small elements lie in bytes; the file's own word size is not the element's (cases P12)."""
    name = {"F4": "float4_e2m1", "F6_E2M3": "float6_e2m3", "F6_E3M2": "float6_e3m2"}.get(
        info.dtype, info.dtype
    )
    bits = ELEMENTS[name].bits if name in ELEMENTS else 1 if name == "bool" else 8
    if bits >= 8:
        return ""
    return "4 in 3 bytes" if bits == 6 else f"{8 // bits} per byte"


def _notes(
    info: TensorInfo,
    scales: ScaleStatistics | None,
    zeros: tuple[int, int] | None,
    codes: CodeStatistics | None,
) -> Iterator[str]:
    if zeros is not None and info.scheme is not None:
        yield from _zero_point_notes(info.scheme, *zeros)
    if scales is not None and scales.is_constant:
        yield f"all {scales.count:,} scales are equal"
    if codes is not None:
        yield from _code_notes(info, codes)
    for end, meaning in _FOREIGN_PARTS.items():
        if info.name.endswith(end) and not info.quantization and not info.is_float:
            yield f"looks like {meaning}; shown as stored, not as a weight"


def _zero_point_notes(scheme: Scheme, low: int, high: int) -> Iterator[str]:
    element = scheme.element
    if low == high:
        middle = 1 << (element.bits - 1)
        equal = f": equals int{element.bits} symmetric" if element.kind == "uint" and low == middle else ""
        none = ": the same as no zero point" if low == 0 else ""
        yield f"{element.name}, zero point {low} everywhere{equal}{none}"
    elif low < element.min or high > element.max:
        yield f"zero points {low} .. {high} go beyond the codes of {element.name} (allowed)"


def _code_notes(info: TensorInfo, codes: CodeStatistics) -> Iterator[str]:
    if codes.constant_byte is not None:
        yield f"all packed bytes are 0x{codes.constant_byte:02X}: was the tensor ever written?"
        return
    element = ELEMENTS.get(info.dtype)
    if element is not None and element.is_integer and info.size > 1000:
        low, high = int(element.min), int(element.max)
        span = codes.highest - codes.lowest
        if span <= (high - low) // 2:
            used = f"{codes.lowest:g} .. {codes.highest:g}"
            yield f"codes use {used} of {low} .. {high}: half of the range is idle"


def _scale_problems(info: TensorInfo, scales: ScaleStatistics) -> Iterator[str]:
    if scales.nonfinite:
        yield f"{scales.nonfinite:,} of {scales.count:,} scales are NaN or infinite"
    if scales.zero and info.scheme is not None and not info.scheme.is_mx:
        yield f"{scales.zero:,} of {scales.count:,} scales are zero"


def summarize(ckpt: Checkpoint, names: Sequence[str], *, deep: bool = False) -> Iterator[TensorSummary]:
    """Summaries of some tensors of an open checkpoint, in order."""
    with Summarizer(ckpt) as summarizer:
        for name in names:
            yield summarizer.summarize(name, deep=deep)
            summarizer.forget(ckpt.info(name).nbytes)

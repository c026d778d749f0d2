"""Changing the scheme of a tensor: without changing a value where possible, else with the error stated.

Lossless steps: other names of the same numbers; signed codes as unsigned ones with the middle as zero point;
zero points folded into signed codes, or raised together with the codes; wider codes, and narrower ones where
codes are small; other scale types that hold the scales; smaller blocks (scales repeat); minimums that are
multiples of their scale, and back; MX codes that are integers times a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .blocks import BlockGrid
from .dialects.ggml_formats import FORMATS
from .dialects.ggml_minimum import rewritten, zero_point_schemes
from .errors import InputError
from .quantize import quantize
from .recode_steps import (
    NotExact,
    UnevenMinimums,
    ZeroPoints,
    fitting_zero_points,
    from_minimum,
    from_mx,
    has_fit,
    minimum_form,
    other_scale,
    same_numbers,
    signedness,
    smaller_blocks,
    to_minimum,
    wider_codes,
)
from .schemes import Scheme
from .tensor import BlockTensor
from .threads import GRAIN, split_work

__all__ = [
    "NotExact",
    "Recoded",
    "converted",
    "difference",
    "is_renaming",
    "pick_exact",
    "recode",
    "recode_exactly",
]

_SLAB_ELEMENTS = 1 << 18  # few enough to stay in cache
# Names of schemes whose codes have five bits of their byte: the smallest code.
_FIVE_BITS = {row.scheme.name: -row.bias for row in FORMATS.values() if row.code_bits == 5}


@dataclass(frozen=True, slots=True)
class Recoded:
    """A tensor under another scheme.

    Attributes:
        tensor: the tensor.
        exact: whether every decoded value is bit for bit the old one.
        largest_error: largest difference of a value.
        mean_error: mean absolute difference.
        reason: why it is not exact; empty if it is.
    """

    tensor: BlockTensor
    exact: bool
    largest_error: float = 0.0
    mean_error: float = 0.0
    reason: str = ""


def is_renaming(old: Scheme, new: Scheme) -> bool:
    """True if every tensor of one scheme is one of the other under another name.

    Not so where the codes of the new one have five bits of their byte (Q5_0, Q5_1).
    """
    return same_numbers(old, new) and (old.name == new.name or new.name not in _FIVE_BITS)


def recode(
    w: BlockTensor, target: Scheme, *, rule: str | None = None, zero_points: ZeroPoints | None = None
) -> Recoded:
    """Bring a tensor under a scheme, exactly if possible.

    Args:
        w: the tensor.
        target: the scheme it gets; the blocked axis stays.
        rule: how scales are chosen where values must be quantized again; None: the scheme's default.
        zero_points: smallest and largest zero point that the target stores; None: any.

    Returns:
        The tensor, whether it is exact, and if not, the errors and the reason.

    Raises:
        BlockscaleError: values that the scheme cannot hold at all.
    """
    new, reason = converted(w, target, rule=rule, zero_points=zero_points)
    return Recoded(new, False, *difference(w, new), reason) if reason else Recoded(new, True)


def converted(
    w: BlockTensor,
    target: Scheme,
    *,
    rule: str | None = None,
    zero_points: ZeroPoints | None = None,
    threads: int | None = None,
    reason: str = "",
) -> tuple[BlockTensor, str]:
    """As `recode`, without measuring: the tensor, and why it is not exact; empty if it is.

    Args:
        w: the tensor.
        target: the scheme it gets.
        rule: as for `recode`.
        zero_points: as for `recode`.
        threads: at most this many threads; None: all processors.
        reason: why it cannot be exact, where `pick_exact` has found that before.
    """
    if not reason or same_numbers(w.scheme, target):
        try:
            return recode_exactly(w, target, zero_points), ""
        except NotExact as error:
            reason = str(error)
    new = None
    if has_fit(w) and target in zero_point_schemes(w.scheme):
        new = rewritten(w, target, threads=threads)
    if new is None or not stores_zero_points(new, zero_points):
        new = quantize(w.dequantize(threads=threads), target, axis=w.axis, rule=rule, threads=threads)
    return new, reason


def stores_zero_points(w: BlockTensor, allowed: ZeroPoints | None) -> bool:
    """Whether all zero points of a tensor are among those that a target stores."""
    if allowed is None or w.scheme.offset != "zero_point" or w.row_offsets is None or not w.row_offsets.size:
        return True
    return allowed[0] <= int(w.row_offsets.min()) and int(w.row_offsets.max()) <= allowed[1]


def recode_exactly(w: BlockTensor, target: Scheme, zero_points: ZeroPoints | None = None) -> BlockTensor:
    """Bring a tensor under a scheme without changing a value.

    Args:
        w: the tensor.
        target: the scheme it gets.
        zero_points: smallest and largest zero point that the target stores; None: any.

    Raises:
        NotExact: the scheme cannot hold the values; the text says why.
    """
    if same_numbers(w.scheme, target) and stores_zero_points(w, zero_points):
        return _named(w, target)
    if target.is_mx:
        raise NotExact(f"{w.scheme.name} values are no {target.name} values")
    for step in (
        from_mx,
        from_minimum,
        other_scale,
        to_minimum,
        signedness,
        smaller_blocks,
        wider_codes,
    ):
        w = step(w, target)
    if not same_numbers(w.scheme, target):
        raise NotExact(f"{w.scheme.describe()} is not {target.describe()}")
    return _named(w if zero_points is None else fitting_zero_points(w, zero_points), target)


def _named(w: BlockTensor, target: Scheme) -> BlockTensor:
    """The tensor under another name of its numbers."""
    if not is_renaming(w.scheme, target):
        low = _FIVE_BITS[target.name]
        codes = w.packed.view(np.int8) if low else w.packed
        if codes.size and not low <= int(codes.min()) <= int(codes.max()) <= low + 31:
            raise NotExact(f"{target.name} holds {low} .. {low + 31}, the codes reach beyond")
    return w if w.scheme == target else replace(w, scheme=target)


def difference(a: BlockTensor, b: BlockTensor, threads: int | None = None) -> tuple[float, float]:
    """Largest and mean absolute difference of the decoded values of two tensors of one shape and axis.

    NaN on one side only is an infinite difference. The result does not depend on `threads`.
    """
    step = max(1, _SLAB_ELEMENTS // max(1, a.grid.length))

    def run(begin: int, end: int) -> list[tuple[float, float]]:
        return [_slab_difference(a, b, i * step, (i + 1) * step) for i in range(begin, end)]

    slabs = -(-a.grid.rows // step)
    found = [pair for part in split_work(run, slabs, a.size, threads, GRAIN) for pair in part]
    total = sum(pair[1] for pair in found)
    return max((pair[0] for pair in found), default=0.0), total / a.size if a.size else 0.0


def _slab_difference(a: BlockTensor, b: BlockTensor, begin: int, end: int) -> tuple[float, float]:
    """Largest absolute difference in some rows, and the sum of all."""
    x, y = (_rows(w, begin, end).dequantize(threads=1) for w in (a, b))
    with np.errstate(invalid="ignore"):
        error = np.subtract(x, y, dtype=np.float64)
        np.abs(error, out=error)
    if not np.isfinite(error.sum()):
        error[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        error[np.isnan(error)] = np.inf
    return float(error.max(initial=0.0)), float(error.sum())


def _rows(w: BlockTensor, begin: int, end: int) -> BlockTensor:
    """Some canonical rows as a matrix."""
    rows = slice(begin, min(end, w.grid.rows))
    grid = BlockGrid((rows.stop - rows.start, w.grid.length), 1, w.grid.block_size)
    offsets = None if w.row_offsets is None else w.row_offsets[rows]
    return BlockTensor(grid, w.scheme, w.packed[rows], w.row_scales[rows], offsets)


def pick_exact(
    w: BlockTensor, candidates: Mapping[Scheme, ZeroPoints | None]
) -> tuple[BlockTensor | None, dict[Scheme, str]]:
    """The first candidate that holds the tensor exactly, and why those before it do not.

    Args:
        w: the tensor.
        candidates: schemes, the best first, with the zero points that the target stores for each.
    """
    reasons: dict[Scheme, str] = {}
    uneven: dict[Scheme | None, str] = {}
    for target, allowed in candidates.items():
        form = minimum_form(w.scheme, target)
        if form in uneven:
            reasons[target] = uneven[form]
            continue
        try:
            return recode_exactly(w, target, allowed), reasons
        except NotExact as error:
            reasons[target] = str(error)
            if isinstance(error, UnevenMinimums):
                uneven[form] = str(error)
    if not candidates:
        raise InputError("no scheme of the target fits this tensor")
    return None, reasons

"""What was done with each tensor, and what decides an output's bytes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .checkpoint import Checkpoint
from .plan import Plan, PlanItem
from .recode import difference
from .report import QuantizeReport
from .tensor import BlockTensor

_COUNTS = tuple(f.name for f in fields(QuantizeReport))


@dataclass(frozen=True, slots=True)
class TensorResult:
    """What was done with one tensor.

    Attributes:
        item: its line of the plan.
        report: the counted events, for tensors that were quantized.
        exact: whether every value is what it was; None for tensors that were quantized.
        largest_error: largest difference of a value, where it was recoded.
        mean_error: mean absolute difference.
    """

    item: PlanItem
    report: QuantizeReport | None
    exact: bool | None = None
    largest_error: float = 0.0
    mean_error: float = 0.0


@dataclass(slots=True)
class Errors:
    """Differences of values, slab by slab."""

    largest: float = 0.0
    total: float = 0.0
    elements: int = 0

    def add(self, old: BlockTensor, new: BlockTensor, threads: int | None = None) -> None:
        """Add the differences of two tensors of one shape."""
        largest, mean = difference(old, new, threads)
        self.largest = max(self.largest, largest)
        self.total += mean * old.size
        self.elements += old.size

    @property
    def mean(self) -> float:
        """Mean absolute difference."""
        return self.total / self.elements if self.elements else 0.0


def fingerprint(ckpt: Checkpoint, plan: Plan) -> dict[str, Any]:
    """Whatever decides the bytes of an output, as JSON values: source, how it is read, what becomes of it."""
    layout, options = plan.layout, plan.target.options
    items = [
        (i.name, i.action, i.rule, i.axis, i.out.scheme and (i.out.scheme.name, i.out.scheme.describe()))
        for i in plan.items
    ]
    places = [(name, list(parts.items())) for name, parts in layout.regions.items()]
    return {
        "source": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in ckpt.paths],
        "reading": dict(ckpt.asked),
        "settings": {**plan.settings, **options.settings},
        "tensors": zlib.crc32(repr(items).encode()),
        "layout": zlib.crc32(repr((layout.files, places, sorted(layout.extras.items()))).encode()),
    }


def result_as_json(result: TensorResult) -> dict[str, Any]:
    """A result for the journal."""
    report = None if result.report is None else asdict(result.report)
    return {
        "report": report,
        "exact": result.exact,
        "largest_error": result.largest_error,
        "mean_error": result.mean_error,
    }


def result_from_json(item: PlanItem, saved: Mapping[str, Any]) -> TensorResult:
    """A result out of the journal."""
    report = saved["report"]
    counts = None if report is None else QuantizeReport(**{name: report[name] for name in _COUNTS})
    return TensorResult(item, counts, saved["exact"], saved["largest_error"], saved["mean_error"])

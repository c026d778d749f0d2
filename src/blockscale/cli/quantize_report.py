"""What `blockscale quantize` prints: the plan, the table of results, the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..keep import QUANTIZED_BEFORE
from ..plan import Plan, PlanItem
from ..report import QuantizeReport
from ..results import TensorResult
from ..schemes import Scheme
from .names import NameGroup, group_rows
from .output import Column, print_table, say
from .schemes import describe_scheme
from .text import (
    printable,
    show_bits,
    show_bytes,
    show_count,
    show_range,
    show_shape,
    show_share,
)

# Counted events beside `saturated`, and what their columns are called.
_EVENTS = {
    "zeroed": "zeroed",
    "zero_blocks": "zero blocks",
    "scales_raised": "scales raised",
    "scales_clamped": "scales clamped",
    "nan_blocks": "NaN blocks",
    "unweighted_blocks": "unweighted",
}
_MEANINGS = {
    "saturated": "clamped to the end of the code range",
    "zeroed": "not zero, but decode to zero",
    "zero_blocks": "all elements are zero, stored exactly",
    "scales_raised": "the scale would have been stored as zero",
    "scales_clamped": "the exponent was clamped at the end of its range",
    "nan_blocks": "marked NaN",
    "unweighted_blocks": "all importances were zero",
}
_ELEMENT_EVENTS = ("saturated", "zeroed")


def bits_per_weight(items: Sequence[PlanItem]) -> float:
    """Bits per element over the tensors that are quantized; 0 if there are none."""
    chosen = [item for item in items if item.action == "quantize"]
    elements = sum(_size(item) for item in chosen)
    return 8 * sum(item.nbytes_out for item in chosen) / elements if elements else 0.0


def print_plan(ckpt: Checkpoint, plan: Plan, scheme: Scheme, axis: int) -> None:
    """Say what will be done, before it is done."""
    chosen = [item for item in plan.items if item.action == "quantize"]
    kept = [item for item in plan.items if item.action == "keep"]
    source = ckpt.nbytes
    say(f"{printable(ckpt.path)}: {ckpt.kind}, {show_count(len(plan.items), 'tensor')}, {source:,} bytes")
    say(f"quantize  {_total(chosen)}")
    if chosen:
        say(f"          {scheme.name} ({scheme.describe()})")
        bits = show_bits(bits_per_weight(chosen))
        say(f"          rule {chosen[0].rule}, blocks along axis {axis}, {bits} bits per weight")
    else:
        again = any(item.reason == QUANTIZED_BEFORE for item in kept)
        way = "; --requantize quantizes again what is quantized already" if again else ""
        say(f"          note: nothing is quantized, the output holds the same tensors{way}")
    say(f"keep      {_total(kept)}")
    share = f", {100 * plan.size / source:.1f}% of the source" if source else ""
    say(f"output    {plan.size:,} bytes ({show_bytes(plan.size)}){share}")
    for line in plan.notes:
        say(f"          note: {line}")
    say()


def print_results(results: Sequence[TensorResult], *, show_all: bool) -> None:
    """Print the tables of quantized and kept tensors, and what the counted events mean."""
    chosen = [r for r in results if r.item.action == "quantize"]
    if chosen:
        _print_quantized(chosen, show_all=show_all)
    kept = [r.item for r in results if r.item.action == "keep"]
    if kept:
        _print_kept(kept, show_all=show_all)
    total = sum((r.report for r in chosen if r.report is not None), QuantizeReport())
    for name, meaning in _MEANINGS.items():
        count = getattr(total, name)
        if count:
            noun, of = ("elements", total.elements) if name in _ELEMENT_EVENTS else ("blocks", total.blocks)
            say(f"{name}: {count:,} of {of:,} {noun} ({show_share(count / of)}); {meaning}")


def _print_quantized(results: Sequence[TensorResult], *, show_all: bool) -> None:
    names = [r.item.name for r in results]
    kinds = [(r.item.shape, r.item.scheme, r.item.axis, r.item.dtype) for r in results]
    groups = group_rows(names, kinds, show_all=show_all)
    columns = [
        Column("quantized tensor", fold=True),
        Column("count", is_number=True),
        Column("shape", rank=1),
        Column("from", rank=4),
        Column("scheme", rank=2),
        Column("axis", is_number=True, rank=3),
        Column("bits", is_number=True),
        Column("saturated", is_number=True),
        *(Column(title, is_number=True, rank=5) for title in _EVENTS.values()),
    ]
    print_table(columns, [_quantized_row(g, [results[i] for i in g.members]) for g in groups])
    say()


def _quantized_row(group: NameGroup, results: Sequence[TensorResult]) -> list[str]:
    item = results[0].item
    reports = [r.report for r in results if r.report is not None]
    counts = {name: sum(getattr(r, name) for r in reports) for name in _EVENTS}
    shares = (r.zeroed / r.elements for r in reports if r.elements)
    events = [show_range(shares, show_share) if counts.pop("zeroed") else ""]
    events += [f"{n:,}" if n else "" for n in counts.values()]
    return [
        group.label,
        str(len(results)) if len(results) > 1 else "",
        show_shape(item.shape),
        item.dtype,
        item.scheme.name if item.scheme else "",
        str(item.axis),
        show_bits(_bits(item)),
        show_range((r.saturated_share for r in reports), show_share),
        *events,
    ]


def _print_kept(items: Sequence[PlanItem], *, show_all: bool) -> None:
    kinds = [(item.shape, item.dtype, item.reason) for item in items]
    groups = group_rows([item.name for item in items], kinds, show_all=show_all)
    columns = [
        Column("kept tensor", fold=True),
        Column("count", is_number=True),
        Column("shape"),
        Column("type"),
        Column("bytes", is_number=True, rank=1),
        Column("reason", fold=True),
    ]
    rows = []
    for group in groups:
        item = items[group.members[0]]
        size = sum(items[i].nbytes_out for i in group.members)
        count = str(len(group.members)) if len(group.members) > 1 else ""
        rows.append([group.label, count, show_shape(item.shape), item.dtype, f"{size:,}", item.reason])
    print_table(columns, rows)
    say()


def document(
    ckpt: Checkpoint,
    plan: Plan,
    scheme: Scheme,
    results: Sequence[TensorResult],
    target: Path | None,
    seconds: float | None,
) -> dict[str, Any]:
    """The JSON document of the verb; docs/cli.md names the keys."""
    chosen = [r for r in results if r.item.action == "quantize"]
    total = sum((r.report for r in chosen if r.report is not None), QuantizeReport())
    return {
        "source": {
            "path": str(ckpt.path),
            "kind": ckpt.kind,
            "nbytes": ckpt.nbytes,
            "tensors": len(plan.items),
        },
        "output": {
            "path": None if target is None else str(target),
            "nbytes": plan.size,
            "notes": list(plan.notes),
            "written": seconds is not None,
            "seconds": seconds,
        },
        "scheme": describe_scheme(scheme),
        "rule": next((r.item.rule for r in chosen), ""),
        "bits_per_weight": bits_per_weight(plan.items),
        "quantized": len(chosen),
        "kept": len(results) - len(chosen),
        "events": _events(total) if seconds is not None else None,
        "tensors": [_tensor_document(r) for r in results],
    }


def _tensor_document(result: TensorResult) -> dict[str, Any]:
    item = result.item
    return {
        "name": item.name,
        "shape": list(item.shape),
        "dtype": item.dtype,
        "action": item.action,
        "reason": item.reason,
        "scheme": item.scheme.name if item.scheme else None,
        "axis": item.axis,
        "block_size": item.scheme.block_size if item.scheme else None,
        "rule": item.rule,
        "nbytes_in": item.nbytes_in,
        "nbytes_out": item.nbytes_out,
        "bits_per_element": _bits(item),
        "events": None if result.report is None else _events(result.report),
    }


def _events(report: QuantizeReport) -> dict[str, Any]:
    counts = {k: v for k, v in asdict(report).items() if k != "rule"}
    return counts | {"saturated_share": report.saturated_share}


def _size(item: PlanItem) -> int:
    size = 1
    for n in item.shape:
        size *= n
    return size


def _bits(item: PlanItem) -> float:
    size = _size(item)
    return 8 * item.nbytes_out / size if size else 0.0


def _total(items: Sequence[PlanItem]) -> str:
    size = sum(item.nbytes_in for item in items)
    return f"{show_count(len(items), 'tensor')} ({show_bytes(size)})"

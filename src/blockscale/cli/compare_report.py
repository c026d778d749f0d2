"""What `blockscale compare` prints: the table, the totals, the JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..checkpoint import Checkpoint
from ..compare import Comparison, TensorComparison
from ..metrics import ErrorSums
from ..spread import QUANTILES, PartErrors
from .names import group_rows
from .output import Column, print_table, say
from .text import printable, show_count, show_db, show_number, show_range, show_shape, show_share

_MOST_LISTED = 20


def print_comparison(a: Checkpoint, b: Checkpoint, result: Comparison, *, show_all: bool) -> None:
    """Print everything but the verdict."""
    for label, ckpt in (("A", a), ("B", b)):
        say(f"{label}  {printable(ckpt.path)}: {ckpt.kind}, {show_count(len(ckpt), 'tensor')}")
    for line in describe_quantization(b, [t.name for t in result.tensors]):
        say(f"   {line}")
    if any(t.a.quantization for t in result.tensors):
        say("   note: A is quantized itself; the error is against its decoded values")
    say()
    _print_table(result, show_all=show_all)
    _print_remarks(result)
    _print_spread(result, show_all=show_all)
    _print_rest(result)


def describe_quantization(ckpt: Checkpoint, names: Sequence[str]) -> list[str]:
    """One line per way in which the tensors are stored: scheme, block, axis, and how many."""
    kinds: dict[str, int] = {}
    for name in names:
        info = ckpt.infos[name]
        if info.scheme is not None:
            text = f"{info.scheme.name} ({info.scheme.describe()}), axis {info.axis}"
        else:
            text = info.quantization or "not quantized"
        kinds[text] = kinds.get(text, 0) + 1
    lines = [f"{text}: {show_count(n, 'tensor')}" for text, n in kinds.items()]
    if any(ckpt.infos[name].quantization for name in names):
        rule = recorded_rule(ckpt)
        lines.append(f"rule: {rule}" if rule else "rule: not recorded in the file")
    return lines


def recorded_rule(ckpt: Checkpoint) -> str | None:
    """The rule that chose the scales, if the file's metadata say so."""
    rule = ckpt.metadata.get("blockscale.rule")
    return None if rule is None else printable(rule)


def _print_table(result: Comparison, *, show_all: bool) -> None:
    tensors = [t for t in result.tensors if show_all or not _is_copy(t)]
    equal = len(result.tensors) - len(tensors)
    kinds = [(t.a.shape, t.a.dtype, t.b.dtype, t.b.scheme, t.b.axis) for t in tensors]
    groups = group_rows([t.name for t in tensors], kinds, show_all=show_all)
    columns = [
        Column("tensor", fold=True),
        Column("count", is_number=True),
        Column("shape", rank=2),
        Column("B", rank=1),
        Column("SQNR dB", is_number=True),
        Column("rel. MSE", is_number=True),
        Column("max abs", is_number=True),
        Column("cosine", is_number=True, rank=3),
        Column("saturated", is_number=True),
        Column("NaN/inf", is_number=True),
    ]
    if tensors:
        rows = [_row(g.label, [tensors[i] for i in g.members]) for g in groups]
        print_table(columns, rows, _totals(result))
    if len(groups) < len(tensors):
        say("rows with a count: SQNR from worst to best, of the other figures the worst")
    if equal:
        say(f"{show_count(equal, 'tensor')} not quantized and exactly equal (--all lists them)")


def _is_copy(t: TensorComparison) -> bool:
    sums = t.sums
    return not t.b.quantization and sums.error == 0 and sums.max_abs == 0 and sums.nonfinite == 0


def _row(label: str, tensors: Sequence[TensorComparison]) -> list[str]:
    first = tensors[0]
    errors = [t.error for t in tensors]
    nonfinite = sum(t.sums.nonfinite for t in tensors)
    blocked = first.b.scheme is not None
    return [
        label,
        str(len(tensors)) if len(tensors) > 1 else "",
        show_shape(first.a.shape),
        first.b.scheme.name if first.b.scheme else first.b.dtype,
        show_range((e.sqnr_db for e in errors), show_db),
        show_number(max(e.relative_mse for e in errors), 3),
        show_number(max(e.max_abs for e in errors), 3),
        f"{min(e.cosine for e in errors):.5f}",
        show_share(max(e.saturated_share for e in errors)) if blocked else "",
        f"{nonfinite:,}" if nonfinite else "",
    ]


def _totals(result: Comparison) -> list[list[str]]:
    """Rows for all quantized tensors together, and for all tensors."""
    quantized = [t for t in result.tensors if t.b.quantization]
    rows = (
        [_total_row("quantized tensors together", len(quantized), result.quantized_total)]
        if quantized
        else []
    )
    if len(quantized) < len(result.tensors):
        rows.append(_total_row("all tensors together", len(result.tensors), result.total))
    return rows


def _total_row(label: str, count: int, sums: ErrorSums) -> list[str]:
    e = sums.figures()
    return [
        f"{label} ({count})",
        "",
        "",
        "",
        show_db(e.sqnr_db),
        show_number(e.relative_mse, 3),
        show_number(e.max_abs, 3),
        f"{e.cosine:.5f}",
        show_share(e.saturated_share),
        f"{sums.nonfinite:,}" if sums.nonfinite else "",
    ]


def _print_remarks(result: Comparison) -> None:
    quantized = [t for t in result.tensors if t.b.quantization]
    if len(quantized) > 1 and result.quantized_total.error:
        worst = min(quantized, key=lambda t: t.error.sqnr_db)
        say(f"worst: {printable(worst.name)}, SQNR {_db(worst.error.sqnr_db)}")
    if result.total.skipped:
        say(f"{result.total.skipped:,} NaN or infinite values are the same in A and B, and left out")
    if result.total.nonfinite:
        say(f"{result.total.nonfinite:,} values are NaN or infinite in one of A and B only, and left out")


def _db(x: float) -> str:
    text = show_db(x)
    return text if text == "exact" else f"{text} dB"


def _print_spread(result: Comparison, *, show_all: bool) -> None:
    spread = [t for t in result.tensors if t.parts is not None]
    if not spread or spread[0].parts is None:
        return
    per = spread[0].parts.per
    say(f"\nSQNR per {per}, dB\n")
    titles = ("worst", "1%", "median", "99%", "best")
    columns = [
        Column("tensor", fold=True),
        Column(f"{per}s", is_number=True),
        *(Column(title, is_number=True) for title in titles),
        Column("worst at", rank=1),
    ]
    groups = group_rows([t.name for t in spread], [(t.a.shape, t.b.axis) for t in spread], show_all=show_all)
    parts = [t.parts for t in spread if t.parts is not None]
    print_table(columns, [_spread_row(g.label, [parts[i] for i in g.members]) for g in groups])


def _spread_row(label: str, parts: Sequence[PartErrors]) -> list[str]:
    """One row; of several tensors the worst of each figure is shown."""
    figures = [show_db(min(column)) for column in zip(*(p.sqnr_db for p in parts), strict=True)]
    worst = min(parts, key=lambda p: min(p.sqnr_db, default=0.0)).worst
    where = str(list(worst[0][0])) if worst and len(parts) == 1 else ""
    count = sum(p.count for p in parts)
    return [label, f"{count:,}", *(figures or [""] * len(QUANTILES)), where]


def _print_rest(result: Comparison) -> None:
    for names, what in ((result.missing, "only in A"), (result.extra, "only in B")):
        if names:
            say(f"\n{show_count(len(names), 'tensor')} {what}:")
            print_list(dict.fromkeys(names, ""))
    if result.failed:
        say(f"\n{show_count(len(result.failed), 'tensor')} could not be compared:")
        print_list(result.failed)


def print_list(lines: Mapping[str, str]) -> None:
    """Print names with reasons, the first ones of a long list."""
    for name, reason in list(lines.items())[:_MOST_LISTED]:
        say(f"  {printable(name)}" + (f": {printable(reason)}" if reason else ""))
    if len(lines) > _MOST_LISTED:
        say(f"  and {len(lines) - _MOST_LISTED} more; --json lists all")


def document(
    a: Checkpoint, b: Checkpoint, result: Comparison, faults: Mapping[str, str], limits: Mapping[str, float]
) -> dict[str, Any]:
    """The JSON document of the verb; docs/cli.md names the keys."""
    return {
        "a": {"path": str(a.path), "kind": a.kind, "tensors": len(a)},
        "b": {"path": str(b.path), "kind": b.kind, "tensors": len(b), "rule": recorded_rule(b)},
        "tensors": [_tensor_document(t) for t in result.tensors],
        "total": _error_document(result.total),
        "quantized_total": _error_document(result.quantized_total),
        "missing": list(result.missing),
        "extra": list(result.extra),
        "failed": dict(result.failed),
        "limits": dict(limits),
        "faults": dict(faults),
        "passed": not faults if limits else None,
    }


def _tensor_document(t: TensorComparison) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": t.name,
        "shape": list(t.a.shape),
        "dtype_a": t.a.dtype,
        "dtype_b": t.b.dtype,
        "quantization_a": t.a.quantization,
        "quantization_b": t.b.quantization,
        "scheme": t.b.scheme.name if t.b.scheme else None,
        "block_size": t.b.scheme.block_size if t.b.scheme else None,
        "axis": t.b.axis,
        "bits_per_element": t.b.bits_per_element,
        **_error_document(t.sums),
    }
    if t.parts is not None:
        found["spread"] = {
            "per": t.parts.per,
            "count": t.parts.count,
            "shares": list(QUANTILES),
            "sqnr_db": list(t.parts.sqnr_db),
            "worst": [{"index": list(i), "sqnr_db": db} for i, db in t.parts.worst],
        }
    return found


def _error_document(sums: ErrorSums) -> dict[str, Any]:
    e = sums.figures()
    return {
        "mse": e.mse,
        "relative_mse": e.relative_mse,
        "sqnr_db": e.sqnr_db,
        "max_abs": e.max_abs,
        "cosine": e.cosine,
        "saturated": e.saturated,
        "saturated_share": e.saturated_share,
        "elements": e.elements,
        "nonfinite_differing": sums.nonfinite,
        "nonfinite_same": sums.skipped,
    }

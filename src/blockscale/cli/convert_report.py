"""What `blockscale convert` prints: how the source was read, what became of each tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..checkpoint import Checkpoint
from ..manifest import stored_as
from ..plan import Plan
from ..results import TensorResult
from .names import NameGroup, group_rows
from .output import Column, print_table, say
from .text import printable, show_bytes, show_count, show_number, show_range, show_shape

_MOST_REASONS = 8
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?![\w.]*\w)")
"""A whole number that stands alone: not part of a name (`int8`, `q4_0`) or of a fraction."""


def print_plan(ckpt: Checkpoint, plan: Plan) -> None:
    """Say how the source was read and what will be written."""
    say(
        f"{printable(ckpt.path)}: {ckpt.kind}, {show_count(len(plan.items), 'tensor')}, {ckpt.nbytes:,} bytes"
    )
    for line in ckpt.reading.evidence:
        say(f"  {printable(line)}")
    for line in ckpt.reading.problems:
        say(f"  note: {printable(line)}")
    shards = f" in {len(plan.layout.files)} shards" if len(plan.layout.files) > 1 else ""
    say(f"output    {plan.target.kind}, {plan.size:,} bytes ({show_bytes(plan.size)}){shards}")
    for line in plan.notes:
        say(f"  note: {line}")
    say()


def print_results(ckpt: Checkpoint, results: Sequence[TensorResult], *, done: bool, show_all: bool) -> None:
    """A row per tensor (or group of layers): what it was, what it is, exact or with which error."""
    kinds = [
        (r.item.shape, ckpt.info(r.item.name).dtype, stored_as(r.item), r.item.action, _short(r.item.reason))
        for r in results
    ]
    groups = group_rows([r.item.name for r in results], kinds, show_all=show_all)
    columns = [
        Column("tensor", fold=True),
        Column("count", is_number=True),
        Column("shape", rank=1),
        Column("from", rank=2),
        Column("to"),
        Column("values"),
        Column("largest error", is_number=True),
        Column("mean error", is_number=True, rank=3),
    ]
    print_table(columns, [_row(ckpt, g, [results[i] for i in g.members], done=done) for g in groups])
    say()
    recoded = [r for r in results if r.item.action == "recode"]
    exact = len(results) - len(recoded)
    say(f"{show_count(exact, 'tensor')} exact, {len(recoded)} re-encoded")
    for line in merge_reasons([r.item.reason for r in recoded])[:_MOST_REASONS]:
        say(f"  re-encoded: {printable(line)}")


def _row(ckpt: Checkpoint, group: NameGroup, results: Sequence[TensorResult], *, done: bool) -> list[str]:
    first = results[0]
    recoded = first.item.action == "recode"
    return [
        group.label,
        str(len(results)) if len(results) > 1 else "",
        show_shape(first.item.shape),
        _was(ckpt, first),
        stored_as(first.item),
        "re-encoded" if recoded else "exact",
        show_number(max(r.largest_error for r in results)) if recoded and done else "",
        show_number(sum(r.mean_error for r in results) / len(results)) if recoded and done else "",
    ]


def _was(ckpt: Checkpoint, result: TensorResult) -> str:
    info = ckpt.info(result.item.name)
    return info.scheme.name if info.scheme is not None else info.dtype


def _short(reason: str) -> str:
    """The reason without the numbers that differ from tensor to tensor."""
    return _NUMBER.sub("N", reason)


def merge_reasons(reasons: Sequence[str]) -> list[str]:
    """One line for reasons that differ in numbers only: counts (`3 of 8`) added up, others as a range."""
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        alike.setdefault(_short(reason), []).append(reason)
    return [
        _merge(found) + (f", {len(found):,} tensors" if len(found) > 1 else "") for found in alike.values()
    ]


def _merge(reasons: Sequence[str]) -> str:
    columns = zip(*(_NUMBER.findall(reason) for reason in reasons), strict=True)
    numbers = [[int(text.replace(",", "")) for text in column] for column in columns]
    pieces = _NUMBER.split(reasons[0])
    counts = {i + j for i in range(len(numbers) - 1) if pieces[i + 1] == " of " for j in (0, 1)}
    shown = [
        f"{sum(column):,}" if i in counts else show_range(column, lambda n: f"{n:.0f}")
        for i, column in enumerate(numbers)
    ]
    return "".join(piece + number for piece, number in zip(pieces, [*shown, ""], strict=True))


def document(
    ckpt: Checkpoint, plan: Plan, results: Sequence[TensorResult], seconds: float | None
) -> dict[str, Any]:
    """The JSON document of the verb; docs/cli.md names the keys."""
    return {
        "source": {
            "path": str(ckpt.path),
            "kind": ckpt.kind,
            "nbytes": ckpt.nbytes,
            "dialects": list(ckpt.reading.dialects),
            "evidence": list(ckpt.reading.evidence),
            "problems": list(ckpt.reading.problems),
        },
        "output": {
            "path": str(plan.target.path),
            "kind": plan.target.kind,
            "nbytes": plan.size,
            "notes": list(plan.notes),
            "files": [f.name for f in plan.layout.files] + list(plan.layout.extras),
            "written": seconds is not None,
            "seconds": seconds,
        },
        "exact": sum(r.item.action != "recode" for r in results),
        "recoded": sum(r.item.action == "recode" for r in results),
        "tensors": [_tensor_document(ckpt, r) for r in results],
    }


def _tensor_document(ckpt: Checkpoint, result: TensorResult) -> dict[str, Any]:
    item = result.item
    return {
        "name": item.name,
        "shape": list(item.shape),
        "from": _was(ckpt, result),
        "to": stored_as(item),
        "exact": item.action != "recode",
        "reason": item.reason,
        "largest_error": result.largest_error,
        "mean_error": result.mean_error,
        "nbytes_in": item.nbytes_in,
        "nbytes_out": item.nbytes_out,
    }

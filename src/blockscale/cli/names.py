"""Collapsing the names of repeated layers: `layers.{0..31}.mlp.up_proj.weight`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# A layer number stands alone between separators: `layers.3.mlp`, `block_3`; not `w1`, `conv2d`, `007`.
_NUMBER = re.compile(r"(?<![^\W_])(?:0|[1-9]\d*)(?![^\W_])", re.ASCII)
_MAX_RUNS = 3
_COLLAPSE_ABOVE = 12  # rows of a table


@dataclass(frozen=True, slots=True)
class NameGroup:
    """Names that differ in layer numbers only.

    Attributes:
        label: one name for all of them, with ranges in braces.
        members: their positions in the list they came from.
    """

    label: str
    members: tuple[int, ...]


def group_rows(names: Sequence[str], kinds: Sequence[Hashable], *, show_all: bool) -> list[NameGroup]:
    """Rows of a table: one per tensor, or one per repeated layer in long tables."""
    if show_all or len(names) <= _COLLAPSE_ABOVE:
        return [NameGroup(name, (i,)) for i, name in enumerate(names)]
    return collapse_names(names, kinds)


def collapse_names(names: Sequence[str], kinds: Sequence[Hashable]) -> list[NameGroup]:
    """Group names that differ in their layer numbers only and are of one kind.

    Args:
        names: the names, in the order of the table.
        kinds: what must be equal for names to share a row (shape, scheme ...), one per name.

    Returns:
        The groups in order of their first member. `label (n of m)` marks a group with gaps: `n` names of
        the `m` that its ranges span.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        groups.setdefault((_NUMBER.sub("#", name), kind), []).append(i)
    return [NameGroup(_label([names[i] for i in g]), tuple(g)) for g in groups.values()]


def _label(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    columns = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    spans = [_span(sorted({int(n) for n in column})) for column in columns]
    texts = iter(text for text, _ in spans)
    label = _NUMBER.sub(lambda _: next(texts), names[0])
    possible = 1
    for _, count in spans:
        possible *= count
    return label if possible == len(names) else f"{label} ({len(names)} of {possible})"


def _span(numbers: list[int]) -> tuple[str, int]:
    """Text for a set of numbers, and how many numbers that text stands for."""
    if len(numbers) == 1:
        return str(numbers[0]), 1
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    if len(runs) > _MAX_RUNS:
        low, high = numbers[0], numbers[-1]
        return f"{{{low}..{high}}}", high - low + 1
    return "{" + ",".join(str(a) if a == b else f"{a}..{b}" for a, b in runs) + "}", len(numbers)

"""Printing: tables, lines and JSON documents on stdout; warnings and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import click

from .text import printable

_PIPE_WIDTH = 200
_FOLDED = 24  # a column that may be narrowed keeps at least this width


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        is_number: right-aligned.
        fold: may be narrowed, its texts broken over lines; for names and sentences.
        rank: where the terminal is too narrow, the columns of highest rank are left out first; then those of
            rank 0 from the right; never the first column, which names the row.
    """

    title: str
    is_number: bool = False
    fold: bool = False
    rank: int = 0


def say(text: str = "") -> None:
    """Print a line on stdout."""
    click.echo(text)


def warn(text: str) -> None:
    """Print a line on stderr."""
    click.echo(text, err=True)


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], totals: Sequence[Sequence[str]] = ()
) -> None:
    """Print a table; columns in which every cell is empty are left out.

    Args:
        columns: the columns.
        rows: one text per column.
        totals: rows below a line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    body = [[printable(cell) for cell in row] for row in rows]
    foot = [[printable(cell) for cell in row] for row in totals]
    console = _console()
    widths, left_out = _fit(columns, body + foot, console.width)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for i in widths:
        c = columns[i]
        justify: Literal["left", "right"] = "right" if c.is_number else "left"
        longest = max(len(c.title), *(len(row[i]) for row in body + foot))
        table.add_column(c.title, justify=justify, overflow="fold", no_wrap=longest <= widths[i])
    for part in (body, foot):
        for row in part:
            table.add_row(*(_fold(row[i], n) for i, n in widths.items()))
        table.add_section()
    with console.capture() as text:
        console.print(table)
    for line in text.get().rstrip().splitlines():
        say(line.rstrip())
    if left_out:
        say(f"left out at this width: {', '.join(left_out)} (a wider terminal or --json shows them)")


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[dict[int, int], list[str]]:
    """Widths of the columns that have content and fit, and the titles of those that do not fit."""
    widths = {
        i: max(len(column.title), *(len(row[i]) for row in rows))
        for i, column in enumerate(columns)
        if any(row[i] for row in rows)
    }
    least = {i: min(n, _FOLDED) if columns[i].fold else n for i, n in widths.items()}
    left_out = []
    first, *others = widths or [0]
    by_rank = sorted(others, key=lambda i: (-columns[i].rank, i if columns[i].rank else -i))
    for i in by_rank:
        if _line_width(least) <= width:
            break
        del least[i]
        left_out.append(columns[i].title)
    if least:
        least[first] = min(least[first], max(width, 1))
    room = max(0, width - _line_width(least))
    fitted = {}
    for i, n in least.items():
        fitted[i] = min(widths[i], n + room)
        room -= fitted[i] - n
    return fitted, left_out


def _line_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _fold(text: str, width: int) -> str:
    """A name broken after dots, easy to read over several lines; sentences are left as they are."""
    if len(text) <= width or " " in text:
        return text
    lines = [""]
    for part in re.split(r"(?<=\.)(?!\.)(?<!\.\.)", text):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def print_json(verb: str, document: dict[str, Any]) -> None:
    """Print the one JSON document of a verb. NaN and infinities become the strings `nan`, `inf`, `-inf`."""
    from ..version import __version__

    whole = {"blockscale": __version__, "verb": verb, **document}
    for i, (key, value) in enumerate(whole.items()):
        click.echo(("," if i else "{") + f"\n  {json.dumps(str(key))}: ", nl=False)
        for piece in _json_pieces(value):
            click.echo(piece, nl=False)
    click.echo("\n}")


def _json_pieces(value: Any) -> Iterator[str]:
    """A value of the document as JSON; the items of long lists one by one, which takes little memory."""
    if not isinstance(value, list) or not value:
        yield _json(value, "  ")
        return
    for i, item in enumerate(value):
        yield ("," if i else "[") + "\n    " + _json(item, "    ")
    yield "\n  ]"


def _json(value: Any, margin: str) -> str:
    return json.dumps(plain(value), indent=2, allow_nan=False).replace("\n", "\n" + margin)


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return plain(value.item())
    return str(value)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar in bytes on stderr, with rate and time left; None where stderr is no terminal."""
    if not sys.stderr.isatty() or total == 0:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)


def _console(*, stderr: bool = False) -> Any:
    from rich.console import Console

    class QuietConsole(Console):
        """A console that leaves a broken pipe to `app`."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    fixed = stream.isatty() or "COLUMNS" in os.environ
    return QuietConsole(
        stderr=stderr,
        width=None if fixed else _PIPE_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )

"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def json_option() -> Decorator:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document (docs/cli.md).")


def all_option() -> Decorator:
    """`--all`."""
    return click.option(
        "--all", "show_all", is_flag=True, help="One row per tensor: do not collapse repeated layers."
    )


def tensors_option() -> Decorator:
    """`--tensors GLOB`."""
    return click.option(
        "--tensors",
        "patterns",
        metavar="GLOB",
        multiple=True,
        help="Only tensors whose name matches; repeatable.",
    )


def file_argument(name: str) -> Decorator:
    """A file to read; whether it exists is for the reader to say."""
    return click.argument(name.lower(), metavar=name, type=click.Path())


def complete_schemes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of schemes for the shell."""
    from ..schemes import SCHEMES

    return [CompletionItem(n, help=s.describe()) for n, s in SCHEMES.items() if n.startswith(incomplete)]


def complete_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of rules for the shell."""
    from ..rules import RULES

    return [CompletionItem(n, help=r.summary) for n, r in RULES.items() if n.startswith(incomplete)]


def select_names(names: list[str], patterns: tuple[str, ...], file: str) -> list[str]:
    """The names that match one of the patterns, all of them without patterns.

    Raises:
        InputError: a pattern that matches nothing.
    """
    from fnmatch import fnmatchcase

    from ..errors import InputError

    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(
                f"the pattern {pattern!r} matches no tensor",
                file=file,
                found=pattern,
                field="--tensors",
                rule="a pattern that matches nothing stops the run",
                hint="`blockscale inspect --all` lists the names",
            )
    if not patterns:
        return names
    return [name for name in names if any(fnmatchcase(name, p) for p in patterns)]

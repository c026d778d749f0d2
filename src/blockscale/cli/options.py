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


def source_options() -> Decorator:
    """How quantized weights of a source are read: `--dialect`, `--zero-point-bias`, `--setting`."""
    return _together(
        click.option(
            "--dialect",
            metavar="NAME",
            help="Read the source in this dialect, whatever it says of itself; none: the stored tensors.",
        ),
        click.option(
            "--zero-point-bias",
            type=click.IntRange(0, 1),
            help="1 if stored zero points are z - 1 (GPTQ v1), 0 if they are z; default: as the config says.",
        ),
        click.option(
            "--setting",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            help="A choice of the source's or target's dialect (docs/safetensors.md); repeatable.",
        ),
    )


def output_options() -> Decorator:
    """Where and how an output is written: `--to`, `--shard-size`, `--manifest`, `--resume` and so on."""
    return _together(
        click.option("--to", "kind", metavar="TARGET", help="hrry, gguf, or a dialect; default: by suffix."),
        click.option("--shard-size", metavar="SIZE", help="Largest shard of a folder (500MB, 4GiB ...)."),
        click.option(
            "--manifest",
            metavar="FILE",
            type=click.Path(),
            help="Write what became of each tensor to FILE; folders get blockscale.json in any case.",
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done and the exact size."),
        click.option("--force", is_flag=True, help="Replace an existing output."),
        click.option("--resume", is_flag=True, help="Keep what is done when interrupted, and go on from it."),
        click.option(
            "--threads",
            type=click.IntRange(1),
            metavar="N",
            help="At most N threads; default: all processors.",
        ),
    )


def _together(*decorators: Decorator) -> Decorator:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(decorators):
            function = one(function)
        return function

    return apply


def read_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`KEY=VALUE` pairs; true, false and integers as such.

    Raises:
        InputError: a pair without `=`.
    """
    from ..errors import InputError

    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise InputError(f"--setting {pair!r} is not KEY=VALUE", found=pair, field="--setting")
        words = {"true": True, "false": False}
        settings[key] = words.get(value.lower(), int(value) if value.lstrip("-").isdigit() else value)
    return settings


def read_size(text: str | None) -> int | None:
    """A size such as `500MB`, `4GiB` or plain bytes.

    Raises:
        InputError: anything else.
    """
    import re

    from ..errors import InputError

    if text is None:
        return None
    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]I?)?B?\s*", text.upper())
    try:
        size = int(float(found[1]) * units[found[2] or ""]) if found else 0
    except ValueError:
        size = 0
    if size < 1:
        raise InputError(f"{text!r} is no size", found=text, field="--shard-size", hint="500MB, 4GiB ...")
    return size


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

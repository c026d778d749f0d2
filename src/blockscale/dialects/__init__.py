"""Dialects: how toolchains name and lay out quantized weights inside files; one table of modules."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ..errors import SchemeError
from .base import Dialect

# Tried in this order: those that a config names come before those told by layout alone.
NAMES = ("compressed-tensors", "gptq", "awq", "gpt-oss", "plain-mx")


def dialect(name: str) -> Dialect:
    """The module of a dialect.

    Raises:
        SchemeError: there is no such dialect.
    """
    if name not in NAMES:
        raise SchemeError(f"unknown dialect {name!r}", found=name, hint=f"one of {', '.join(NAMES)}")
    return cast(Dialect, import_module(f".{name.replace('-', '_')}", __package__))

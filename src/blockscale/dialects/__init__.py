"""Dialects: how toolchains name and lay out quantized weights inside files; one table of modules."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from ..errors import InputError, SchemeError
from .base import Dialect, Options

# Tried in this order: those that a config names come before those told by layout alone.
NAMES = ("compressed-tensors", "gptq", "awq", "gpt-oss", "plain-mx")
# What each dialect lets its user choose; the modules say what the values mean.
SETTINGS = {
    "compressed-tensors": ("scale_shift", "targets", "ignore"),
    "gptq": ("version", "g_idx", "float32_scales", "all_ones", "ignore_g_idx"),
    "awq": ("float32_scales",),
    "gpt-oss": ("names", "orientation"),
    "plain-mx": ("scale_layout", "dtypes"),
}


def dialect(name: str) -> Dialect:
    """The module of a dialect.

    Raises:
        SchemeError: there is no such dialect.
    """
    if name not in NAMES:
        raise SchemeError(f"unknown dialect {name!r}", found=name, hint=f"one of {', '.join(NAMES)}")
    return cast(Dialect, import_module(f".{name.replace('-', '_')}", __package__))


def check_settings(settings: Mapping[str, Any]) -> None:
    """InputError for a setting that no dialect has."""
    known = sorted({key for keys in SETTINGS.values() for key in keys})
    for key in settings:
        if key not in known:
            raise InputError(
                f"no dialect has a setting {key!r}",
                found=key,
                field="settings",
                rule="settings that are unknown are refused, never ignored",
                hint=f"one of {', '.join(known)}",
            )


def options_of(name: str, options: Options) -> Options:
    """The options without the settings of other dialects: source and target may differ."""
    own = {key: value for key, value in options.settings.items() if key in SETTINGS.get(name, ())}
    return Options(options.zero_point_bias, own)

"""Numbers and names as people read them: sizes, shares, decibels, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(text: object) -> str:
    """Text safe to print: control characters (a hostile name may hold terminal commands) are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def show_bytes(n: int) -> str:
    """A size in decimal units: `1.23 GB`."""
    value, unit = float(n), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{n} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def show_share(x: float) -> str:
    """A share in percent; what is not zero never reads as zero."""
    if x == 0 or math.isnan(x):
        return "0" if x == 0 else "nan"
    percent = 100 * x
    if percent < 0.01:
        return "<0.01%"
    return f"{percent:.2f}%" if percent < 9.995 else f"{percent:.1f}%"


def show_range(values: Iterable[float], show: Callable[[float], str]) -> str:
    """Smallest and largest of a group (`18.7..18.9`), or what all share; empty for none."""
    found = list(values)
    if not found:
        return ""
    low, high = show(min(found)), show(max(found))
    return low if low == high else f"{low}..{high}"


def show_number(x: float, digits: int = 4) -> str:
    """A number to `digits` significant digits."""
    return f"{x:.{digits}g}"


def show_db(x: float) -> str:
    """An SQNR in dB; infinite where there is no error."""
    return "exact" if x == math.inf else f"{x:.2f}"


def show_bits(x: float) -> str:
    """Bits per element: `4.25`."""
    return f"{x:.4g}"


def show_shape(shape: Sequence[int]) -> str:
    """A shape: `4096x4096`; `scalar` for rank 0."""
    return "x".join(str(n) for n in shape) if shape else "scalar"


def show_count(n: int, noun: str, plural: str | None = None) -> str:
    """A number of things: `1 tensor`, `1,234 tensors`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"

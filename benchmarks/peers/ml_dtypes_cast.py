"""ml_dtypes: only the cast of elements, without any scale; one thread."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import ml_dtypes
import numpy as np

from work import Case, values

ELEMENTS = {"mxfp4": ml_dtypes.float4_e2m1fn, "mxfp8_e4m3": ml_dtypes.float8_e4m3fn}


def name() -> str:
    """Name and version."""
    return f"ml_dtypes {version('ml_dtypes')} cast only"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.scheme not in ELEMENTS or case.threads > 1 or case.operation == "linear":
        return None
    if case.rule not in (None, "floor"):
        return None
    x, element = values(case.n, case.k), ELEMENTS[case.scheme]
    if case.operation == "quantize":
        return lambda: void(x.astype(element))
    codes = x.astype(element)
    return lambda: void(codes.astype(np.float32))


def void(_: object) -> None:
    """Nothing."""

"""The gguf package: NumPy, one thread."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import gguf

from work import Case, values

FRESH = True
TYPES = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q8_0": "Q8_0", "mxfp4": "MXFP4"}


def name() -> str:
    """Name and version."""
    return f"gguf {version('gguf')}"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.scheme not in TYPES or case.threads > 1 or case.operation == "linear":
        return None
    if case.operation == "quantize" and case.rule not in ("ggml", "floor"):
        return None
    kind = gguf.GGMLQuantizationType[TYPES[case.scheme]]
    x = values(case.n, case.k)
    if case.operation == "quantize":
        return lambda: void(gguf.quants.quantize(x, kind))
    packed = gguf.quants.quantize(x, kind)  # it decodes to a new array always
    return lambda: void(gguf.quants.dequantize(packed, kind))


def void(_: object) -> None:
    """Nothing."""

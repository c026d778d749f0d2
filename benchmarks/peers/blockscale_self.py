"""blockscale itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

import blockscale as bs
from work import Case, copies, copy_of, input_of, tensor, values


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.operation == "quantize":
        x = input_of(case)
        return lambda: void(bs.quantize(x, case.scheme, rule=case.rule, threads=case.threads))
    w = tensor(case.scheme, case.n, case.k)
    if case.fresh:
        return lambda: void(w.dequantize(threads=case.threads))
    if case.operation == "dequantize":
        out = np.empty((case.n, case.k), np.float32)
        return lambda: void(w.dequantize(out=out, threads=case.threads))
    weights = cycle([copy_of(w) for _ in range(copies(case, w.nbytes))])
    a, y = values(case.rows, case.k, 1), np.empty((case.rows, case.n), np.float32)
    return lambda: void(
        bs.linear(a, next(weights), activations=case.activations, out=y, threads=case.threads)
    )


def void(_: object) -> None:
    """Nothing."""

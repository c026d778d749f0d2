"""NumPy's dense float32 product, for the threads that its BLAS was started with."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle

import numpy as np

from work import Case, copies, values

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def name() -> str:
    """Name and version."""
    return f"numpy {np.__version__} dense float32"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time: only where the case has as many threads as BLAS takes."""
    if case.operation != "linear" or case.threads != THREADS:
        return None
    w = values(case.n, case.k)
    weights = cycle([w.copy() for _ in range(copies(case, w.nbytes))])
    a, y = values(case.rows, case.k, 1), np.empty((case.rows, case.n), np.float32)
    return lambda: void(np.matmul(a, next(weights).T, out=y))


def void(_: object) -> None:
    """Nothing."""

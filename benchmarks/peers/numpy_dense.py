"""NumPy's dense float32 product, by the matrix product of its BLAS."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
from threadpoolctl import ThreadpoolController

from work import Case, copies, values

BLAS = ThreadpoolController().select(user_api="blas").lib_controllers


def name() -> str:
    """Name and version."""
    return f"numpy {np.__version__} dense float32"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time. BLAS has the case's threads from here on: setting them counts in small products."""
    if case.operation != "linear" or not BLAS:
        return None
    for blas in BLAS:
        blas.set_num_threads(case.threads)
    w = values(case.n, case.k)
    weights = cycle([w.copy() for _ in range(copies(case, w.nbytes))])
    a, y = values(case.rows, case.k, 1), np.empty((case.rows, case.n), np.float32)

    def run() -> None:
        np.matmul(a, next(weights).T, out=y)

    return run

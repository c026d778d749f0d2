"""torch: the dense product in bfloat16, what one would do without packed weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch

from work import Case, copies, values


def name() -> str:
    """Name and version."""
    return f"torch {torch.__version__} dense bf16"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.operation != "linear":
        return None
    w = torch.from_numpy(values(case.n, case.k)).to(torch.bfloat16)
    weights = cycle([w.clone() for _ in range(copies(case, w.nbytes))])
    a = torch.from_numpy(values(case.rows, case.k, 1)).to(torch.bfloat16)

    def run() -> None:
        torch.set_num_threads(case.threads)
        torch.nn.functional.linear(a, next(weights))

    return run

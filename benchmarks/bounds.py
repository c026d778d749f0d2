"""How long moving the same bytes takes, computing nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from work import Case, copies, input_of, tensor

Bytes = NDArray[np.uint8]


def read(part: Bytes) -> None:
    """Read every byte: NumPy's largest int32 is the fastest of its loops, limited by memory."""
    part.view(np.int32).max()


def write(part: Bytes) -> None:
    """Write every byte, past the caches where that pays. Not zeros: lines of zeros go twice as fast."""
    part.fill(0x3F)


def write_new(like: Bytes) -> None:
    """Write every byte of an array that did not exist before."""
    write(np.empty_like(like))


def lined(nbytes: int) -> Bytes:
    """Bytes that are not zero, a whole number of 128."""
    return np.ones(-(-nbytes // 128) * 128, np.uint8)


def flat(array: NDArray[Any]) -> Bytes:
    """The array's bytes."""
    return array.reshape(-1).view(np.uint8)


def make(case: Case) -> Callable[[], None] | None:
    """Moves the bytes of a case on its threads; None where arithmetic binds (many rows)."""
    if case.operation == "linear" and case.rows > 1:
        return None
    w = tensor(case.scheme, case.n, case.k)
    packed = lined(w.nbytes)
    jobs: list[tuple[Callable[[Bytes], None], list[Bytes]]] = []
    if case.operation == "quantize":
        jobs = [(read, [flat(input_of(case))]), (write, [packed])]
    elif case.fresh:
        jobs = [(read, [packed]), (write_new, [np.empty(case.elements * 4, np.uint8)])]
    elif case.operation == "dequantize":
        jobs = [(read, [packed]), (write, [lined(case.elements * 4)])]
    else:
        jobs = [(read, [packed.copy() for _ in range(copies(case, packed.size))])]
    pool = ThreadPoolExecutor(case.threads) if case.threads > 1 else None
    turns = [(move, cycle(arrays)) for move, arrays in jobs]

    def run() -> None:
        for move, arrays in turns:
            whole = next(arrays)
            if pool is None:
                move(whole)
            else:
                list(pool.map(move, whole.reshape(case.threads, -1)))

    return run

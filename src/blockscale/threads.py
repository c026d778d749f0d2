"""How many threads work gets; Python's own work over rows, split over one pool for the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

from .arguments import is_integer
from .errors import InputError

# A thread with fewer elements than this costs more than it saves.
GRAIN = 1 << 18
_FEW = 8  # threads that nobody minds; more than twice the processors would only wait for each other
SEARCH_GRAIN = 1 << 14  # where a block takes much longer than its bytes


def thread_count(threads: int | None) -> int:
    """How many threads to use: `threads`, or the processors this process may run on."""
    if threads is not None:
        if not is_integer(threads) or threads < 1:
            raise InputError(
                f"threads is {threads!r}", found=threads, field="threads", rule="1 or more, or None for all"
            )
        return int(threads)
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def thread_share(elements: int, threads: int | None, grain: int) -> int:
    """How many of at most `threads` threads to use; one with less than `grain` elements would not pay."""
    useful = elements // grain
    if (threads is None and useful < 2) or (type(threads) is int and threads == 1):
        return 1  # a short call counts no processors
    share = max(1, min(thread_count(threads), useful))
    return share if share <= _FEW else min(share, max(_FEW, 2 * thread_count(None)))


def split_work(
    run: Callable[[int, int], Any], rows: int, elements: int, threads: int | None, grain: int
) -> list[Any]:
    """Call `run(begin, end)` over ranges of rows; the kernels split their own work (native.py).

    The calling thread takes its share, so that `threads=1`, small work and a lone processor need no pool.
    """
    if elements == 0 or rows == 0:
        return []
    count = min(rows, thread_share(elements, threads, grain))
    if count == 1:
        return [run(0, rows)]
    pieces = min(rows, count * 4)
    cuts = [rows * i // pieces for i in range(pieces + 1)]
    left = iter(range(pieces))  # `next` on it is atomic: each worker takes the next piece
    results: list[Any] = [None] * pieces

    def work() -> None:
        for i in left:
            results[i] = run(cuts[i], cuts[i + 1])

    try:
        helpers = [_pool(count - 1).submit(work) for _ in range(count - 1)]
    except RuntimeError:  # no more threads to be had, or the interpreter is about to end
        return [run(0, rows)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.cancel()  # one that has not begun has nothing left to do
        wait(helpers)
    for helper in helpers:
        if not helper.cancelled():
            helper.result()
    return results


# One pool for the process, made when first needed: starting threads costs more than most calls. It only
# grows; its threads wait for nothing, so calls from many threads may share it without deadlock.
_shared: dict[int, ThreadPoolExecutor] = {}
_shared_lock = Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool, of at least so many threads."""
    with _shared_lock:
        most = max(_shared, default=0)
        if most < threads:
            most = threads
            _shared[most] = ThreadPoolExecutor(most, "blockscale")
        return _shared[most]


def _forget_pool() -> None:
    """In a forked child: the threads stayed with the parent, and the lock may have been held."""
    global _shared_lock
    _shared.clear()
    _shared_lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)

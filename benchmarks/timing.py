"""Interleaved timing: every contender once per round, so that a busy machine slows all alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TARGET_SECONDS = 0.004
"""Calls shorter than this are repeated within a round."""
MOST_SETTLING = 0.3
"""Seconds to wait, at most, for the threads of the contender before."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the least and the median over the rounds."""

    best: float
    median: float


def least(first: dict[str, Timing], second: dict[str, Timing]) -> dict[str, Timing]:
    """The lesser times of each contender of two measurements."""
    both = {name: (first.get(name, t), t) for name, t in second.items()}
    return first | {n: Timing(min(a.best, b.best), min(a.median, b.median)) for n, (a, b) in both.items()}


def _once(run: Callable[[], None], repeats: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(repeats):
        run()
    return (clock() - begin) / repeats


def settle() -> None:
    """Wait until no thread of this process works: pools of peers spin for a while after a call."""
    deadline = time.perf_counter() + MOST_SETTLING
    while time.perf_counter() < deadline:
        worked = time.process_time()
        time.sleep(0.001)
        if time.process_time() - worked < 0.0002:
            return


def measure(
    contenders: dict[str, Callable[[], None]],
    seconds: float,
    least_rounds: int,
    *,
    threads: int = 1,
    cpu_time: bool = False,
    warm: bool = False,
) -> dict[str, Timing]:
    """Time all contenders in alternating rounds, forwards and backwards in turn.

    Args:
        contenders: what to call, by name.
        seconds: about how long to measure, all contenders together.
        least_rounds: rounds to make even if that takes longer.
        threads: with several, each round begins when other contenders' threads have stopped spinning, and
            with a call that is not counted: waking an idle processor may take longer than the call.
        cpu_time: count the process's processor time instead of the clock's: calls longer than a time slice
            are not charged for others' turns on a busy machine.
        warm: each round begins with a call that is not counted: what it reads is in the caches then, where
            others' data were before.
    """
    clock = time.process_time if cpu_time else time.perf_counter
    repeats, spent = {}, 0.0
    for name, run in contenders.items():
        run()  # warm
        first = _once(run, 1, clock)
        repeats[name] = max(1, min(1000, int(TARGET_SECONDS / max(first, 1e-7))))
        spent += first * repeats[name]
    rounds = max(least_rounds, min(200, int(seconds / spent)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for i in range(rounds):
        for name in order if i % 2 == 0 else reversed(order):
            if threads > 1:
                settle()
            if threads > 1 or warm:
                contenders[name]()
            samples[name].append(_once(contenders[name], repeats[name], clock))
    return {name: Timing(min(s), sorted(s)[len(s) // 2]) for name, s in samples.items()}

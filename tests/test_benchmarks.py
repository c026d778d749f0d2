"""What the benchmarks make of what they measured; speed itself is never tested."""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmarks' modules, which are no package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("goals", "timing", "work")
    yield tuple(import_module(name) for name in names)
    for name in names:
        sys.modules.pop(name)


def result(work: Any, peer: float, second: float, one: float = 1.0) -> dict[str, Any]:
    """All quick cases: `one` s with one thread, `second` times that with two, `peer` times for the others."""
    names = ("bound", "ggml repacked", "torch", "numpy", "onnxruntime")
    rows = []
    for case in work.cases(True):
        timings = {name: {"best": one * peer} for name in names}
        timings["blockscale"] = {"best": one if case.threads == 1 else one * second}
        rows.append({"label": case.label, "elements": case.elements, **asdict(case), "timings": timings})
    return {"rows": rows}


def test_every_goal_is_of_a_case_that_is_measured(modules: Any) -> None:
    goals, _, work = modules
    labels = {case.label for case in work.cases(True)}
    assert {goal.label for goal in goals.goals()} <= labels


def test_goals_are_reached_or_missed(modules: Any) -> None:
    goals, _, work = modules
    good = goals.reached(result(work, peer=2.0, second=0.5, one=1e-3))
    assert len(good) > len(goals.goals())  # second threads and 16-bit input come to them
    assert all(value >= least for _, _, least, value in good)
    slow = goals.reached(result(work, peer=0.01, second=1.0))
    missed = {label for label, _, least, value in slow if value < least}
    assert {goal.label for goal in goals.goals()} <= missed
    assert "quantize uint4 minmax, 4096x4096, 2T" in missed


def test_two_threads_reach_the_bound_or_twice_the_speed(modules: Any) -> None:
    goals, _, work = modules
    label = "quantize uint4 minmax, 4096x4096, 2T"
    for peer, second, measure, value in ((0.01, 0.5, "second thread", 2.0), (0.9, 1.0, "of bound", 0.9)):
        (found,) = (row for row in goals.reached(result(work, peer, second)) if row[0] == label)
        assert found[1] == measure
        assert found[2] <= found[3] == pytest.approx(value)


def test_peers_that_were_not_there_are_no_goals(modules: Any) -> None:
    goals, _, work = modules
    measured = result(work, peer=2.0, second=0.5)
    for row in measured["rows"]:
        del row["timings"]["numpy"]
    assert not any(measure == "numpy" for _, measure, _, _ in goals.reached(measured))


def test_the_least_of_two_passes_counts(modules: Any) -> None:
    _, timing, _ = modules
    first = {"a": timing.Timing(1.0, 3.0), "b": timing.Timing(2.0, 2.0)}
    second = {"a": timing.Timing(2.0, 2.0), "c": timing.Timing(4.0, 5.0)}
    assert timing.least(first, second) == {
        "a": timing.Timing(1.0, 2.0),
        "b": timing.Timing(2.0, 2.0),
        "c": timing.Timing(4.0, 5.0),
    }
    assert timing.least({}, second) == second

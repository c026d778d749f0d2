"""What blockscale's kernels are to reach, as ratios within one run, and whether a run reached it.

`python benchmarks/goals.py [results.json]` lists goals and what was measured; it exits 1 if one was missed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOUND, RATE, SECOND = "of bound", "of bound's rate", "second thread"
REPACKED, DENSE, SGEMM, NBITS = "repacked", "torch", "numpy", "onnxruntime"
SIZE = "4096x4096"


@dataclass(frozen=True)
class Goal:
    """One case and the least that it is to reach.

    Attributes:
        label: the case's label.
        measure: `of bound` (the bound's time divided by ours), `of bound's rate` (elements per second, as a
            share of the bound's for a whole weight of the scheme: the case itself fits in the caches), or a
            part of a peer's name (the peer's time divided by ours).
        least: the goal.
    """

    label: str
    measure: str
    least: float


def goals() -> list[Goal]:
    """Every goal of a single case."""
    shares = {"mxfp4 floor": 0.7, "mxfp4 ceil": 0.6, "mxfp4 rceil": 0.6, "mxfp4 even": 0.6, "mxfp4 mse": 0.35}
    shares |= {"q4_0 ggml": 0.6, "q4_1 ggml": 0.6, "q8_0 ggml": 0.8}
    found = [Goal(f"quantize {what}, {SIZE}, 1T", BOUND, least) for what, least in shares.items()]
    found += [Goal(f"quantize {what}, 512x4096, 1T", RATE, least) for what, _, least in SEARCHES]
    for threads in (1, 2):
        for scheme in ("mxfp4", "q4_0", "q4_1", "q8_0"):
            found.append(Goal(f"dequantize {scheme}, {SIZE}, {threads}T", BOUND, 0.85))
        for scheme in ("mxfp4", "q4_0", "q8_0"):
            found.append(Goal(f"dequantize {scheme} to a fresh array, {SIZE}, {threads}T", BOUND, 0.9))
    found += [Goal(_product(s, 1, "int8", t), m, least) for s, t, m, least in ONE_ROW]
    found += [Goal(_product("q4_0", 1, "int8, in cache", t), NBITS, 1.27) for t in (1, 2)]
    for threads, dense, sgemm in ((1, 1.1, 1.3), (2, 1.06, 1.26)):
        found.append(Goal(_product("q4_0", 8, "int8", threads), NBITS, 1.5))
        for scheme in ("mxfp4", "q4_0"):
            found.append(Goal(_product(scheme, 128, "int8", threads), DENSE, dense))
            found.append(Goal(_product(scheme, 128, "float32", threads), SGEMM, sgemm))
    return found


SEARCHES = (("int4 optimal", "int4 absmax", 0.042), ("uint4 optimal", "uint4 minmax", 0.0068))
"""Searches: what, whose bound, and the goal, which is 0.3 of 7.1 and 0.05 of 7.3 Gelem/s."""
ONE_ROW = (
    ("q4_0", 1, BOUND, 0.81),
    ("q4_0", 1, REPACKED, 1.36),
    ("q4_0", 2, BOUND, 0.95),
    ("mxfp4", 1, BOUND, 0.79),
    ("mxfp4", 1, REPACKED, 1.53),
    ("mxfp4", 2, BOUND, 0.95),
)
"""One row, the weight from memory: scheme, threads, measure, goal."""
OF_TWO, SPEEDUP = 0.9, 1.8
"""With two threads: this share of the bound, or this much faster than with one."""


def _product(scheme: str, rows: int, how: str, threads: int) -> str:
    return f"linear {scheme}, {rows} row{'s' if rows > 1 else ''}, {how}, {SIZE}, {threads}T"


def reached(result: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Label, measure, goal and what was measured, for every goal whose case and peer were measured.

    Goals are stated to three digits at most, and so is what was measured.
    """
    rows = {row["label"]: row for row in result["rows"]}
    found = []
    for goal in goals():
        value = _measured(rows, goal) if goal.label in rows else None
        if value is not None:
            found.append((goal.label, goal.measure, goal.least, value))
    found += _second_threads(rows) + _halves(rows)
    return [(label, measure, least, float(f"{value:.3g}")) for label, measure, least, value in found]


def _measured(rows: dict[str, Any], goal: Goal) -> float | None:
    row = rows[goal.label]
    if goal.measure == RATE:
        whole = next(w for what, w, _ in SEARCHES if what in goal.label)
        other = rows.get(f"quantize {whole}, {SIZE}, 1T")
        return other and _own_rate(row) * other["timings"]["bound"]["best"] / other["elements"]
    return _ratio(row, "bound" if goal.measure == BOUND else goal.measure)


def _own_rate(row: dict[str, Any]) -> float:
    return float(row["elements"] / row["timings"]["blockscale"]["best"])


def _ratio(row: dict[str, Any], part: str) -> float | None:
    """Least time of the contender with this in its name, divided by ours."""
    for name, timing in row["timings"].items():
        if part in name:
            return float(timing["best"] / row["timings"]["blockscale"]["best"])
    return None


def _second_threads(rows: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Quantizing and decoding with two threads: near the bound, or nearly twice as fast."""
    found = []
    for label, row in rows.items():
        one = rows.get(label.removesuffix("2T") + "1T")
        if row["threads"] != 2 or row["operation"] == "linear" or f" {SIZE}," not in label or one is None:
            continue
        share, speedup = _ratio(row, "bound") or 0.0, _own_rate(row) / _own_rate(one)
        near = share / OF_TWO >= speedup / SPEEDUP
        found.append((label, BOUND, OF_TWO, share) if near else (label, SECOND, SPEEDUP, speedup))
    return found


def _halves(rows: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Quantizing 16-bit values: at least as many elements per second as of float32."""
    found = []
    for label, row in rows.items():
        if row["operation"] != "quantize" or row["dtype"] == "float32" or f" {SIZE}," not in label:
            continue
        whole = rows.get(label.replace(f" of {row['dtype']}", ""))
        if whole is not None:
            found.append((label, "rate of float32", 1.0, _own_rate(row) / _own_rate(whole)))
    return found


def markdown(result: dict[str, Any]) -> list[str]:
    """The goals as a table."""
    lines = ["| goal | measure | at least | measured | |", "|---|---|---|---|---|"]
    for label, measure, least, value in reached(result):
        verdict = "" if value >= least else "missed"
        lines.append(f"| {label} | {measure} | {least:g} | {value:g} | {verdict} |")
    return lines


def main() -> None:
    """List the goals of a run."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "results.json"
    result = json.loads(file.read_text())
    print("\n".join(markdown(result)))
    sys.exit(any(value < least for _, _, least, value in reached(result)))


if __name__ == "__main__":
    main()

"""What blockscale's kernels are to reach, as ratios within one run, and whether a run reached it.

`python benchmarks/goals.py [results.json]` lists goals and what was measured; it exits 1 if one was missed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOUND, RATE, SECOND = "of bound", "Gelem/s", "second thread"
REPACKED, DENSE, SGEMM, NBITS = "repacked", "torch", "numpy", "onnxruntime"
SIZE = "4096x4096"


@dataclass(frozen=True)
class Goal:
    """One case and the least that it is to reach.

    Attributes:
        label: the case's label.
        measure: `of bound` (the bound's time divided by ours), `Gelem/s`, or a part of a peer's name (the
            peer's time divided by ours).
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
    found += [Goal("quantize int4 optimal, 512x4096, 1T", RATE, 0.3)]
    found += [Goal("quantize uint4 optimal, 512x4096, 1T", RATE, 0.05)]
    for threads in (1, 2):
        for scheme in ("mxfp4", "q4_0", "q4_1", "q8_0"):
            found.append(Goal(f"dequantize {scheme}, {SIZE}, {threads}T", BOUND, 0.85))
        for scheme in ("mxfp4", "q4_0", "q8_0"):
            found.append(Goal(f"dequantize {scheme} to a fresh array, {SIZE}, {threads}T", BOUND, 0.9))
    return found + [Goal(_product(*what), measure, least) for *what, measure, least in PRODUCTS]


PRODUCTS = (
    ("q4_0", 1, "int8", 1, BOUND, 0.234 / 0.29),
    ("q4_0", 1, "int8", 1, REPACKED, 0.394 / 0.29),
    ("q4_0", 1, "int8", 2, BOUND, 0.22 / 0.23),
    ("q4_0", 1, "int8", 2, REPACKED, 0.218 / 0.23),
    ("mxfp4", 1, "int8", 1, BOUND, 0.221 / 0.28),
    ("mxfp4", 1, "int8", 1, REPACKED, 0.43 / 0.28),
    ("mxfp4", 1, "int8", 2, BOUND, 0.21 / 0.22),
    ("mxfp4", 1, "int8", 2, REPACKED, 0.22 / 0.22),
    ("q4_0", 1, "int8, in cache", 1, BOUND, 0.09 / 0.13),
    ("q4_0", 1, "int8, in cache", 1, NBITS, 0.165 / 0.13),
    ("q4_0", 1, "int8, in cache", 2, NBITS, 0.165 / 0.13),
    ("q4_0", 8, "int8", 1, NBITS, 1.21 / 0.8),
    ("q4_0", 8, "int8", 2, NBITS, 0.68 / 0.45),
    *((s, 128, "int8", 1, DENSE, 10.1 / 9) for s in ("mxfp4", "q4_0")),
    *((s, 128, "int8", 2, DENSE, 5.3 / 5) for s in ("mxfp4", "q4_0")),
    *((s, 128, "float32", 1, SGEMM, 26 / 20) for s in ("mxfp4", "q4_0")),
    *((s, 128, "float32", 2, SGEMM, 13.9 / 11) for s in ("mxfp4", "q4_0")),
)
"""Products: scheme, rows, activations, threads, measure, and the goal: the time of what is measured against
over the time to reach, in ms, both where the goals were set."""
OF_TWO, SPEEDUP = 0.9, 1.8
"""With two threads: this share of the bound, or this much faster than with one."""


def _product(scheme: str, rows: int, how: str, threads: int) -> str:
    return f"linear {scheme}, {rows} row{'s' if rows > 1 else ''}, {how}, {SIZE}, {threads}T"


def reached(result: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Label, measure, goal and what was measured, for every goal whose case and peer were measured."""
    rows = {row["label"]: row for row in result["rows"]}
    found = []
    for goal in goals():
        value = _measured(rows[goal.label], goal.measure) if goal.label in rows else None
        if value is not None:
            found.append((goal.label, goal.measure, goal.least, value))
    return found + _second_threads(rows) + _halves(rows)


def _measured(row: dict[str, Any], measure: str) -> float | None:
    if measure == RATE:
        return _own_rate(row) / 1e9
    return _ratio(row, "bound" if measure == BOUND else measure)


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
        lines.append(f"| {label} | {measure} | {least:.4g} | {value:.4g} | {verdict} |")
    return lines


def main() -> None:
    """List the goals of a run."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "results.json"
    result = json.loads(file.read_text())
    print("\n".join(markdown(result)))
    sys.exit(any(value < least for _, _, least, value in reached(result)))


if __name__ == "__main__":
    main()

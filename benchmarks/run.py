"""Measure blockscale, every installed peer and the memory's limit, interleaved.

`python benchmarks/run.py [--quick]` writes a table, the numbers and a plot to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_CORETYPE",):  # would make NumPy's BLAS run another processor's code
    os.environ.pop(_name, None)

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402

import bounds  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import timing  # noqa: E402
from blockscale import __version__, native  # noqa: E402
from peers import blockscale_self  # noqa: E402
from work import Case, cases  # noqa: E402


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def contenders(case: Case, found: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """What to time for a case: blockscale, the bound, each peer that can do it."""
    makers = {report.OWN: blockscale_self.make, report.BOUND: bounds.make}
    for name, peer in found.items():  # peers take float32, and most an array to decode to
        if case.dtype == "float32" and (not case.fresh or getattr(peer, "FRESH", False)):
            makers[name] = peer.make
    runs = {}
    for name, make in makers.items():
        try:
            run = make(case)
        except Exception as error:  # a peer that fails here is reported, the others go on
            print(f"  {name} cannot: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if run is not None:
            runs[name] = run
    return runs


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size, fewer schemes, fewer rounds")
    parser.add_argument("--only", default="", help="only cases whose label contains this")
    parser.add_argument("--seconds", type=float, help="about how long to measure a case in a pass")
    parser.add_argument(
        "--passes",
        type=int,
        default=1,
        help="how often to go through all cases; the least times count: for a machine with other users",
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread only, processor time: for a busy machine"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.passes < 1:
        parser.error(f"--passes {options.passes}: at least 1")
    found, skipped = peers.load()
    for line in skipped:
        print(f"skipped {line}")
    chosen = [case for case in cases(options.quick) if options.only in case.label]
    if options.cpu_time:
        chosen = [case for case in chosen if case.threads == 1]
    seconds = options.seconds or (0.7 if options.quick else 2.0)
    times: list[dict[str, timing.Timing]] = [{} for _ in chosen]
    for turn in range(options.passes):
        for i, case in enumerate(chosen):
            now = timing.measure(
                contenders(case, found),
                seconds,
                3 if options.quick else 7,
                threads=case.threads,
                cpu_time=options.cpu_time,
                warm=not case.cold,
            )
            times[i] = timing.least(times[i], now)
            text = "  ".join(f"{name} {t.best * 1e3:.3g}" for name, t in times[i].items())
            done = f"{turn * len(chosen) + i + 1}/{len(chosen) * options.passes}"
            print(f"[{done}] {case.label}: ms: {text}", flush=True)
    rows = [
        {"label": case.label, "elements": case.elements, **asdict(case)}
        | {"timings": {name: asdict(t) for name, t in of_case.items()}}
        for case, of_case in zip(chosen, times, strict=True)
    ]
    about = {
        "blockscale": f"{__version__}, {native.ISAS[native.chosen_isa()]}, {native.COMPILER}",
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "python": f"{platform.python_version()}, numpy {np.__version__}, {platform.platform()}",
        "peers": ", ".join(found),
        "clock": "processor time" if options.cpu_time else "wall clock",
        "passes": f"{options.passes}, {seconds:g} s for a case in each",
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "load": f"1 minute average {os.getloadavg()[0]:.1f} at the end",
    }
    result = {"about": about, "skipped": skipped, "rows": rows}
    for file in report.write(options.out, result):
        print(f"wrote {file}")


if __name__ == "__main__":
    main()

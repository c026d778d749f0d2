"""Results as JSON, a Markdown table and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import goals

OWN, BOUND = "blockscale", "bound"
# One colour and mark per contender, told apart in grey too.
MARKS = ("s", "^", "v", "D", "P", "X", "*")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")


def write(folder: Path, result: dict[str, Any]) -> list[Path]:
    """Write everything; returns the files. Without matplotlib there is no plot."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "results.json", folder / "results.md"]
    files[0].write_text(json.dumps(result, indent=1) + "\n")
    files[1].write_text(markdown(result))
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'blockscale[bench]')")
        return files
    matplotlib.use("Agg")
    return files + plot(folder, result)


def best(row: dict[str, Any], name: str) -> float | None:
    """Least seconds of a contender."""
    timing = row["timings"].get(name)
    return timing["best"] if timing else None


def peers(result: dict[str, Any]) -> list[str]:
    """Names of the peers that measured anything."""
    seen = {name: None for row in result["rows"] for name in row["timings"]}
    return [name for name in seen if name not in (OWN, BOUND)]


def markdown(result: dict[str, Any]) -> str:
    """A table per operation: blockscale's time, its share of the bound, peers' times divided by it."""
    lines = ["# Benchmarks", "", *(f"* {k}: {v}" for k, v in result["about"].items())]
    lines += [*(f"* skipped: {s}" for s in result["skipped"]), ""]
    lines += [
        "Least time of alternating rounds, over all passes. *of bound*: the time of moving the same",
        "bytes, divided by blockscale's. Under each peer: its time divided by blockscale's; above 1,",
        "blockscale is faster.",
        "Peers round activations to 8 bits (ggml always, onnxruntime in the int8 rows).",
        "",
    ]
    for operation in ("quantize", "dequantize", "linear"):
        rows = [row for row in result["rows"] if row["operation"] == operation]
        names = [n for n in peers(result) if any(n in row["timings"] for row in rows)]
        if not rows:
            continue
        lines += [
            f"## {operation}",
            "",
            "| case | ms | Gelem/s | of bound |" + "".join(f" {n} |" for n in names),
        ]
        lines.append("|---|---|---|---|" + "---|" * len(names))
        lines += [_line(row, names) for row in rows]
        lines.append("")
    return "\n".join([*lines, "## Goals", "", *goals.markdown(result), ""])


def _line(row: dict[str, Any], names: list[str]) -> str:
    own, bound = row["timings"][OWN]["best"], best(row, BOUND)
    share = f"{bound / own:.0%}" if bound else ""
    cells = [row["label"], f"{own * 1e3:.3g}", f"{row['elements'] / own / 1e9:.3g}", share]
    for name in names:
        seconds = best(row, name)
        cells.append(f"{seconds / own:.2f}" if seconds else "")
    return "| " + " | ".join(cells) + " |"


def plot(folder: Path, result: dict[str, Any]) -> list[Path]:
    """Time of every contender divided by blockscale's, one line per case, one thread, the first size."""
    from matplotlib import pyplot

    first = result["rows"][0]
    rows = [r for r in result["rows"] if r["threads"] == 1 and (r["n"], r["k"]) == (first["n"], first["k"])]
    names = [n for n in peers(result) if any(n in r["timings"] for r in rows)]
    figure, axes = pyplot.subplots(figsize=(9.5, 1.6 + 0.27 * len(rows)), layout="constrained")
    for y in range(0, len(rows), 2):
        axes.axhspan(y - 0.5, y + 0.5, color="#f3f3f3", zorder=0)
    axes.axvline(1, color="#222222", linewidth=1.5, zorder=1)
    bounds = [(best(r, BOUND), r["timings"][OWN]["best"], y) for y, r in enumerate(rows)]
    axes.scatter(
        [b / own for b, own, _ in bounds if b],
        [y for b, _, y in bounds if b],
        marker="|", s=110, color="#222222", linewidths=2.5, zorder=3, label="bound: moving the bytes",
    )  # fmt: skip
    for name, mark, colour in zip(names, MARKS, COLOURS, strict=False):
        points = [(best(r, name), r["timings"][OWN]["best"], y) for y, r in enumerate(rows)]
        axes.scatter(
            [t / own for t, own, _ in points if t],
            [y for t, _, y in points if t],
            marker=mark, s=34, color=colour, zorder=2, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [r["label"].rsplit(", ", 2)[0] for r in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time / blockscale's time (log); right of the line blockscale is faster")
    axes.set_title(f"{first['n']} x {first['k']}, 1 thread, {result['about']['processor']}", fontsize=10)
    axes.grid(axis="x", color="#dddddd", zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    files = [folder / "results.png", folder / "results.svg"]
    for file in files:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return files

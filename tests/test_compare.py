"""Comparing checkpoints: figures against plain NumPy, slabs of every cut, bounded memory."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import blockscale as bs
from blockscale.checkpoint import open_checkpoint, save_checkpoint
from blockscale.compare import Comparison, compare_checkpoints
from blockscale.errors import InputError, SchemeError
from blockscale.metrics import ErrorSums, sum_errors
from blockscale.slabs import cut_block_tensor, slab_shape, split_slabs
from blockscale.spread import QUANTILES

RNG = np.random.default_rng(5)


def compare(tmp_path: Path, a: Mapping[str, Any], b: Mapping[str, Any], **options: Any) -> Comparison:
    """Save two checkpoints, plain ones as safetensors, and compare them."""
    paths = []
    for label, tensors in (("a", a), ("b", b)):
        blocked = any(isinstance(t, bs.BlockTensor) for t in tensors.values())
        paths.append(tmp_path / f"{label}.{'hrry' if blocked else 'safetensors'}")
        save_checkpoint(paths[-1], tensors, overwrite=True)
    with open_checkpoint(paths[0]) as left, open_checkpoint(paths[1]) as right:
        return compare_checkpoints(left, right, **options)


def plain_figures(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float, float]:
    """Relative MSE, largest error and cosine, straight from their definitions."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    cosine = (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum())
    return float(((a - b) ** 2).sum() / (a * a).sum()), float(np.abs(a - b).max()), float(cosine)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize(("scheme", "axis"), [("mxfp4", 0), ("mxfp4", -1), ("uint4", 1), ("int8", 0)])
def test_figures_are_those_of_the_definition(tmp_path: Path, dtype: Any, scheme: str, axis: int) -> None:
    x = RNG.standard_normal((64, 96)).astype(dtype)
    w = bs.quantize(x, scheme, axis=axis, min_scale_byte=1 if scheme == "mxfp4" else 0)
    found = compare(tmp_path, {"w": x}, {"w": w}).tensors[0].error
    relative, largest, cosine = plain_figures(x, w.dequantize())
    assert found.relative_mse == pytest.approx(relative, rel=1e-12)
    assert found.sqnr_db == pytest.approx(-10 * math.log10(relative), rel=1e-12)
    assert found.max_abs == largest
    assert found.cosine == pytest.approx(cosine, rel=1e-12)
    assert found.saturated == w.report.saturated
    assert found.elements == x.size


def test_saturated_elements_are_counted_by_value(tmp_path: Path) -> None:
    x = np.ones((2, 32), np.float32)
    x[0, :3] = 7.5, -7.0, 6.5  # scale 1: E2M1 ends at 6
    w = bs.quantize(x, "mxfp4", rule="floor")
    found = compare(tmp_path, {"w": x}, {"w": w}).tensors[0].error
    assert (found.saturated, found.saturated_share) == (3, 3 / 64)


@pytest.mark.parametrize("per", ["block", "channel"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_spread_over_parts(tmp_path: Path, per: str, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockscale.slabs.SLAB_ELEMENTS", 500)
    x = RNG.standard_normal((18, 20, 24)).astype(np.float32)
    w = bs.quantize(x, "int4", axis=axis, block_size=8)
    parts = compare(tmp_path, {"w": x}, {"w": w}, per=per).tensors[0].parts
    error = np.moveaxis((x.astype(np.float64) - w.dequantize()) ** 2, axis, -1)
    energy = np.moveaxis(x.astype(np.float64) ** 2, axis, -1)
    if per == "block":
        starts = np.arange(0, x.shape[axis], 8)
        error, energy = (np.add.reduceat(v, starts, axis=-1) for v in (error, energy))
    else:
        error, energy = error.sum(-1), energy.sum(-1)
    sqnr = -10 * np.log10(error / energy)
    if per == "block":
        sqnr = np.moveaxis(sqnr, -1, axis)
    assert parts is not None
    assert (parts.per, parts.count) == (per, sqnr.size)
    ranks = [round(q * (sqnr.size - 1)) for q in QUANTILES]
    assert np.allclose(parts.sqnr_db, np.sort(sqnr, axis=None)[ranks])
    worst = np.unravel_index(np.argmin(sqnr), sqnr.shape)
    assert parts.worst[0][0] == tuple(worst)
    assert len(parts.worst) == 5


def test_spread_needs_blocks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="block-scaled"):
        compare(tmp_path, {"w": np.ones((2, 2))}, {"w": np.ones((2, 2))}, per="block")
    with pytest.raises(SchemeError, match="per"):
        compare(tmp_path, {"w": np.ones((2, 2))}, {"w": np.ones((2, 2))}, per="row")


def test_nothing_is_passed_over_in_silence(tmp_path: Path) -> None:
    a = {"w": np.ones((2, 3)), "gone": np.ones(2), "shape": np.ones(4), "c": np.ones(2, np.complex64)}
    b = {"w": np.ones((2, 3)), "new": np.ones(2), "shape": np.ones(5), "c": np.ones(2, np.complex64)}
    found = compare(tmp_path, a, b)
    assert [t.name for t in found.tensors] == ["w"]
    assert (found.missing, found.extra) == (("gone",), ("new",))
    assert "[4] in A and [5] in B" in found.failed["shape"]
    assert "complex64" in found.failed["c"]


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tensor in common") as caught:
        compare(tmp_path, {"a": np.ones(2)}, {"b": np.ones(2)})
    assert "'a'" in caught.value.message
    assert "'b'" in caught.value.message


def test_equal_empty_and_scalar_tensors(tmp_path: Path) -> None:
    tensors = {"e": np.ones((0, 4)), "s": np.float32(2.5), "i": np.arange(6), "b": np.array([True, False])}
    found = compare(tmp_path, tensors, tensors)
    assert len(found.tensors) == 4
    assert all(t.error.relative_mse == 0 and t.error.sqnr_db == math.inf for t in found.tensors)


def test_nonfinite_values_are_counted_and_left_out(tmp_path: Path) -> None:
    x = RNG.standard_normal(100).astype(np.float32)
    y = x.copy()
    x[:4] = np.nan, np.inf, np.inf, 1.0
    y[:4] = np.nan, np.inf, -np.inf, np.nan
    y[50] += 0.5
    sums = compare(tmp_path, {"w": x}, {"w": y}).tensors[0].sums
    assert (sums.skipped, sums.nonfinite, sums.elements) == (2, 2, 96)
    assert sums.figures().max_abs == pytest.approx(0.5, rel=1e-6)


def test_packed_and_small_types(tmp_path: Path) -> None:
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    y = x.astype(ml_dtypes.float4_e2m1fn)
    found = compare(tmp_path, {"w": x}, {"w": y}).tensors[0].error
    assert found.relative_mse == pytest.approx(plain_figures(x, y)[0], rel=1e-12)


@pytest.mark.parametrize("limit", [1, 7, 100, 10**6])
@pytest.mark.parametrize("shape", [(7,), (33, 40), (3, 17, 20), (2, 3, 4, 9), (1, 1), (5, 0)])
def test_slabs_cover_a_tensor_once(shape: tuple[int, ...], limit: int) -> None:
    for axis in (None, *range(len(shape))):
        seen = np.zeros(shape, int)
        for slab in split_slabs(shape, axis, 16, limit):
            assert seen[slab].shape == slab_shape(slab)
            seen[slab] += 1
            assert axis is None or slab[axis].start % 16 == 0
        assert (seen == 1).all()


@pytest.mark.parametrize("scheme", ["mxfp4", "uint4", "int2", "mxfp6_e2m3", "int8"])
def test_cuts_of_a_block_tensor_decode_to_the_cut_values(scheme: str) -> None:
    for shape, axis in (((33, 40), 0), ((33, 40), 1), ((3, 17, 20), 1), ((64,), 0)):
        w = bs.quantize(RNG.standard_normal(shape).astype(np.float32), scheme, axis=axis, block_size=4)
        values = w.dequantize()
        for slab in split_slabs(shape, axis, 4, 60):
            assert np.array_equal(cut_block_tensor(w, slab).dequantize(), values[slab])


def test_sums_of_parts_add_up() -> None:
    x, y = RNG.standard_normal((2, 8, 64))
    whole = sum_errors(x, y)
    parts = sum((sum_errors(x[i : i + 3], y[i : i + 3]) for i in range(0, 8, 3)), ErrorSums())
    assert parts.figures().relative_mse == pytest.approx(whole.figures().relative_mse, rel=1e-14)
    assert (parts.max_abs, parts.elements) == (whole.max_abs, whole.elements)


def test_figures_do_not_depend_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockscale.slabs.SLAB_ELEMENTS", 1000)
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    w = bs.quantize(x, "int4", axis=0)
    runs = [compare(tmp_path, {"w": x}, {"w": w}, threads=n).tensors[0].sums for n in (1, 2, 5)]
    assert runs[0] == runs[1] == runs[2]


_PEAK = """
import resource, sys
import blockscale as bs
from blockscale.compare import compare_checkpoints
with bs.open(sys.argv[1]) as a, bs.open(sys.argv[1]) as b:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert compare_checkpoints(a, b, threads=2).tensors[0].error.relative_mse == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    path, count = tmp_path / "big.safetensors", 1 << 26
    header = (
        f'{{"w":{{"dtype":"BF16","shape":[8192,{count >> 13}],"data_offsets":[0,{2 * count}]}}}}'.encode()
    )
    with path.open("wb") as file:  # a file of holes: takes no space on disk
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * count)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 64 << 10  # kB, where one tensor has 128 MB

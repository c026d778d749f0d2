"""Slabs: however a tensor is cut, the file is that of the whole tensor; no row is too long for memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale import slab_jobs
from blockscale.checkpoint import open_checkpoint
from blockscale.compare import compare_checkpoints
from blockscale.dialects.base import Options
from blockscale.errors import NonFiniteError
from blockscale.pipeline import run_plan
from blockscale.plan import plan_quantize
from blockscale.slabs import split_slabs
from blockscale.targets import target_for

RNG = np.random.default_rng(23)
SHAPES = ((2, 3000), (3000,), (1500, 2), (3, 512, 5), (64, 33), (2, 40, 100), (33, 64), (4, 2, 700))


def quantize_file(source: Path, out: Path, scheme: bs.Scheme, axis: int) -> None:
    """Quantize every tensor that can be."""
    with open_checkpoint(source) as ckpt:
        target = target_for(out, None, None, Options(), None)
        plan = plan_quantize(ckpt, scheme, axis=axis, include=["*"], leave_unfit=True, target=target)
        run_plan(ckpt, plan, overwrite=True)


@pytest.mark.parametrize("suffix", ["hrry", "gguf"])
@pytest.mark.parametrize("limit", [256, 4000, 1 << 20])
def test_slabs_make_the_file_of_the_whole_tensor(
    tmp_path: Path, suffix: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "s.safetensors", tmp_path / f"o.{suffix}"
    tensors = {f"t{i}": RNG.standard_normal(shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
    bs.save(source, tensors)
    monkeypatch.setattr(slab_jobs, "SLAB_BYTES", limit)
    monkeypatch.setattr(slab_jobs, "COLUMN_SLAB_BYTES", 3 * limit)
    schemes = ("q8_0", "q4_0") if suffix == "gguf" else ("int4", "uint2", "mxfp6_e2m3", "mxfp4")
    for name in schemes:
        for size in (32,) if suffix == "gguf" else (2, 32):
            for axis in (-1,) if suffix == "gguf" else (-1, 0, 1):
                scheme = bs.scheme(name, block_size=size)
                quantize_file(source, out, scheme, axis)
                with bs.open(out) as ckpt:
                    for key, x in tensors.items():
                        if ckpt.info(key).scheme is not None:
                            found = ckpt[key]
                            assert isinstance(found, bs.BlockTensor)
                            assert found.same_bits(bs.quantize(x, scheme, axis=axis)), (key, name, size, axis)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_first_bad_value_is_that_of_the_whole_tensor(
    tmp_path: Path, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slab_jobs, "SLAB_BYTES", 1000)
    x = RNG.standard_normal((64, 2000)).astype(np.float32)
    x[3, 1500] = x[60, 7] = np.nan
    bs.save(tmp_path / "s.safetensors", {"x": x})
    with pytest.raises(NonFiniteError, match=r"2 of 128000 values .* at index \[3, 1500\]"):
        quantize_file(tmp_path / "s.safetensors", tmp_path / "o.hrry", bs.scheme("int4"), axis)


@pytest.mark.parametrize("limit", [200, 1 << 21])
@pytest.mark.parametrize("scheme", ["int4", "uint8", "mxfp6_e3m2"])
def test_compare_reads_boxes_of_any_axis(
    tmp_path: Path, limit: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of A and B along different axes: slabs of one lie across the blocks of the other."""
    monkeypatch.setattr("blockscale.slabs.SLAB_ELEMENTS", limit)
    x = RNG.standard_normal((64, 96)).astype(np.float32)
    forms: dict[str, Any] = {
        "plain.hrry": x,
        "rows.hrry": bs.quantize(x, bs.scheme(scheme, block_size=16)),
        "columns.hrry": bs.quantize(x, bs.scheme(scheme, block_size=32), axis=0),
    }
    for name, value in forms.items():
        bs.save(tmp_path / name, {"w": value})
    bs.save(tmp_path / "s.safetensors", {"w": x})
    quantize_file(tmp_path / "s.safetensors", tmp_path / "rows.gguf", bs.scheme("q8_0"), -1)
    names = [*forms, "rows.gguf"]
    for left in names:
        for right in names:
            with bs.open(tmp_path / left) as a, bs.open(tmp_path / right) as b:
                result = compare_checkpoints(a, b)
                want = np.square(np.asarray(a["w"], np.float64) - np.asarray(b["w"], np.float64)).sum()
                assert not result.failed
                assert result.tensors[0].sums.error == pytest.approx(want, rel=1e-12)


_PEAK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import blockscale as bs
import test_slab_jobs as own
from blockscale.compare import compare_checkpoints
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source, out = Path(sys.argv[1]), Path(sys.argv[1] + ".hrry")
own.quantize_file(source, out, bs.scheme("mxfp4"), int(sys.argv[2]))
with bs.open(source) as a, bs.open(out) as b:
    assert compare_checkpoints(a, b, threads=2).tensors[0].error.max_abs == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("shape", "axis"), [((2, 1 << 26), 1), ((1 << 27,), 0), ((1 << 26, 2), 0)])
def test_memory_is_bounded_for_any_shape(tmp_path: Path, shape: tuple[int, ...], axis: int) -> None:
    path = tmp_path / "big.safetensors"
    numbers = ",".join(map(str, shape))
    header = f'{{"w":{{"dtype":"BF16","shape":[{numbers}],"data_offsets":[0,{2 << 27}]}}}}'.encode()
    with path.open("wb") as file:  # a file of holes: takes no space on disk
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (2 << 27))
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", _PEAK, str(path), str(axis), here]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path.unlink()
    assert int(done.stdout) < 300 << 10  # kB, where the tensor has 256 MB and its float32 values 512 MB


@pytest.mark.parametrize("limit", [60, 700])
@pytest.mark.parametrize("scheme", ["int4", "uint2", "mxfp6_e2m3", "mxfp8_e4m3"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 7), 0), ((64, 8), 0), ((3, 32, 5), 1), ((2, 3, 32, 6), 2), ((32, 3, 3), 0)]
)
def test_boxes_of_a_file_decode_to_the_values_there(
    tmp_path: Path, shape: tuple[int, ...], axis: int, scheme: str, limit: int
) -> None:
    """Also where lines of the file do not end on bytes."""
    w = bs.quantize(
        RNG.standard_normal(shape).astype(np.float32), bs.scheme(scheme, block_size=16), axis=axis
    )
    bs.save(tmp_path / "w.hrry", {"w": w})
    values = w.dequantize()
    with bs.open(tmp_path / "w.hrry") as ckpt:
        read = ckpt.boxes("w")
        assert read is not None
        for slab in split_slabs(shape, axis, 16, limit):
            np.testing.assert_array_equal(read(slab).dequantize(), values[slab])

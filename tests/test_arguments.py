"""Arguments of wrong Python types: an error of the family, which names the argument, and nothing else."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.errors import BlockscaleError, BlockSizeError, InputError

X = np.ones((4, 64), np.float32)
W = bs.quantize(X, "int4")
RAGGED: Any = [[1], [1, 2]]
WRONG: Any = (None, 5, 1.5, "text", b"bytes", [], {}, object(), np.array([1, 2]), RAGGED)

# What a call with a wrong argument looks like, and the values that are no fault there.
CALLS: dict[str, tuple[Callable[[Any], object], tuple[type, ...]]] = {
    "quantize x": (lambda v: bs.quantize(v, "int4"), (list,)),
    "quantize scheme": (lambda v: bs.quantize(X, v), ()),
    "quantize axis": (lambda v: bs.quantize(X, "int4", axis=v), ()),
    "quantize rule": (lambda v: bs.quantize(X, "int4", rule=v), (type(None),)),
    "quantize block_size": (lambda v: bs.quantize(X, "int4", block_size=v), (type(None),)),
    "quantize importance": (lambda v: bs.quantize(X, "int4", rule="optimal", importance=v), (type(None),)),
    "quantize nonfinite": (lambda v: bs.quantize(X, "mxfp4", nonfinite=v), ()),
    "quantize threads": (lambda v: bs.quantize(X, "int4", threads=v), (type(None), int)),
    "quantize min_scale_byte": (lambda v: bs.quantize(X, "mxfp4", min_scale_byte=v), (int,)),
    "scheme name": (bs.scheme, ()),
    "scheme scale": (lambda v: bs.scheme("int4", scale=v), (type(None),)),
    "scheme symmetric": (lambda v: bs.scheme("int4", symmetric=v), (type(None),)),
    "scheme block_size": (lambda v: bs.scheme("int4", block_size=v), (type(None),)),
    "open": (bs.open, ()),
    "open dialect": (lambda v: bs.open(__file__, dialect=v), ()),
    "open settings": (lambda v: bs.open(__file__, settings=v), ()),
    "open zero_point_bias": (lambda v: bs.open(__file__, zero_point_bias=v), ()),
    "save tensors": (lambda v: bs.save("/nowhere/t.hrry", v), ()),
    "save value": (lambda v: bs.save("/nowhere/t.hrry", {"a": v}), ()),
    "save metadata": (lambda v: bs.save("/nowhere/t.hrry", {"a": X}, metadata=v), ()),
    "linear a": (lambda v: bs.linear(v, W), ()),
    "linear w": (lambda v: bs.linear(X, v), ()),
    "linear bias": (lambda v: bs.linear(X, W, v), (type(None),)),
    "linear out": (lambda v: bs.linear(X, W, out=v), (type(None),)),
    "linear activations": (lambda v: bs.linear(X, W, activations=v), (type(None),)),
    "reblock w": (lambda v: bs.reblock(v, axis=0), ()),
    "reblock axis": (lambda v: bs.reblock(W, axis=v), ()),
    "dequantize dtype": (W.dequantize, (type(None),)),
    "dequantize out": (lambda v: W.dequantize(out=v), (type(None),)),
    "error": (W.error, ()),
    "error per": (lambda v: W.error(X, per=v), (type(None),)),
    "index": (lambda v: W[v], ()),
    "from_parts scheme": (lambda v: bs.BlockTensor.from_parts(v, X, X), ()),
    "from_parts codes": (lambda v: bs.BlockTensor.from_parts(W.scheme, v, W.scales), ()),
    "choose_scale": (lambda v: bs.mx.choose_scale(v), (int, float)),
    "choose_scale_mse span": (lambda v: bs.mx.choose_scale_mse(X, span=v), (int,)),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrong_types_are_refused(call: str) -> None:
    run, fine = CALLS[call]
    for value in WRONG:
        if type(value) in fine:
            continue
        if call.startswith("choose_scale") and isinstance(value, np.ndarray):
            continue
        with pytest.raises(BlockscaleError):
            run(value)


@pytest.mark.parametrize("name", ["a\0b.hrry", "a" * 300 + ".hrry"])
def test_paths_that_cannot_be(name: str, tmp_path: Path) -> None:
    for path in (name, f"{tmp_path}/{name}"):
        with pytest.raises(InputError, match=r"null byte|too long"):
            bs.open(path)
        with pytest.raises(InputError, match=r"null byte|too long"):
            bs.save(path, {"a": X})


def test_paths_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "t.hrry"
    bs.save(str(path), {"a": X})
    for one in (path, str(path), str(path).encode()):
        with bs.open(one) as ckpt:  # type: ignore[arg-type]
            assert list(ckpt) == ["a"]


def test_blocks_that_are_nearly_all_padding_are_refused() -> None:
    for size in (1 << 24, 1 << 31):
        with pytest.raises(BlockSizeError, match="block_size=64 spans the axis"):
            bs.quantize(X, bs.scheme("int4", block_size=size))
    assert bs.quantize(X[:, :3], bs.scheme("int4", block_size=128)).shape == (4, 3)


@pytest.mark.parametrize("scheme", ["int4", "uint4", "q4_1", "mxfp4"])
def test_copies_are_read_only_and_equal(scheme: str) -> None:
    w = bs.quantize(np.arange(128, dtype=np.float32).reshape(2, 64), scheme)
    for made in (pickle.loads(pickle.dumps(w)), copy.deepcopy(w), copy.copy(w)):
        assert made.same_bits(w)
        assert made.report == w.report
        for part in (made.packed, made.row_scales, made.row_offsets):
            assert part is None or not part.flags.writeable


def test_rows_end_as_sequences_do() -> None:
    assert [W[i].shape for i in range(len(W))] == [(64,)] * 4
    with pytest.raises(IndexError, match="row 4 of 4"):
        W[4]
    assert not W.same_bits(X)  # type: ignore[arg-type]

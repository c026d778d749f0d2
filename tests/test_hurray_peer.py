"""Interoperation with pyhurray, the public peer, both ways."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
from blockscale.containers.hrry import HrryFile, write_hrry
from blockscale.hurray import (
    MXFP,
    NF4,
    HurrayTensor,
    Layout,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    TensorDescriptor,
    decode_tensor,
    encode_tensor,
    strided,
)
from blockscale.schemes import SCHEMES

hurray = pytest.importorskip("hurray")
needs_dlpack_1 = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="pyhurray hands out buffers by DLPack 1.0"
)


def peer_bytes(tensor: Any, i: int) -> bytes:
    return np.asarray(tensor.buffer(i)).tobytes()


def our_tensors() -> dict[str, Any]:
    """One of everything that we write."""
    rng = np.random.default_rng(7)
    tensors: dict[str, Any] = {
        "f32": rng.standard_normal((3, 4)).astype(np.float32),
        "bf16": rng.standard_normal(5).astype(ml_dtypes.bfloat16),
        "bool": np.array([1, 0, 1, 1, 0, 0, 1, 1, 1], bool),
        "int4": rng.integers(-8, 8, (3, 5)).astype(ml_dtypes.int4),
        "scalar": np.array(2.5),
        "empty": np.zeros((3, 0, 5), np.int16),
        "c64": np.array([1 + 2j], np.complex64),
    }
    for name, row in SCHEMES.items():
        if row.offset == "minimum":
            continue
        shapes = [((4, 64), -1), ((64, 3), 0)] + ([] if row.is_mx else [((3, 40), -1), ((2, 33, 2), 1)])
        for i, (shape, axis) in enumerate(shapes):
            values = rng.standard_normal(shape).astype(np.float32)
            tensors[f"{name}.{i}"] = bs.quantize(values, name, axis=axis)
    for kind, scale in itertools.product(("int4", "uint8"), ("bfloat16", "float32")):
        scheme = bs.scheme(kind, scale=scale, symmetric=False, block_size=16)
        tensors[f"{kind}.{scale}"] = bs.quantize(rng.standard_normal((2, 50)), scheme)
    tensors["empty_blocks"] = bs.quantize(np.zeros((4, 0), np.float32), "int4")
    return tensors


METADATA = {
    "text": "é",
    "n": -3,
    "big": 2**62,
    "x": 0.5,
    "yes": True,
    "raw": b"\0\xff",
    "list": [1, 2],
    "names": ["a", ""],
}


@pytest.fixture(scope="module")
def our_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peer") / "ours.hrry"
    write_hrry(path, our_tensors(), METADATA)
    return path


@needs_dlpack_1
def test_pyhurray_reads_what_we_write(our_file: Path) -> None:
    loaded = hurray.load(str(our_file))
    ours = our_tensors()
    assert set(loaded) == set(ours)
    for name, value in ours.items():
        theirs = loaded[name]
        descriptor, buffers = encode_tensor(value)
        assert theirs.shape == value.shape, name
        assert theirs.dtype.tag == descriptor.type_tag
        assert theirs.descriptor.encode() == descriptor.encode()
        assert theirs.buffer_count == len(buffers)
        assert [h.byte_size for h in theirs.buffer_handles] == [b.size for b in buffers]
        assert [peer_bytes(theirs, i) for i in range(len(buffers))] == [b.tobytes() for b in buffers]
        if isinstance(value, bs.BlockTensor):
            compare_schemes(theirs.quantization, value)
        else:
            assert theirs.quantization is None
    assert hurray.load_kv(str(our_file)) == METADATA


def compare_schemes(theirs: Any, w: bs.BlockTensor) -> None:
    assert (theirs.axis, theirs.block_size, theirs.scale_buffer_index) == (w.axis, w.block_size, 1)
    if w.scheme.is_mx:
        assert isinstance(theirs, hurray.MXFP)
        return
    assert isinstance(theirs, hurray.PerBlockAffine)
    assert theirs.scale_type.tag == w.scheme.scale.tag
    assert theirs.zero_point_buffer_index == (None if w.zero_points is None else 2)


def test_whole_files_are_equal(our_file: Path, tmp_path: Path) -> None:
    """pyhurray's own writer, given what it loaded, makes the same file byte for byte."""
    loaded = hurray.load(str(our_file))
    hurray.save(str(tmp_path / "theirs.hrry"), {name: loaded[name] for name in our_tensors()}, kv=METADATA)
    assert (tmp_path / "theirs.hrry").read_bytes() == our_file.read_bytes()


def test_an_empty_file_is_equal(tmp_path: Path) -> None:
    write_hrry(tmp_path / "ours.hrry", {})
    hurray.save(str(tmp_path / "theirs.hrry"), {})
    assert (tmp_path / "theirs.hrry").read_bytes() == (tmp_path / "ours.hrry").read_bytes()
    with HrryFile(tmp_path / "theirs.hrry") as f:
        assert len(f) == 0
        assert f.metadata == {}


SCHEME_PAIRS = (
    (PerTensorAffine(0.1, -3), lambda: hurray.PerTensorAffine(0.1, -3)),
    (PerChannelAffine(2, 1), lambda: hurray.PerChannelAffine.symmetric(2, 1)),
    (PerChannelAffine(2, 1, 2), lambda: hurray.PerChannelAffine.asymmetric(2, 1, 2)),
    (
        PerBlockAffine(1, 64, 1, None, "bfloat16"),
        lambda: hurray.PerBlockAffine.symmetric(1, 64, 1, hurray.bfloat16),
    ),
    (
        PerBlockAffine(1, 2, 3, 2, "float32"),
        lambda: hurray.PerBlockAffine.asymmetric(1, 2, 3, 2, hurray.float32),
    ),
    (NF4(0, 128, 1), lambda: hurray.NF4(0, 128, 1)),
    (MXFP(3, 2048, 1), lambda: hurray.MXFP(3, 2048, 1)),
)


@pytest.mark.parametrize(("ours", "theirs"), SCHEME_PAIRS)
def test_sections_are_equal(ours: Any, theirs: Any) -> None:
    assert ours.encode() == theirs().encode()


def layout_pairs() -> list[tuple[Layout, Any, int]]:
    """Layout sections, ours from bytes written down here, theirs from their constructors."""
    tiled = struct.pack("<2Q4B", 2, 2, 1, 4, 0, 0) + struct.pack("<2Q4B", 2, 1, 2, 1, 0, 0)
    strides = struct.pack("<2Q4B2q2q", 2, 2, 3, 3, 0, 0, 4, 1, 2, 1)
    paged = struct.pack("<IQIIBIB6x", 2, 3, 0, 1, 0, 0xFFFFFFFF, 0)
    return [
        (strided([4, -1]), hurray.StridedLayout([4, -1]), 1),
        (
            Layout(0x04, tiled),
            hurray.TiledLayout(
                [2, 2], inner_layout="tiled", inner_tiled=hurray.TiledLayout([2, 1], "col_major")
            ),
            1,
        ),
        (Layout(0x04, strides), hurray.TiledLayout([2, 2], "strided", "strided", [4, 1], [2, 1]), 1),
        (Layout(0x05, struct.pack("<2I", 2, 2)), hurray.MortonLayout([2, 2]), 1),
        (Layout(0x06, struct.pack("<QB7x", 2, 1)), hurray.CooLayout(2, True), 2),
        (Layout(0x07, struct.pack("<Q8x", 2)), hurray.CsrLayout(2), 3),
        (Layout(0x09, struct.pack("<Q3I8x", 2, 1, 0, 2)), hurray.CsfLayout(2, [1, 0, 2]), 7),
        (Layout(0x40, struct.pack("<2I", 2, 2)), hurray.HilbertLayout(2, 2), 1),
        (
            Layout(0xF7, struct.pack("<QI", 9, 3) + b"abc"),
            hurray.PrivateExtensionLayout(0xF7, 9, b"abc"),
            1,
        ),
        (Layout(0x0A, paged), hurray.BlockPagedLayout(2, 3, 0, 1), 3),
    ]


def test_layout_sections_are_read_as_the_peer_writes_them() -> None:
    for ours, theirs, count in layout_pairs():
        aux = [bytes(64)] * (count - 1)
        shape = [4, 4, 4] if ours.tag in (0x09, 0x0A) else [4, 4]
        t = hurray.Tensor(bytes(96), hurray.int8, shape, layout=theirs, aux_buffers=aux)
        data = t.descriptor.encode()
        d = TensorDescriptor.decode(data)
        assert d.encode() == data
        assert d.layout == ours, ours.name
        assert d.layout.own_buffers(len(shape)) in (count, None)


def test_sections_of_the_peer_are_kept() -> None:
    t = hurray.Tensor(
        bytes(48),
        hurray.float32,
        [3, 4],
        statistics=hurray.Statistics(
            nnz=3, value_min=-1.0, value_max=2.0, value_abs_max=2.0, has_nan=False, has_inf=False
        ),
        shard=hurray.Shard([6, 8], [3, 4]),
    )
    data = t.descriptor.encode()
    d = TensorDescriptor.decode(data)
    assert d.encode() == data
    assert d.shard is not None
    assert (d.shard.parent_shape, d.shard.offset) == ((6, 8), (3, 4))
    assert d.statistics is not None
    assert d.statistics.values == {
        "nnz": 3,
        "value_min": -1.0,
        "value_max": 2.0,
        "value_abs_max": 2.0,
        "has_nan": 0,
        "has_inf": 0,
    }
    private = hurray.ExtensionType(4, is_signed=True)
    kind = hurray.Dtype.from_tag(0xF1)
    data = hurray.Tensor(bytes(8), kind, [4, 4], extension_type=private).descriptor.encode()
    assert TensorDescriptor.decode(data).encode() == data


def test_composites_of_the_peer_are_listed(tmp_path: Path) -> None:
    parts = [hurray.Tensor(bytes([i]) * 16, hurray.float32, [2, 2]) for i in range(2)]
    head = hurray.Composite("group", shape=[2, 2], dtype=hurray.float32, members=parts)
    hurray.save(str(tmp_path / "c.hrry"), {"c": head})
    with HrryFile(tmp_path / "c.hrry") as f:
        assert f.descriptor("c").layout.name == "composite"
        members = [name for name in f if name != "c"]
        assert [np.asarray(f.tensor(name)).tobytes() for name in members] == [
            bytes([i]) * 16 for i in range(2)
        ]


def test_random_tensors_of_the_peer(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tensors, codes = {}, {}
    for i, (tag, bits) in enumerate([(0x48, 4), (0x49, 4), (0x10, 8), (0x11, 8), (0x4A, 2), (0x4B, 2)]):
        data = rng.integers(0, 256, 4 * 64 * bits // 8, np.uint8).tobytes()
        scales = rng.uniform(0.5, 2, 16).astype(np.float32)
        zeros = rng.integers(-(2**31), 2**31, 16).astype(np.int32)
        q = hurray.PerBlockAffine.asymmetric(1, 16, 1, 2, hurray.float32)
        aux = [scales.tobytes(), zeros.tobytes()]
        name = f"t{i}"
        tensors[name] = hurray.Tensor(
            data, hurray.Dtype.from_tag(tag), [4, 64], aux_buffers=aux, quantization=q
        )
        codes[name] = (data, scales, zeros, bits)
    hurray.save(str(tmp_path / "t.hrry"), tensors)
    with HrryFile(tmp_path / "t.hrry") as f:
        for name, (data, scales, zeros, bits) in codes.items():
            w = f.tensor(name)
            assert isinstance(w, bs.BlockTensor)
            assert w.scales.reshape(-1).tolist() == scales.tolist()
            assert w.zero_points is not None
            assert w.zero_points.reshape(-1).tolist() == zeros.tolist()
            number = int.from_bytes(data, "little")
            raw = w.codes().view(np.uint8) & ((1 << bits) - 1)
            assert raw.reshape(-1).tolist() == [number >> (i * bits) & ((1 << bits) - 1) for i in range(256)]
            descriptor, buffers = encode_tensor(w)
            assert descriptor.encode() == tensors[name].descriptor.encode()
            assert buffers[0].tobytes() == data


def test_tight_partial_blocks_of_the_peer_need_permissive_reading(tmp_path: Path) -> None:
    """pyhurray stores what it is given; without padding the text says reject."""
    q = hurray.PerBlockAffine.symmetric(1, 16, 1, hurray.float16)
    scales = np.ones(9, np.float16).tobytes()
    t = hurray.Tensor(bytes(range(60)), hurray.dtype.int4, [3, 40], aux_buffers=[scales], quantization=q)
    hurray.save(str(tmp_path / "t.hrry"), {"t": t})
    with pytest.raises(bs.BlockscaleError, match="R19"):
        HrryFile(tmp_path / "t.hrry")
    with HrryFile(tmp_path / "t.hrry", permissive=True) as f:
        assert [e.tensor for e in f.problems] == ["t"]
        with pytest.warns(UserWarning, match="without padding"):
            w = f.tensor("t")
    assert isinstance(w, bs.BlockTensor)
    number = int.from_bytes(bytes(range(60)), "little")
    assert (w.codes().view(np.uint8) & 15).reshape(-1).tolist() == [number >> 4 * i & 15 for i in range(120)]


@needs_dlpack_1
def test_nf4_of_the_peer() -> None:
    t = hurray.Tensor(bytes(range(32)), hurray.dtype.uint4, [2, 32], aux_buffers=[np.ones(2, "f4").tobytes()],
                      quantization=hurray.NF4(1, 32, 1))  # fmt: skip
    d = TensorDescriptor.decode(t.descriptor.encode())
    h = decode_tensor(d, [peer_bytes(t, 0), peer_bytes(t, 1)])
    assert isinstance(h, HurrayTensor)
    assert float(h.dequantize()[0, 0]) == -1.0

"""Files of pyhurray, stored with the values that plain Python gives them: read, compared, written again."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.containers.hrry import HrryFile, find_problems, write_hrry
from blockscale.hurray import (
    MXFP,
    NF4,
    HurrayTensor,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    TensorDescriptor,
    scheme_of,
)
from hurray_build import slow_crc32c

VECTORS = Path(__file__).parent / "vectors" / "hurray"
MANIFEST: dict[str, Any] = json.loads((VECTORS / "pyhurray" / "manifest.json").read_text())
PUBLIC: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text())
FILES: dict[str, Any] = MANIFEST["files"]
CASES = [(file, row["name"]) for file, content in FILES.items() for row in content["tensors"]]
ROWS = {row["name"]: row for content in FILES.values() for row in content["tensors"]}
WIDTHS = {"int8": 8, "uint8": 8, "int16": 16, "int32": 32, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
WIDTHS |= {"float8_e4m3": 8, "float8_e5m2": 8, "float4_e2m1": 4, "float6_e2m3": 6, "float6_e3m2": 6}


def test_the_golden_files_cover_what_they_should() -> None:
    assert (MANIFEST["producer"], MANIFEST["version"]) == ("pyhurray", "0.1.0")
    assert {p.name for p in (VECTORS / "pyhurray").glob("*.hrry")} == set(FILES)
    assert {row["scheme"] for row in ROWS.values()} == {
        "per_tensor",
        "per_channel",
        "per_block",
        "nf4",
        "mxfp",
    }
    blocks = [row for row in ROWS.values() if row["scheme"] == "per_block"]
    assert {row["scale_type"] for row in blocks} == {"float16", "bfloat16", "float32"}
    assert {row["symmetric"] for row in blocks} == {True, False}
    assert {row["type"] for row in blocks} == {"int8", "uint8", "int4", "uint4", "int2", "uint2"}
    mx = {row["type"] for row in ROWS.values() if row["scheme"] == "mxfp"}
    assert mx == {"float8_e4m3", "float8_e5m2", "float4_e2m1", "float6_e2m3", "float6_e3m2", "int8", "int4"}


def quantization(row: dict[str, Any]) -> Any:
    """The scheme that the manifest describes."""
    if row["scheme"] == "per_tensor":
        return PerTensorAffine(row["scale"], row["zero_point"])
    if row["scheme"] == "per_channel":
        return PerChannelAffine(row["axis"], 1, None if row["symmetric"] else 2)
    if row["scheme"] == "nf4":
        return NF4(row["axis"], row["block_size"], 1)
    if row["scheme"] == "mxfp":
        return MXFP(row["axis"], row["block_size"], 1)
    return PerBlockAffine(
        row["axis"], row["block_size"], 1, None if row["symmetric"] else 2, row["scale_type"]
    )


@pytest.mark.parametrize(("file", "name"), CASES, ids=[name for _, name in CASES])
def test_golden_tensor(file: str, name: str) -> None:
    row = ROWS[name]
    with HrryFile(VECTORS / "pyhurray" / file) as f:
        d = f.descriptor(name)
        assert d.encode().hex() == row["descriptor"]
        assert d.type_name == row["type"]
        assert list(d.shape) == row["shape"]
        assert d.quantization == quantization(row)
        assert [f.buffer(name, i).tobytes().hex() for i in range(len(d.buffers))] == row["buffers"]
        value = f.tensor(name)
    assert isinstance(value, bs.BlockTensor if row["scheme"] in ("per_block", "mxfp") else HurrayTensor)
    digits, bits = -(-WIDTHS[row["type"]] // 4), WIDTHS[row["type"]]
    codes = [int(row["codes"][i : i + digits], 16) for i in range(0, len(row["codes"]), digits)]
    found = value.codes()
    raw = found.view(f"u{found.dtype.itemsize}").astype(np.int64) & ((1 << bits) - 1)
    assert raw.reshape(-1).tolist() == codes
    expected = np.frombuffer(bytes.fromhex(row["values_f32"]), np.float32).reshape(row["shape"])
    assert same_values(value.dequantize(), expected)
    if isinstance(value, bs.BlockTensor):
        buffers = tuple(np.frombuffer(bytes.fromhex(text), np.uint8) for text in row["buffers"])
        assert same_values(HurrayTensor(d, buffers).dequantize(), expected)
        assert scheme_of(d) == (value.scheme, row["axis"])


def same_values(a: Any, b: Any) -> bool:
    """Equal bits, except that any NaN is as good as another."""
    both_nan = np.isnan(a) & np.isnan(b)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | both_nan).all())


@pytest.mark.parametrize("file", FILES)
def test_golden_file_is_written_again_byte_for_byte(file: str, tmp_path: Path) -> None:
    source = VECTORS / "pyhurray" / file
    assert find_problems(source) == []
    with HrryFile(source) as f:
        assert f.metadata == FILES[file]["metadata"]
        assert list(f) == [row["name"] for row in FILES[file]["tensors"]]
        write_hrry(tmp_path / file, {name: f.tensor(name) for name in f}, f.metadata)
    assert (tmp_path / file).read_bytes() == source.read_bytes()


def test_public_file(tmp_path: Path) -> None:
    expect = PUBLIC["files"][0]
    source = VECTORS / expect["file"]
    with HrryFile(source) as f:
        for row in expect["tensors"]:
            d = f.descriptor(row["name"])
            assert (d.type_name, d.type_tag, list(d.shape)) == (
                row["element_type"],
                row["element_type_tag"],
                row["shape"],
            )
            assert f.entries[row["name"]].data_length == row["data_bytes"]
            assert isinstance(f.tensor(row["name"]), np.ndarray)
        kv = {k["key"]: k["value_string"] if k["kind"] == "string" else k["value_int"] for k in expect["kv"]}
        assert f.metadata == kv
        weights, bias = f.entries["weights"], f.entries["bias"]
        assert (weights.descriptor_offset, weights.data_offset) == (0x40, 0x1000)
        assert (bias.descriptor_offset, bias.data_offset, bias.data_length) == (0x1010, 0x2000, 3)
        write_hrry(tmp_path / "basic.hrry", {name: f.tensor(name) for name in f}, f.metadata)
    assert (tmp_path / "basic.hrry").read_bytes() == source.read_bytes()


def test_a_file_from_the_format_text_alone(tmp_path: Path) -> None:
    """One int4 tensor, put together here with `struct` from sections 2 to 4."""
    descriptor = (
        b"HRRY\1\0" + struct.pack("<IIBBI", 105, 1, 0x48, 1, 2) + struct.pack("<QQQ", 2, 32, 0) + b"\2"
        + struct.pack("<QIBBBB", 32, 64, 0, 0, 0, 0) + struct.pack("<QIBBBB", 4, 64, 0, 0, 0, 0)
        + struct.pack("<I", 24) + struct.pack("<BBHIIIIB3x", 3, 1, 1, 1, 32, 1, 0xFFFFFFFF, 1)
    )  # fmt: skip
    data, scales = bytes(range(32)), np.array([0.5, -2], np.float16)
    index = struct.pack("<QH1sQIQQI", 1, 1, b"w", 64, 105, 4096, 4100, 0)
    body = b"HRRYFILE\1\0\0\0" + struct.pack("<IIQQ28x", 4, 4096, 64, 2**64 - 1) + descriptor
    body = body.ljust(4096, b"\0") + data
    body = body.ljust(8192, b"\0") + scales.tobytes()
    body = body.ljust(8200, b"\0") + index
    body += struct.pack("<QQQII4x4s", 8200, len(index), 0, 0, slow_crc32c(index), b"HRRY")
    codes = np.array([[b & 15, b >> 4] for b in data], np.uint8).reshape(2, 32)
    scheme = bs.scheme("int4")
    w = bs.BlockTensor.from_parts(scheme, codes.view(scheme.element.dtype), scales.reshape(2, 1))
    write_hrry(tmp_path / "w.hrry", {"w": w})
    assert (tmp_path / "w.hrry").read_bytes() == body
    assert TensorDescriptor.decode(descriptor).quantization == PerBlockAffine(1, 32)

"""safetensors files: own reader and writer against exact bytes and the reference package."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockscale.containers import safetensors_table
from blockscale.containers.safetensors import (
    DTYPES,
    SafetensorsFile,
    plan_layout,
    write_safetensors,
)
from blockscale.errors import ContainerError, InputError, UnsupportedError
from safetensors_files import assert_same, blob, one, python_output, random_array, write

PLAIN = ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32"]
PLAIN += ["F64", "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]


# Exact bytes -----------------------------------------------------------------------------------


def test_exact_bytes_of_a_tiny_file(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    arrays = {
        "b": np.array([1, -2], ml_dtypes.bfloat16),
        "a": np.array([[1.5]], np.float32),
    }
    write_safetensors(path, arrays, {"format": "pt"})
    header = (
        b'{"__metadata__":{"format":"pt"},'
        b'"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},'
        b'"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}   '
    )
    assert len(header) == 144
    data = b"\x00\x00\xc0\x3f" + b"\x80\x3f\x00\xc0"
    assert path.read_bytes() == b"\x90\0\0\0\0\0\0\0" + header + data


def test_header_is_padded_to_eight_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {"x": np.array([7, 8], np.uint8)})
    header = b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   '
    assert path.read_bytes() == b"\x38\0\0\0\0\0\0\0" + header + b"\x07\x08"


def test_empty_file_of_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {})
    assert path.read_bytes() == b"\x08\0\0\0\0\0\0\0{}      "
    with SafetensorsFile(path) as file:
        assert (file.entries, file.metadata, file.problems) == ({}, {}, [])


def test_packed_dtypes_by_hand(tmp_path: Path) -> None:
    """Codes 1 2 3 4: the first element in the lowest bits; values from OCP MX v1.0, 5.3."""
    header = {
        "f4": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]},
        "e2m3": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [2, 5]},
        "e3m2": {"dtype": "F6_E3M2", "shape": [1, 4], "data_offsets": [5, 8]},
    }
    data = b"\x21\x43" + b"\x81\x30\x10" + b"\x81\x30\x10"
    path = write(tmp_path, blob(header, data))
    with SafetensorsFile(path) as file:
        assert file.array("f4").astype(np.float32).tolist() == [[0.5, 1.0], [1.5, 2.0]]
        assert file.array("e2m3").astype(np.float32).tolist() == [0.125, 0.25, 0.375, 0.5]
        assert file.array("e3m2").astype(np.float32).tolist() == [[0.0625, 0.125, 0.1875, 0.25]]
        assert file.raw("f4").tobytes() == b"\x21\x43"
        assert file.entries["f4"].shape == (2, 2)
        assert file.entries["f4"].nbytes == 2
        arrays = {name: file.array(name) for name in file.entries}
    write_safetensors(tmp_path / "again", arrays, keep_order=True)
    assert (tmp_path / "again").read_bytes()[-8:] == data


@pytest.mark.parametrize(
    ("dtype_name", "code"), [("F16", "e"), ("F32", "f"), ("F64", "d"), ("I16", "h"), ("U64", "Q")]
)
def test_data_are_little_endian_on_any_host(tmp_path: Path, dtype_name: str, code: str) -> None:
    data = struct.pack(f"<3{code}", 1, 2, 770)
    path = write(tmp_path, blob(one(dtype_name, [3], [0, len(data)]), data))
    with SafetensorsFile(path) as file:
        array = file.array("x")
    assert array.tolist() == [1, 2, 770]
    assert array.dtype == array.dtype.newbyteorder("<")
    for wanted in (array.dtype.newbyteorder("<"), array.dtype.newbyteorder(">")):
        write_safetensors(tmp_path / wanted.str, {"x": array.astype(wanted)})
        assert (tmp_path / wanted.str).read_bytes().endswith(data)


def test_big_endian_host_reads_little_endian(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "byteorder", "big")
        rows = [safetensors_table._row(row.rank, row.name, row.bits, row.dtype) for row in DTYPES.values()]
    by_name = {row.name: row.dtype for row in rows}
    assert np.frombuffer(b"\0\0\xc0\x3f", np.uint8).view(by_name["F32"])[0] == 1.5
    halves = np.frombuffer(b"\x80\x3f\x00\xc0", np.uint8).view(by_name["BF16"])
    assert halves.astype(np.float32).tolist() == [1.0, -2.0]
    assert by_name["BF16"].byteorder == "<"


# The reference package -------------------------------------------------------------------------


def reference_bytes(arrays: dict[str, NDArray[Any]], metadata: dict[str, str] | None) -> bytes:
    numpy_side = pytest.importorskip("safetensors.numpy")
    content = numpy_side.save(arrays, metadata)
    assert isinstance(content, bytes)
    return content


NATIVE = [name for name in PLAIN if not name.startswith("F8")]


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"format": "pt"}, {"é\n": '"\\\x01\x7f'}],
    ids=["none", "{}", "one", "odd"],
)
def test_bytes_equal_the_reference(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    arrays = {f"w.{i}.{name}": random_array(name, (3, i), i) for i, name in enumerate(NATIVE)}
    arrays |= {
        "scalar": random_array("F32", ()),
        "empty": np.zeros((0, 5), np.float16),
        'odd "name"\\\t\u00e9\U0001f600': random_array("U8", (5,)),
        "Z": random_array("I64", (1,)),
    }
    write_safetensors(tmp_path / "t", arrays, metadata)
    assert (tmp_path / "t").read_bytes() == reference_bytes(arrays, metadata)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter("__metadata__".__ne__),
        st.tuples(st.sampled_from(NATIVE), st.lists(st.integers(0, 3), max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_any_layout_equals_the_reference(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]]
) -> None:
    arrays = {name: random_array(dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()}
    path = tmp_path_factory.mktemp("any") / "t"
    write_safetensors(path, arrays)
    assert path.read_bytes() == reference_bytes(arrays, None)
    with SafetensorsFile(path) as file:
        for name, array in arrays.items():
            assert_same(file.array(name), array)


def test_all_dtypes_lie_in_the_order_of_the_reference(tmp_path: Path) -> None:
    """The package's low level knows F8 and F4 too (F6 it cannot write from Python)."""
    reference = pytest.importorskip("safetensors")
    names = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    names |= {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    names |= {"F4": "float4_e2m1fn_x2", "BOOL": "bool"}
    kept, specs = {}, {}
    for dtype_name in [*PLAIN, "F4"]:
        array = random_array(dtype_name, (2, 4))
        data: NDArray[Any] = array.view(np.uint8)
        if dtype_name == "F4":
            data = data[:, 0::2] | data[:, 1::2] << 4
        specs[f"t.{dtype_name}"] = reference.TensorSpec(
            dtype=names.get(dtype_name, array.dtype.name),
            shape=list(data.shape if dtype_name == "F4" else array.shape),
            data_ptr=data.ctypes.data,
            data_len=data.nbytes,
        )
        kept[f"t.{dtype_name}"] = (array, data)
    write_safetensors(tmp_path / "t", {name: array for name, (array, _) in kept.items()})
    assert (tmp_path / "t").read_bytes() == bytes(reference.serialize(specs, None))


def test_reference_reads_ours(tmp_path: Path) -> None:
    numpy_side = pytest.importorskip("safetensors.numpy")
    arrays = {name: random_array(name, (4, 3)) for name in NATIVE}
    write_safetensors(tmp_path / "t", arrays, {"format": "np", "a": "b"}, keep_order=True)
    loaded = numpy_side.load_file(tmp_path / "t")
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert_same(loaded[name], array)
    reference = pytest.importorskip("safetensors")
    with reference.safe_open(tmp_path / "t", "np") as file:
        assert file.metadata() == {"format": "np", "a": "b"}
        assert file.offset_keys() == list(arrays)


def test_reference_accepts_every_dtype_of_ours(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors")
    arrays = {name: random_array(name, (4, 4)) for name in DTYPES}
    write_safetensors(tmp_path / "t", arrays)
    with reference.safe_open(tmp_path / "t", "np") as file:
        assert set(file.keys()) == set(arrays)
        for name in arrays:
            assert file.get_slice(name).get_shape() == [4, 4]
            assert file.get_slice(name).get_dtype() == name


def test_we_read_the_reference(tmp_path: Path) -> None:
    numpy_side = pytest.importorskip("safetensors.numpy")
    arrays = {name: random_array(name, (4, 3)) for name in NATIVE}
    numpy_side.save_file(arrays, tmp_path / "t", {"format": "pt", "more": "é"})
    with SafetensorsFile(tmp_path / "t") as file:
        assert file.metadata == {"format": "pt", "more": "é"}
        assert file.problems == []
        for name, array in arrays.items():
            assert_same(file.array(name), array)
            assert_same(file.read_rows(name), array)


# Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype_name", list(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (4, 0), (8,), (4, 1, 2)])
def test_every_dtype_and_shape_survives(tmp_path: Path, dtype_name: str, shape: tuple[int, ...]) -> None:
    array = random_array(dtype_name, shape)
    if DTYPES[dtype_name].bits < 8 and shape == ():
        with pytest.raises(InputError, match="not whole bytes"):
            write_safetensors(tmp_path / "t", {"x": array})
        return
    write_safetensors(tmp_path / "t", {"x": array})
    with SafetensorsFile(tmp_path / "t") as file:
        entry = file.entries["x"]
        assert (entry.dtype, entry.shape, entry.dtype_name) == (array.dtype, shape, dtype_name)
        assert entry.nbytes == array.size * DTYPES[dtype_name].bits // 8
        assert_same(file.array("x"), array)
        assert_same(file.read_rows("x"), array)
        assert file.raw("x").tobytes() == file.read_bytes("x").tobytes()
        assert entry.offset + entry.nbytes == (tmp_path / "t").stat().st_size


@pytest.mark.parametrize(
    ("dtype_name", "shape"),
    [("F4", (6, 3)), ("F4", (10,)), ("F6_E2M3", (8, 3)), ("F6_E3M2", (12,)), ("F32", (5, 2, 2))],
)
def test_all_slices_of_rows(tmp_path: Path, dtype_name: str, shape: tuple[int, ...]) -> None:
    """Rows of packed dtypes may begin and end inside a byte."""
    array = random_array(dtype_name, shape)
    write_safetensors(tmp_path / "t", {"before": np.arange(3), "x": array, "y": np.array([1, 2])})
    with SafetensorsFile(tmp_path / "t") as file:
        for start in range(shape[0] + 1):
            for stop in range(start, shape[0] + 1):
                rows = file.read_rows("x", start, stop)
                assert_same(rows, array[start:stop])
                assert rows.flags.writeable


def test_large_packed_tensor_is_unpacked_in_steps(tmp_path: Path) -> None:
    packed = np.random.default_rng(1).integers(0, 256, (3 << 18) + 999, np.uint8)
    n = packed.size
    header = {
        "f4": {"dtype": "F4", "shape": [n * 2], "data_offsets": [0, n]},
        "f6": {"dtype": "F6_E2M3", "shape": [n // 3, 4], "data_offsets": [n, 2 * n]},
    }
    with SafetensorsFile(write(tmp_path, blob(header, packed.tobytes() * 2))) as file:
        nibbles = file.array("f4").view(np.uint8)
        sixes = file.array("f6").view(np.uint8)
    assert np.array_equal(nibbles[0::2], packed & 15)
    assert np.array_equal(nibbles[1::2], packed >> 4)
    assert np.array_equal(sixes[:, 0], packed[0::3] & 63)
    assert np.array_equal(sixes[:, 3], packed[2::3] >> 2)
    assert not sixes.flags.writeable


def test_array_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "t", {"x": np.arange(10, dtype=np.float32)})
    with SafetensorsFile(tmp_path / "t") as file:
        array = file.array("x")
        assert np.shares_memory(array, file.raw("x"))
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    assert array.tolist() == list(range(10))  # after closing


def test_data_need_no_alignment(tmp_path: Path) -> None:
    """Old writers did not pad the header."""
    text = json.dumps(one("F64", [2], [0, 16])) + " "
    assert len(text) % 2 == 1
    path = write(tmp_path, blob(text, struct.pack("<2d", 1.5, -2)))
    with SafetensorsFile(path) as file:
        assert file.array("x").tolist() == [1.5, -2.0]
        assert file.read_rows("x", 1).tolist() == [-2.0]


def test_entries_are_in_the_order_of_offsets(tmp_path: Path) -> None:
    header = {
        "last": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
        "empty": {"dtype": "U8", "shape": [0], "data_offsets": [2, 2]},
        "first": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
    }
    with SafetensorsFile(write(tmp_path, blob(header, b"abcd"))) as file:
        assert list(file.entries) == ["first", "empty", "last"]
        assert file.array("last").tobytes() == b"cd"


def test_metadata_are_carried_through_unchanged(tmp_path: Path) -> None:
    metadata = {"format": "pt", "z": "", "a": '{"json": [1, 2]}', "é": "\n"}
    write_safetensors(tmp_path / "t", {"x": np.zeros(2)}, metadata)
    with SafetensorsFile(tmp_path / "t") as file:
        assert list(file.metadata.items()) == list(metadata.items())


def test_null_metadata_are_none(tmp_path: Path) -> None:
    with SafetensorsFile(write(tmp_path, blob({"__metadata__": None}))) as file:
        assert file.metadata == {}


def test_unknown_dtype_is_readable_as_bytes(tmp_path: Path) -> None:
    with SafetensorsFile(write(tmp_path, blob(one("F3_E1M1"), b"abcd"))) as file:
        entry = file.entries["x"]
        assert (entry.dtype, entry.bits, entry.dtype_name) == (None, None, "F3_E1M1")
        assert file.problems == ["tensor 'x': the dtype 'F3_E1M1' is unknown; only its bytes can be read"]
        assert file.raw("x").tobytes() == b"abcd"
        assert file.read_bytes("x", 1, 3).tobytes() == b"bc"
        for read in (file.array, file.read_rows):
            with pytest.raises(UnsupportedError) as caught:
                read("x")
            assert caught.value.tensor == "x"
            assert "F3_E1M1" in str(caught.value)
            assert "raw(name)" in str(caught.value)


def test_unknown_fields_are_reported(tmp_path: Path) -> None:
    header = one()
    header["x"] |= {"strides": [1]}  # type: ignore[operator]
    with SafetensorsFile(write(tmp_path, blob(header, b"abcd"))) as file:
        assert file.problems == ["tensor 'x': unknown fields ['strides'] are ignored"]


def test_more_dimensions_than_numpy_has(tmp_path: Path) -> None:
    path = write(tmp_path, blob(one("U8", [1] * 65, [0, 1]), b"a"))
    with SafetensorsFile(path) as file:
        assert file.raw("x").tobytes() == b"a"
        with pytest.raises(UnsupportedError, match="65 dimensions"):
            file.array("x")


def test_tolerant_reader_reports_trailing_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, blob(one(), b"abcdEXT"))
    with SafetensorsFile(path, tolerant=True) as file:
        assert file.array("x").tobytes() == b"abcd"
        (problem,) = file.problems
    assert problem.startswith("3 bytes follow tensor 'x'")


def test_missing_tensor_gets_a_suggestion(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "t", {"model.layers.0.weight": np.zeros(1)})
    with SafetensorsFile(tmp_path / "t") as file, pytest.raises(InputError) as caught:
        file.array("model.layer.0.weight")
    assert caught.value.hint == "did you mean 'model.layers.0.weight'?"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2), (5, 5)])
def test_rows_out_of_bounds(tmp_path: Path, start: int, stop: int) -> None:
    with SafetensorsFile(write(tmp_path, blob(one(), b"abcd"))) as file:
        for read in (file.read_rows, file.read_bytes):
            with pytest.raises(InputError, match="outside of 0:4"):
                read("x", start, stop)


def test_closed_file_says_so(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path, blob(one(), b"abcd")))
    file.close()
    file.close()
    for read in (file.array, file.raw, file.read_rows, file.read_bytes):
        with pytest.raises(InputError, match="closed"):
            read("x")


def test_file_that_shrinks_while_open(tmp_path: Path) -> None:
    path = write(tmp_path, blob(one(), b"abcd"))
    with SafetensorsFile(path) as file:
        os.truncate(path, path.stat().st_size - 2)
        with pytest.raises(ContainerError, match="2 bytes early"):
            file.read_rows("x")


def test_reading_rows_keeps_memory_small(tmp_path: Path) -> None:
    """48 MB read a megabyte at a time; nothing of the file is mapped."""
    path = tmp_path / "t"
    size = 48 << 20
    prefix = plan_layout([("x", "BF16", (48, size // 96))]).prefix
    path.write_bytes(prefix)
    os.truncate(path, len(prefix) + size)
    code = """
        import resource, sys
        from blockscale.containers.safetensors import SafetensorsFile
        with SafetensorsFile(sys.argv[1]) as file:
            file.read_rows("x", 0, 1)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for row in range(48):
                assert file.read_rows("x", row, row + 1).nbytes == 1 << 20
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            print(sys.argv[1] in open("/proc/self/maps").read())
    """
    found = python_output(code, path).split()
    assert int(found[0]) < 8 << 10  # in KiB
    assert found[1] == "False"

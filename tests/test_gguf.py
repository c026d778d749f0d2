"""Reading GGUF files: golden file of the gguf package, metadata, lazy access, split models."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blockscale.containers.gguf import TYPES, GgufFile, GgufWriter, ggml_type, gguf_value, plain_type
from blockscale.containers.gguf_types import describe_id, explain_length
from blockscale.dialects import ggml
from blockscale.errors import ContainerError, InputError, UnsupportedError
from gguf_files import GOLDEN, array, blob, info, kv, small_file, text, u32, write

MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())


@pytest.fixture
def golden() -> Any:
    with GgufFile(GOLDEN / "golden.gguf") as file:
        yield file


# What the gguf package writes ------------------------------------------------------------------


def test_golden_file_is_the_one_of_the_manifest(golden: GgufFile) -> None:
    content = golden.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == MANIFEST["file"]["golden.gguf"]
    assert list(golden.entries) == list(MANIFEST["tensors"])
    assert golden.version == MANIFEST["version"]
    assert (golden.alignment, golden.pads_end, golden.problems) == (32, True, [])
    assert golden.parts == (golden.path,)


@pytest.mark.parametrize("name", MANIFEST["tensors"])
def test_golden_values(golden: GgufFile, name: str) -> None:
    wanted = MANIFEST["tensors"][name]
    entry = golden.entries[name]
    assert (entry.type.name, list(entry.shape)) == (wanted["type"], wanted["shape"])
    if entry.type.is_plain and entry.type.name != "BF16":
        found = golden.array(name)
    elif entry.type.is_plain or entry.type.name in ggml.FORMATS:
        found = ggml.dequantize(golden.raw(name), entry.type, entry.shape)
    else:
        pytest.importorskip("gguf")
        found = ggml.dequantize(golden.raw(name), entry.type, entry.shape)
    assert found.shape == entry.shape
    assert hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest() == wanted["values_sha256"]


def test_golden_has_every_type_that_can_be_decoded(golden: GgufFile) -> None:
    missing = set(TYPES) - {entry.type.name for entry in golden.entries.values()}
    assert missing == {"Q8_1", "Q8_K", "Q1_0"}  # the gguf package has no decoder for them


def test_golden_metadata(golden: GgufFile) -> None:
    found = {key: (value.type, value.value) for key, value in golden.metadata.items()}
    assert found["general.architecture"] == ("string", "test")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        assert found[f"test.{name}"] == (name, np.iinfo(name).max)
    assert found["test.float32"] == ("float32", float(np.float32(0.1)))
    assert found["test.float64"] == ("float64", 0.1)
    assert found["test.true"] == ("bool", True)
    assert found["test.false"] == ("bool", False)
    assert found["test.string"] == ("string", "Gewicht \u00e4\u00f6\u00fc \U0001f642")
    assert found["test.strings"] == ("array", ["a", "", "bc \u00e9"])
    for key, item, values in (
        ("ints", "int32", [1, -2, 3]),
        ("floats", "float32", [0.5, np.float32(1e-3)]),
        ("bools", "bool", [True, False, True]),
        ("bytes", "uint8", [0, 1, 255]),
    ):
        value = golden.metadata[f"test.{key}"]
        assert (value.type, value.item_type, len(value)) == ("array", item, len(values))
        assert value.value.dtype == item
        np.testing.assert_array_equal(value.value, values)
    nested = golden.metadata["test.nested"]
    assert (nested.item_type, [row.tolist() for row in nested.value]) == ("array", [[1, 2], [3]])
    assert golden.metadata["test.true"].item_type is None
    assert len(golden.metadata["test.true"]) == 1


def test_tables_equal_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # 36 bytes in ggml's own headers, 40 in the package
            row = TYPES[kind.name]
            assert (row.id, row.block_size, row.block_bytes) == (kind.value, *sizes)
    assert len({row.id for row in TYPES.values()}) == len(TYPES)
    assert set(TYPES) == {kind.name for kind in gguf.GGMLQuantizationType}


# Access ----------------------------------------------------------------------------------------


def test_raw_and_read_bytes_agree(golden: GgufFile) -> None:
    content = golden.path.read_bytes()
    for name, entry in golden.entries.items():
        raw = golden.raw(name)
        assert raw.tobytes() == content[entry.offset : entry.offset + entry.nbytes]
        assert not raw.flags.writeable
        part = golden.read_bytes(name, 1, entry.nbytes - 1)
        assert part.tobytes() == raw[1:-1].tobytes()
        assert part.flags.writeable
        assert golden.read_bytes(name, 2, 2).size == 0


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path, small_file()))
    a, q = file.array("a"), file.raw("q")
    file.close()
    file.close()
    np.testing.assert_array_equal(a, np.arange(6, dtype=np.float16).reshape(2, 3))
    assert q.size == 36
    with pytest.raises(InputError, match="closed"):
        file.raw("a")


def test_unknown_names_and_bounds(golden: GgufFile) -> None:
    with pytest.raises(InputError) as caught:
        golden.raw("q4-0")
    assert caught.value.hint is not None
    assert "'q4_0'" in caught.value.hint
    for start, stop in ((-1, 1), (2, 1), (0, 10**6)):
        with pytest.raises(InputError, match="outside"):
            golden.read_bytes("f32", start, stop)
    with pytest.raises(UnsupportedError, match="Q4_0 is quantized"):
        golden.array("q4_0")


def test_a_file_that_shrinks_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, small_file())
    with GgufFile(path) as file:
        os.truncate(path, path.stat().st_size - 64)
        with pytest.raises(ContainerError, match="bytes early") as caught:
            file.read_bytes("e")
        assert (caught.value.file, caught.value.tensor) == (str(path), "e")


@pytest.mark.parametrize("alignment", [1, 2, 64, 4096])
def test_other_alignments(tmp_path: Path, alignment: int) -> None:
    metadata = {"general.alignment": alignment, "k": "x" * 3}
    x = np.arange(5, dtype=np.float64)
    with GgufWriter(tmp_path / "t.gguf", metadata, [("b", "I8", (3,)), ("x", "F64", (5,))]) as out:
        out.write("x", 0, x)
        out.write("b", 0, b"abc")
    with GgufFile(tmp_path / "t.gguf") as file:
        assert file.alignment == alignment
        assert file.array("x").flags.aligned
        np.testing.assert_array_equal(file.array("x"), x)
        assert file.raw("b").tobytes() == b"abc"


def test_files_without_tensors(tmp_path: Path) -> None:
    for pad in (b"", bytes(-(24 + len(u32("k", 7))) % 32)):
        content = blob([u32("k", 7)], [], alignment=1) + pad
        with GgufFile(write(tmp_path, content)) as file:
            assert file.metadata["k"].value == 7
            assert file.pads_end == bool(pad)
            with GgufWriter(tmp_path / "o", file.metadata, [], True, pad_end=file.pads_end):
                pass
        assert (tmp_path / "o").read_bytes() == content


def test_version_2_is_read_and_written(tmp_path: Path) -> None:
    content = blob([u32("k", 7)], [info("x")], bytes(32), version=2)
    with GgufFile(write(tmp_path, content)) as file:
        assert file.version == 2
        specs = [(e.name, e.type, e.shape) for e in file.entries.values()]
        with GgufWriter(tmp_path / "o", file.metadata, specs, version=2) as out:
            out.write("x", 0, file.raw("x"))
    assert (tmp_path / "o").read_bytes() == content


def test_strings_that_are_not_utf8_survive(tmp_path: Path) -> None:
    content = blob([kv("k", 8, text(b"a\xff")), array("t", 8, 2, text(b"\xc3") + text("\u00e9"))], [])
    with GgufFile(write(tmp_path, content)) as file:
        assert file.metadata["k"].value == "a\\xff"
        assert file.metadata["t"].value == ["\\xc3", "\u00e9"]
        with GgufWriter(tmp_path / "o", file.metadata, []):
            pass
    assert (tmp_path / "o").read_bytes() == content


def test_nan_payloads_in_metadata_survive(tmp_path: Path) -> None:
    content = blob(
        [kv("k", 6, struct.pack("<I", 0x7FA00001)), kv("d", 12, struct.pack("<Q", 0xFFF1 << 48))], []
    )
    with GgufFile(write(tmp_path, content)) as file:
        assert np.isnan(file.metadata["k"].value)
        with GgufWriter(tmp_path / "o", file.metadata, []):
            pass
    assert (tmp_path / "o").read_bytes() == content


def test_long_vocabularies(tmp_path: Path) -> None:
    """Strings across the edges of what is read ahead, from one byte to many times a step."""
    words = [f"token {i}" * (i % 5) for i in range(40_000)] + ["x" * 300_000, "", "end"]
    with GgufWriter(tmp_path / "t.gguf", {"t": words, "n": list(range(40_000))}, []):
        pass
    with GgufFile(tmp_path / "t.gguf") as file:
        assert file.metadata["t"].value == words
        assert len(file.metadata["t"]) == len(words)
        np.testing.assert_array_equal(file.metadata["n"].value, np.arange(40_000))


# Metadata values -------------------------------------------------------------------------------

FITTING = [
    (True, "bool", None),
    (0, "uint32", None),
    (-1, "int32", None),
    (2**32, "uint64", None),
    (-(2**31) - 1, "int64", None),
    (0.5, "float32", None),
    (0.1, "float64", None),
    (float("inf"), "float32", None),
    (1e300, "float64", None),
    ("", "string", None),
    (np.uint8(3), "uint8", None),
    (np.float32(0.1), "float32", None),
    (np.int64(5), "int64", None),
    (np.bool_(True), "bool", None),
    ([1, 2], "array", "uint32"),
    ([1, -2], "array", "int32"),
    ([2**33, 1], "array", "uint64"),
    ([2**40, -1], "array", "int64"),
    ([1, 0.5], "array", "float32"),
    ((0.1, 0.5), "array", "float64"),
    ([True], "array", "bool"),
    (["a", "b"], "array", "string"),
    (np.array([1, 2], np.int16), "array", "int16"),
    (np.array([], np.float32), "array", "float32"),
]


@pytest.mark.parametrize(("given", "kind", "item"), FITTING, ids=lambda v: repr(v)[:30])
def test_python_values_become_metadata(tmp_path: Path, given: Any, kind: str, item: str | None) -> None:
    value = gguf_value(given)
    assert (value.type, value.item_type) == (kind, item)
    assert gguf_value(value) is value
    with GgufWriter(tmp_path / "t", {"k": given}, []):
        pass
    with GgufFile(tmp_path / "t") as file:
        assert file.metadata["k"] == value
        np.testing.assert_array_equal(file.metadata["k"].value, given)


def test_types_can_be_asked_for() -> None:
    assert gguf_value(3, "uint16").raw == b"\x03\0"
    assert gguf_value([3, 4], "int8").item_type == "int8"
    assert gguf_value([], "string").value == []
    assert gguf_value(float("nan"), "float32").type == "float32"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, None),
        ([], None),
        ([None], None),
        ([1, "a"], None),
        ([True, 1], None),
        ({"a": 1}, None),
        (2**64, None),
        ([2**64 - 1, -1], None),
        (b"bytes", None),
        ([[1], [2]], None),
        (1j, None),
        (np.zeros((2, 2)), None),
        (np.float16(1), None),
        (256, "uint8"),
        (-1, "uint64"),
        (True, "uint8"),
        (1, "bool"),
        (0.1, "float32"),
        (1.5, "int32"),
        (2**2000, "float64"),
        ("a", "uint8"),
        (1, "string"),
        (1, "array"),
        (1, "complex"),
        ("\ud800", None),
    ],
)
def test_values_that_do_not_fit_are_refused(given: Any, kind: str | None) -> None:
    with pytest.raises(InputError):
        gguf_value(given, kind)


# Types -----------------------------------------------------------------------------------------


def test_types_are_found() -> None:
    assert ggml_type("q4_0") is ggml_type("Q4_0") is ggml_type(TYPES["Q4_0"])
    with pytest.raises(InputError, match="unknown GGUF type"):
        ggml_type("q9")
    for dtype in ("float32", "float16", "float64", "int8", "int16", "int32", "int64", ml_dtypes.bfloat16):
        kind = plain_type(np.dtype(dtype))
        assert kind.dtype == np.dtype(dtype)
        assert kind.bits_per_element == 8 * np.dtype(dtype).itemsize
    assert plain_type(np.dtype(">f4")).name == "F32"
    with pytest.raises(UnsupportedError, match="no type for uint8"):
        plain_type(np.dtype(np.uint8))
    assert TYPES["Q4_1"].bits_per_element == 5
    assert "removed" in describe_id(4)
    assert explain_length((14464,), 256) == "dimension 0 is 14464 = 56 * 256 + 128"
    assert explain_length((3, 64), 32) is None


# Split models ----------------------------------------------------------------------------------


def part(number: int, count: int, total: int, *infos: bytes, extra: list[bytes] | None = None) -> bytes:
    keys = [kv("split.no", 2, struct.pack("<H", number)), kv("split.count", 2, struct.pack("<H", count))]
    keys.append(kv("split.tensors.count", 5, struct.pack("<i", total)))
    return blob([*(extra or []), *keys], list(infos), bytes([number + 1]) * 32 * len(infos))


def write_parts(folder: Path, *contents: bytes) -> list[Path]:
    n = len(contents)
    return [write(folder, c, f"m-{i:05}-of-{n:05}.gguf") for i, c in enumerate(contents, 1)]


def test_split_models_open_as_one(tmp_path: Path) -> None:
    extra = [kv("general.architecture", 8, text("test"))]
    paths = write_parts(
        tmp_path,
        part(0, 3, 3, extra=extra),
        part(1, 3, 3, info("a"), info("b", offset=32)),
        part(2, 3, 3, info("c")),
    )
    for path in paths:
        with GgufFile(path) as file:
            assert file.parts == tuple(paths)
            assert list(file.metadata) == ["general.architecture"]
            assert {name: e.part for name, e in file.entries.items()} == {"a": 1, "b": 1, "c": 2}
            for name, byte in (("a", 2), ("b", 2), ("c", 3)):
                assert set(file.raw(name).tolist()) == {byte}
                assert file.read_bytes(name).tobytes() == file.raw(name).tobytes()


def test_split_models_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    out = gguf.GGUFWriter(tmp_path / "m", "test", split_max_tensors=2)
    arrays = {f"t{i}": np.full((2, 3), i, np.float32) for i in range(5)}
    for name, x in arrays.items():
        out.add_tensor(name, x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with GgufFile(tmp_path / "m-00001-of-00003.gguf") as file:
        assert {name: file.array(name).tolist() for name in file.entries} == {
            name: x.tolist() for name, x in arrays.items()
        }


SPLITS = [
    ([part(0, 2, 1, info("a"))], "part 1 of 2 by its metadata, but its name"),
    ([part(0, 2, 2, info("a")), part(0, 2, 2, info("b"))], "the value is 0, not 1"),
    ([part(0, 2, 2, info("a")), part(1, 3, 2, info("b"))], "the value is 3, not 2"),
    ([part(0, 2, 2, info("a")), blob([], [info("b")], bytes(32))], "the value is None, not 1"),
    ([part(0, 2, 2, info("a")), part(1, 2, 2, info("a"))], "is in m-00001-of-00002.gguf already"),
    ([part(0, 2, 3, info("a")), part(1, 2, 3, info("b"))], "hold 2 tensors, the metadata say 3"),
    ([part(0, 2, 2, info("a")), b"GGUF"], "needs 4 bytes"),
    ([part(1, 2, 2, info("a")), part(0, 2, 2, info("b"))], "part 2 of 2 by its metadata"),
]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("contents", "words"), SPLITS, ids=[row[1] for row in SPLITS])
def test_parts_that_do_not_fit(tmp_path: Path, contents: list[bytes], words: str) -> None:
    first = write_parts(tmp_path, *contents)[0]
    before = open_files()
    with pytest.raises(ContainerError) as caught:
        GgufFile(first)
    assert words in caught.value.message
    assert caught.value.file is not None
    assert open_files() == before


def test_missing_part(tmp_path: Path) -> None:
    first, second = write_parts(tmp_path, part(0, 2, 2, info("a")), part(1, 2, 2, info("b")))
    second.unlink()
    with pytest.raises(ContainerError, match="part 2 of 2 of the model is missing") as caught:
        GgufFile(first)
    assert caught.value.file == str(second)


def test_split_keys_of_a_merged_model_are_kept(tmp_path: Path) -> None:
    with GgufFile(write(tmp_path, part(0, 0, 1, info("a")))) as file:
        assert "split.count" in file.metadata
    bad = blob([kv("split.count", 8, text("2"))], [])
    with pytest.raises(ContainerError, match="GgufValue"):
        GgufFile(write(tmp_path, bad))

"""Malformed, mutated and foreign GGUF files: a readable error, or correct data; nothing else."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockscale.containers import gguf_cursor
from blockscale.containers.gguf import GgufFile, plan_layout
from blockscale.dialects import ggml
from blockscale.errors import BlockscaleError, ContainerError, InputError, UnsupportedError
from gguf_files import array, blob, info, kv, one, small_file, text, u32, write

BIG = 2**64 - 1


@dataclass(frozen=True)
class Bad:
    """A malformed file, a part of the message, and what the error knows."""

    id: str
    content: bytes
    text: str
    tensor: str | None = None
    field: str | None = None
    offset: int | None = None


def tensors(*lines: bytes, data: int = 96) -> bytes:
    return blob([], list(lines), bytes(data))


def values(*lines: bytes) -> bytes:
    return blob(list(lines), [], bytes(64))


def after(key: str) -> int:
    """Offset of the first value's type number."""
    return 24 + 8 + len(key)


DIMS, ALIGNMENT = "dimensions", "general.alignment"
HOSTILE = [
    Bad("empty", b"", "this file is empty", field="magic"),
    Bad("three bytes", b"GGU", "begins with b'GGU'", field="magic"),
    Bad("magic only", b"GGUF", "needs 4 bytes, but 0 are left", field="version", offset=4),
    Bad("magic backwards", blob([], [], magic=b"FUGG"), "begins with b'FUGG'", field="magic"),
    Bad("version 0", blob([], [], version=0), "the version is 0", field="version", offset=4),
    Bad("version 1", blob([], [], version=1), "the version is 1", field="version", offset=4),
    Bad("version 4", blob([], [], version=4), "the version is 4", field="version", offset=4),
    Bad("cut in the counts", blob([], [])[:20], "needs 8 bytes", field="metadata count", offset=16),
    Bad("tensor count 2**64 - 1", blob([], [], counts=(BIG, 0)), "of them take", None, "tensor count", 8),
    Bad("tensor count one too many", blob([], [info("x")], counts=(2, 0)), "left", field="name of tensor 1"),
    Bad("metadata count 2**63", blob([], [], counts=(0, 2**63)), "of them take", None, "metadata count", 16),
    Bad("metadata count too high", blob([], [], counts=(0, 1)), "1 of them take", field="metadata count"),
    Bad(
        "key length",
        blob([struct.pack("<Q", BIG) + b"k" * 20], []),
        "bytes long",
        None,
        "key 0 of the metadata",
        24,
    ),
    Bad("key beyond the file", blob([struct.pack("<Q", 60000) + b"k" * 9], []), "60,000 bytes, but"),
    Bad("key not UTF-8", values(kv(b"\xff", 0, b"\0")), "not UTF-8", None, "key 0 of the metadata", 24),
    Bad("key twice", values(u32("k", 1), u32("k", 2)), "occurs twice", field="k"),
    Bad("value type 13", values(kv("k", 13, bytes(8))), "has type 13", None, "k", after("k")),
    Bad("value type 2**32 - 1", values(kv("k", 2**32 - 1, bytes(8))), "has type 4294967295", field="k"),
    Bad("value cut", blob([kv("k", 12, b"\0\0\0")], [], alignment=1), "needs 8 bytes", field="k"),
    Bad("bool 2", values(kv("k", 7, b"\x02")), "a bool is 2", None, "k", after("k") + 4),
    Bad("bool 255 in an array", values(array("k", 7, 3, b"\0\1\xff")), "a bool is 255", field="k"),
    Bad("string length", values(kv("k", 8, struct.pack("<Q", BIG))), "left in the file", field="k"),
    Bad(
        "string one too long",
        blob([kv("k", 8, struct.pack("<Q", 5) + b"abcd")], [], alignment=1),
        "needs 13 bytes, but 12 are left",
    ),
    Bad("array of type 99", values(array("k", 99, 0, b"")), "has type 99", None, "k", after("k") + 4),
    Bad(
        "array count",
        values(array("k", 0, BIG, b"")),
        "of them take at least 18,446",
        None,
        "k",
        after("k") + 8,
    ),
    Bad("array of strings count", values(array("k", 8, 2**61, b"")), "of them take", field="k"),
    Bad("array product wraps", values(array("k", 12, 2**61 + 1, bytes(8))), "of them take", field="k"),
    Bad("array one too many", blob([array("k", 4, 5, bytes(16))], [], alignment=1), "5 of them", field="k"),
    Bad(
        "second string of an array",
        values(array("k", 8, 2, text("a") + struct.pack("<Q", BIG))),
        "left",
        field="k",
    ),
    Bad(
        "array cut in a length",
        blob([array("k", 8, 2, text("abcdefgh") + b"\0\0")], [], alignment=1),
        "needs 8",
        field="k",
    ),
    Bad("array of arrays count", values(array("k", 9, 2**60, b"")), "of them take", field="k"),
    Bad("nested too deep", values(array("k", 9, 1, struct.pack("<IQ", 9, 1) * 9)), "too deeply", field="k"),
    Bad("alignment 0", values(u32(ALIGNMENT, 0)), "the value is 0", field=ALIGNMENT),
    Bad("alignment 24", values(u32(ALIGNMENT, 24)), "the value is 24", field=ALIGNMENT),
    Bad("alignment is int32", values(kv(ALIGNMENT, 5, struct.pack("<i", 32))), "type int32", field=ALIGNMENT),
    Bad("alignment is text", values(kv(ALIGNMENT, 8, text("32"))), "of type string", field=ALIGNMENT),
    Bad(
        "alignment 2**31", blob([u32(ALIGNMENT, 2**31)], [info("x")], bytes(64)), "the file at", "x", "offset"
    ),
    Bad(
        "name length",
        blob([], [struct.pack("<Q", 2**40) + b"x" * 40]),
        "bytes long",
        field="name of tensor 0",
    ),
    Bad("name not UTF-8", tensors(info(b"\xc3")), "not UTF-8", field="name of tensor 0"),
    Bad("name twice", tensors(info("x"), info("x", offset=32)), "occurs twice", "x", "name"),
    Bad("65 dimensions", tensors(info("x", (1,) * 65)), "it is 65", "x", "number of dimensions"),
    Bad(
        "2**32 - 1 dimensions", tensors(info("x", rank=2**32 - 1)), "4294967295", "x", "number of dimensions"
    ),
    Bad("size 0", tensors(info("x", (0,))), "sizes are [0]", "x", DIMS),
    Bad("size 0 among others", tensors(info("x", (4, 0, 2))), "sizes are [4, 0, 2]", "x", DIMS),
    Bad("size 2**64 - 1", tensors(info("x", (BIG,))), "2**64 or more", "x", DIMS),
    Bad("product wraps to 0", tensors(info("x", (2**32, 2**32))), "2**64 or more", "x", DIMS),
    Bad("product wraps to 4", tensors(info("x", (2**62 + 1, 4))), "2**64 or more", "x", DIMS),
    Bad("huge product", tensors(info("x", (BIG,) * 64), data=999), "2**64 or more", "x", DIMS),
    Bad("bytes beyond the file", tensors(info("x", (1000, 1000))), "1000x1000 takes 4000000", "x", DIMS),
    Bad("type 4", tensors(info("x", kind=4)), "type 4 (Q4_2), which ggml has removed", "x", "type"),
    Bad("type 31", tensors(info("x", (32,), 31)), "Q4_0_4_4", "x", "type"),
    Bad("type 1000", tensors(info("x", kind=1000)), "type 1000, which blockscale", "x", "type"),
    Bad("type 2**32 - 1", tensors(info("x", kind=2**32 - 1)), "type 4294967295", "x", "type"),
    Bad("row not whole blocks", tensors(info("x", (33,), 2)), "dimension 0 is 33 = 1 * 32 + 1", "x", DIMS),
    Bad(
        "row of K-quants",
        tensors(info("x", (14464, 2), 12)),
        "dimension 1 is 14464 = 56 * 256 + 128",
        "x",
        DIMS,
    ),
    Bad("scalar of a block type", tensors(info("x", (), 8)), "a scalar is 1 = 0 * 32 + 1", "x", DIMS),
    Bad("offset not aligned", tensors(info("x", offset=4)), "it is 4", "x", "offset"),
    Bad("offset 2**64 - 32", tensors(info("x", offset=2**64 - 32)), "the file at 160", "x", "offset"),
    Bad("offset at the end", tensors(info("x", offset=96)), "ends at byte 176", "x", "offset"),
    Bad("last byte missing", tensors(info("x"), data=15), "the file at 79", "x", "offset"),
    Bad("no data", tensors(info("x"), data=0), "the file at 64", "x", "offset"),
    Bad(
        "overlap", tensors(info("x", (9,)), info("y", offset=32)), "4 bytes inside tensor 'x'", "y", "offset"
    ),
    Bad("same place", tensors(info("x"), info("y")), "16 bytes inside tensor 'x'", "y", "offset"),
    Bad("overlap backwards", tensors(info("x", (9,), offset=32), info("y", (9,))), "inside tensor 'y'", "x"),
    Bad("hole", tensors(info("x"), info("y", offset=64)), "the 32 bytes after tensor 'x' belong", "y"),
    Bad("hole first", tensors(info("x", offset=32), data=64), "after the header belong", "x"),
    Bad("bytes after the last", tensors(info("x"), data=96), "64 bytes follow tensor 'x', from byte 96"),
    Bad("padding too short", tensors(info("x"), data=20), "4 bytes follow tensor 'x', from byte 80"),
    Bad("bytes after metadata", blob([], [], bytes(100)), "100 bytes follow the header"),
]


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda bad: bad.id)
def test_hostile_files_are_named(tmp_path: Path, bad: Bad) -> None:
    path = write(tmp_path, bad.content)
    with pytest.raises(ContainerError) as caught:
        GgufFile(path)
    error = caught.value
    assert bad.text in error.message
    assert error.file == str(path)
    assert error.rule is not None
    assert bad.tensor is None or error.tensor == bad.tensor
    assert bad.field is None or error.field == bad.field
    assert bad.offset is None or error.offset == bad.offset
    assert len(str(error)) < 600


@pytest.mark.parametrize("count", [2**20, 2**31, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("item", [0, 7, 8, 9, 12])
def test_no_count_is_believed(tmp_path: Path, count: int, item: int) -> None:
    paths = [
        write(tmp_path, values(array("k", item, count, b"")), "array.gguf"),
        write(tmp_path, blob([], [], counts=(count, 0)), "tensors.gguf"),
        write(tmp_path, blob([], [], counts=(0, count)), "values.gguf"),
        write(tmp_path, tensors(info("x", (count, 32))), "size.gguf"),
    ]
    tracemalloc.start()
    try:
        for path in paths:
            with pytest.raises(ContainerError):
                GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_sparse_file_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_cursor, "MAX_HEADER", 1 << 20)
    path = write(tmp_path, values(array("k", 0, 1 << 30, b"")))
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    with pytest.raises(ContainerError, match="at most 1,048,576 bytes"):
        GgufFile(path)


def test_big_endian_is_refused(tmp_path: Path) -> None:
    content = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    with pytest.raises(UnsupportedError, match=r"big-endian GGUF file \(version 3\)") as caught:
        GgufFile(write(tmp_path, content))
    assert caught.value.hint is not None
    assert "gguf-convert-endian" in caught.value.hint


def test_tolerant_lets_holes_and_surplus_pass(tmp_path: Path) -> None:
    path = write(tmp_path, tensors(info("x"), info("y", offset=64), data=200))
    with GgufFile(path, tolerant=True) as file:
        assert len(file.problems) == 2
        assert "belong to nothing" in file.problems[0]
        assert "104 bytes follow tensor 'y'" in file.problems[1]
        assert file.entries["y"].offset == file.entries["x"].offset + 64


def test_what_ggml_would_refuse_is_a_problem(tmp_path: Path) -> None:
    lines = [info("n" * 64, (1,) * 5, offset=32), info("x")]
    with GgufFile(write(tmp_path, tensors(*lines, data=64))) as file:
        assert [("ggml" in text) for text in file.problems] == [True, True, True]
        assert list(file.entries) == ["n" * 64, "x"]
        assert file.entries["n" * 64].shape == (1,) * 5


def test_wrong_kinds_of_file(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for content, word in ((pointer, "Git LFS"), (b"<!DOCTYPE html><html>", "HTML"), (b"PK\x03\x04", "zip")):
        with pytest.raises(ContainerError, match=word):
            GgufFile(write(tmp_path, content))
    with pytest.raises(InputError, match="no such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(InputError, match="a folder"):
        GgufFile(tmp_path)


def test_truncated_at_every_length(tmp_path: Path) -> None:
    content = small_file()
    unpadded = len(content) - 15  # MXFP4 takes 17 of the last 32 bytes
    for length in range(len(content)):
        path = write(tmp_path, content[:length])
        if length == unpadded:
            GgufFile(path).close()
            continue
        with pytest.raises(ContainerError) as caught:
            GgufFile(path)
        assert caught.value.file == str(path)


def read_all(path: Path) -> None:
    """Everything that a reader can do with a file; only BlockscaleError may come out."""
    with contextlib.suppress(BlockscaleError), GgufFile(path, tolerant=True) as file:
        for value in file.metadata.values():
            assert value.value is not None
            assert repr(value)
        for name, entry in file.entries.items():
            raw = file.raw(name)
            assert raw.size == file.read_bytes(name).size == entry.nbytes
            assert entry.rows * entry.row_bytes == entry.nbytes
            if entry.type.is_plain:
                assert file.array(name).shape == entry.shape
            elif entry.type.name in ggml.FORMATS:
                with contextlib.suppress(BlockscaleError):
                    assert ggml.unpack_blocks(raw, entry.type, entry.shape).tensor.shape == entry.shape
        specs = [(e.name, e.type, e.shape) for e in file.entries.values()]
        assert plan_layout(specs, file.metadata, version=file.version).size >= 24


def test_flipping_any_byte_is_harmless(tmp_path: Path) -> None:
    content = small_file()
    for at, old in enumerate(content):
        others = {old ^ 1 << bit for bit in (0, 1, 3, 5, 7)} | {0, 255}
        for new in others - {old}:
            read_all(write(tmp_path, content[:at] + bytes([new]) + content[at + 1 :]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_splicing_is_harmless(tmp_path: Path, data: st.DataObject) -> None:
    content = small_file()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    middle = data.draw(st.binary(max_size=20) | st.sampled_from([content[24:60], b"\xff" * 8, bytes(8)]))
    read_all(write(tmp_path, content[:begin] + middle + content[end:]))


def test_one_is_valid(tmp_path: Path) -> None:
    with GgufFile(write(tmp_path, one())) as file:
        np.testing.assert_array_equal(file.array("x"), np.zeros(4, np.float32))
        assert file.problems == []

"""Malformed, mutated and foreign files: a readable error, or correct data; nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockscale.containers.safetensors import SafetensorsFile
from blockscale.containers.sniff import describe_foreign, open_input, recognise, recognise_foreign
from blockscale.errors import BlockscaleError, ContainerError, InputError
from safetensors_files import blob, one, small_file, write

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


# Hostile files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A malformed file, a part of the message, and what the error knows."""

    id: str
    content: bytes
    text: str
    tensor: str | None = None
    field: str | None = None


def two(first: tuple[int, int], second: tuple[int, int], data: bytes) -> bytes:
    """Two tensors of bytes at the offsets given."""
    return blob(
        {
            name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
            for name, (begin, end) in {"a": first, "b": second}.items()
        },
        data,
    )


def with_shape(text: str) -> bytes:
    """A tensor of four bytes whose shape is this JSON text."""
    return blob(json.dumps(one()).replace("[4]", text), b"abcd")


X = '{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
OFFSETS, SHAPE = "data_offsets", "shape"
HOSTILE = [
    Bad("header length zero", blob(one(), b"abcd", length=0), "length is 0", field="header length"),
    Bad("header length one", blob(one(), b"abcd", length=1), "too short for any header"),
    Bad("header length odd", blob(one(), b"abcd", length=13), "not JSON"),
    Bad("header length into data", blob(one(), b"abcd", length=62), "not JSON"),
    Bad("header length one beyond", blob(one(), b"abcd", length=999), "ends at byte 1,007"),
    Bad("header one byte too long", blob("{}" + " " * 40, length=43), "ends at byte 51, but the"),
    Bad("five bytes", b"\x02\0\0\0\0", "5 bytes are too few for a safetensors file"),
    Bad("header length 100 MB + 1", blob(one(), length=100_000_001), "100,000,001 bytes long"),
    Bad("header length 2**64 - 1", blob(one(), length=2**64 - 1), "18,446,744,073,709,551,615"),
    Bad("all zeros", bytes(100), "header length is 0"),
    Bad("not JSON", blob("{x: 1}    "), "not JSON"),
    Bad("cut JSON", blob('{"x": {"dty'), "not JSON"),
    Bad("two values", blob("{} {}"), "not JSON"),
    Bad("NUL padding", blob(b"{}\0\0\0\0\0\0"), "not JSON"),
    Bad("leading space", blob(' {"x":1}'), "begins with b' '"),
    Bad("byte order mark", blob(b"\xef\xbb\xbf{}   "), "instead of '{'"),
    Bad("list", blob([]), "begins with b'['"),
    Bad("string", blob("x" * 10), "instead of '{'"),
    Bad("invalid UTF-8", blob(b'{"\xff\xfe":1}'), "not UTF-8 at byte 10"),
    Bad("UTF-16", blob(b"{" + '"x":1}'.encode("utf-16-le")), "not JSON"),
    Bad("lone surrogate in a name", blob('{"\\ud800":{}}'), "not Unicode text"),
    Bad("duplicate tensor", blob(X + "," + X[1:] + "}", b"abcd"), "'x' occurs twice"),
    Bad("duplicate field", blob('{"x":{"dtype":"U8","dtype":"F4"}}'), "'dtype' occurs twice"),
    Bad("duplicate metadata", blob('{"__metadata__":{"a":"1","a":"2"}}'), "'a' occurs twice"),
    Bad("two __metadata__", blob('{"__metadata__":{},"__metadata__":{}}'), "occurs twice"),
    Bad("name that is not a string", blob("{1: 2}    "), "not JSON"),
    Bad("metadata list", blob({"__metadata__": []}), "found []", field="__metadata__"),
    Bad("metadata number", blob({"__metadata__": {"a": 1}}), "'a' is 1", field="__metadata__"),
    Bad("metadata nested", blob({"__metadata__": {"a": {}}}), "'a' is {}", field="__metadata__"),
    Bad("metadata surrogate", blob('{"__metadata__":{"a":"\\udfff"}}'), "is '\\udfff'"),
    Bad("tensor is a list", blob({"x": [1]}), "its description is [1]", "x"),
    Bad("tensor is null", blob({"x": None}), "its description is None", "x"),
    Bad("no dtype", blob({"x": {"shape": [], "data_offsets": [0, 0]}}), "missing", "x", "dtype"),
    Bad("no shape", blob({"x": {"dtype": "U8", "data_offsets": [0, 0]}}), "missing", "x", SHAPE),
    Bad("no offsets", blob({"x": {"dtype": "U8", "shape": []}}), "missing", "x", OFFSETS),
    Bad("dtype number", blob(one(8), b"abcd"), "found 8", "x", "dtype"),
    Bad("dtype null", blob(one(None), b"abcd"), "found None", "x", "dtype"),
    Bad("dtype surrogate", blob(one("\ud800"), b"abcd"), "found '\\ud800'", "x", "dtype"),
    Bad("dtype list", blob(one(["U8"]), b"abcd"), "found ['U8']", "x", "dtype"),
    Bad("shape number", blob(one(shape=4), b"abcd"), "found 4", "x", SHAPE),
    Bad("shape string", blob(one(shape="4"), b"abcd"), "found '4'", "x", SHAPE),
    Bad("shape object", blob(one(shape={"4": 4}), b"abcd"), "found {'4': 4}", "x", SHAPE),
    Bad("negative size", blob(one(shape=[-4]), b"abcd"), "found -4", "x", SHAPE),
    Bad("two negative sizes", blob(one(shape=[-2, -2]), b"abcd"), "found -2", "x", SHAPE),
    Bad("size is a float", blob(one(shape=[4.0]), b"abcd"), "found 4.0", "x", SHAPE),
    Bad("size is 4e0", with_shape("[4e0]"), "found 4.0", "x", SHAPE),
    Bad("size is true", blob(one(shape=[True]), b"abcd"), "found True", "x", SHAPE),
    Bad("size is a string", blob(one(shape=["4"]), b"abcd"), "found '4'", "x", SHAPE),
    Bad("size is null", blob(one(shape=[None]), b"abcd"), "found None", "x", SHAPE),
    Bad("size is a list", blob(one(shape=[[4]]), b"abcd"), "found [4]", "x", SHAPE),
    Bad("size is NaN", blob(one(shape=[float("nan")]), b"abcd"), "contains NaN"),
    Bad("size is infinite", blob(one(shape=[float("inf")]), b"abcd"), "contains Infinity"),
    Bad("size is 1e999", with_shape("[1e999]"), "found inf", "x", SHAPE),
    Bad("size 2**63", blob(one(shape=[2**63, 0]), b"abcd"), "found 9223372036854775808 in", "x", SHAPE),
    Bad("size of 5000 digits", with_shape(f"[{'9' * 5000}]"), "thousands of digits"),
    Bad("product wraps to 4", blob(one(shape=[2**62 + 1, 4]), b"abcd"), "too large", "x", SHAPE),
    Bad("product wraps to 0", blob(one(shape=[2**32, 2**32]), b"abcd"), "too large", "x", SHAPE),
    Bad("bytes overflow", blob(one("F64", [2**61], [0, 4]), b"abcd"), "too large", "x", SHAPE),
    Bad("huge beside zero", blob(one("U8", [2**62, 4, 0], [0, 0])), "too large", "x", SHAPE),
    Bad("zero beside huge", blob(one("U8", [0, 2**62, 4], [0, 0])), "too large", "x", SHAPE),
    Bad("huge product", blob(one(shape=[2] * 100_000), b"abcd"), "too large", "x", SHAPE),
    Bad("beyond the file", blob(one("U8", [2**40], [0, 2**40])), "the file at", "x"),
    Bad("too few bytes", blob(one("U8", [128, 128]), b"abcd"), "16,384 bytes", "x", OFFSETS),
    Bad("too many bytes", blob(one("U8", [3]), b"abcd"), "takes 3 bytes", "x", OFFSETS),
    Bad("F4 by bytes", blob(one("F4", [2, 4], [0, 8]), bytes(8)), "takes 4 bytes", "x", OFFSETS),
    Bad("F4 odd", blob(one("F4", [3], [0, 2]), b"ab"), "12 bits, not whole bytes", "x", OFFSETS),
    Bad("F6 odd", blob(one("F6_E2M3", [2], [0, 2]), b"ab"), "12 bits, not", "x", OFFSETS),
    Bad("scalar of no bytes", blob(one("F32", [], [0, 0])), "takes 4 bytes", "x", OFFSETS),
    Bad("one offset", blob(one(offsets=[0]), b"abcd"), "found [0]", "x", OFFSETS),
    Bad("three offsets", blob(one(offsets=[0, 4, 4]), b"abcd"), "found [0, 4, 4]", "x", OFFSETS),
    Bad("offsets backwards", blob(one(offsets=[4, 0]), b"abcd"), "found [4, 0]", "x", OFFSETS),
    Bad("negative offset", blob(one(offsets=[-4, 0])), "found -4", "x", OFFSETS),
    Bad("offset is a float", blob(one(offsets=[0, 4.0]), b"abcd"), "found 4.0", "x", OFFSETS),
    Bad("offset is false", blob(one(offsets=[False, 4]), b"abcd"), "found False", "x", OFFSETS),
    Bad("offset 2**64 + 4", blob(one(offsets=[0, 2**64 + 4]), b"abcd"), "18446744073709551620"),
    Bad("overlap", two((0, 4), (2, 6), b"abcdef"), "2 bytes inside tensor 'a'", "b", OFFSETS),
    Bad("overlap by one", two((0, 4), (3, 6), b"abcdef"), "1 bytes inside tensor", "b", OFFSETS),
    Bad("same bytes", two((0, 4), (0, 4), b"abcd"), "4 bytes inside tensor 'a'", "b", OFFSETS),
    Bad("hole", two((0, 2), (4, 6), b"abcdef"), "the 2 bytes after tensor 'a'", "b", OFFSETS),
    Bad("hole before", blob(one(offsets=[2, 6]), b"abcdef"), "after the header", "x", OFFSETS),
    Bad("trailing bytes", blob(one(), b"abcdEXT"), "3 bytes follow tensor 'x'"),
    Bad("bytes but no tensor", blob({}, b"abc"), "3 bytes follow the header"),
    Bad("short data", blob(one(), b"abc"), "ends at byte", "x", OFFSETS),
    Bad("deep lists", blob('{"a":' + "[" * 200_000), "nested too deeply"),
    Bad("deep objects", blob('{"a":' * 200_000), "nested too deeply"),
    Bad("deep shape", with_shape("[" * 500 + "]" * 500), "found [[", "x", SHAPE),
    Bad("long dtype", blob(one(["U" * 100_000])), "UUU...UUU", "x", "dtype"),
]  # fmt: skip


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda bad: bad.id)
def test_hostile_file_is_refused(tmp_path: Path, bad: Bad) -> None:
    path = write(tmp_path, bad.content)
    with pytest.raises(ContainerError) as caught:
        SafetensorsFile(path)
    error, message = caught.value, str(caught.value)
    assert bad.text in message
    assert error.file == str(path)
    assert error.rule is not None
    assert error.rule.startswith("safetensors: ")
    assert len(message) < 1500
    if bad.tensor is not None:
        assert error.tensor == bad.tensor
    if bad.field is not None:
        assert error.field == bad.field


@pytest.mark.parametrize("bad", [bad for bad in HOSTILE if "follow" not in bad.text], ids=lambda bad: bad.id)
def test_tolerance_is_for_trailing_bytes_only(tmp_path: Path, bad: Bad) -> None:
    with pytest.raises(ContainerError):
        SafetensorsFile(write(tmp_path, bad.content), tolerant=True)


def test_truncated_at_every_length(tmp_path: Path) -> None:
    content = small_file()
    for length in range(len(content)):
        path = write(tmp_path, content[:length])
        with pytest.raises(ContainerError) as caught:
            SafetensorsFile(path)
        assert caught.value.file == str(path)


def read_all(path: Path) -> None:
    """Everything that a reader can do with a file; only BlockscaleError may come out."""
    with contextlib.suppress(BlockscaleError), SafetensorsFile(path, tolerant=True) as file:
        for name, entry in file.entries.items():
            assert file.raw(name).size == file.read_bytes(name).size == entry.nbytes
            if entry.dtype is not None:
                assert file.array(name).shape == entry.shape
                assert file.read_rows(name).shape == entry.shape


def test_flipping_any_byte_is_harmless(tmp_path: Path) -> None:
    content = small_file()
    for at, old in enumerate(content):
        others = {old ^ 1 << bit for bit in range(8)} | {0, 255, *b'0"{}[]\\,-.e9'}
        for new in others - {old}:
            read_all(write(tmp_path, content[:at] + bytes([new]) + content[at + 1 :]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_splicing_is_harmless(tmp_path: Path, data: st.DataObject) -> None:
    content = small_file()
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    middle = data.draw(st.binary(max_size=20) | st.sampled_from([content[8:40], b"1" * 30, b"[["]))
    text = content[8:begin] + middle + content[end:]
    read_all(write(tmp_path, content[:begin] + middle + content[end:]))
    read_all(write(tmp_path, blob(text)))


# Wrong files -----------------------------------------------------------------------------------

WRONG = [
    ("git-lfs", LFS_POINTER, "Git LFS pointer, not the file itself", "git lfs pull"),
    ("html", b"<!DOCTYPE html>\n<html><head>", "HTML page", "direct link"),
    ("html", b"\n  <html lang='en'><head>....", "HTML page", "direct link"),
    ("gguf", b"GGUF\x03\0\0\0\x10\0\0\0\0\0\0\0" + bytes(50), "GGUF file", ".gguf"),
    ("zip", b"PK\x03\x04\0\0\x08\x08" + bytes(50), "zip archive (PyTorch", ".safetensors"),
    ("zip", b"PK\x03\x04\0\0\0\0" + bytes(50), "zip archive (PyTorch", ".safetensors"),
    ("pickle", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + bytes(50), "pickle", "code"),
    ("hrry", b"HRRYFILE" + bytes(50), ".hrry file", ".hrry"),
    ("gzip", b"\x1f\x8b\x08\0" + bytes(50), "gzip archive", "unpack"),
    ("empty", b"", "this file is empty", "download"),
]


@pytest.mark.parametrize(("kind", "content", "text", "hint"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_file_is_named(tmp_path: Path, kind: str, content: bytes, text: str, hint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ContainerError) as caught:
        SafetensorsFile(path)
    assert text in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert caught.value.file == str(path)
    foreign = recognise_foreign(content[:512])
    assert foreign is not None
    assert foreign.kind == kind
    assert describe_foreign(content[:512]) == foreign.text
    assert recognise(path) == kind


def test_safetensors_is_recognised(tmp_path: Path) -> None:
    assert recognise(write(tmp_path, small_file())) == "safetensors"
    assert describe_foreign(small_file()) == "this is a safetensors file"


@pytest.mark.parametrize("content", [b"\x93NUMPY", b"x", b"\x80", bytes(20), b"\xbe\xa9o~"])
def test_other_bytes_are_not_recognised(content: bytes) -> None:
    assert describe_foreign(content) is None


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        SafetensorsFile(tmp_path / "none")
    with pytest.raises(InputError, match="is missing"):
        SafetensorsFile(tmp_path / "none" / "none")
    with pytest.raises(InputError, match="a folder"):
        SafetensorsFile(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        open_input("a\0b")


def test_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        SafetensorsFile(tmp_path / "pipe")


_SIZE = 6_000_000
SWOLLEN = {
    "lists": b'{"a":[' + b"[]," * (_SIZE // 3) + b"0]}",
    "objects": b'{"a":[' + b"{}," * (_SIZE // 3) + b"0]}",
    "numbers": b'{"a":[' + b"1," * (_SIZE // 2) + b"0]}",
    "strings": b'{"a":[' + b'"",' * (_SIZE // 3) + b"0]}",
    "nesting": b'{"a":' + b"[" * _SIZE,
    "fields": b"{" + b",".join(b'"%x":0' % i for i in range(_SIZE // 12)) + b"}",
}


@pytest.mark.parametrize("kind", SWOLLEN)
def test_headers_that_would_swell_are_not_parsed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("the header was parsed"))
    path = write(tmp_path, blob(SWOLLEN[kind].decode(), b""))
    with pytest.raises(ContainerError, match=r"the header has [\d,]+ \w+ in 1 objects|has [\d,]+ objects"):
        SafetensorsFile(path)


def test_brackets_in_strings_are_no_items(tmp_path: Path) -> None:
    """Metadata may hold JSON of their own, escaped."""
    inner = json.dumps([[], {"a\\": [1, 2, '"']}] * 400_000)
    header = {"__metadata__": {"workflow": inner}, **one()}
    with SafetensorsFile(write(tmp_path, blob(header, b"abcd"))) as file:
        assert file.metadata["workflow"] == inner

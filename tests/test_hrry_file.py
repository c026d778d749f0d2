"""Reading `.hrry` files: what is offered, and every rule of the container broken once."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.containers.hrry import HrryFile, find_problems, write_hrry
from blockscale.errors import BlockscaleError, ContainerError, DescriptorError, InputError, UnsupportedError
from blockscale.hurray import RULES, HurrayTensor, PermissiveWarning, encode_tensor, rule_id
from blockscale.hurray.crc32c import crc32c
from blockscale.hurray.metadata import U64, MetadataList, decode_metadata, encode_metadata
from hurray_build import (
    INT8,
    MXFP,
    PARTIAL,
    PER_BLOCK,
    PER_CHANNEL,
    PLAIN,
    SYMMETRIC,
    Raw,
    RawFile,
    RawTensor,
    handle,
    kv_section,
    per_tensor,
    slow_crc32c,
)

ONES = np.ones(8, np.float16).tobytes()
W = RawTensor(b"w", bytes(PLAIN), (np.arange(12, dtype=np.float32).tobytes(),))
B = RawTensor(b"blocks", bytes(PER_BLOCK), (bytes(range(64)), ONES, bytes(32)))
FIVE = RawTensor(b"five", bytes(Raw(INT8, (5,), (handle(5),))), (bytes(5),))
KV = kv_section((b"producer", b"\1" + struct.pack("<I", 4) + b"test"), (b"n", b"\2" + struct.pack("<q", -2)))
GOOD = RawFile((W, B), KV)
SIZE = len(bytes(GOOD))
CRC_OFFSET = SIZE - 12


def one(**changes: Any) -> RawFile:
    """A file of one tensor whose index says something else."""
    return RawFile((replace(W, **changes),))


def kv(*entries: tuple[bytes, bytes], **changes: Any) -> RawFile:
    return RawFile((W,), kv_section(*entries, **changes))


TEXT = b"\1" + struct.pack("<I", 1) + b"x"
LAST = 2**64 - 1
CASES: tuple[tuple[str, str, RawFile | bytes], ...] = (
    *(("F1", f"{n} bytes", bytes(GOOD)[:n]) for n in (8, 63, 64, 103)),
    ("F2", "magic", GOOD.patched(0, b"HRRYFILF")),
    ("F2", "no bytes", b""),
    ("F2", "one byte", b"H"),
    ("F3", "end", GOOD.patched(-1, b"Z")),
    ("F3", "one byte short", bytes(GOOD)[:-1]),
    ("F3", "one byte more", bytes(GOOD) + b"\0"),
    *(("F4", f"major {v}", GOOD.patched(8, bytes([v]))) for v in (0, 2, 255)),
    *(("F5", f"flag {f:#x}", GOOD.but(flags=f | 4)) for f in (8, 1 << 31)),
    *(("F6", f"alignment {a}", GOOD.but(alignment=a)) for a in (0, 64, 2048, 3000, 6144, 1 << 22, 2**32 - 1)),
    ("F7", "wrong", GOOD.but(crc=1)),
    ("F7", "index changed", GOOD.patched(-41, b"\1")),
    ("F7", "not zero without flag", GOOD.but(flags=0, crc=7)),
    *(
        ("F8", f"index at {at}", GOOD.but(index_offset=at))
        for at in (0, 56, 60, 0x2001, SIZE, LAST - 7, 2**63)
    ),
    *(("F8", f"index of {n}", GOOD.but(index_length=n)) for n in (SIZE, 2**63, LAST)),
    ("F9", "offset only", GOOD.but(kv_length=0)),
    ("F9", "length only", GOOD.but(kv_offset=0)),
    ("F9", "flag only", RawFile((W,), flags=5)),
    ("F9", "not at a multiple of 8", GOOD.but(kv_offset=0x3001)),
    ("F9", "beyond", GOOD.but(kv_length=2**32 - 1)),
    ("F9", "overflow", GOOD.but(kv_offset=LAST - 7)),
    ("F10", "empty", one(name=b"")),
    ("F10", "twice", RawFile((W, W))),
    ("F10", "not UTF-8", one(name=b"\xff\xfe")),
    ("F10", "surrogate", one(name=b"\xed\xa0\x80")),
    ("F11", "empty", kv((b"", TEXT))),
    ("F11", "twice", kv((b"a", TEXT), (b"a", TEXT))),
    ("F11", "not UTF-8", kv((b"\x80", TEXT))),
    *(("F12", f"tag {t}", kv((b"a", bytes([t]) + bytes(8)))) for t in (0, 8, 255)),
    *(("F12", f"element tag {t}", kv((b"a", b"\7" + bytes([t]) + bytes(8)))) for t in (0, 7, 8)),
    ("F12", "bool 2", kv((b"a", b"\5\2"))),
    ("F12", "text not UTF-8", kv((b"a", b"\1\1\0\0\0\xff"))),
    ("F12", "text cut", kv((b"a", b"\1" + struct.pack("<I", 100) + b"x"))),
    ("F12", "bytes of 4 GiB", kv((b"a", b"\6" + struct.pack("<I", 2**32 - 1) + b"x"))),
    ("F12", "number cut", kv((b"a", b"\2\1\1"))),
    ("F12", "more bytes", kv((b"a", TEXT + b"\0"))),
    ("F12", "key cut", kv(count=1).but(kv=struct.pack("<I", 1) + b"\xff\xff" + bytes(8))),
    *(("F13", f"{n}", one(descriptor_length=len(bytes(PLAIN)) + n)) for n in (-1, 1, 8)),
    *(("F14", f"at {at}", one(descriptor_offset=at)) for at in (0, 56, 65, 68, 4096 * 3, LAST, 2**63)),
    ("F14", "4 GiB long", one(descriptor_length=2**32 - 1)),
    *(("F15", f"at {at}", one(data_offset=at)) for at in (1, 64, 4095, 4097, 8192, 2**63, LAST - 4095)),
    *(("F15", f"{n} long", one(data_length=n)) for n in (8192, 2**63, LAST)),
    *(("F16", f"{n} long", RawFile((replace(FIVE, data_length=n),))) for n in (0, 4, 6, 8)),
    ("F17", "flags", one(flags=1)),
    ("F18", "more bytes", GOOD.but(index_tail=b"\0")),
    ("F18", "cut", GOOD.but(index_cut=1)),
    ("F18", "one entry too many", GOOD.but(count=1)),
    ("F18", "one entry too few", GOOD.but(count=3, index_tail=b"\x64" + bytes(39))),
    ("F19", "data of two", RawFile((W, RawTensor(b"v", bytes(PLAIN), W.buffers, data_offset=4096)))),
    (
        "F19",
        "descriptors of two",
        RawFile((W, RawTensor(b"v", bytes(PLAIN), W.buffers, descriptor_offset=64))),
    ),
    ("F19", "data over the index", RawFile((RawTensor(b"v", bytes(PLAIN), W.buffers, data_length=80),))),
    ("F19", "metadata are the index", RawFile((W,), index_tail=b"", kv_offset=0x1030, kv_length=8)),
    *(("F20", f"at {at}", GOOD.but(first=at)) for at in (0, 63, 65, LAST - 7)),
    *(("F21", f"header {at}", GOOD.patched(at, b"\1")) for at in (10, 11, 36, 63)),
    *(("F21", f"trailer {at}", GOOD.patched(at, b"\1")) for at in (-8, -5)),
    *(("F22", f"{n} tensors", GOOD.but(count=n)) for n in (LAST, 2**32, 100)),
    *(("F22", f"{n} values", kv((b"a", TEXT), count=n)) for n in (2**32 - 1, 100)),
    ("F22", "list of 2**32", kv((b"a", b"\7\5" + struct.pack("<I", 2**32 - 1) + b"\1"))),
    ("F22", "list of strings", kv((b"a", b"\7\1" + struct.pack("<I", 3) + bytes(8)))),
    ("F23", "not sorted", RawFile((W, B), flags=6)),
)


def save(path: Path, raw: RawFile | bytes) -> Path:
    path.write_bytes(bytes(raw))
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save(tmp_path / "good.hrry", GOOD)


@pytest.mark.parametrize(("rule", "what", "raw"), CASES, ids=[f"{rule} {what}" for rule, what, _ in CASES])
@pytest.mark.parametrize("permissive", [False, True])
def test_broken_rule_is_named(
    rule: str, what: str, raw: RawFile | bytes, permissive: bool, tmp_path: Path
) -> None:
    path = save(tmp_path / "bad.hrry", raw)
    with pytest.raises(ContainerError) as caught:
        HrryFile(path, permissive=permissive)
    error = caught.value
    assert rule_id(error) == rule
    assert error.rule == str(RULES[rule])
    assert error.file == str(path)
    assert str(path) in str(error)
    assert [rule_id(e) for e in find_problems(path) if isinstance(e, ContainerError)] == [rule]


def test_every_rule_of_the_container_has_a_case() -> None:
    assert {case[0] for case in CASES} == {rule for rule in RULES if rule[0] == "F"}


@pytest.mark.parametrize(
    "raw",
    [
        RawFile(),
        RawFile((W,), flags=0),
        RawFile((W,), KV, flags=5),
        RawFile((B, W), flags=6),
        RawFile((W, B), alignment=8192, step=8192),
        RawFile((W,), first=4096).but(first=72),
        RawFile((W,), kv_section()),
    ],
)
def test_other_files_are_fine(raw: RawFile, tmp_path: Path) -> None:
    path = save(tmp_path / "other.hrry", raw)
    assert find_problems(path) == []
    with HrryFile(path) as f:
        assert sorted(f) == sorted(t.name.decode() for t in raw.tensors)
        for t in raw.tensors:
            name = t.name.decode()
            assert [f.buffer(name, i).tobytes() for i in range(len(t.buffers))] == list(t.buffers)


def test_what_a_file_offers(good: Path) -> None:
    with HrryFile(good) as f:
        assert list(f) == ["w", "blocks"]
        assert len(f) == 2
        assert "w" in f
        assert "v" not in f
        assert f.metadata == {"producer": "test", "n": -2}
        entry = f.entries["blocks"]
        assert entry.buffer_offsets == (entry.data_offset, entry.data_offset + 4096, entry.data_offset + 8192)
        assert entry.data_length == 8192 + 32
        w = f.tensor("w")
        assert isinstance(w, np.ndarray)
        assert w.tolist() == np.arange(12).reshape(3, 4).tolist()
        assert not w.flags.writeable
        assert np.shares_memory(w, f.buffer("w", 0))
        blocks = f.tensor("blocks")
        assert isinstance(blocks, bs.BlockTensor)
        assert np.shares_memory(blocks.packed, f.buffer("blocks", 0))
        assert f.read_bytes("blocks", 0, 3, 9).tolist() == [3, 4, 5, 6, 7, 8]
        assert f.read_bytes("blocks", 2, 32, 32).size == 0
        assert f.plain_dtype("w") == np.float32
        assert f.plain_dtype("blocks") is None
        assert "2 tensors" in repr(f)
    assert w.sum() == 66  # arrays outlive the file


def test_questions_that_have_no_answer(good: Path) -> None:
    f = HrryFile(good)
    with pytest.raises(InputError, match="'blocks'") as caught:
        f.tensor("block")
    assert "did you mean 'blocks'?" in str(caught.value)
    assert caught.value.file == str(good)
    for i in (-1, 1):
        with pytest.raises(InputError, match="buffer"):
            f.buffer("w", i)
    for start, stop in ((-1, 3), (3, 2), (0, 49)):
        with pytest.raises(InputError, match="48 bytes"):
            f.read_bytes("w", 0, start, stop)
    f.close()
    f.close()
    for use in (lambda: f.tensor("w"), lambda: f.buffer("w", 0), lambda: f.read_bytes("w", 0, 0, 1)):
        with pytest.raises(InputError, match="closed"):
            use()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.hrry", tmp_path):
        with pytest.raises(InputError) as caught:
            HrryFile(path)
        assert caught.value.file == str(path)
        with pytest.raises(InputError):
            find_problems(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"GGUF\3\0\0\0" + bytes(200), "GGUF"),
        (b"PK\3\4" + bytes(200), "zip"),
        (b'\x10\0\0\0\0\0\0\0{"a":1}         ' + bytes(200), "safetensors"),
        (b"\x80\2}q\0." + bytes(200), "pickle"),
        (b"", "empty"),
    ],
)
def test_other_kinds_of_files_are_named(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match=words) as caught:
        HrryFile(save(tmp_path / "x.hrry", data))
    assert caught.value.hint


def test_a_broken_descriptor_names_its_tensor(tmp_path: Path) -> None:
    bad = RawTensor(b"bad", bytes(SYMMETRIC.but(type_tag=3)), (bytes(64), ONES * 1))
    path = save(tmp_path / "x.hrry", RawFile((W, bad)))
    with pytest.raises(DescriptorError) as caught:
        HrryFile(path)
    error = caught.value
    assert (error.file, error.tensor, error.field, error.offset) == (str(path), "bad", "type_tag", 14)
    assert str(error).startswith(f"{path}: tensor 'bad': field type_tag (offset 14): ")


def test_values_are_refused_when_they_are_read(tmp_path: Path) -> None:
    zero = RawTensor(b"zero", bytes(SYMMETRIC), (bytes(64), bytes(16)))
    path = save(tmp_path / "x.hrry", RawFile((W, zero)))
    with HrryFile(path) as f:
        assert isinstance(f.tensor("w"), np.ndarray)
        with pytest.raises(DescriptorError) as caught:
            f.tensor("zero")
    assert (caught.value.file, caught.value.tensor, rule_id(caught.value)) == (str(path), "zero", "R20")
    assert [(rule_id(e), e.tensor) for e in find_problems(path) if isinstance(e, DescriptorError)] == [
        ("R20", "zero")
    ]


def test_find_problems_lists_all_of_them(tmp_path: Path) -> None:
    tensors = (
        RawTensor(b"a", bytes(SYMMETRIC.but(type_tag=3)), (bytes(64), ONES)),
        RawTensor(b"b", bytes(SYMMETRIC), (bytes(64), bytes(16))),
        RawTensor(b"c", bytes(PLAIN), W.buffers, data_length=47),
        RawTensor(b"d", bytes(MXFP), (bytes(128), bytes(8))),
        RawTensor(b"e", bytes(PLAIN.but(magic=b"XRRY")), W.buffers),
        RawTensor(b"f", bytes(PLAIN.but(handles=(handle(40),))), (bytes(40),)),
        W,
    )
    found = find_problems(save(tmp_path / "x.hrry", RawFile(tensors)))
    assert [(e.tensor, str(e.rule).partition(":")[0]) for e in found] == [
        *(("a", "R7"), ("b", "R20"), ("c", "F16"), ("d", "R23"), ("e", "H1"), ("f", "H30"))
    ]


def test_permissive_reading_lists_what_it_let_pass(tmp_path: Path) -> None:
    tensors = (
        RawTensor(b"type", bytes(PLAIN.but(type_tag=0x60)), W.buffers),
        RawTensor(b"layout", bytes(PLAIN.but(layout_tag=0x60)), W.buffers),
        RawTensor(b"scheme", bytes(SYMMETRIC.but(section=b"\xf0\1\0\0")), (bytes(64), ONES)),
        RawTensor(
            b"tight", bytes(PARTIAL.patched(PARTIAL.table_offset, b"\x3c")), (bytes(60), ONES + ONES[:2])
        ),
        RawTensor(b"reserved", bytes(PLAIN.patched(PLAIN.table_offset + 15, b"\1")), W.buffers),
        RawTensor(b"exponents", bytes(MXFP), (bytes(128), bytes(8))),
        W,
    )
    path = save(tmp_path / "x.hrry", RawFile(tensors))
    with HrryFile(path, permissive=True) as f:
        assert [(e.tensor, rule_id(e)) for e in f.problems] == [
            *(("type", "H7"), ("layout", "H9"), ("scheme", "R2"), ("tight", "R19"), ("reserved", "H23"))
        ]
        for name in ("type", "layout", "scheme"):
            with pytest.raises(UnsupportedError, match="must not be interpreted"):
                f.tensor(name)
        assert f.buffer("type", 0).size == 48
        for name in ("tight", "exponents"):
            with pytest.warns(PermissiveWarning):
                assert isinstance(f.tensor(name), bs.BlockTensor)
        assert isinstance(f.tensor("reserved"), np.ndarray)
        assert isinstance(f.tensor("w"), np.ndarray)


def test_other_schemes_come_as_hurray_tensors(tmp_path: Path) -> None:
    channel = RawTensor(b"channel", bytes(PER_CHANNEL), (bytes(12), np.ones(3, "f4").tobytes(), bytes(12)))
    plain = RawTensor(b"tensor", bytes(Raw(INT8, (3, 4), (handle(12),), per_tensor(0.5, -1))), (bytes(12),))
    path = save(tmp_path / "x.hrry", RawFile((channel, plain)))
    with HrryFile(path) as f:
        values = {name: f.tensor(name) for name in f}
        assert all(isinstance(v, HurrayTensor) for v in values.values())
        assert np.asarray(values["tensor"]).tolist() == [[0.5] * 4] * 3
        write_hrry(tmp_path / "again.hrry", values)
    assert (tmp_path / "again.hrry").read_bytes() == path.read_bytes()


# Metadata and checksum.


def test_metadata_of_every_kind_survives() -> None:
    nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    metadata = {
        "text": "é\0x",
        "empty": "",
        "signed": -(2**63),
        "unsigned": U64(3),
        "large": 2**64 - 1,
        "float": nan,
        "bool": True,
        "bytes": b"\0\xff",
        "list": MetadataList(["a", "b"], 1),
        "none": MetadataList([], 4),
        "unsigned list": MetadataList([U64(1), U64(2**64 - 1)], 3),
        "floats": [0.5, float("inf")],
        "bools": [True, False],
        "parts": [b"", b"x"],
    }
    data = encode_metadata(metadata)
    back = decode_metadata(data)
    assert encode_metadata(back) == data
    assert list(back) == list(metadata)
    assert {k: v for k, v in back.items() if k != "float"} == {
        k: v for k, v in metadata.items() if k != "float"
    }
    assert struct.pack("<d", back["float"]) == struct.pack("<d", nan)
    assert isinstance(back["unsigned"], U64)
    assert isinstance(back["large"], U64)
    assert not isinstance(back["signed"], U64)
    assert back["none"].tag == 4


def test_metadata_that_look_like_python_values() -> None:
    given = {
        "i": np.int64(3),
        "f": np.float32(0.5),
        "b": np.True_,
        "raw": bytearray(b"x"),
        "t": (1, 2),
        "mixed": [1, 2**63],
    }
    back = decode_metadata(encode_metadata(given))
    assert back == {"i": 3, "f": 0.5, "b": True, "raw": b"x", "t": [1, 2], "mixed": [1, 2**63]}
    assert encode_metadata({"a": 1})[7:8] == b"\2"
    assert encode_metadata({"a": [1, 2**63]})[7:9] == b"\7\3"


@pytest.mark.parametrize(
    "bad",
    [
        *(
            {"": 1},
            {1: 1},
            {"x" * 65536: 1},
            {"\ud800": 1},
            {"a": None},
            {"a": {}},
            {"a": 2**64},
            {"a": -(2**63) - 1},
        ),
        *(
            {"a": [1, 2.0]},
            {"a": [1, True]},
            {"a": [[1]]},
            {"a": "\ud800"},
            {"a": [-1, 2**63]},
            {"a": U64(-1)},
            {"a": 1j},
        ),
        *({"a": MetadataList([1], 9)}, {"a": MetadataList(["x"], 2)}),
    ],
)
def test_metadata_that_cannot_be_stored(bad: dict[Any, Any]) -> None:
    with pytest.raises(InputError):
        encode_metadata(bad)


def test_crc32c_of_known_strings() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [1, 3, 4095, 4096, 4097, 5000, 8191, 20_001])
def test_crc32c_in_lanes_equals_bit_by_bit(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert crc32c(data) == slow_crc32c(data)
    assert crc32c(bytes(size)) == slow_crc32c(bytes(size))


def test_errors_are_all_of_our_family() -> None:
    assert issubclass(ContainerError, BlockscaleError)
    assert encode_tensor(np.zeros(3))[1][0].size == 24

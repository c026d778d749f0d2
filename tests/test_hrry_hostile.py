"""Damaged and hostile `.hrry` files: an error of ours or a clean read, nothing else, and little memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockscale.containers.hrry import HrryFile, find_problems
from blockscale.errors import BlockscaleError
from hurray_build import (
    INT4,
    INT8,
    MXFP,
    NF4,
    PARTIAL,
    PER_BLOCK,
    PER_CHANNEL,
    PER_TENSOR,
    PLAIN,
    SYMMETRIC,
    Raw,
    RawFile,
    RawTensor,
    handle,
    kv_section,
    per_block,
    per_tensor,
)

CODES = bytes(range(1, 129))
F16 = np.linspace(0.5, 2, 18).astype(np.float16).tobytes()
F32 = np.linspace(0.5, 2, 12).astype(np.float32).tobytes()
I32 = np.arange(-5, 3, dtype=np.int32).tobytes()
KV = kv_section(
    (b"text", b"\1\4\0\0\0test"),
    (b"n", b"\2" + bytes(8)),
    (b"list", b"\7\5\2\0\0\0\1\0"),
    (b"raw", b"\6\1\0\0\0x"),
)
STRIDED = PLAIN.but(layout_tag=3, layout=struct.pack("<2q", -4, 1), byte_offset=32)
FILES = {
    "mx": RawFile((RawTensor(b"mx", bytes(MXFP), (CODES, bytes(range(120, 128)))),)),
    "blocks": RawFile((RawTensor(b"blocks", bytes(PER_BLOCK), (CODES[:64], F16[:16], I32)),), KV),
    "partial": RawFile((RawTensor(b"partial", bytes(PARTIAL), (CODES[:72], F16[:18])),)),
    "nf4": RawFile((RawTensor(b"nf4", bytes(NF4), (CODES[:64], F32[:32])),)),
    "channels": RawFile((RawTensor(b"channels", bytes(PER_CHANNEL), (CODES[:12], F32[:12], I32[:12])),)),
    "plain": RawFile(
        (
            RawTensor(b"strided", bytes(STRIDED), (CODES[:48],)),
            RawTensor(b"bool", bytes(Raw(0x20, (3, 5), (handle(2),))), (b"\x5a\x5a",)),
        )
    ),
}


def read_everything(path: Path, *, permissive: bool) -> None:
    """Open, read, dequantize and touch every value."""
    with HrryFile(path, permissive=permissive) as f:
        for name in f:
            try:
                np.asarray(f.tensor(name)).sum()
            except BlockscaleError:
                continue


def survives(path: Path) -> bool:
    """True if nothing but our errors comes out; whether the file opens in strict mode."""
    opened = True
    for permissive in (True, False):
        try:
            read_everything(path, permissive=permissive)
        except BlockscaleError:
            opened = False
    return opened


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def regions(raw: RawFile, data: bytes) -> list[int]:
    """Every byte that is not padding, and every 64th that is."""
    used = set(range(64)) | set(range(len(data) - 40, len(data)))
    index_offset, index_length, kv_offset, kv_length = struct.unpack("<QQQI", data[-40:-12])
    used |= set(range(index_offset, index_offset + index_length)) | set(
        range(kv_offset, kv_offset + kv_length)
    )
    position = 64
    for t in raw.tensors:
        position += -position % 8
        for part, step in ((t.descriptor, 8), *((b, 4096) for b in t.buffers)):
            position += -position % step
            used |= set(range(position, position + len(part)))
            position += len(part)
    return sorted(used | set(range(0, len(data), 64)))


def damaged(path: Path, data: bytes) -> Callable[[int, bytes], None]:
    """Change bytes of the file in place."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)

    def change(offset: int, part: bytes) -> None:
        os.pwrite(fd, part, offset)

    return change


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte(name: str, tmp_path: Path) -> None:
    data = bytes(FILES[name])
    path = tmp_path / "x.hrry"
    change = damaged(path, data)
    assert survives(path)
    opened = 0
    for i in regions(FILES[name], data):
        for mask in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF):
            change(i, bytes([data[i] ^ mask]))
            opened += survives(path)
        change(i, data[i : i + 1])
    assert opened  # values may change; that is no damage to the structure
    assert survives(path)


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_of_the_index_with_a_right_checksum(name: str, tmp_path: Path) -> None:
    """Without CRC-32C the other rules have to hold the line."""
    raw = FILES[name].but(flags=0)
    data = bytes(raw)
    path = tmp_path / "x.hrry"
    change = damaged(path, data)
    assert survives(path)
    index_offset, index_length = struct.unpack("<QQ", data[-40:-24])
    for i in range(index_offset, index_offset + index_length):
        for mask in (0x01, 0x02, 0x08, 0x40, 0x80, 0xFF):
            change(i, bytes([data[i] ^ mask]))
            survives(path)
            find_problems(path)
        change(i, data[i : i + 1])


def test_cut_off_at_every_length(tmp_path: Path) -> None:
    data = bytes(FILES["blocks"])
    path = tmp_path / "x.hrry"
    path.write_bytes(data)
    for n in range(len(data) - 1, -1, -1):
        os.truncate(path, n)
        with pytest.raises(BlockscaleError):
            HrryFile(path)


def test_bytes_after_the_end(tmp_path: Path) -> None:
    data = bytes(FILES["blocks"])
    for tail in (b"\0", b"HRRY", bytes(4096), data[:-1]):
        path = tmp_path / "x.hrry"
        path.write_bytes(data + tail)
        with pytest.raises(BlockscaleError):
            HrryFile(path)


BIG = 2**64 - 2
ONE = handle(1)
W = RawTensor(b"w", bytes(PLAIN), (bytes(48),))
HUGE = {
    "count": RawFile((W,), count=2**64 - 1),
    "count that fits 64 bits times 35": RawFile((W,), count=2**59),
    "metadata count": RawFile((W,), kv_section(count=2**32 - 1)),
    "rank 65": RawFile((RawTensor(b"w", bytes(PLAIN.but(rank=65)), (bytes(48),)),)),
    "rank 2**32 - 1": RawFile((RawTensor(b"w", bytes(PLAIN.but(rank=2**32 - 1)), (bytes(48),)),)),
    "255 buffers": RawFile((RawTensor(b"w", bytes(PLAIN.patched(44, b"\xff")), (bytes(48),)),)),
    "huge shape": RawFile((RawTensor(b"w", bytes(Raw(shape=(BIG, BIG), handles=(ONE,))), (b"x",)),)),
    "huge quantized shape": RawFile(
        (RawTensor(b"w", bytes(Raw(INT8, (BIG, BIG), (ONE,), per_tensor())), (b"x",)),)
    ),
    "huge and empty": RawFile((RawTensor(b"w", bytes(Raw(shape=(BIG, 0), handles=(handle(0),))), (b"",)),)),
    "empty rows of blocks": RawFile(
        (RawTensor(b"w", bytes(Raw(INT4, (2**62, 0), (handle(0), handle(0)), per_block(1, 16))), (b"", b"")),)
    ),
    "many empty rows": RawFile(
        (RawTensor(b"w", bytes(Raw(INT4, (2**40, 0), (handle(0), handle(0)), per_block(1, 16))), (b"", b"")),)
    ),
    "zero strides": RawFile(
        (RawTensor(b"w", bytes(Raw(INT8, (2**40, 2**20), (ONE,), per_tensor(), 3, bytes(16))), (b"x",)),)
    ),
    "zero strides in one block": RawFile(
        (
            RawTensor(
                b"w",
                bytes(Raw(INT4, (2**31,), (ONE, handle(2)), per_block(0, 2**31), 3, bytes(8))),
                (b"x", b"\0\x3c"),
            ),
        )
    ),
    "huge buffer": RawFile((RawTensor(b"w", bytes(PLAIN.but(handles=(handle(BIG),))), (bytes(48),)),)),
    "huge descriptor": RawFile((replace(W, descriptor_length=2**32 - 1),)),
    "huge section": RawFile(
        (RawTensor(b"w", bytes(SYMMETRIC.but(section_length=2**32 - 1)), (bytes(64), bytes(16))),)
    ),
    "descriptor of 4 GiB": RawFile((RawTensor(b"w", bytes(PLAIN.but(length=2**32 - 1)), (bytes(48),)),)),
    "deep tiles": RawFile(
        (
            RawTensor(
                b"w",
                bytes(PLAIN.but(layout_tag=4, layout=(bytes(16) + b"\1\4\0\0") * 5000)),
                (bytes(48),),
            ),
        )
    ),
    "private layout of 4 GiB": RawFile(
        (
            RawTensor(
                b"w", bytes(PLAIN.but(layout_tag=0xF0, layout=struct.pack("<QI", 1, 2**32 - 1))), (bytes(48),)
            ),
        )
    ),
    "name of 64 KiB": RawFile((W,), index_tail=b"\xff\xff", count=2),
    "overlap": RawFile(
        (W, replace(W, name=b"v", data_offset=4096), replace(W, name=b"u", descriptor_offset=64))
    ),
    "data over the header": RawFile((replace(W, data_offset=0),)),
    "same name": RawFile((W, W)),
    "per tensor of nothing": RawFile((RawTensor(b"w", bytes(PER_TENSOR.but(handles=(handle(0),))), (b"",)),)),
}


@pytest.mark.parametrize("name", HUGE)
def test_hostile_numbers_take_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.hrry"
    path.write_bytes(bytes(HUGE[name]))
    tracemalloc.start()
    try:
        survives(path)
        find_problems(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_many_tensors_open_in_reasonable_time_and_memory(tmp_path: Path) -> None:
    tensors = tuple(
        RawTensor(f"layer.{i}".encode(), bytes(Raw(INT8, (0,), (handle(0),))), (b"",)) for i in range(3000)
    )
    path = tmp_path / "x.hrry"
    path.write_bytes(bytes(RawFile(tensors, flags=0)))
    with HrryFile(path) as f:
        assert len(f) == 3000

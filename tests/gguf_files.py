"""Small GGUF files for the tests, built by hand."""

from __future__ import annotations

import struct
from pathlib import Path

GOLDEN = Path(__file__).parent / "vectors" / "gguf"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, raw: bytes) -> bytes:
    """A metadata entry: key, type number, value as stored."""
    return text(key) + struct.pack("<I", kind) + raw


def u32(key: str, value: int) -> bytes:
    return kv(key, 4, struct.pack("<I", value))


def array(key: str, item: int, count: int, raw: bytes) -> bytes:
    return kv(key, 9, struct.pack("<IQ", item, count) + raw)


def info(
    name: str | bytes,
    dims: tuple[int, ...] = (4,),
    kind: int = 0,
    offset: int = 0,
    *,
    rank: int | None = None,
) -> bytes:
    """A line of the tensor list; `dims` as stored, the fastest dimension first."""
    rank = len(dims) if rank is None else rank
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, kind, offset)


def blob(
    metadata: list[bytes],
    infos: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file; `counts` replaces the true numbers of tensors and metadata entries."""
    n_tensors, n_values = counts or (len(infos), len(metadata))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_values) + b"".join(metadata + infos)
    return head + bytes(-len(head) % alignment) + data


def one(dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, data: int = 32) -> bytes:
    """A file with one tensor `x` and that many bytes of data; the default is whole."""
    return blob([], [info("x", dims, kind, offset)], bytes(data))


def small_file() -> bytes:
    """A valid file with values of all kinds, a plain and two quantized tensors."""
    metadata = [
        kv("general.architecture", 8, text("test")),
        u32("general.alignment", 32),
        kv("b", 7, b"\x01"),
        kv("f", 6, struct.pack("<f", 0.1)),
        array("s", 8, 3, text("a") + text("") + text("\u00e9")),
        array("n", 5, 2, struct.pack("<ii", 1, -1)),
        array("deep", 9, 1, struct.pack("<IQ", 0, 2) + b"\x01\x02"),
    ]
    infos = [info("a", (3, 2), 1), info("q", (32, 2), 2, 32), info("e", (32,), 39, 96)]
    halves = struct.pack("<6e", *range(6))
    q4_0 = (struct.pack("<e", -0.5) + bytes(range(0x10, 0x20))) * 2
    mxfp4 = b"\x7f" + bytes(range(0x30, 0x40))
    data = halves.ljust(32, b"\0") + q4_0.ljust(64, b"\0") + mxfp4.ljust(32, b"\0")
    return blob(metadata, infos, data)


def write(folder: Path, content: bytes, name: str = "t.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path

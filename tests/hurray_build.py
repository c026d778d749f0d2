"""Hurray descriptors as raw bytes, built with `struct` alone: what the tests feed to the readers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

INT4, UINT4, INT8, FLOAT32, E2M1 = 0x48, 0x49, 0x10, 0x03, 0x43
NO_BUFFER = 0xFFFFFFFF


def handle(size: int, alignment: int | None = None, device: int = 0, sync: int = 0, memory: int = 0) -> bytes:
    """A row of the buffer table."""
    alignment = (64 if size else 1) if alignment is None else alignment
    return struct.pack("<QIBBBB", size, alignment, device, sync, memory, 0)


def per_tensor(scale: float = 0.5, zero_point: int = 0) -> bytes:
    return struct.pack("<BBHfi4x", 1, 1, 0, scale, zero_point)


def per_channel(
    axis: int = 0, scale: int = 1, zero: int = NO_BUFFER, flags: int | None = None, tag: int = 3
) -> bytes:
    flags = int(zero == NO_BUFFER) if flags is None else flags
    return struct.pack("<BBHIIIB3x", 2, 1, flags, axis, scale, zero, tag)


def per_block(
    axis: int = 1,
    size: int = 16,
    scale: int = 1,
    zero: int = NO_BUFFER,
    flags: int | None = None,
    tag: int = 1,
) -> bytes:
    flags = int(zero == NO_BUFFER) if flags is None else flags
    return struct.pack("<BBHIIIIB3x", 3, 1, flags, axis, size, scale, zero, tag)


def nf4(axis: int = 1, size: int = 16, scale: int = 1) -> bytes:
    return struct.pack("<BBHIII", 4, 1, 0, axis, size, scale)


def mxfp(axis: int = 1, size: int = 32, scale: int = 1) -> bytes:
    return struct.pack("<BBHIII", 5, 1, 0, axis, size, scale)


@dataclass(frozen=True)
class Raw:
    """A descriptor in parts; `bytes(raw)` puts them together, right or wrong."""

    type_tag: int = FLOAT32
    shape: tuple[int, ...] = (3, 4)
    handles: tuple[bytes, ...] = (handle(48),)
    section: bytes | None = None
    layout_tag: int = 1
    layout: bytes = b""
    byte_offset: int = 0
    magic: bytes = b"HRRY"
    major: int = 1
    minor: int = 0
    flags: int = 0
    rank: int | None = None
    length: int | None = None
    section_length: int | None = None
    tail: bytes = b""
    patches: tuple[tuple[int, bytes], ...] = field(default=())

    def but(self, **changes: object) -> Raw:
        """The same with other parts."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def patched(self, offset: int, data: bytes) -> Raw:
        """The same with other bytes at `offset`."""
        return replace(self, patches=(*self.patches, (offset, data)))

    @property
    def table_offset(self) -> int:
        """Where the first buffer handle begins."""
        return 20 + 8 * len(self.shape) + 8 + len(self.layout) + 1

    @property
    def section_offset(self) -> int:
        """Where the quantization section begins."""
        return self.table_offset + 16 * len(self.handles) + 4

    def __bytes__(self) -> bytes:
        rank = len(self.shape) if self.rank is None else self.rank
        body = struct.pack(f"<{len(self.shape)}Q", *self.shape) + struct.pack("<Q", self.byte_offset)
        body += self.layout + bytes([len(self.handles)]) + b"".join(self.handles)
        flags = self.flags
        if self.section is not None:
            flags |= 1
            size = len(self.section) if self.section_length is None else self.section_length
            body += struct.pack("<I", size) + self.section
        body += self.tail
        length = 20 + len(body) if self.length is None else self.length
        head = struct.pack(
            "<4sBBIIBBI",
            self.magic,
            self.major,
            self.minor,
            length,
            flags,
            self.type_tag,
            self.layout_tag,
            rank,
        )
        data = bytearray(head + body)
        for offset, patch in self.patches:
            data[offset : offset + len(patch)] = patch
        return bytes(data)


# fmt: off
PLAIN = Raw()
PER_TENSOR = Raw(INT8, (3, 4), (handle(12),), per_tensor())
PER_CHANNEL = Raw(INT8, (3, 4), (handle(12), handle(12), handle(12)), per_channel(0, 1, 2))
PER_BLOCK = Raw(INT4, (4, 32), (handle(64), handle(16), handle(32)), per_block(1, 16, 1, 2))
SYMMETRIC = Raw(INT4, (4, 32), (handle(64), handle(16)), per_block(1, 16, 1))
PARTIAL = Raw(INT4, (3, 40), (handle(72), handle(18)), per_block(1, 16, 1))
NF4 = Raw(UINT4, (4, 32), (handle(64), handle(32)), nf4(1, 16, 1))
MXFP = Raw(E2M1, (4, 64), (handle(128), handle(8)), mxfp(1, 32, 1))
# fmt: on
VALID = {
    "plain": PLAIN,
    "per_tensor": PER_TENSOR,
    "per_channel": PER_CHANNEL,
    "per_block": PER_BLOCK,
    "symmetric": SYMMETRIC,
    "partial": PARTIAL,
    "nf4": NF4,
    "mxfp": MXFP,
}


def slow_crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from the polynomial."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@dataclass(frozen=True)
class RawTensor:
    """A tensor of a file; fields of the index that are given replace the right ones."""

    name: bytes
    descriptor: bytes
    buffers: tuple[bytes, ...]
    descriptor_offset: int | None = None
    descriptor_length: int | None = None
    data_offset: int | None = None
    data_length: int | None = None
    flags: int = 0


def kv_section(*entries: tuple[bytes, bytes], count: int | None = None) -> bytes:
    """Metadata from keys and tagged values."""
    body = b"".join(struct.pack("<H", len(key)) + key + value for key, value in entries)
    return struct.pack("<I", len(entries) if count is None else count) + body


@dataclass(frozen=True)
class RawFile:
    """A `.hrry` file in parts; `bytes(raw)` puts them together, right or wrong."""

    tensors: tuple[RawTensor, ...] = ()
    kv: bytes | None = None
    flags: int = 4
    alignment: int = 4096
    step: int = 4096
    first: int = 64
    count: int | None = None
    index_tail: bytes = b""
    index_cut: int = 0
    index_offset: int | None = None
    index_length: int | None = None
    kv_offset: int | None = None
    kv_length: int | None = None
    crc: int | None = None
    patches: tuple[tuple[int, bytes], ...] = ()

    def but(self, **changes: object) -> RawFile:
        """The same with other parts."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def patched(self, offset: int, data: bytes) -> RawFile:
        """The same with other bytes at `offset` (negative: from the end)."""
        return replace(self, patches=(*self.patches, (offset, data)))

    def __bytes__(self) -> bytes:
        body = bytearray(
            b"HRRYFILE\1\0\0\0" + struct.pack("<IIQQ28x", self.flags, self.alignment, self.first, 2**64 - 1)
        )
        index = bytearray(struct.pack("<Q", len(self.tensors) if self.count is None else self.count))
        for t in self.tensors:
            index += struct.pack("<H", len(t.name)) + t.name + self._place(t, body)
        index = index[: len(index) - self.index_cut] + self.index_tail
        kv_offset = 0
        if self.kv is not None:
            kv_offset = _pad(body, 8)
            body += self.kv
        index_offset = _pad(body, 8)
        body += index
        crc = slow_crc32c(bytes(index)) if self.flags & 4 else 0
        body += struct.pack(
            "<QQQII4x4s",
            index_offset if self.index_offset is None else self.index_offset,
            len(index) if self.index_length is None else self.index_length,
            kv_offset if self.kv_offset is None else self.kv_offset,
            len(self.kv or b"") if self.kv_length is None else self.kv_length,
            crc if self.crc is None else self.crc,
            b"HRRY",
        )
        for offset, data in self.patches:
            at = offset % len(body)
            body[at : at + len(data)] = data
        return bytes(body)

    def _place(self, t: RawTensor, body: bytearray) -> bytes:
        descriptor_offset = _pad(body, 8)
        body += t.descriptor
        start = _pad(body, self.step)
        for buffer in t.buffers:
            _pad(body, self.step)
            body += buffer
        right = (descriptor_offset, len(t.descriptor), start, len(body) - start)
        given = (t.descriptor_offset, t.descriptor_length, t.data_offset, t.data_length)
        numbers = (r if g is None else g for r, g in zip(right, given, strict=True))
        return struct.pack("<QIQQI", *numbers, t.flags)


def _pad(body: bytearray, alignment: int) -> int:
    body += bytes(-len(body) % alignment)
    return len(body)

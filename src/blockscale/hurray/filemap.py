"""The frame of a `.hrry` file: header, index, metadata and trailer, read with every rule and written."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ContainerError
from .crc32c import crc32c
from .metadata import decode_metadata, read_name
from .reader import Cursor
from .rules import broken_file

FILE_MAGIC = b"HRRYFILE"
HEADER_SIZE = 64
TRAILER_SIZE = 40
ALIGNMENT = 4096
_END_MAGIC = b"HRRY"
_HEADER = struct.Struct("<8sBB2sIIQQ28s")
_TRAILER = struct.Struct("<QQQII4s4s")
_ENTRY = struct.Struct("<QIQQI")
_HAS_METADATA, _SORTED, _HAS_CRC = 1, 2, 4
_UNKNOWN_COUNT = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of the index.

    Attributes:
        name: of the tensor.
        descriptor_offset: where its descriptor begins.
        descriptor_length: bytes of the descriptor.
        data_offset: where its first buffer begins.
        data_length: from there to the end of its last buffer.
    """

    name: str
    descriptor_offset: int
    descriptor_length: int
    data_offset: int
    data_length: int


@dataclass(frozen=True, slots=True)
class FileMap:
    """What the frame says.

    Attributes:
        alignment: data buffers begin at multiples of it.
        entries: the index, in its own order.
        metadata: key-value metadata.
    """

    alignment: int
    entries: tuple[IndexEntry, ...]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Trailer:
    index_offset: int
    index_length: int
    kv_offset: int
    kv_length: int
    crc: int


def align_up(offset: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def read_file_map(data: NDArray[np.uint8]) -> FileMap:
    """Read and check the frame of a file; descriptors and data are not touched.

    Args:
        data: uint8 `(n,)`, the whole file (mapped).

    Raises:
        ContainerError: a rule of the format is broken; `offset` counts from the file's first byte.

    Source: Hurray format, 4.1.
    """
    flags, alignment = _read_header(data)
    trailer = _read_trailer(data)
    _check_metadata_region(flags, trailer)
    end = data.size - TRAILER_SIZE
    _check_region("F8", "index", trailer.index_offset, trailer.index_length, end)
    if trailer.kv_offset:
        _check_region("F9", "metadata", trailer.kv_offset, trailer.kv_length, end)
    index = data[trailer.index_offset : trailer.index_offset + trailer.index_length].tobytes()
    _check_crc(index, trailer.crc, has_crc=bool(flags & _HAS_CRC))
    entries = _read_index(index, trailer.index_offset)
    for entry in entries:
        _check_entry(entry, alignment, end)
    if flags & _SORTED:
        _check_sorted(entries)
    _check_overlaps(entries, trailer, data.size)
    metadata = {}
    if trailer.kv_offset:
        kv = data[trailer.kv_offset : trailer.kv_offset + trailer.kv_length].tobytes()
        metadata = decode_metadata(kv, trailer.kv_offset)
    return FileMap(alignment, entries, metadata)


def pack_header() -> bytes:
    """The header that the reference writes."""
    return _HEADER.pack(FILE_MAGIC, 1, 0, b"", _HAS_CRC, ALIGNMENT, HEADER_SIZE, _UNKNOWN_COUNT, b"")


def pack_index(entries: Iterable[IndexEntry]) -> bytes:
    """The index, in the order given."""
    rows = list(entries)
    parts = [struct.pack("<Q", len(rows))]
    for row in rows:
        name = row.name.encode()
        numbers = (row.descriptor_offset, row.descriptor_length, row.data_offset, row.data_length)
        parts += [struct.pack("<H", len(name)), name, _ENTRY.pack(*numbers, 0)]
    return b"".join(parts)


def pack_trailer(index_offset: int, index: bytes, kv_offset: int, kv_length: int) -> bytes:
    """The trailer."""
    return _TRAILER.pack(index_offset, len(index), kv_offset, kv_length, crc32c(index), b"", _END_MAGIC)


def _read_header(data: NDArray[np.uint8]) -> tuple[int, int]:
    """Flags and alignment."""
    first = data[:8].tobytes()
    if first != FILE_MAGIC:
        raise broken_file("F2", f"the file begins with {first!r}", field="magic", offset=0, found=first)
    if data.size < HEADER_SIZE + TRAILER_SIZE:
        raise broken_file(
            "F1",
            f"the file has {data.size} bytes",
            found=int(data.size),
            hint="it is cut off: fetch it again",
        )
    header = data[:HEADER_SIZE].tobytes()
    _, major, _, reserved, flags, alignment, first_offset, _, tail = _HEADER.unpack(header)
    if major != 1:
        raise broken_file(
            "F4", f"the container has version {major}", field="version_major", offset=8, found=major
        )
    if any(reserved) or any(tail):
        offset = 10 if any(reserved) else 36
        raise broken_file("F21", "reserved bytes are not zero", field="header.reserved", offset=offset)
    if flags >> 3:
        raise broken_file("F5", f"file flags are 0x{flags:08X}", field="file_flags", offset=12, found=flags)
    if not ALIGNMENT <= alignment <= 1 << 21 or alignment & (alignment - 1):
        message = f"the alignment is {alignment}"
        raise broken_file("F6", message, field="data_buffer_alignment", offset=16, found=alignment)
    if first_offset < HEADER_SIZE or first_offset % 8 or first_offset > data.size:
        message = f"the first descriptor is said to lie at {first_offset}"
        raise broken_file("F20", message, field="first_descriptor_offset", offset=20, found=first_offset)
    return flags, alignment


def _read_trailer(data: NDArray[np.uint8]) -> _Trailer:
    start = data.size - TRAILER_SIZE
    *numbers, reserved, magic = _TRAILER.unpack(data[start:].tobytes())
    if magic != _END_MAGIC:
        raise broken_file(
            "F3",
            f"the file ends with {magic!r}",
            field="trailer.magic",
            offset=start + 36,
            found=magic,
            hint="it is cut off, or was not written to its end: fetch it again",
        )
    if any(reserved):
        raise broken_file("F21", "reserved bytes are not zero", field="trailer.reserved", offset=start + 32)
    return _Trailer(*numbers)


def _check_metadata_region(flags: int, trailer: _Trailer) -> None:
    """F9: both numbers or neither; the trailer decides, but the flag promises (A19)."""
    has_offset, has_length = trailer.kv_offset != 0, trailer.kv_length != 0
    if has_offset != has_length or (flags & _HAS_METADATA and not has_offset):
        message = f"metadata at {trailer.kv_offset}, {trailer.kv_length} bytes, file flags 0x{flags:X}"
        raise broken_file("F9", message, field="kv_offset", found=trailer.kv_offset)


def _check_region(rule: str, what: str, offset: int, length: int, end: int) -> None:
    if offset < HEADER_SIZE or offset % 8 or offset + length > end:
        message = f"the {what} is said to lie at {offset}, {length} bytes; the trailer begins at {end}"
        raise broken_file(rule, message, field=f"{what} offset", found=offset)


def _check_crc(index: bytes, stored: int, *, has_crc: bool) -> None:
    computed = crc32c(index) if has_crc else 0
    if computed != stored:
        message = f"the trailer says 0x{stored:08X}, the index has 0x{computed:08X}"
        hint = "the file is damaged: fetch it again" if has_crc else None
        raise broken_file("F7", message, field="index_crc32c", found=stored, hint=hint)


def _index_overrun(what: str, offset: int, needed: int, there: int) -> ContainerError:
    message = f"{needed} bytes are needed, {there} are left in the index"
    return broken_file("F18", message, field=what, offset=offset, found=there)


def _read_index(index: bytes, base: int) -> tuple[IndexEntry, ...]:
    cursor = Cursor(index, _index_overrun, base=base)
    count = cursor.u64("index.count")
    if count > cursor.remaining // (2 + _ENTRY.size):  # the length of a name, and the numbers
        message = f"{count} tensors in an index of {len(index)} bytes"
        raise broken_file("F22", message, field="index.count", offset=base, found=count)
    entries: dict[str, IndexEntry] = {}
    for _ in range(count):
        offset = cursor.offset
        name = read_name(cursor, "tensor name", "F10")
        if name in entries:
            message = f"the name {name!r} appears twice"
            raise broken_file("F10", message, field="tensor name", offset=offset, found=name)
        *numbers, flags = cursor.unpack(_ENTRY, "index entry")
        if flags:
            message = f"index flags are 0x{flags:X}"
            raise broken_file(
                "F17", message, field="index flags", offset=cursor.offset - 4, found=flags, tensor=name
            )
        entries[name] = IndexEntry(name, *numbers)
    if cursor.remaining:
        message = f"{cursor.remaining} bytes are left after the last entry"
        raise broken_file("F18", message, field="index_length", offset=cursor.offset, found=cursor.remaining)
    return tuple(entries.values())


def _check_entry(entry: IndexEntry, alignment: int, end: int) -> None:
    """F14 and F15."""
    start, length = entry.descriptor_offset, entry.descriptor_length
    if start < HEADER_SIZE or start % 8 or start + length > end:
        message = f"the descriptor is said to lie at {start}, {length} bytes; the trailer begins at {end}"
        raise broken_file("F14", message, field="descriptor_offset", found=start, tensor=entry.name)
    start, length = entry.data_offset, entry.data_length
    # a composite head has no data: where it says that they lie means nothing
    if start + length > end or (start % alignment and length):
        message = f"the data are said to lie at {start}, {length} bytes; the trailer begins at {end}"
        raise broken_file("F15", message, field="data_offset", found=start, tensor=entry.name)


def _check_sorted(entries: tuple[IndexEntry, ...]) -> None:
    names = [entry.name.encode() for entry in entries]
    for before, after in pairwise(names):
        if before > after:
            message = f"{after.decode()!r} comes after {before.decode()!r}"
            raise broken_file("F23", message, field="index", tensor=after.decode())


def _check_overlaps(entries: tuple[IndexEntry, ...], trailer: _Trailer, size: int) -> None:
    """F19, over everything that has bytes."""
    regions = [
        (0, HEADER_SIZE, "the header"),
        (trailer.index_offset, trailer.index_length, "the index"),
        (trailer.kv_offset, trailer.kv_length, "the metadata"),
        (size - TRAILER_SIZE, TRAILER_SIZE, "the trailer"),
    ]
    for e in entries:
        regions.append((e.descriptor_offset, e.descriptor_length, f"the descriptor of {e.name!r}"))
        regions.append((e.data_offset, e.data_length, f"the data of {e.name!r}"))
    reached, owner = 0, ""
    for start, length, what in sorted(region for region in regions if region[1]):
        if start < reached:
            raise broken_file("F19", f"{what}, at byte {start}, overlaps {owner}", offset=start)
        reached, owner = start + length, what

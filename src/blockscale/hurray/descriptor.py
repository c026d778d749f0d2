"""Tensor descriptors: bytes to values and back, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..blocks import MAX_RANK
from ..errors import DescriptorError, InputError
from .checks import descriptor_violations, overrun, truncated
from .layouts import ROW_MAJOR, Layout, is_known_layout, read_layout
from .quantization import Quantization, UnknownQuantization
from .quantization_reader import read_quantization, too_short
from .reader import Cursor
from .rules import broken, is_tolerated
from .sections import (
    BufferHandle,
    ExtensionType,
    Shard,
    Statistics,
    read_extension_type,
    read_handle,
    read_shard,
    read_statistics,
)
from .types import STORAGE_TYPES, StorageType, is_private

MAGIC = b"HRRY"
HEADER_SIZE = 20
_HEADER = struct.Struct("<4sBBIIBBI")
_MEMBER = struct.Struct("<B15s")


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """Everything that the format says about one tensor, apart from its data.

    `decode` checks every rule. One made in Python has to have bytes (InputError if a field does not fit its
    own); the rules are checked by `check`, and when it is written.

    Attributes:
        type_tag: tag of the storage type.
        shape: dimensions; `DYNAMIC` (2**64 - 1) is a dimension to be resolved.
        buffers: the buffer table; buffer 0 holds the data.
        layout: how elements lie in the buffers.
        byte_offset: from the start of buffer 0 to the first element.
        quantization: the scheme, or None.
        shard: place in a larger tensor, or None.
        statistics: advisory figures, or None.
        extension_type: what a private type looks like, or None.
        composite_role: 0 correction, 1 base, None: no member of an overlay.
        version_minor: minor version of the format.
        quantization_tail: bytes that a writer left after the scheme's own.
        unparsed: bytes that this version does not understand: those after the last part (minor version above
            0), or everything after byte_offset (unknown layout).
        unparsed_flags: the flags whose sections are in `unparsed`.

    Source: Hurray format, 2.
    """

    type_tag: int
    shape: tuple[int, ...]
    buffers: tuple[BufferHandle, ...]
    layout: Layout = ROW_MAJOR
    byte_offset: int = 0
    quantization: Quantization | None = None
    shard: Shard | None = None
    statistics: Statistics | None = None
    extension_type: ExtensionType | None = None
    composite_role: int | None = None
    version_minor: int = 0
    quantization_tail: bytes = b""
    unparsed: bytes = b""
    unparsed_flags: int = 0

    def __post_init__(self) -> None:
        """Refuse fields that have no bytes."""
        self.encode()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def type(self) -> StorageType | None:
        """The storage type; None if it is unknown or private."""
        return STORAGE_TYPES.get(self.type_tag)

    @property
    def type_name(self) -> str:
        """Name of the storage type, also where it is unknown or private."""
        kind = self.type
        if kind is not None:
            return kind.name
        return f"{'private' if is_private(self.type_tag) else 'unknown'} 0x{self.type_tag:02X}"

    @property
    def flags(self) -> int:
        """The flags of the header: which sections there are."""
        sections = (self.quantization, self.shard, self.extension_type, self.statistics, self.composite_role)
        return self.unparsed_flags | sum(1 << i for i, part in enumerate(sections) if part is not None)

    @property
    def opaque_because(self) -> str | None:
        """Why the data must not be interpreted, or None."""
        if self.type is None:
            return f"its type tag 0x{self.type_tag:02X} is unknown or private"
        if not self.layout.is_known:
            return f"its layout tag 0x{self.layout.tag:02X} is unknown"
        if isinstance(self.quantization, UnknownQuantization):
            return f"its quantization scheme 0x{self.quantization.tag:02X} is unknown"
        if self.quantization is not None and not self.layout.is_dense:
            return f"it is quantized in a {self.layout.name} layout"
        return None

    @classmethod
    def decode(cls, data: bytes, *, permissive: bool = False) -> TensorDescriptor:
        """Decode a descriptor; `data` may go on after it.

        Args:
            data: the bytes.
            permissive: let pass what permissive mode may (see `RULES`): unknown type, layout and scheme tags
                yield a descriptor whose data are not interpreted.

        Raises:
            DescriptorError: a rule of the format is broken; names field, offset and rule.

        Source: Hurray format, 2 and 3.6.
        """
        decode = _decode if len(data) <= _SHORT else _decode.__wrapped__
        return decode(bytes(data), permissive)

    @classmethod
    def parse(cls, data: bytes) -> TensorDescriptor:
        """Decode as far as the structure goes, without the checks of `violations`.

        Raises:
            DescriptorError: the bytes have no readable structure.
        """
        return _read_descriptor(bytes(data))

    def encode(self) -> bytes:
        """The bytes of the descriptor; those that it was decoded from, if it was."""
        try:
            body = b"".join(part for _, part in self._parts())
            header = _HEADER.pack(
                *(MAGIC, 1, self.version_minor, HEADER_SIZE + len(body), self.flags),
                *(self.type_tag, self.layout.tag, self.rank),
            )
        except InputError:
            raise
        except (struct.error, ValueError) as error:
            raise InputError(f"a descriptor of shape {self.shape} has no bytes: {error}") from None
        return header + body

    def check(self) -> TensorDescriptor:
        """The descriptor itself, if it keeps every rule in strict mode; else a DescriptorError."""
        return TensorDescriptor.decode(self.encode())

    def violations(self, *, permissive: bool = False) -> Iterator[DescriptorError]:
        """Each broken rule that the structure lets us see, the header's first."""
        if not _keeps_rules(self, permissive):
            yield from _violations(self, permissive)

    def offset_of(self, part: str) -> int:
        """Offset of a part: `shape`, `byte_offset`, `layout`, `buffers`, `quantization` ..."""
        offset = HEADER_SIZE
        for name, data in self._parts():
            if name == part:
                return offset
            offset += len(data)
        return offset

    def _parts(self) -> Iterator[tuple[str, bytes]]:
        """The parts after the header, in the order of the format."""
        yield "shape", struct.pack(f"<{self.rank}Q", *self.shape)
        yield "byte_offset", struct.pack("<Q", self.byte_offset)
        yield "layout", self.layout.payload
        if self.layout.is_known:
            yield "buffer_count", bytes([len(self.buffers)])
            yield "buffers", b"".join(handle.encode() for handle in self.buffers)
            yield from self._optional_parts()
        yield "unparsed", self.unparsed

    def _optional_parts(self) -> Iterator[tuple[str, bytes]]:
        if self.quantization is not None:
            data = self.quantization.encode() + self.quantization_tail
            yield "quantization_length", struct.pack("<I", len(data))
            yield "quantization", data
        for name in ("shard", "statistics", "extension_type"):
            part: Shard | Statistics | ExtensionType | None = getattr(self, name)
            if part is not None:
                yield name, part.encode()
        if self.composite_role is not None:
            yield "composite_member", _MEMBER.pack(self.composite_role, b"")


def _violations(d: TensorDescriptor, permissive: bool) -> Iterator[DescriptorError]:
    for error in descriptor_violations(d, permissive=permissive):
        if not (permissive and is_tolerated(error)):
            yield error


_SHORT = 1 << 12  # bytes of a descriptor worth remembering


# The tensors of a model have few descriptors: each is decoded and checked once. Errors are not kept: who sees
# them adds names to them.
@lru_cache(maxsize=1024)
def _keeps_rules(d: TensorDescriptor, permissive: bool) -> bool:
    return next(_violations(d, permissive), None) is None


@lru_cache(maxsize=1024)
def _decode(data: bytes, permissive: bool) -> TensorDescriptor:
    descriptor = _read_descriptor(data)
    for error in descriptor.violations(permissive=permissive):
        raise error
    return descriptor


def find_violations(data: bytes) -> list[DescriptorError]:
    """Every broken rule of a descriptor, in strict mode; a broken structure hides what comes after it."""
    try:
        return list(TensorDescriptor.parse(data).violations())
    except DescriptorError as error:
        return [error]


def _read_descriptor(data: bytes) -> TensorDescriptor:
    if data[:4] != MAGIC:
        message = f"the magic is {data[:4]!r}"
        raise broken("H1", message, field="magic", offset=0, found=data[:4])
    header = Cursor(data, truncated)
    _, major, minor, length, flags, type_tag, layout_tag, rank = header.unpack(_HEADER, "header")
    _check_header(len(data), major, length, flags, rank)
    cursor = Cursor(data, overrun, start=HEADER_SIZE, end=length)
    for tag, field, offset in ((type_tag, "type_tag", 14), (layout_tag, "layout_tag", 15)):
        if tag in (0x00, 0xFF):
            raise broken("H8", f"{field} is 0x{tag:02X}", field=field, offset=offset, found=tag)
    shape = cursor.unpack(struct.Struct(f"<{rank}Q"), "shape")
    byte_offset = cursor.u64("byte_offset")
    if not is_known_layout(layout_tag):  # its section has no length: nothing after it can be found (A17)
        rest = cursor.take(cursor.remaining, "layout")
        return TensorDescriptor(
            *(type_tag, shape, (), Layout(layout_tag), byte_offset),
            version_minor=minor,
            unparsed=rest,
            unparsed_flags=flags,
        )
    layout = read_layout(cursor, layout_tag, rank)
    buffers = tuple(read_handle(cursor, i) for i in range(cursor.u8("buffer_count")))
    quantization, tail = _read_quantization(cursor) if flags & 1 else (None, b"")
    shard = read_shard(cursor, rank) if flags & 2 else None
    statistics = read_statistics(cursor) if flags & 8 else None
    extension = read_extension_type(cursor) if flags & 4 else None
    role = _read_member(cursor) if flags & 16 else None
    rest = cursor.take(cursor.remaining, "trailing")
    if rest and minor == 0:
        message = f"{len(rest)} bytes are left after the last part"
        raise broken("H5", message, field="descriptor_length", offset=6, found=length)
    return TensorDescriptor(
        *(type_tag, shape, buffers, layout, byte_offset, quantization, shard, statistics, extension, role),
        *(minor, tail, rest),
    )


def _check_header(available: int, major: int, length: int, flags: int, rank: int) -> None:
    """H4, H2, H6 and H11."""
    if major != 1:
        raise broken(
            "H4", f"the descriptor has version {major}", field="version_major", offset=4, found=major
        )
    if length < HEADER_SIZE:
        message = f"descriptor_length is {length}"
        raise broken("H2", message, field="descriptor_length", offset=6, found=length)
    if length > available:
        message = f"descriptor_length is {length}, but only {available} bytes are there"
        raise broken("H2", message, field="descriptor_length", offset=6, found=length)
    if flags >> 5:
        raise broken("H6", f"flags are 0x{flags:08X}", field="flags", offset=10, found=flags)
    if rank > MAX_RANK:
        raise broken("H11", f"rank is {rank}", field="rank", offset=16, found=rank)


def _read_quantization(cursor: Cursor) -> tuple[Quantization, bytes]:
    length = cursor.u32("quantization_length")
    return read_quantization(cursor.section(length, "quantization", too_short), permissive=True)


def _read_member(cursor: Cursor) -> int:
    offset = cursor.offset
    role, reserved = _MEMBER.unpack(cursor.take(_MEMBER.size, "composite_member"))
    if any(reserved):
        message = f"reserved bytes are {reserved.hex(' ')}"
        raise broken("H15", message, field="composite_member.reserved", offset=offset + 1, found=reserved)
    return int(role)

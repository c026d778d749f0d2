"""Reading a GGUF header from front to back, believing no number in it before the file bears it out."""

from __future__ import annotations

import reprlib
import struct
from typing import Any

from ..errors import ContainerError
from .base import read_exactly

MAX_HEADER = 1 << 28
"""Bytes of metadata and tensor list that blockscale reads; the largest vocabularies take a tenth."""

_FIRST = 1 << 16
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class Cursor:
    """A position in the header of an open file.

    Bytes are read ahead in growing steps and kept, so that parsing is work on one `bytes` object.

    Attributes:
        at: the position, in bytes from the start of the file.
        size: bytes of the whole file.
        buffer: the file's first bytes, as far as they have been needed.
    """

    def __init__(self, fd: int, size: int, file: str) -> None:
        """Begin at the start of an open file of `size` bytes; `file` is its name, for messages."""
        self.at = 0
        self.size = size
        self.buffer = b""
        self._fd = fd
        self._file = file

    @property
    def left(self) -> int:
        """Bytes of the file after the position."""
        return self.size - self.at

    def need(self, count: int, field: str) -> int:
        """Have the next `count` bytes in the buffer; returns where they end.

        Raises:
            ContainerError: the file, or what may be header, ends before.
        """
        end = self.at + count
        if end <= len(self.buffer):
            return end
        if end > self.size:
            raise self.error(
                f"needs {count:,} bytes, but {self.left:,} are left in the file",
                "every length and count in the header fits into the file",
                found=count,
                field=field,
                hint="the file is cut short or damaged: download or write it again",
            )
        if end > MAX_HEADER:
            raise self.error(
                f"ends at byte {end:,}", f"a header has at most {MAX_HEADER:,} bytes", field=field
            )
        have = len(self.buffer)
        more = bytearray(min(self.size, MAX_HEADER, max(end, 2 * have, _FIRST)) - have)
        read_exactly(self._fd, have, memoryview(more), file=self._file)
        self.buffer += bytes(more)
        return end

    def u32(self, field: str) -> int:
        """The next four bytes as a number."""
        end = self.need(4, field)
        (value,) = _U32.unpack_from(self.buffer, self.at)
        self.at = end
        return int(value)

    def u64(self, field: str) -> int:
        """The next eight bytes as a number."""
        end = self.need(8, field)
        (value,) = _U64.unpack_from(self.buffer, self.at)
        self.at = end
        return int(value)

    def count(self, field: str, item_bytes: int) -> int:
        """The next eight bytes as a number of things that take at least `item_bytes` each.

        Raises:
            ContainerError: so many do not fit into the rest of the file.
        """
        begin = self.at
        value = self.u64(field)
        if value * item_bytes > self.left:
            raise self.error(
                f"{value:,} of them take at least {value * item_bytes:,} bytes; {self.left:,} are left",
                "every length and count in the header fits into the file",
                found=value,
                field=field,
                offset=begin,
            )
        return value

    def name(self, field: str, limit: int) -> str:
        """The next string, of at most `limit` bytes, in UTF-8."""
        begin = self.at
        length = self.u64(field)
        if length > limit:
            rule = f"names have at most {limit:,} bytes"
            raise self.error(f"it is {length:,} bytes long", rule, found=length, field=field, offset=begin)
        end = self.need(length, field)
        raw = self.buffer[self.at : end]
        self.at = end
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            message = f"{show(raw)} is not UTF-8"
            raise self.error(message, "names are UTF-8 text", found=raw, field=field, offset=begin) from None

    def error(self, message: str, rule: str, **where: Any) -> ContainerError:
        """A ContainerError at the position, unless `where` says otherwise."""
        where.setdefault("offset", self.at)
        return ContainerError(message, rule=f"GGUF: {rule}", **where)


def show(value: Any) -> str:
    """A short representation: a hostile value must not flood the message."""
    return _SHORT.repr(value)

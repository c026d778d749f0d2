"""A cursor over bytes in which every read is checked against the end."""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..errors import FormatError

Overrun = Callable[[str, int, int, int], FormatError]
"""Makes the error for a field that runs past the end: (field, offset, bytes needed, bytes there)."""

U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian fields from `data[position:end]`; offsets are those of `data`."""

    __slots__ = ("_data", "_overrun", "base", "end", "position")

    def __init__(
        self,
        data: bytes,
        overrun: Overrun,
        *,
        start: int = 0,
        end: int | None = None,
        base: int = 0,
    ) -> None:
        """Begin at `start`; `base` is added to the offsets that errors name."""
        self._data = data
        self._overrun = overrun
        self.base = base
        self.position = start
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """Bytes left."""
        return self.end - self.position

    @property
    def offset(self) -> int:
        """Offset of the next field, as errors name it."""
        return self.base + self.position

    def take(self, n: int, field: str) -> bytes:
        """The next `n` bytes; the cursor's overrun error if fewer are left."""
        if n > self.remaining:
            raise self._overrun(field, self.offset, n, self.remaining)
        part = self._data[self.position : self.position + n]
        self.position += n
        return part

    def since(self, start: int) -> bytes:
        """The bytes from `start` (a former `position`) to here."""
        return self._data[start : self.position]

    def unpack(self, form: struct.Struct, field: str) -> tuple[int, ...]:
        """The next fields, as `form` says."""
        return form.unpack(self.take(form.size, field))

    def u8(self, field: str) -> int:
        """The next byte."""
        return self.take(1, field)[0]

    def u16(self, field: str) -> int:
        """The next unsigned 16-bit number."""
        return self.unpack(U16, field)[0]

    def u32(self, field: str) -> int:
        """The next unsigned 32-bit number."""
        return self.unpack(U32, field)[0]

    def u64(self, field: str) -> int:
        """The next unsigned 64-bit number."""
        return self.unpack(U64, field)[0]

    def section(self, n: int, field: str, overrun: Overrun | None = None) -> Cursor:
        """A cursor over the next `n` bytes, which this one skips; its errors come from `overrun` if given."""
        start = self.position
        self.take(n, field)
        made = overrun or self._overrun
        return Cursor(self._data, made, start=start, end=self.position, base=self.base)

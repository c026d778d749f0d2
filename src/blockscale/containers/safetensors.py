"""Reading safetensors files lazily: checked first, and no more copied than is asked for."""

from __future__ import annotations

import difflib
import math
import mmap
import operator
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedError
from ..packing import unpack_codes
from .base import forget_pages, read_exactly
from .safetensors_header import read_header
from .safetensors_layout import Layout, plan_layout
from .safetensors_table import DTYPES, ArrayEntry, stored_name
from .safetensors_writer import SafetensorsWriter, write_safetensors
from .sniff import open_input

__all__ = [
    "DTYPES",
    "ArrayEntry",
    "Layout",
    "SafetensorsFile",
    "SafetensorsWriter",
    "plan_layout",
    "stored_name",
    "write_safetensors",
]

_MAX_NDIM = 64  # of NumPy
_UNPACK_STEP = 3 << 18  # bytes unpacked at once: whole groups, and little temporary memory


class SafetensorsFile:
    """A safetensors file that is open for reading; its header is checked before anything else.

    Safe to use from several threads. Arrays of `array` and `raw` stay valid after closing; they
    show the file itself, so nobody may shorten it meanwhile (the system would stop the process).

    Attributes:
        path: the file.
        metadata: its free-form strings (`format` and others), unchanged.
        entries: name to `ArrayEntry`, in the order of their offsets.
        problems: what is odd but harmless: unknown dtypes and fields, bytes after the last tensor.
    """

    def __init__(self, path: str | os.PathLike[str], *, tolerant: bool = False) -> None:
        """Open a file and check its header.

        Args:
            path: the file.
            tolerant: let bytes after the last tensor pass; they are then listed in `problems`.

        Raises:
            InputError: there is no such file, or it cannot be read.
            ContainerError: the file breaks a rule of the format, or is of another kind.
        """
        self.path = Path(path)
        self._map: mmap.mmap | None = None
        self._fd = open_input(self.path)
        try:
            header = read_header(self._fd, str(self.path), tolerant=tolerant)
        except BaseException:
            self.close()
            raise
        self.metadata = header.metadata
        self.entries = header.entries
        self.problems = header.problems

    def array(self, name: str) -> NDArray[Any]:
        """A tensor as a read-only array of its own dtype, little-endian.

        No copy is made (the file is mapped), except of F4 and F6, which are unpacked to one code
        per byte. Values are not checked, so a BOOL may hold other bytes than 0 and 1.

        Raises:
            InputError: there is no such tensor, or the file is closed.
            UnsupportedError: a dtype that blockscale does not know, or more dimensions than NumPy
                has.
        """
        entry = self._entry(name)
        dtype = self._dtype(entry)
        flat = self.raw(name)
        if entry.is_packed:
            flat = _unpack(flat, DTYPES[entry.dtype_name].bits)
        array = flat.view(dtype).reshape(entry.shape)
        array.flags.writeable = False
        return array

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor of any dtype: uint8 `(nbytes,)`, a read-only view.

        Raises:
            InputError: there is no such tensor, or the file is closed.
        """
        entry = self._entry(name)
        if entry.nbytes == 0:
            return np.frombuffer(b"", np.uint8)
        if self._map is None:
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, np.uint8, entry.nbytes, entry.offset)

    def read_rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows `start:stop` of the first dimension, read into new memory; a scalar is one row.

        Unlike `array` it maps nothing, so memory grows by the rows alone.

        Returns:
            A writable array `(stop - start, *shape[1:])` of the tensor's dtype; `()` of a scalar.

        Raises:
            InputError: no such tensor, rows out of bounds, or a closed file.
            UnsupportedError: as `array`.
            ContainerError: the file became shorter since it was opened.
        """
        entry = self._entry(name)
        dtype = self._dtype(entry)
        first, last = self._bounds(entry, "rows", start, stop, entry.rows)
        shape = (last - first, *entry.shape[1:]) if entry.shape else ()
        if last == first:
            return np.empty((0, *entry.shape[1:]), dtype)
        begin, end = first * entry.row_elements, last * entry.row_elements
        bits = DTYPES[entry.dtype_name].bits
        group = math.lcm(bits, 8) // bits  # elements that together fill whole bytes
        lead = begin % group
        from_byte, to_byte = (begin - lead) * bits // 8, -(-end // group) * group * bits // 8
        data = self.read_bytes(name, from_byte, to_byte)
        if entry.is_packed:
            data = _unpack(data, bits)[lead : lead + end - begin]
        return data.view(dtype).reshape(shape)

    def read_bytes(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Stored bytes `start:stop` of a tensor, read into new memory.

        Returns:
            uint8 `(stop - start,)`, writable.

        Raises:
            InputError: no such tensor, bytes out of bounds, or a closed file.
            ContainerError: the file became shorter since it was opened.
        """
        entry = self._entry(name)
        first, last = self._bounds(entry, "bytes", start, stop, entry.nbytes)
        data = np.empty(last - first, np.uint8)
        read_exactly(self._fd, entry.offset + first, data.data, file=str(self.path))
        return data

    def forget(self) -> None:
        """Give back the physical memory of what was read through the map."""
        forget_pages(self._map)

    def close(self) -> None:
        """Close the file; arrays that were handed out stay valid."""
        self._map = None  # the mapping goes with the last array that shows it
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> SafetensorsFile:
        """Return the file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def _entry(self, name: str) -> ArrayEntry:
        if self._fd < 0:
            raise InputError("the file is closed", file=str(self.path), tensor=name)
        if name not in self.entries:
            near = difflib.get_close_matches(str(name), self.entries, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else None
            raise InputError("there is no such tensor", file=str(self.path), tensor=name, hint=hint)
        return self.entries[name]

    def _dtype(self, entry: ArrayEntry) -> np.dtype[Any]:
        if entry.dtype is None:
            fault = f"the dtype {entry.dtype_name!r} is unknown to blockscale"
        elif len(entry.shape) > _MAX_NDIM:
            fault = f"{len(entry.shape)} dimensions are more than the {_MAX_NDIM} of NumPy"
        else:
            return entry.dtype
        raise UnsupportedError(
            fault,
            file=str(self.path),
            tensor=entry.name,
            found=entry.dtype_name,
            hint=f"raw(name) gives its bytes; known dtypes are {', '.join(DTYPES)}",
        )

    def _bounds(
        self, entry: ArrayEntry, what: str, start: int, stop: int | None, size: int
    ) -> tuple[int, int]:
        first = operator.index(start)
        last = size if stop is None else operator.index(stop)
        if not 0 <= first <= last <= size:
            raise InputError(
                f"{what} {first}:{last} are outside of 0:{size}",
                file=str(self.path),
                tensor=entry.name,
                found=(first, last),
            )
        return first, last


def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """All codes of a run of whole bytes, uint8 `(packed.size * 8 // bits,)`."""
    codes = np.empty(packed.size * 8 // bits, np.uint8)
    for begin in range(0, packed.size, _UNPACK_STEP):
        part = packed[begin : begin + _UNPACK_STEP]
        first, count = begin * 8 // bits, part.size * 8 // bits
        codes[first : first + count] = unpack_codes(part, bits, count)
    return codes

"""Reading `.hrry` files lazily: the frame and every descriptor checked first, the data mapped."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DescriptorError, InputError, error_context
from ..hurray.boxes import BoxReader, box_reader
from ..hurray.descriptor import TensorDescriptor
from ..hurray.filemap import FileMap, IndexEntry
from ..hurray.geometry import DYNAMIC
from ..hurray.layouts import ROW_MAJOR
from ..hurray.tensors import Tensor, decode_tensor, validate_values
from .base import forget_pages, read_exactly
from .hrry_index import (
    HrryEntry,
    descriptor_bytes,
    find_problems,
    map_file,
    memory_of,
    place_buffers,
    read_frame,
)
from .hrry_writer import HrryWriter, write_hrry

__all__ = ["HrryEntry", "HrryFile", "HrryWriter", "find_problems", "write_hrry"]


class HrryFile:
    """A `.hrry` file that is open for reading.

    Everything but the data is read and checked at once; data are mapped and checked when they are asked for.
    Safe to use from several threads. Arrays handed out stay valid after closing; they show the file itself,
    so nobody may shorten it meanwhile (the system would stop the process).

    Attributes:
        path: the file.
        metadata: its key-value metadata: str, int, float, bool, bytes, or lists of one of these; integers
            that the file holds unsigned are `U64`, so that they are written back as they were.
        entries: name to HrryEntry, in the order of the index.
        problems: what strict reading would have refused (permissive only).
    """

    def __init__(self, path: str | os.PathLike[str], *, permissive: bool = False) -> None:
        """Open a file and check its frame and descriptors.

        Args:
            path: the file.
            permissive: keep tensors of unknown type, layout or scheme, whose data are not interpreted, and
                let pass partial blocks without padding, scale bytes 0x00 and 0xFF, reserved bytes of handles.

        Raises:
            InputError: there is no such file, or it cannot be read.
            ContainerError: the file breaks a rule of the container, or is of another kind.
            DescriptorError: a descriptor breaks a rule; names the tensor, the field and its offset.
        """
        self.path = Path(path)
        self.permissive = permissive
        self._fd = -1
        self._bytes: NDArray[np.uint8] | None
        self._fd, self._bytes = map_file(self.path)
        try:
            with error_context(file=str(self.path)):
                file_map = read_frame(self._mapped())
                self.metadata: dict[str, Any] = file_map.metadata
                self.problems: list[DescriptorError] = []
                self.entries = {row.name: self._read_entry(row, file_map) for row in file_map.entries}
        except BaseException:
            self.close()
            raise
        self.forget()  # descriptors lie between the data, and what was mapped with them is large

    def descriptor(self, name: str) -> TensorDescriptor:
        """The descriptor of a tensor; InputError if there is no such tensor."""
        return self._entry(name).descriptor

    def buffer(self, name: str, i: int) -> NDArray[np.uint8]:
        """Buffer `i` of a tensor: uint8 `(n,)`, a read-only view of the mapped file.

        Raises:
            InputError: there is no such tensor or buffer.
        """
        start, size = self._region(name, i)
        return self._mapped()[start : start + size]

    def tensor(self, name: str) -> Tensor:
        """The tensor: an ndarray, a BlockTensor, or a HurrayTensor for the other schemes.

        Nothing is copied where the layout is the one in memory.

        Raises:
            InputError: there is no such tensor.
            DescriptorError: a scale or zero point that its scheme forbids.
            UnsupportedError: data that must not be interpreted, or that this library cannot.
        """
        entry = self._entry(name)
        buffers = [self.buffer(name, i) for i in range(len(entry.descriptor.buffers))]
        with error_context(file=str(self.path), tensor=name):
            return decode_tensor(entry.descriptor, buffers, permissive=self.permissive)

    def check_values(self, name: str) -> None:
        """Check what only the data of a tensor tell: scales and zero points, E8M0 bytes of a plain one.

        Raises:
            InputError: there is no such tensor.
            DescriptorError: a value that its scheme forbids.
        """
        entry = self._entry(name)
        buffers = [self.buffer(name, i) for i in range(len(entry.descriptor.buffers))]
        with error_context(file=str(self.path), tensor=name):
            validate_values(entry.descriptor, buffers, permissive=self.permissive)

    def boxes(self, name: str) -> BoxReader | None:
        """A function that reads boxes of a block-scaled tensor (see `hurray.box_reader`), or None."""
        entry = self._entry(name)
        if entry.descriptor.quantization is None:
            return None
        buffers = [self.buffer(name, i) for i in range(len(entry.descriptor.buffers))]
        with error_context(file=str(self.path), tensor=name):
            return box_reader(entry.descriptor, buffers, permissive=self.permissive)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of a tensor whose buffer 0 is its elements, row-major, whole bytes; else None."""
        d = self.descriptor(name)
        kind = d.type
        if kind is None or kind.is_packed or d.quantization is not None:
            return None
        is_plain = d.layout == ROW_MAJOR and d.byte_offset == 0 and kind.name != "float8_e8m0"
        if DYNAMIC in d.shape or math.prod(d.shape) * kind.bits // 8 > d.buffers[0].byte_size:
            return None  # reading it as a whole says what is wrong (H30, H31)
        return kind.dtype if is_plain else None

    def read_bytes(self, name: str, i: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes `start` to `stop` of buffer `i` in new memory, read from the file (not mapped).

        Raises:
            InputError: there is no such tensor, buffer or range.
            ContainerError: the file has become shorter.
        """
        at, size = self._region(name, i)
        if not 0 <= start <= stop <= size:
            raise InputError(
                f"bytes {start} to {stop} of a buffer of {size} bytes", file=str(self.path), tensor=name
            )
        self._mapped()
        out = np.empty(stop - start, np.uint8)
        if out.size:
            read_exactly(self._fd, at + start, out.data, file=str(self.path))
        return out

    def forget(self) -> None:
        """Give back the physical memory of what was read through the map."""
        if self._bytes is not None:
            forget_pages(memory_of(self._bytes))

    def close(self) -> None:
        """Close the file; arrays handed out stay valid."""
        self._bytes = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> HrryFile:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def __contains__(self, name: object) -> bool:
        """True if there is a tensor of that name."""
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        """Names in the order of the index."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.entries)

    def __repr__(self) -> str:
        """Path and number of tensors."""
        return f"HrryFile({str(self.path)!r}, {len(self.entries)} tensors)"

    def _mapped(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise InputError("the file is closed", file=str(self.path))
        return self._bytes

    def _entry(self, name: str) -> HrryEntry:
        if name not in self.entries:
            near = difflib.get_close_matches(str(name), self.entries, 1)
            hint = f"did you mean {near[0]!r}?" if near else None
            raise InputError("there is no such tensor", file=str(self.path), tensor=str(name), hint=hint)
        return self.entries[name]

    def _region(self, name: str, i: int) -> tuple[int, int]:
        entry = self._entry(name)
        count = len(entry.buffer_offsets)
        if not 0 <= i < count:
            message = f"there is no buffer {i}, the tensor has {count}"
            raise InputError(message, file=str(self.path), tensor=name, found=i)
        return entry.buffer_offsets[i], entry.descriptor.buffers[i].byte_size

    def _read_entry(self, row: IndexEntry, file_map: FileMap) -> HrryEntry:
        with error_context(tensor=row.name):
            descriptor = TensorDescriptor.decode(
                descriptor_bytes(self._mapped(), row), permissive=self.permissive
            )
            if self.permissive:
                for problem in descriptor.violations():
                    problem.file, problem.tensor = str(self.path), row.name
                    self.problems.append(problem)
            return place_buffers(row, descriptor, file_map.alignment)

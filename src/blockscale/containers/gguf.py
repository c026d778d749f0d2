"""Reading GGUF files lazily: checked first, and no more copied than is asked for."""

from __future__ import annotations

import difflib
import mmap
import operator
import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ContainerError, InputError, UnsupportedError, error_context
from .base import forget_pages, read_exactly
from .gguf_header import Header, read_header
from .gguf_split import check_parts, split_paths, without_split
from .gguf_types import TYPES, GgmlType, GgufEntry, ggml_type, plain_type
from .gguf_values import GgufValue, gguf_value
from .gguf_writer import GgufWriter, plan_layout
from .sniff import open_input

__all__ = [
    "TYPES",
    "GgmlType",
    "GgufEntry",
    "GgufFile",
    "GgufValue",
    "GgufWriter",
    "ggml_type",
    "gguf_value",
    "plain_type",
    "plan_layout",
]


_OWN = -1  # the descriptor of the file that was named, until its place among the parts is known


class GgufFile:
    """A GGUF file, or a model split over several, open for reading; headers are checked before anything else.

    Safe to use from several threads. Arrays of `array` and `raw` stay valid after closing; they show the file
    itself, so nobody may shorten it meanwhile (the system would stop the process).

    Attributes:
        path: the file that was named.
        parts: all files of the model; usually just `path`.
        version: of the first part.
        alignment: of the first part.
        pads_end: whether padding follows the last tensor; see `GgufWriter`.
        metadata: key to `GgufValue`, in the file's order; of a split model those of the first part, without
            the keys that number the parts.
        entries: name to `GgufEntry`, in the file's order.
        problems: what is odd but harmless.
    """

    def __init__(self, path: str | os.PathLike[str], *, tolerant: bool = False) -> None:
        """Open a file and check its header; of a split model, open all parts.

        Args:
            path: the file; of a split model, any part.
            tolerant: let holes between tensors and bytes after the last one pass; they are then listed in
                `problems`.

        Raises:
            InputError: there is no such file, or it cannot be read.
            ContainerError: the file breaks a rule of the format, is of another kind, or a part is missing.
            UnsupportedError: a big-endian file.
        """
        self.path = Path(path)
        self._fds: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}
        try:
            headers = self._open(tolerant)
        except BaseException:
            self.close()
            raise
        first = headers[0]
        self.version, self.alignment, self.pads_end = first.version, first.alignment, first.pads_end
        self.metadata = first.metadata if len(headers) == 1 else without_split(first.metadata)
        self.problems = [text for header in headers for text in header.problems]
        self.entries = {
            e.name: replace(e, part=i) for i, header in enumerate(headers) for e in header.entries.values()
        }

    def _open(self, tolerant: bool) -> list[Header]:
        self._fds[_OWN] = open_input(self.path)
        own = read_header(self._fds[_OWN], str(self.path), tolerant=tolerant)
        with error_context(file=str(self.path)):
            self.parts = tuple(split_paths(self.path, own.metadata))
        headers = []
        for i, part in enumerate(self.parts):
            if len(self.parts) == 1 or part.name == self.path.name:
                self._fds[i] = self._fds.pop(_OWN)
                headers.append(own)
                continue
            if not part.exists():
                raise ContainerError(
                    f"part {i + 1} of {len(self.parts)} of the model is missing",
                    file=str(part),
                    hint="all parts lie in one folder",
                )
            self._fds[i] = open_input(part)
            headers.append(read_header(self._fds[i], str(part), tolerant=tolerant))
        if len(headers) > 1:
            check_parts(self.parts, headers)
        return headers

    def array(self, name: str) -> NDArray[Any]:
        """A tensor of a plain type as a read-only array: a view of the file, nothing is copied.

        Raises:
            InputError: there is no such tensor, or the file is closed.
            UnsupportedError: a quantized type.
        """
        entry = self._entry(name)
        if entry.type.dtype is None:
            raise UnsupportedError(
                f"{entry.type.name} is quantized, not an array of numbers",
                file=str(self.path),
                tensor=name,
                found=entry.type.name,
                hint="dialects.ggml reads its blocks; raw(name) gives its bytes",
            )
        array = self.raw(name).view(entry.type.dtype).reshape(entry.shape)
        if not array.flags.aligned:  # a file may ask for an alignment of 1
            array = array.copy()
            array.flags.writeable = False
        return array

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor of any type: uint8 `(nbytes,)`, a read-only view.

        Raises:
            InputError: there is no such tensor, or the file is closed.
        """
        entry = self._entry(name)
        if entry.part not in self._maps:
            self._maps[entry.part] = mmap.mmap(self._fds[entry.part], 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._maps[entry.part], np.uint8, entry.nbytes, entry.offset)

    def read_bytes(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Stored bytes `start:stop` of a tensor, read into new memory.

        Unlike `raw` it maps nothing, so memory grows by these bytes alone.

        Returns:
            uint8 `(stop - start,)`, writable.

        Raises:
            InputError: no such tensor, bytes out of bounds, or a closed file.
            ContainerError: the file became shorter since it was opened.
        """
        entry = self._entry(name)
        first = operator.index(start)
        last = entry.nbytes if stop is None else operator.index(stop)
        if not 0 <= first <= last <= entry.nbytes:
            raise InputError(
                f"bytes {first}:{last} are outside of 0:{entry.nbytes}",
                file=str(self.path),
                tensor=name,
                found=(first, last),
            )
        data = np.empty(last - first, np.uint8)
        with error_context(tensor=name):
            file = str(self.parts[entry.part])
            read_exactly(self._fds[entry.part], entry.offset + first, data.data, file=file)
        return data

    def forget(self) -> None:
        """Give back the physical memory of what was read through the maps."""
        for memory in self._maps.values():
            forget_pages(memory)

    def close(self) -> None:
        """Close the file; arrays that were handed out stay valid."""
        self._maps = {}  # a mapping goes with the last array that shows it
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def __enter__(self) -> GgufFile:
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

    def _entry(self, name: str) -> GgufEntry:
        if not self._fds:
            raise InputError("the file is closed", file=str(self.path), tensor=name)
        if name not in self.entries:
            near = difflib.get_close_matches(str(name), self.entries, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else None
            raise InputError("there is no such tensor", file=str(self.path), tensor=name, hint=hint)
        return self.entries[name]

"""Writing GGUF files: laid out first, filled in any order, visible only when whole."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import InputError, error_context
from .base import AtomicFile
from .gguf_layout import Spec, plan_layout
from .gguf_types import GgufEntry

__all__ = ["GgufWriter", "plan_layout"]


class GgufWriter:
    """A GGUF file that is written piece by piece, from any thread.

    As a context manager it commits at the end, and an exception leaves nothing behind; without `with`, end it
    by `commit` or `abort`. With the metadata, version, `pads_end` and tensors of a `GgufFile` in their order,
    it writes the same bytes.

    Attributes:
        entries: name to entry of the file to come, in the order of the specs.
        size: bytes of the whole file, known before any data.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, Any] | None,
        specs: Sequence[Spec],
        overwrite: bool = False,
        *,
        version: int = 3,
        pad_end: bool = True,
    ) -> None:
        """Lay the file out, reserve its size and write the header.

        Args:
            path: the file to make.
            metadata: key to `GgufValue`, or to anything that `gguf_value` takes.
            specs: name, type (`"Q4_0"`) and shape in elements of each tensor.
            overwrite: replace an existing file, at the end.
            version: see `plan_layout`.
            pad_end: see `plan_layout`.

        Raises:
            InputError: see `plan_layout`.
            OutputError: the output exists already, or the disk cannot hold it.
        """
        self._name = os.fspath(path)
        with error_context(file=self._name):
            layout = plan_layout(specs, metadata, version=version, pad_end=pad_end)
        self.entries = layout.entries
        self.size = layout.size
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in layout.entries}
        self._file = AtomicFile(path, size=layout.size, overwrite=overwrite)
        try:
            self._file.write_at(0, layout.prefix)
        except BaseException:
            self._file.abort()
            raise

    def write(self, name: str, offset: int, data: Any) -> None:
        """Write stored bytes from byte `offset` of a tensor on.

        Args:
            name: the tensor.
            offset: first byte, counted from the start of the tensor.
            data: C-contiguous buffer (bytes, an array of any dtype), little-endian.

        Raises:
            InputError: unknown tensor, bytes out of its bounds, or no such buffer.
        """
        entry = self._entry(name)
        flat = self._flatten(name, data)
        begin = operator.index(offset)
        end = begin + len(flat)
        if not 0 <= begin <= end <= entry.nbytes:
            raise InputError(
                f"bytes {begin:,} to {end:,} are outside of the tensor's {entry.nbytes:,}",
                file=self._name,
                tensor=name,
                found=(begin, end),
            )
        self._file.write_at(entry.offset + begin, flat)
        self._written[name].append((begin, end))

    def commit(self) -> None:
        """Give the file its name.

        Raises:
            InputError: bytes of a tensor were never written; the file does not appear.
            OutputError: the disk is full, or the output exists by now.
        """
        try:
            for entry in self.entries.values():
                self._check_whole(entry)
            self._file.commit()
        except BaseException:
            self._file.abort()
            raise

    def abort(self) -> None:
        """Drop what was written."""
        self._file.abort()

    def __enter__(self) -> GgufWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Commit on success, abort on any exception."""
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _entry(self, name: str) -> GgufEntry:
        if name not in self.entries:
            raise InputError("the output has no such tensor", file=self._name, tensor=name)
        return self.entries[name]

    def _flatten(self, name: str, data: Any) -> memoryview:
        try:
            if isinstance(data, np.ndarray) and data.flags.c_contiguous:
                data = data.reshape(-1).view(np.uint8)  # the buffer protocol knows no bfloat16
            view = memoryview(data)
            return view.cast("B") if view.nbytes else memoryview(b"")
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(
                f"the data are not a C-contiguous buffer of bytes: {error}",
                file=self._name,
                tensor=name,
                hint="np.ascontiguousarray(data)",
            ) from None

    def _check_whole(self, entry: GgufEntry) -> None:
        """Space that was reserved reads as zeros: unwritten bytes would pass for data."""
        done = 0
        for begin, end in sorted(self._written[entry.name]):
            if begin > done:
                break
            done = max(done, end)
        if done < entry.nbytes:
            raise InputError(
                f"bytes from {done:,} of {entry.nbytes:,} on were never written",
                rule="a file is committed when every tensor is whole",
                file=self._name,
                tensor=entry.name,
                found=done,
            )

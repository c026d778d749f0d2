"""Writing safetensors files: laid out first, filled in any order, visible only when whole."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, error_context
from ..packing import pack_codes
from .base import AtomicFile
from .safetensors_layout import Spec, plan_layout
from .safetensors_table import DTYPES, ArrayEntry, stored_name


class SafetensorsWriter:
    """A safetensors file that is written piece by piece, from any thread.

    As a context manager it commits at the end, and an exception leaves nothing behind; without
    `with`, end it by `commit` or `abort`.

    Attributes:
        entries: name to entry of the file to come, in the order of the offsets.
        size: bytes of the whole file, known before any data.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        specs: Sequence[Spec],
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
        *,
        keep_order: bool = False,
    ) -> None:
        """Lay the file out, reserve its size and write the header.

        Args:
            path: the file to make.
            specs: name, dtype name (`"BF16"`) and shape in elements of each tensor.
            metadata: strings to strings; None leaves them out.
            overwrite: replace an existing file, at the end.
            keep_order: see `plan_layout`.

        Raises:
            InputError: see `plan_layout`.
            OutputError: the output exists already, or the disk cannot hold it.
        """
        self._name = os.fspath(path)
        with error_context(file=self._name):
            layout = plan_layout(specs, metadata, keep_order=keep_order)
        self.entries = layout.entries
        self.size = layout.size
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in layout.entries}
        self._file = AtomicFile(path, size=layout.size, overwrite=overwrite)
        try:
            self._file.write_at(0, layout.prefix)
        except BaseException:
            self._file.abort()
            raise

    def write_rows(self, name: str, start: int, array: NDArray[Any]) -> None:
        """Write rows `start : start + len(array)` of the first dimension.

        Args:
            name: the tensor.
            start: first row; 0 for a scalar.
            array: `(rows, *shape[1:])`, or `()` for a scalar, of exactly the tensor's dtype in any
                byte order. F4 and F6 take unpacked ml_dtypes codes; see `write_bytes` for packed.

        Raises:
            InputError: unknown tensor, another dtype or shape, rows out of bounds, or rows of a
                packed dtype that begin or end inside a byte.
        """
        entry = self._entry(name)
        array = np.asarray(array)
        stored = DTYPES[entry.dtype_name]
        with error_context(file=self._name, tensor=name):
            _check_rows(entry, operator.index(start), array)
            begin = operator.index(start) * entry.row_elements * stored.bits
            if begin % 8 or array.size * stored.bits % 8:
                raise InputError(
                    f"the rows from {start} on begin or end inside a byte",
                    rule=f"{stored.name}: pieces of whole bytes, {stored.bits} bits per element",
                    found=start,
                    hint="write more rows at once",
                )
            data = np.ascontiguousarray(array, stored.dtype).reshape(-1).view(np.uint8)
            if entry.is_packed:
                data = pack_codes(data, stored.bits)
        self.write_bytes(name, begin // 8, data)

    def write_bytes(self, name: str, offset: int, data: Any) -> None:
        """Write stored bytes from byte `offset` of a tensor on.

        Args:
            name: the tensor.
            offset: first byte, counted from the start of the tensor.
            data: C-contiguous buffer (bytes, uint8 array).

        Raises:
            InputError: unknown tensor, bytes out of its bounds, or no such buffer.
        """
        entry = self._entry(name)
        try:
            view = memoryview(data)
            flat = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(
                f"the data are not a C-contiguous buffer of bytes: {error}",
                file=self._name,
                tensor=name,
                hint="np.ascontiguousarray(data).view(np.uint8)",
            ) from None
        begin = operator.index(offset)
        end = begin + flat.size
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

    def __enter__(self) -> SafetensorsWriter:
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

    def _entry(self, name: str) -> ArrayEntry:
        if name not in self.entries:
            raise InputError("the output has no such tensor", file=self._name, tensor=name)
        return self.entries[name]

    def _check_whole(self, entry: ArrayEntry) -> None:
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


def _check_rows(entry: ArrayEntry, start: int, array: NDArray[Any]) -> None:
    """The array is a run of rows of the tensor."""
    if entry.dtype is None or array.dtype.name != entry.dtype.name:
        raise InputError(
            f"{array.dtype} does not go into {entry.dtype_name} ({entry.dtype})",
            rule="arrays are written bit for bit, never converted",
            found=array.dtype,
            hint=f".astype({entry.dtype}) first",
        )
    if array.ndim != len(entry.shape) or array.shape[1:] != entry.shape[1:]:
        raise InputError(f"rows of shape {array.shape} do not fit the shape {entry.shape}", found=array.shape)
    stop = start + (array.shape[0] if array.ndim else 1)
    if not 0 <= start <= stop <= entry.rows:
        raise InputError(f"rows {start}:{stop} are outside of 0:{entry.rows}", found=(start, stop))


def write_safetensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
    *,
    keep_order: bool = False,
) -> None:
    """Write arrays that are in memory to a new file.

    Args:
        path: the file to make.
        arrays: name to array of any shape; ml_dtypes for BF16, F8, F6 and F4.
        metadata: strings to strings; None leaves them out.
        overwrite: replace an existing file.
        keep_order: see `plan_layout`.

    Raises:
        UnsupportedError: the format has no dtype for an array (int4: store packed bytes as uint8).
        InputError: see `plan_layout`.
        OutputError: the output exists already, or the disk cannot hold it.
    """
    specs: list[Spec] = []
    for name, array in arrays.items():
        with error_context(file=os.fspath(path), tensor=name):
            specs.append((name, stored_name(np.asarray(array).dtype), np.shape(array)))
    with SafetensorsWriter(path, specs, metadata, overwrite, keep_order=keep_order) as out:
        for name in out.entries:
            out.write_rows(name, 0, arrays[name])

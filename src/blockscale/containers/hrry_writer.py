"""Writing `.hrry` files: the layout is known before any data, and the file appears only when it is whole."""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..errors import InputError, error_context
from ..hurray.codes import as_bytes
from ..hurray.descriptor import TensorDescriptor
from ..hurray.filemap import (
    ALIGNMENT,
    HEADER_SIZE,
    TRAILER_SIZE,
    IndexEntry,
    align_up,
    pack_header,
    pack_index,
    pack_trailer,
)
from ..hurray.metadata import encode_metadata, encode_name
from ..hurray.plan import describe_tensor
from ..hurray.rules import RULES
from ..hurray.tensors import Tensor, encode_tensor
from .base import AtomicFile

Specs = Iterable[tuple[str, TensorDescriptor]]


@dataclass(frozen=True, slots=True)
class HrryLayout:
    """Where everything lies in a file that is to be written.

    Attributes:
        size: bytes of the whole file.
        buffers: name to the `(offset, size)` of each of its buffers.
        frame: `(offset, bytes)` of everything that is not data.
    """

    size: int
    buffers: dict[str, tuple[tuple[int, int], ...]]
    frame: tuple[tuple[int, bytes], ...]


def plan_hrry(specs: Specs, metadata: Mapping[str, Any] | None = None) -> HrryLayout:
    """Lay out a file, as the reference writer does.

    Args:
        specs: names and descriptors, in the order of the file.
        metadata: key-value metadata.

    Raises:
        InputError: a name or metadata that the format cannot hold, or a name twice.
        DescriptorError: a descriptor that breaks a rule.

    Source: Hurray format, 4.1.
    """
    frame: list[tuple[int, bytes]] = [(0, pack_header())]
    buffers: dict[str, tuple[tuple[int, int], ...]] = {}
    entries, position = [], HEADER_SIZE
    for name, descriptor in specs:
        encode_name(name, "tensor name", "F10")
        if name in buffers:
            raise InputError("the name is given twice", tensor=name, rule=str(RULES["F10"]))
        with error_context(tensor=name):
            text = descriptor.check().encode()
        start = align_up(position, 8)
        frame.append((start, text))
        buffers[name] = _place(start + len(text), descriptor)
        data_offset, end = _span(buffers[name])
        entries.append(IndexEntry(name, start, len(text), data_offset, end - data_offset))
        position = end if buffers[name] else start + len(text)
    kv = encode_metadata(metadata) if metadata else b""
    kv_offset = align_up(position, 8) if kv else 0
    index = pack_index(entries)
    index_offset = align_up(kv_offset + len(kv) if kv else position, 8)
    end = index_offset + len(index)
    frame += [(kv_offset, kv)] if kv else []
    frame += [(index_offset, index), (end, pack_trailer(index_offset, index, kv_offset, len(kv)))]
    return HrryLayout(end + TRAILER_SIZE, buffers, tuple(frame))


class HrryWriter:
    """A `.hrry` file in the making: buffers are filled in any order, by any thread.

    Leaving the `with` block commits the file; an exception removes it.

    Attributes:
        layout: where everything lies.
        size: bytes of the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        specs: Specs,
        metadata: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Lay the file out, reserve its space, and write all that is not data.

        Args:
            path: the file.
            specs: names and descriptors, in the order of the file (see `plan_tensor`, `plan_array`).
            metadata: key-value metadata.
            overwrite: replace an existing file.

        Raises:
            InputError, DescriptorError: something that the format cannot hold.
            OutputError: the output exists, or the disk cannot hold it.
        """
        with error_context(file=os.fspath(path)):
            self.layout = plan_hrry(specs, metadata)
        self._written: dict[tuple[str, int], _Extents] = {}
        self._lock = threading.Lock()
        self._file = AtomicFile(path, size=self.layout.size, overwrite=overwrite)
        try:
            for offset, data in self.layout.frame:
                self._file.write_at(offset, data)
        except BaseException:
            self._file.abort()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.layout.size

    def write(self, name: str, i: int, offset: int, data: object) -> None:
        """Write bytes into a buffer.

        Args:
            name: the tensor.
            i: the buffer's row in the buffer table.
            offset: byte of the buffer where the data go.
            data: bytes, or an array whose memory is written.

        Raises:
            InputError: no such tensor or buffer, or data beyond its end.
        """
        part = as_bytes(data)
        start, size = self._region(name, i)
        if offset < 0 or offset + part.size > size:
            raise InputError(
                f"bytes {offset} to {offset + part.size} of buffer {i}, which has {size}",
                file=str(self._file.path),
                tensor=name,
                found=offset,
            )
        if part.size:
            self._file.write_at(start + offset, part.data)
            with self._lock:
                self._written.setdefault((name, i), _Extents()).add(offset, offset + part.size)

    def commit(self) -> None:
        """Give the file its name.

        Raises:
            InputError: some bytes of a buffer were never written.
        """
        for name, regions in self.layout.buffers.items():
            for i, (_, size) in enumerate(regions):
                gap = self._written.get((name, i), _Extents()).first_gap(size)
                if gap is not None:
                    raise InputError(
                        f"buffer {i} was not written from byte {gap} on",
                        file=str(self._file.path),
                        tensor=name,
                        rule="every byte of a buffer is written before the file is finished",
                    )
        self._file.commit()

    def abort(self) -> None:
        """Drop the file."""
        self._file.abort()

    def __enter__(self) -> HrryWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Commit on success, abort on any exception."""
        if kind is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise

    def _region(self, name: str, i: int) -> tuple[int, int]:
        regions = self.layout.buffers.get(name)
        if regions is None or not 0 <= i < len(regions):
            what = "there is no such tensor" if regions is None else f"there is no buffer {i}"
            raise InputError(what, file=str(self._file.path), tensor=name, found=i)
        return regions[i]


def write_hrry(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write named tensors to a file, one at a time; the file appears only when it is whole.

    Args:
        path: the file.
        tensors: name to BlockTensor, array or HurrayTensor; each is looked up twice, for its shape and
            then for its data, so a lazy mapping needs no more memory than its largest tensor.
        metadata: key-value metadata.
        overwrite: replace an existing file.

    Raises:
        InputError: a tensor, name or metadata that the format cannot hold, with advice.
        OutputError: the output exists, or the disk cannot hold it.
    """
    file = os.fspath(path)
    with error_context(file=file):
        specs = [(name, _describe(name, value)) for name, value in tensors.items()]
        with HrryWriter(path, specs, metadata, overwrite=overwrite) as writer:
            for name, _ in specs:
                with error_context(tensor=name):
                    for i, buffer in enumerate(encode_tensor(tensors[name])[1]):
                        writer.write(name, i, 0, buffer)


def _describe(name: str, value: Any) -> TensorDescriptor:
    with error_context(tensor=name):
        return describe_tensor(value)


def _place(end: int, descriptor: TensorDescriptor) -> tuple[tuple[int, int], ...]:
    """Offset and size of each buffer of a descriptor that ends at `end`."""
    regions = []
    for handle in descriptor.buffers:
        start = align_up(end, ALIGNMENT)
        regions.append((start, handle.byte_size))
        end = start + handle.byte_size
    return tuple(regions)


def _span(regions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """First byte of the data and the byte after them; nothing at 0 for a tensor without buffers."""
    return (regions[0][0], sum(regions[-1])) if regions else (0, 0)


class _Extents:
    """Which bytes of a buffer have been written: sorted, disjoint, merged ranges."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def first_gap(self, size: int) -> int | None:
        """The first byte that is missing below `size`, or None."""
        reached = self._ends[0] if self._starts and self._starts[0] == 0 else 0
        return reached if reached < size else None

"""What lies in a `.hrry` file: frame, descriptors and where their buffers are; every fault of a file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BlockscaleError, ContainerError, FormatError, InputError, UnsupportedError
from ..hurray.descriptor import TensorDescriptor, find_violations
from ..hurray.filemap import FILE_MAGIC, FileMap, IndexEntry, align_up, read_file_map
from ..hurray.rules import RULES, broken_file
from ..hurray.tensors import validate_buffers, validate_values
from .sniff import PEEK, open_input, recognise_foreign


@dataclass(frozen=True, slots=True)
class HrryEntry:
    """A tensor in a file.

    Attributes:
        name: its name.
        descriptor: what the file says about it.
        descriptor_offset: byte of the file where the descriptor begins.
        data_offset: byte where buffer 0 begins.
        data_length: bytes from there to the end of the last buffer.
        buffer_offsets: byte where each buffer begins.
    """

    name: str
    descriptor: TensorDescriptor
    descriptor_offset: int
    data_offset: int
    data_length: int
    buffer_offsets: tuple[int, ...]


def find_problems(path: str | os.PathLike[str]) -> list[BlockscaleError]:
    """Every broken rule of a file in strict mode: frame, descriptors, values of scales and zero points.

    A broken frame hides what it frames; a broken descriptor hides the values of its tensor only.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    fd, data = map_file(Path(path))
    os.close(fd)
    try:
        file_map = read_frame(data)
    except FormatError as error:
        problems: list[BlockscaleError] = [error]
    else:
        problems = [error for row in file_map.entries for error in _entry_problems(data, row, file_map)]
    for problem in problems:
        problem.file = str(path)
    return problems


def _entry_problems(data: NDArray[np.uint8], row: IndexEntry, file_map: FileMap) -> Iterator[BlockscaleError]:
    found: list[BlockscaleError] = []
    try:
        text = descriptor_bytes(data, row)
        found += find_violations(text)
        if not found:
            entry = place_buffers(row, TensorDescriptor.parse(text), file_map.alignment)
            sizes = [handle.byte_size for handle in entry.descriptor.buffers]
            buffers = [data[at : at + n] for at, n in zip(entry.buffer_offsets, sizes, strict=True)]
            validate_buffers(entry.descriptor, sizes)
            validate_values(entry.descriptor, buffers)
    except (FormatError, UnsupportedError) as error:
        found.append(error)
    for problem in found:
        problem.tensor = row.name
        yield problem


def map_file(path: Path) -> tuple[int, NDArray[np.uint8]]:
    """Open a file and map it: its descriptor and its bytes, uint8 `(n,)`."""
    fd = open_input(path)
    try:
        size = os.fstat(fd).st_size
        memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
        return fd, np.frombuffer(memory, np.uint8)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise InputError(f"the file cannot be mapped: {error}", file=str(path)) from None


def memory_of(data: NDArray[np.uint8]) -> object:
    """The mapped memory that an array of `map_file` shows."""
    base = data.base
    return base.obj if isinstance(base, memoryview) else base


def read_frame(data: NDArray[np.uint8]) -> FileMap:
    """The frame of a file, or the error that says what kind of file it is instead."""
    first = data[:PEEK].tobytes()
    foreign = None if first.startswith(FILE_MAGIC) else recognise_foreign(first)
    if foreign is not None:
        raise ContainerError(foreign.text, rule=str(RULES["F2"]), found=first[:8], hint=foreign.hint)
    return read_file_map(data)


def descriptor_bytes(data: NDArray[np.uint8], row: IndexEntry) -> bytes:
    """The bytes of a descriptor; F13."""
    text = data[row.descriptor_offset : row.descriptor_offset + row.descriptor_length].tobytes()
    own = int.from_bytes(text[6:10], "little")
    if text.startswith(b"HRRY") and own != row.descriptor_length:
        message = f"the index says {row.descriptor_length} bytes, the descriptor {own}"
        raise broken_file("F13", message, field="descriptor_length", found=row.descriptor_length)
    return text


def place_buffers(row: IndexEntry, descriptor: TensorDescriptor, alignment: int) -> HrryEntry:
    """Where each buffer begins: at the alignment after the one before it; F16."""
    offsets: list[int] = []
    end = row.data_offset
    for handle in descriptor.buffers:
        start = align_up(end, alignment) if offsets else end
        offsets.append(start)
        end = start + handle.byte_size
    if descriptor.layout.is_known and end - row.data_offset != row.data_length:
        message = f"the index says {row.data_length} bytes, the buffers take {end - row.data_offset}"
        raise broken_file("F16", message, field="data_length", found=row.data_length)
    return HrryEntry(
        *(row.name, descriptor, row.descriptor_offset, row.data_offset, row.data_length, tuple(offsets))
    )

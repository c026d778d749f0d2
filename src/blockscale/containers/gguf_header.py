"""Reading the header of a GGUF file without trusting it.

A file is the magic, a version, two counts, key-value metadata, the list of tensors, and one aligned data
area. Source: https://github.com/ggml-org/ggml, docs/gguf.md and src/gguf.cpp (what ggml refuses).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from ..errors import ContainerError, UnsupportedError, error_context
from .base import read_exactly
from .gguf_cursor import Cursor, show
from .gguf_types import MAX_DIMS, MAX_NAME, TYPES_BY_ID, GgmlType, GgufEntry, describe_id, explain_length
from .gguf_values import GgufValue, read_value
from .sniff import PEEK, recognise_foreign

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

_MAX_KEY = 65535
_MAX_READ_DIMS = 64  # of NumPy
_HINT = "the file is cut short or damaged: download or write it again"


@dataclass(frozen=True, slots=True)
class Header:
    """A header that has been checked.

    Attributes:
        version: 2 or 3; they differ in nothing that blockscale reads.
        alignment: every tensor begins at a multiple of it, counted from the start of the data.
        metadata: key to value, in the file's order.
        entries: name to entry, in the file's order.
        data_start: first byte of the data area.
        pads_end: whether the last tensor is followed by padding like the others.
        problems: what is odd but harmless, one sentence each.
    """

    version: int
    alignment: int
    metadata: dict[str, GgufValue]
    entries: dict[str, GgufEntry]
    data_start: int
    pads_end: bool
    problems: list[str]


def align_up(offset: int, alignment: int) -> int:
    """The least multiple of `alignment` (a power of two) that is not below `offset`."""
    return -(-offset // alignment) * alignment


def read_header(fd: int, file: str, *, tolerant: bool = False) -> Header:
    """Read and check the header of an open file.

    Args:
        fd: descriptor of a regular file.
        file: its name, for messages.
        tolerant: let holes between tensors and bytes after the last one pass, as problems.

    Raises:
        ContainerError: the file breaks a rule of the format, or is of another kind.
        UnsupportedError: a big-endian file.
    """
    with error_context(file=file):
        cursor = Cursor(fd, os.fstat(fd).st_size, file)
        version = _read_version(cursor, _first_bytes(fd, cursor.size, file))
        n_tensors = cursor.count("tensor count", 24)
        n_values = cursor.count("metadata count", 13)
        metadata = _read_metadata(cursor, n_values)
        alignment = read_alignment(metadata)
        entries = _read_entries(cursor, n_tensors)
        start = align_up(cursor.at, alignment) if entries else cursor.at
        placed = {e.name: replace(e, offset=start + e.offset) for e in entries.values()}
        problems = [text for entry in entries.values() for text in _oddities(entry)]
        pads_end = _check_cover(placed, start, cursor.size, alignment, problems, tolerant=tolerant)
        return Header(version, alignment, metadata, placed, start, pads_end, problems)


def _first_bytes(fd: int, size: int, file: str) -> bytes:
    first = bytearray(min(size, PEEK))
    read_exactly(fd, 0, memoryview(first), file=file)
    return bytes(first)


def _read_version(cursor: Cursor, first: bytes) -> int:
    if not first.startswith(MAGIC):
        foreign = recognise_foreign(first)
        fault = f"the file begins with {first[:4]!r}"
        hint = "the file is not GGUF: check the name"
        if foreign is not None and not first.startswith(MAGIC[::-1]):
            fault, hint = foreign.text, foreign.hint
        rule = f"a GGUF file begins with {MAGIC!r}"
        raise cursor.error(fault, rule, found=first[:16], field="magic", hint=hint)
    cursor.at = 4
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    if version & 0xFFFF == 0 and version:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise UnsupportedError(
            f"this is a big-endian GGUF file (version {swapped})",
            rule="blockscale reads little-endian GGUF",
            found=version,
            hint="gguf-convert-endian of the gguf package turns it around",
            field="version",
            offset=4,
        )
    rule, hint = "versions 2 and 3", "convert the original model again"
    raise cursor.error(f"the version is {version}", rule, found=version, field="version", offset=4, hint=hint)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, GgufValue]:
    metadata: dict[str, GgufValue] = {}
    for i in range(count):
        begin = cursor.at
        key = cursor.name(f"key {i} of the metadata", _MAX_KEY)
        field = show(key)[1:-1]
        if key in metadata:
            rule = "keys of the metadata are unique"
            raise cursor.error("the key occurs twice", rule, found=key, field=field, offset=begin)
        metadata[key] = read_value(cursor, field)
    return metadata


def read_alignment(metadata: dict[str, GgufValue]) -> int:
    """The alignment that the metadata set, or the default.

    Raises:
        ContainerError: not a uint32, zero, or no power of two.
    """
    given = metadata.get(ALIGNMENT_KEY)
    if given is None:
        return DEFAULT_ALIGNMENT
    rule = "GGUF: the alignment is a uint32, a power of two above zero"
    if given.type != "uint32":
        message = f"the value is of type {given.type}"
        raise ContainerError(message, rule=rule, found=given.type, field=ALIGNMENT_KEY)
    value = int(given.value)
    if value == 0 or value & (value - 1):
        raise ContainerError(f"the value is {value}", rule=rule, found=value, field=ALIGNMENT_KEY)
    return value


def _read_entries(cursor: Cursor, count: int) -> dict[str, GgufEntry]:
    entries: dict[str, GgufEntry] = {}
    for i in range(count):
        begin = cursor.at
        name = cursor.name(f"name of tensor {i}", _MAX_KEY)
        with error_context(tensor=name if len(name) <= 200 else name[:200] + "..."):
            if name in entries:
                rule = "names of tensors are unique"
                raise cursor.error("the name occurs twice", rule, found=name, field="name", offset=begin)
            entries[name] = _read_entry(cursor, name)
    return entries


def _read_entry(cursor: Cursor, name: str) -> GgufEntry:
    """One line of the list; its offset still counts from the start of the data."""
    begin, rank = cursor.at, cursor.u32("number of dimensions")
    if rank > _MAX_READ_DIMS:
        rule = f"at most {_MAX_READ_DIMS} dimensions (ggml: {MAX_DIMS})"
        raise cursor.error(f"it is {rank}", rule, found=rank, field="number of dimensions", offset=begin)
    begin, sizes = cursor.at, [cursor.u64("dimensions") for _ in range(rank)]
    if 0 in sizes:
        message = f"the sizes are {sizes}"
        raise cursor.error(message, "no size is zero", found=sizes, field="dimensions", offset=begin)
    shape = tuple(reversed(sizes))
    begin_type, number = cursor.at, cursor.u32("type")
    if number not in TYPES_BY_ID:
        rule, hint = "the type is one of ggml's", "a newer blockscale may know it"
        message = f"it has {describe_id(number)}"
        raise cursor.error(message, rule, found=number, field="type", offset=begin_type, hint=hint)
    kind = TYPES_BY_ID[number]
    _check_shape(cursor, kind, shape, begin)
    nbytes = math.prod(shape[:-1]) * kind.row_bytes(shape[-1] if shape else 1)
    return GgufEntry(name, kind, shape, cursor.u64("offset"), nbytes)


def _check_shape(cursor: Cursor, kind: GgmlType, shape: tuple[int, ...], begin: int) -> None:
    """Rows are whole blocks, and all fits into the file; Python integers do not overflow."""
    uneven = explain_length(shape, kind.block_size)
    if uneven is not None:
        rule = f"rows of {kind.name} are whole blocks of {kind.block_size}"
        raise cursor.error(uneven, rule, found=shape, field="dimensions", offset=begin)
    need = math.prod(shape) // kind.block_size * kind.block_bytes
    if need > cursor.size:
        sizes = "x".join(map(str, shape)) if math.prod(shape) < 1 << 64 else show(list(shape))
        raise cursor.error(
            f"{kind.name} of {sizes} takes {need if need < 1 << 64 else '2**64 or more'} bytes; "
            f"the whole file has {cursor.size:,}",
            "tensors lie inside the file",
            found=shape,
            field="dimensions",
            offset=begin,
            hint=_HINT,
        )


def _oddities(entry: GgufEntry) -> list[str]:
    """What blockscale can read and ggml cannot."""
    found = []
    if len(entry.shape) > MAX_DIMS:
        found.append(f"tensor {show(entry.name)}: {len(entry.shape)} dimensions; ggml has {MAX_DIMS}")
    if len(entry.name.encode()) > MAX_NAME:
        found.append(f"tensor {show(entry.name)}: the name is longer than the {MAX_NAME} bytes of ggml")
    return found


def _check_cover(
    entries: dict[str, GgufEntry],
    start: int,
    size: int,
    alignment: int,
    problems: list[str],
    *,
    tolerant: bool,
) -> bool:
    """Tensors tile the data area, with padding between them only. Returns whether padding ends it."""
    end, before = start, "the header"
    ordered = sorted(entries.values(), key=lambda entry: entry.offset)
    if ordered != list(entries.values()):
        problems.append("tensors lie in another order than they are listed in; ggml wants the same")
    for entry in ordered:
        with error_context(tensor=entry.name):
            _check_place(entry, start, end, before, size, alignment)
            gap = entry.offset - align_up(end, alignment)
            if gap > 0:
                message = f"the {gap:,} bytes after {before} belong to nothing"
                _surplus(message, problems, entry.offset - start, tolerant=tolerant)
        end, before = entry.offset + entry.nbytes, f"tensor {show(entry.name)}"
    padded = align_up(end, alignment)
    if size not in (end, padded):
        extra, at = (size - padded, padded) if size > padded else (size - end, end)
        message = f"{extra:,} bytes follow {before}, from byte {at:,} of the file on"
        _surplus(message, problems, extra, tolerant=tolerant)
    return size >= padded


def _check_place(entry: GgufEntry, start: int, end: int, before: str, size: int, alignment: int) -> None:
    relative, fault, hint = entry.offset - start, None, None
    rule = "GGUF: tensors lie inside the file, one after the other"
    if relative % alignment:
        fault = f"it is {relative:,}"
        rule = f"GGUF: offsets are multiples of the alignment, {alignment}"
    elif entry.offset < end:
        fault = f"it is {relative:,}, {end - entry.offset:,} bytes inside {before}"
    elif entry.offset + entry.nbytes > size:
        fault = f"the tensor ends at byte {entry.offset + entry.nbytes:,}, the file at {size:,}"
        hint = _HINT
    if fault is not None:
        raise ContainerError(fault, rule=rule, found=relative, field="offset", hint=hint)


def _surplus(message: str, problems: list[str], found: int, *, tolerant: bool) -> None:
    if not tolerant:
        raise ContainerError(
            message,
            rule="GGUF: tensors cover the data: no hole but padding, nothing after the last",
            found=found,
            hint="tolerant=True ignores them",
        )
    problems.append(message)

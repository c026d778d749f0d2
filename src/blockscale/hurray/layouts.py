"""Layouts: three are understood (row-major, column-major, strided), the others measured and kept as bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InputError
from .reader import Cursor
from .rules import broken
from .types import is_private

MAX_TILE_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a tensor lie in its buffers.

    Attributes:
        tag: layout tag.
        payload: the bytes of the layout section.

    Source: Hurray format, 2.3.
    """

    tag: int
    payload: bytes = b""

    @property
    def name(self) -> str:
        """What the layout is called."""
        row = _LAYOUTS.get(self.tag)
        return (
            row.name
            if row is not None
            else f"{'private' if is_private(self.tag) else 'unknown'} 0x{self.tag:02X}"
        )

    @property
    def is_known(self) -> bool:
        """True if the section could be parsed (its length is known)."""
        return self.tag in _LAYOUTS or is_private(self.tag)

    @property
    def is_readable(self) -> bool:
        """True if this library finds elements in it: row-major, column-major, strided."""
        return self.tag in (0x01, 0x02, 0x03)

    @property
    def is_dense(self) -> bool:
        """True if one buffer holds every element."""
        row = _LAYOUTS.get(self.tag)
        return row is not None and row.own_buffers(1) == 1

    @property
    def has_offset(self) -> bool:
        """True if byte_offset may be other than 0."""
        return self.is_dense or self.tag not in _LAYOUTS

    def own_buffers(self, rank: int) -> int | None:
        """Buffers that the layout itself needs; None where the layout does not say (private)."""
        row = _LAYOUTS.get(self.tag)
        return None if row is None else row.own_buffers(rank)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Strides in elements of a readable layout over `shape`."""
        if self.tag == STRIDED:
            rank = len(self.payload) // 8
            if rank != len(shape):
                raise broken(
                    "H16", f"{rank} strides for a tensor of rank {len(shape)}", field="layout.strides"
                )
            return struct.unpack(f"<{rank}q", self.payload)
        order = range(len(shape)) if self.tag == COLUMN_MAJOR.tag else range(len(shape) - 1, -1, -1)
        strides, step = [0] * len(shape), 1
        for i in order:
            strides[i] = step
            step *= shape[i]
        return tuple(strides)


ROW_MAJOR = Layout(0x01)
COLUMN_MAJOR = Layout(0x02)
STRIDED = 0x03


def strided(strides: Sequence[int]) -> Layout:
    """A strided layout; strides count elements and may be zero or negative.

    Raises:
        InputError: a stride that 64 bits cannot hold.
    """
    try:
        return Layout(STRIDED, struct.pack(f"<{len(strides)}q", *strides))
    except struct.error:
        raise InputError(f"strides {tuple(strides)} do not fit 64 bits", found=tuple(strides)) from None


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    own_buffers: Callable[[int], int]
    read: Callable[[Cursor, int], object]


def read_layout(cursor: Cursor, tag: int, rank: int) -> Layout:
    """Read the layout section, checking what the format fixes (H15, H16, H17)."""
    start = cursor.position
    if is_private(tag):
        cursor.u64("layout.id")
        cursor.take(cursor.u32("layout.length"), "layout.payload")
    else:
        _LAYOUTS[tag].read(cursor, rank)
    return Layout(tag, cursor.since(start))


def is_known_layout(tag: int) -> bool:
    """True if the length of the layout's section can be told."""
    return tag in _LAYOUTS or is_private(tag)


def _nothing(cursor: Cursor, rank: int) -> None:
    """Row-major and column-major: no section."""


def _read_strided(cursor: Cursor, rank: int) -> None:
    cursor.take(8 * rank, "layout.strides")


def _read_tiled(cursor: Cursor, rank: int, depth: int = 1) -> None:
    if depth > MAX_TILE_DEPTH:
        message = f"tiled layouts nest more than {MAX_TILE_DEPTH} deep"
        raise broken("H17", message, field="layout.inner", offset=cursor.offset, found=depth)
    cursor.take(8 * rank, "layout.tile_shape")
    outer = _choice(cursor, "layout.outer", 1, 3)
    inner = _choice(cursor, "layout.inner", 1, 4)
    _reserved(cursor, 2)
    if outer == 3:
        cursor.take(8 * rank, "layout.outer_strides")
    if inner == 3:
        cursor.take(8 * rank, "layout.inner_strides")
    elif inner == 4:
        _read_tiled(cursor, rank, depth + 1)


def _read_morton(cursor: Cursor, rank: int) -> None:
    for i in range(rank):
        _at_least(cursor, f"layout.bits[{i}]", 1)


def _read_coo(cursor: Cursor, rank: int) -> None:
    cursor.u64("layout.nnz")
    _choice(cursor, "layout.is_sorted", 0, 1)
    _reserved(cursor, 7)


def _read_compressed(cursor: Cursor, rank: int) -> None:
    cursor.u64("layout.nnz")
    _reserved(cursor, 8)


def _read_csf(cursor: Cursor, rank: int) -> None:
    cursor.u64("layout.nnz")
    cursor.take(4 * rank, "layout.mode_order")
    _reserved(cursor, 8)


def _read_paged(cursor: Cursor, rank: int) -> None:
    cursor.take(26, "layout")  # page_size .. index_type: sizes that only a reader of pages can judge
    _reserved(cursor, 6)


def _read_composite(cursor: Cursor, rank: int) -> None:
    rule = _choice(cursor, "layout.rule", 1, 3)
    low, high = (1, 2) if rule == 2 else (0, 0)
    _choice(cursor, "layout.combine", low, high)
    _reserved(cursor, 2)
    cursor.u32("layout.member_count")


def _read_hilbert(cursor: Cursor, rank: int) -> None:
    _at_least(cursor, "layout.order", 1)
    offset = cursor.offset
    curve_rank = cursor.u32("layout.curve_rank")
    if curve_rank != rank or rank < 2:
        message = f"a curve of rank {curve_rank} for a tensor of rank {rank}"
        raise broken("H16", message, field="layout.curve_rank", offset=offset, found=curve_rank)


def _choice(cursor: Cursor, field: str, low: int, high: int) -> int:
    offset = cursor.offset
    value = cursor.u8(field)
    if not low <= value <= high:
        message = f"the value is {value}, need {low} to {high}"
        raise broken("H16", message, field=field, offset=offset, found=value)
    return value


def _at_least(cursor: Cursor, field: str, low: int) -> None:
    offset = cursor.offset
    value = cursor.u32(field)
    if value < low:
        raise broken(
            "H16",
            f"the value is {value}, need {low} or more",
            field=field,
            offset=offset,
            found=value,
        )


def _reserved(cursor: Cursor, n: int) -> None:
    offset = cursor.offset
    found = cursor.take(n, "layout.reserved")
    if any(found):
        message = f"reserved bytes are {found.hex(' ')}"
        raise broken("H15", message, field="layout.reserved", offset=offset, found=found)


# fmt: off
_LAYOUTS: dict[int, _Row] = {
    0x01: _Row("row-major",    lambda rank: 1,            _nothing),
    0x02: _Row("column-major", lambda rank: 1,            _nothing),
    0x03: _Row("strided",      lambda rank: 1,            _read_strided),
    0x04: _Row("tiled",        lambda rank: 1,            _read_tiled),
    0x05: _Row("Morton",       lambda rank: 1,            _read_morton),
    0x06: _Row("COO",          lambda rank: 2,            _read_coo),
    0x07: _Row("CSR",          lambda rank: 3,            _read_compressed),
    0x08: _Row("CSC",          lambda rank: 3,            _read_compressed),
    0x09: _Row("CSF",          lambda rank: 2 * rank + 1, _read_csf),
    0x0A: _Row("block-paged",  lambda rank: 3,            _read_paged),
    0x0B: _Row("composite",    lambda rank: 0,            _read_composite),
    0x40: _Row("Hilbert",      lambda rank: 1,            _read_hilbert),
}
# fmt: on

"""Storage types of the Hurray format: one table of tags, widths and NumPy dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..elements import ELEMENTS
from ..errors import InputError


@dataclass(frozen=True, slots=True)
class StorageType:
    """A type that tensors are stored in.

    Attributes:
        name: as the format calls it.
        tag: its type tag.
        bits: width of one element.
        dtype: NumPy dtype of unpacked elements; None where NumPy has none (float128).
        low: smallest value (integers).
        high: largest value (integers).
    """

    name: str
    tag: int
    bits: int
    dtype: np.dtype[Any] | None
    low: int = 0
    high: int = 0

    @property
    def is_packed(self) -> bool:
        """True if several elements share a byte."""
        return self.bits < 8


def _element(name: str) -> StorageType:
    row = ELEMENTS[name]
    low, high = (int(row.min), int(row.max)) if row.is_integer else (0, 0)
    return StorageType(name, row.tag, row.bits, row.dtype, low, high)


def _integer(name: str, tag: int) -> StorageType:
    info = np.iinfo(name)
    return StorageType(name, tag, info.bits, np.dtype(name), int(info.min), int(info.max))


_TABLE = (
    *(_element(name) for name in ELEMENTS),
    StorageType("float64", 0x04, 64, np.dtype(np.float64)),
    _integer("int16", 0x12),
    _integer("uint16", 0x13),
    _integer("int32", 0x14),
    _integer("uint32", 0x15),
    _integer("int64", 0x16),
    _integer("uint64", 0x17),
    StorageType("bool", 0x20, 1, np.dtype(np.bool_)),
    StorageType("float128", 0x46, 128, None),
    StorageType("complex64", 0x50, 64, np.dtype(np.complex64)),
    StorageType("complex128", 0x51, 128, np.dtype(np.complex128)),
)

STORAGE_TYPES: dict[int, StorageType] = {row.tag: row for row in _TABLE}
_BY_NAME = {row.name: row for row in _TABLE}
_BY_DTYPE = {row.dtype: row for row in _TABLE if row.dtype is not None}


def storage_type(name: str) -> StorageType:
    """The type called `name`."""
    return _BY_NAME[name]


def storage_type_of(dtype: np.dtype[Any]) -> StorageType:
    """The type that stores arrays of this dtype, whatever their byte order.

    Raises:
        InputError: the format has no such type.
    """
    row = _BY_DTYPE.get(dtype.newbyteorder("<")) or _BY_DTYPE.get(dtype)
    if row is None:
        raise InputError(
            f"a .hrry file has no element type for arrays of {dtype}",
            found=str(dtype),
            field="dtype",
            hint=f"convert to one of {', '.join(r.name for r in _TABLE if r.dtype is not None)}",
        )
    return row


def is_private(tag: int) -> bool:
    """True for the tags 0xF0 to 0xFE, which mean what their owner says."""
    return 0xF0 <= tag <= 0xFE

"""The dtypes of safetensors files, and what a header says of one tensor."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UnsupportedError

MAX_HEADER = 100_000_000
"""Longest header in bytes that readers of the format accept."""
METADATA = "__metadata__"
"""Key of the free-form strings, which no tensor may have."""


@dataclass(frozen=True, slots=True)
class StoredDtype:
    """A dtype of the format.

    Attributes:
        name: as the header spells it.
        bits: bits per stored element.
        dtype: NumPy dtype in memory, one element per item.
        rank: place in the order of the reference, which puts tensors of high rank first.
    """

    name: str
    bits: int
    dtype: np.dtype[Any]
    rank: int


def _row(rank: int, name: str, bits: int, kind: Any) -> StoredDtype:
    """One row; dtypes of several bytes are little-endian whatever the host is."""
    dtype = np.dtype(kind)
    if sys.byteorder == "big" and dtype.itemsize > 1:
        dtype = dtype.newbyteorder("<")
    return StoredDtype(name, bits, dtype, rank)


# fmt: off
_ROWS = (  # in the order of the reference (safetensors 0.8, tensor.rs, enum Dtype)
    ("BOOL",         8, np.bool_),
    ("F4",           4, ml_dtypes.float4_e2m1fn),
    ("F6_E2M3",      6, ml_dtypes.float6_e2m3fn),
    ("F6_E3M2",      6, ml_dtypes.float6_e3m2fn),
    ("U8",           8, np.uint8),
    ("I8",           8, np.int8),
    ("F8_E5M2",      8, ml_dtypes.float8_e5m2),
    ("F8_E4M3",      8, ml_dtypes.float8_e4m3fn),
    ("F8_E8M0",      8, ml_dtypes.float8_e8m0fnu),
    ("F8_E4M3FNUZ",  8, ml_dtypes.float8_e4m3fnuz),
    ("F8_E5M2FNUZ",  8, ml_dtypes.float8_e5m2fnuz),
    ("I16",         16, np.int16),
    ("U16",         16, np.uint16),
    ("F16",         16, np.float16),
    ("BF16",        16, ml_dtypes.bfloat16),
    ("I32",         32, np.int32),
    ("U32",         32, np.uint32),
    ("F32",         32, np.float32),
    ("C64",         64, np.complex64),
    ("F64",         64, np.float64),
    ("I64",         64, np.int64),
    ("U64",         64, np.uint64),
)
# fmt: on

DTYPES: dict[str, StoredDtype] = {row[0]: _row(rank, *row) for rank, row in enumerate(_ROWS)}
_NAMES = {row.dtype.name: row.name for row in DTYPES.values()}


def stored_name(dtype: np.dtype[Any]) -> str:
    """The format's name for a NumPy dtype of any byte order.

    Raises:
        UnsupportedError: the format has no such dtype.
    """
    if dtype.name not in _NAMES:
        raise UnsupportedError(
            f"safetensors has no dtype for {dtype}",
            found=dtype,
            hint=f"convert it first to one of {', '.join(_NAMES)}",
        )
    return _NAMES[dtype.name]


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """What the header says of one tensor.

    Attributes:
        name: its name.
        dtype_name: dtype as the file spells it (`"BF16"`).
        dtype: NumPy dtype that it is read as; None where blockscale does not know `dtype_name`.
        bits: bits per stored element; None where the dtype is unknown.
        shape: sizes in elements, also where elements are smaller than a byte.
        offset: first byte, counted from the start of the file.
        nbytes: bytes stored.
    """

    name: str
    dtype_name: str
    dtype: np.dtype[Any] | None
    bits: int | None
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        """Size of the first dimension; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])

    @property
    def is_packed(self) -> bool:
        """True if elements are smaller than a byte (F4, F6_*)."""
        return self.bits is not None and self.bits < 8


def is_text(text: str) -> bool:
    """False for lone surrogates, which JSON escapes can smuggle in and no output can encode."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)

"""The tables of GGUF: tensor types of ggml, and what a header says of a tensor.

Source: gguf package 0.19, `constants.py` (numbers and sizes; Q8_1 as ggml's own headers have it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InputError, UnsupportedError

MAX_DIMS = 4
"""Dimensions that ggml has; readers that load the file refuse more."""
MAX_NAME = 63
"""Bytes of a tensor name that ggml has room for."""


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type of ggml.

    Attributes:
        id: its number in files.
        name: its name (`"Q4_0"`).
        block_size: elements per block; 1 for plain types.
        block_bytes: bytes per block.
        dtype: little-endian NumPy dtype of a plain type, else None.
        note: for quantized types, how their numbers are built, in a few words.
    """

    id: int
    name: str
    block_size: int
    block_bytes: int
    dtype: np.dtype[Any] | None = None
    note: str = ""

    @property
    def is_plain(self) -> bool:
        """True for types that are arrays of ordinary numbers."""
        return self.dtype is not None

    @property
    def bits_per_element(self) -> float:
        """Stored bits per element, scales included."""
        return 8 * self.block_bytes / self.block_size

    def row_bytes(self, length: int) -> int:
        """Bytes of a row of `length` elements, a multiple of the block size."""
        return length // self.block_size * self.block_bytes


def _plain(number: int, name: str, dtype: Any) -> GgmlType:
    kind = np.dtype(dtype)
    return GgmlType(number, name, 1, kind.itemsize, kind if kind.kind == "V" else kind.newbyteorder("<"))


_ONE = "one scale per block"
_TWO = "two levels: small scales of groups under one float16 scale of 256 elements"
_BOOK = "a codebook, with two levels of scales"
_WORK = "only a working format of ggml's dot products"

# fmt: off
_TABLE = (
    _plain(0, "F32", np.float32),  _plain(1, "F16", np.float16),  _plain(30, "BF16", ml_dtypes.bfloat16),
    _plain(28, "F64", np.float64), _plain(24, "I8", np.int8),     _plain(25, "I16", np.int16),
    _plain(26, "I32", np.int32),   _plain(27, "I64", np.int64),
    #        id  name      block bytes
    GgmlType(2,  "Q4_0",    32,  18, note=_ONE),
    GgmlType(3,  "Q4_1",    32,  20, note=_ONE),
    GgmlType(6,  "Q5_0",    32,  22, note=_ONE),
    GgmlType(7,  "Q5_1",    32,  24, note=_ONE),
    GgmlType(8,  "Q8_0",    32,  34, note=_ONE),
    GgmlType(39, "MXFP4",   32,  17, note=_ONE),
    GgmlType(9,  "Q8_1",    32,  36, note=_WORK),
    GgmlType(15, "Q8_K",    256, 292, note=_WORK),
    GgmlType(10, "Q2_K",    256, 84,  note=_TWO),
    GgmlType(11, "Q3_K",    256, 110, note=_TWO),
    GgmlType(12, "Q4_K",    256, 144, note=_TWO),
    GgmlType(13, "Q5_K",    256, 176, note=_TWO),
    GgmlType(14, "Q6_K",    256, 210, note=_TWO),
    GgmlType(16, "IQ2_XXS", 256, 66,  note=_BOOK),
    GgmlType(17, "IQ2_XS",  256, 74,  note=_BOOK),
    GgmlType(22, "IQ2_S",   256, 82,  note=_BOOK),
    GgmlType(18, "IQ3_XXS", 256, 98,  note=_BOOK),
    GgmlType(21, "IQ3_S",   256, 110, note=_BOOK),
    GgmlType(19, "IQ1_S",   256, 50,  note=_BOOK),
    GgmlType(29, "IQ1_M",   256, 56,  note=_BOOK),
    GgmlType(23, "IQ4_XS",  256, 136, note="sixteen unevenly spaced values, with two levels of scales"),
    GgmlType(20, "IQ4_NL",  32,  18,  note="sixteen unevenly spaced values under one scale per block"),
    GgmlType(34, "TQ1_0",   256, 54,  note="ternary, five elements in a byte"),
    GgmlType(35, "TQ2_0",   256, 66,  note="ternary, four elements in a byte"),
    GgmlType(41, "Q1_0",    128, 18,  note="signs under one scale per block"),
    GgmlType(40, "NVFP4",   64,  36,  note="E2M1 with unsigned E4M3 scales of 16 elements"),
)
# Numbers that files of old versions used and that ggml refuses today.
_REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
            36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}
# fmt: on

TYPES: dict[str, GgmlType] = {row.name: row for row in _TABLE}
TYPES_BY_ID: dict[int, GgmlType] = {row.id: row for row in _TABLE}


def describe_id(number: int) -> str:
    """A type number that is not in the table, in words."""
    if number in _REMOVED:
        return f"type {number} ({_REMOVED[number]}), which ggml has removed"
    return f"type {number}, which blockscale does not know"


def ggml_type(name: str | GgmlType) -> GgmlType:
    """The row called `name`, in any case; InputError if there is none."""
    if isinstance(name, GgmlType):
        return name
    if str(name).upper() not in TYPES:
        raise InputError(f"unknown GGUF type {name!r}", found=name, hint=f"one of {', '.join(TYPES)}")
    return TYPES[str(name).upper()]


def plain_type(dtype: np.dtype[Any]) -> GgmlType:
    """The plain type that holds arrays of a NumPy dtype of any byte order.

    Raises:
        UnsupportedError: GGUF has no such type.
    """
    for row in TYPES.values():
        if row.dtype is not None and row.dtype.name == dtype.name:
            return row
    plain = [row.dtype.name for row in TYPES.values() if row.dtype is not None]
    raise UnsupportedError(
        f"GGUF has no type for {dtype}", found=dtype, hint=f"convert it first to one of {', '.join(plain)}"
    )


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """What the header says of one tensor.

    Attributes:
        name: its name.
        type: its type.
        shape: sizes in elements, in NumPy's order (the file lists the fastest dimension first).
        offset: first byte, counted from the start of the file that holds it.
        nbytes: bytes stored.
        part: which file of a split model holds it, from 0.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0

    @property
    def rows(self) -> int:
        """Rows: all dimensions but the last together; a scalar is one row."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.nbytes // self.rows


def explain_length(shape: tuple[int, ...], block_size: int) -> str | None:
    """Why rows of `shape` are not whole blocks (`"dimension 0 is 14464 = 56 * 256 + 128"`), or None."""
    length = shape[-1] if shape else 1
    if length % block_size == 0:
        return None
    where = f"dimension {len(shape) - 1} is {length}" if shape else "a scalar is 1"
    return f"{where} = {length // block_size} * {block_size} + {length % block_size}"

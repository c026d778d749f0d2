"""Element and scale types: one table; everything else about a type is derived from its row.

Tags are those of the Hurray format (digest section 1.2). `dtype` is the NumPy type of unpacked codes; the
sub-byte ml_dtypes types hold one element per byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import SchemeError

Kind = Literal["int", "uint", "float", "exponent"]


@dataclass(frozen=True)
class Element:
    """An element or scale type.

    Attributes:
        name: the field's name for it, as in the Hurray format.
        tag: Hurray type tag.
        bits: stored width of one code.
        scalar_type: NumPy scalar type of unpacked codes; see `dtype`.
        kind: `int`, `uint`, `float` (sign, exponent, mantissa) or `exponent` (E8M0).
        exponent_bits: width of the exponent field (floats).
        mantissa_bits: width of the mantissa field (floats).
        bias: exponent bias (floats).
        max: largest finite value.
    """

    name: str
    tag: int
    bits: int
    scalar_type: type[Any]
    kind: Kind
    max: float
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of unpacked codes."""
        return np.dtype(self.scalar_type)

    @property
    def min(self) -> float:
        """Smallest (most negative) finite value."""
        if self.kind == "int":
            return -self.max - 1
        return 0.0 if self.kind == "uint" else -self.max

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest power of two that the type holds."""
        return int(np.frexp(self.max)[1]) - 1

    @property
    def is_integer(self) -> bool:
        """True for int and uint types."""
        return self.kind in ("int", "uint")

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Value of every code, float32 `(2**bits,)`; only for types of at most 8 bits.

        Source: OCP MX v1.0, 5.3; Hurray format, 1.2.
        """
        if self.bits > 8:
            raise SchemeError(f"{self.name} has too many codes for a table of values")
        codes = np.arange(1 << self.bits, dtype=np.int64)
        if self.kind == "uint":
            return codes.astype(np.float32)
        if self.kind == "int":
            half = 1 << (self.bits - 1)
            return np.asarray(codes - (codes >= half) * 2 * half, dtype=np.float32)
        if self.kind == "exponent":
            table = np.asarray(np.ldexp(np.float64(1), codes - 127), dtype=np.float32)
            table[255] = np.nan
            return table
        return self._float_values(codes)

    def _float_values(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        m = self.mantissa_bits
        fraction = codes & ((1 << m) - 1)
        exponent = (codes >> m) & ((1 << self.exponent_bits) - 1)
        sign = np.where(codes >> (self.bits - 1), -1.0, 1.0)
        significand = np.where(exponent == 0, fraction, fraction + (1 << m))
        value: NDArray[np.float64] = sign * np.ldexp(significand, np.maximum(exponent, 1) - self.bias - m)
        top = (1 << self.exponent_bits) - 1
        if self.name == "float8_e4m3":
            value[(exponent == top) & (fraction == (1 << m) - 1)] = np.nan
        elif self.name == "float8_e5m2":
            special = exponent == top
            value[special] = np.where(fraction[special] == 0, sign[special] * np.inf, np.nan)
        return value.astype(np.float32)


_BF16_MAX = (2 - 2.0**-7) * 2.0**127
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127

# fmt: off
_TABLE = (
    #        name           tag   bits dtype                     kind        max       E  M  bias
    Element("float16",      0x01, 16, np.float16,                "float",    65504.0,  5, 10, 15),
    Element("bfloat16",     0x02, 16, ml_dtypes.bfloat16,        "float",    _BF16_MAX, 8, 7, 127),
    Element("float32",      0x03, 32, np.float32,                "float",    _FLOAT32_MAX, 8, 23, 127),
    Element("int8",         0x10,  8, np.int8,                   "int",      127.0),
    Element("uint8",        0x11,  8, np.uint8,                  "uint",     255.0),
    Element("float8_e4m3",  0x40,  8, ml_dtypes.float8_e4m3fn,   "float",    448.0,    4, 3, 7),
    Element("float8_e5m2",  0x41,  8, ml_dtypes.float8_e5m2,     "float",    57344.0,  5, 2, 15),
    Element("float8_e8m0",  0x42,  8, ml_dtypes.float8_e8m0fnu,  "exponent", 2.0**127, 8, 0, 127),
    Element("float4_e2m1",  0x43,  4, ml_dtypes.float4_e2m1fn,   "float",    6.0,      2, 1, 1),
    Element("float6_e2m3",  0x44,  6, ml_dtypes.float6_e2m3fn,   "float",    7.5,      2, 3, 1),
    Element("float6_e3m2",  0x45,  6, ml_dtypes.float6_e3m2fn,   "float",    28.0,     3, 2, 3),
    Element("int4",         0x48,  4, ml_dtypes.int4,            "int",      7.0),
    Element("uint4",        0x49,  4, ml_dtypes.uint4,           "uint",     15.0),
    Element("int2",         0x4A,  2, ml_dtypes.int2,            "int",      1.0),
    Element("uint2",        0x4B,  2, ml_dtypes.uint2,           "uint",     3.0),
)
# fmt: on

ELEMENTS: dict[str, Element] = {row.name: row for row in _TABLE}
SCALE_TYPES: tuple[str, ...] = ("float16", "bfloat16", "float32")
"""Scale types of the affine schemes; MX schemes use float8_e8m0."""


@lru_cache(maxsize=64)
def element(name: str) -> Element:
    """The row of the table called `name`; SchemeError if there is none."""
    if name not in ELEMENTS:
        raise SchemeError(f"unknown element type {name!r}", found=name, hint=f"one of {', '.join(ELEMENTS)}")
    return ELEMENTS[name]


def element_by_tag(tag: int) -> Element | None:
    """The row with this Hurray type tag, or None."""
    return next((row for row in _TABLE if row.tag == tag), None)

"""Schemes: what block-scaled numbers mean. One table of rows; `scheme()` makes variants of a row.

A scheme says element type, block size, scale type and offset. It says nothing of files or of how a scale is
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .arguments import check_name
from .blocks import check_block_size
from .elements import ELEMENTS, SCALE_TYPES, Element, element
from .errors import SchemeError

Family = Literal["affine", "mx"]
Offset = Literal["none", "zero_point", "minimum"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """What the numbers of a block-scaled tensor mean.

    Attributes:
        name: how users call it; variants of a row carry their settings in `describe()`.
        family: `affine` (x = s * (q - z)) or `mx` (x = 2**(byte - 127) * value(q)).
        element: type of the codes.
        block_size: elements per block, a power of two >= 2.
        scale: type of the scales.
        offset: `none`, `zero_point` (int32, subtracted from the code) or `minimum` (of the scale's type,
            added to the product; GGUF's Q4_1).
        default_rule: the rule `quantize` takes when none is named; empty if no rule serves the scheme.
        value_exponent: value = element value * 2**value_exponent (OCP MXINT8: -6).
    """

    name: str
    family: Family
    element: Element
    block_size: int
    scale: Element
    offset: Offset
    default_rule: str
    value_exponent: int = 0

    @property
    def is_mx(self) -> bool:
        """True for the MX family."""
        return self.family == "mx"

    @property
    def max_value(self) -> float:
        """Largest value of an element, without its scale."""
        return float(self.element.max * 2.0**self.value_exponent)

    @property
    def emax(self) -> int:
        """Exponent of the largest power of two among the element values (OCP MX v1.0, 6.3)."""
        return self.element.emax + self.value_exponent

    @property
    def mantissa_bits(self) -> int:
        """Mantissa bits of the element's largest values, as the rule `even` counts them."""
        return self.element.mantissa_bits if self.element.kind == "float" else self.element.emax

    @property
    def parameter_bits(self) -> int:
        """Bits of scale and offset per block."""
        extra = {"none": 0, "zero_point": 32, "minimum": self.scale.bits}[self.offset]
        return self.scale.bits + extra

    @property
    def bits_per_element(self) -> float:
        """Bits per element in full blocks, parameters included."""
        return self.element.bits + self.parameter_bits / self.block_size

    def describe(self) -> str:
        """One line: element, scale, offset, block size."""
        offset = {"none": "", "zero_point": ", int32 zero points", "minimum": ", minimums"}
        return (
            f"{self.element.name}, {self.scale.name} scales{offset[self.offset]}, blocks of {self.block_size}"
        )


def _affine(name: str, element_name: str, offset: Offset, rule: str) -> Scheme:
    return Scheme(name, "affine", ELEMENTS[element_name], 32, ELEMENTS["float16"], offset, rule)


def _mx(name: str, element_name: str, value_exponent: int = 0) -> Scheme:
    e8m0 = ELEMENTS["float8_e8m0"]
    return Scheme(name, "mx", ELEMENTS[element_name], 32, e8m0, "none", "floor", value_exponent)


# fmt: off
_TABLE = (
    # per-block affine over the six storage types (Hurray scheme 0x03); plain names are symmetric for
    # signed types and carry a zero point for unsigned ones
    _affine("int8",   "int8",  "none",       "absmax"),
    _affine("int4",   "int4",  "none",       "absmax"),
    _affine("int2",   "int2",  "none",       "absmax"),
    _affine("uint8",  "uint8", "zero_point", "minmax"),
    _affine("uint4",  "uint4", "zero_point", "minmax"),
    _affine("uint2",  "uint2", "zero_point", "minmax"),
    # the meaning of GGUF's single-level types
    _affine("q8_0",   "int8",  "none",       "ggml"),
    _affine("q4_0",   "int4",  "none",       "ggml"),
    _affine("q4_1",   "uint4", "minimum",    "ggml"),
    # OCP MX v1.0
    _mx("mxfp4",      "float4_e2m1"),
    _mx("mxfp6_e2m3", "float6_e2m3"),
    _mx("mxfp6_e3m2", "float6_e3m2"),
    _mx("mxfp8_e4m3", "float8_e4m3"),
    _mx("mxfp8_e5m2", "float8_e5m2"),
    _mx("mxint8",     "int8", -6),
    # not in OCP's list; Hurray's scheme 0x05 allows int4
    _mx("mxint4",     "int4", -2),
)
# fmt: on

SCHEMES: dict[str, Scheme] = {row.name: row for row in _TABLE}

READ_ONLY_SCHEMES: dict[str, Scheme] = {
    row.name: row
    for row in (
        _affine("q5_0", "int8", "none", ""),  # codes -16 .. 15
        _affine("q5_1", "uint8", "minimum", ""),  # codes 0 .. 31
    )
}
"""GGUF types that are read, dequantized and written back, but that no rule quantizes to."""


def scheme(
    name: str | Scheme,
    *,
    block_size: int | None = None,
    scale: str | None = None,
    symmetric: bool | None = None,
) -> Scheme:
    """Look a scheme up and vary it.

    Args:
        name: a row of the table (`"mxfp4"`, `"int4"`, `"q8_0"` ...) or a Scheme.
        block_size: elements per block; the row's own (32) if None.
        scale: `"float16"`, `"bfloat16"` or `"float32"`; affine schemes only.
        symmetric: True for no zero point, False for int32 zero points; affine schemes only.

    Returns:
        The Scheme.

    Raises:
        SchemeError: no such row, or a setting the row does not have.
        BlockSizeError: not a power of two >= 2.

    Source: Hurray format, 3.3 and 3.5; OCP MX v1.0, 5.
    """
    row = name if isinstance(name, Scheme) else _row(name)
    if symmetric is not None and not isinstance(symmetric, bool):
        raise SchemeError(
            f"symmetric is {symmetric!r}", found=symmetric, field="symmetric", rule="True, False or None"
        )
    if block_size is not None:
        check_block_size(block_size)
        row = replace(row, block_size=int(block_size))
    if scale is not None:
        row = _with_scale(row, scale)
    if symmetric is not None:
        row = _with_symmetry(row, symmetric)
    return row


def _row(name: str) -> Scheme:
    check_name(name, "scheme", "a scheme is a name or a Scheme", SCHEMES)
    if name in READ_ONLY_SCHEMES:
        return READ_ONLY_SCHEMES[name]
    if name not in SCHEMES:
        raise SchemeError(f"unknown scheme {name!r}", found=name, hint=f"one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _with_scale(row: Scheme, scale: str) -> Scheme:
    check_name(scale, "scale", "a scale type is a name", SCALE_TYPES)
    if row.is_mx or row.offset == "minimum":
        if scale == row.scale.name:
            return row
        raise SchemeError(f"{row.name} has {row.scale.name} scales, not {scale}", found=scale, field="scale")
    if scale not in SCALE_TYPES:
        raise SchemeError(
            f"unknown scale type {scale!r}",
            found=scale,
            field="scale",
            hint=f"one of {', '.join(SCALE_TYPES)}",
        )
    rule = row.default_rule
    if rule == "ggml" and scale != "float16":
        rule = "absmax"
    return replace(row, scale=element(scale), default_rule=rule)


def _with_symmetry(row: Scheme, symmetric: bool) -> Scheme:
    offset: Offset = "none" if symmetric else "zero_point"
    if row.offset == offset:
        return row
    if row.is_mx or row.offset == "minimum" or row.name in ("q8_0", "q4_0", "q5_0"):
        raise SchemeError(
            f"{row.name} is {row.describe()}; it cannot be made symmetric={symmetric}",
            found=symmetric,
            field="symmetric",
            hint=f"scheme('{'int' if symmetric else 'uint'}{4 if row.element.bits == 4 else 8}') is "
            f"{'symmetric' if symmetric else 'asymmetric'}",
        )
    return replace(row, offset=offset, default_rule="absmax" if symmetric else "minmax")

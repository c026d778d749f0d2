"""The five quantization schemes of the Hurray format, as values that know their bytes.

`quantization_reader` reads them; the rules that need the tensor's shape and buffers are in `checks`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import InputError

NO_BUFFER = 0xFFFFFFFF
"""Buffer index that says "none"."""
SYMMETRIC = 1
"""Flag of the schemes that may have zero points: there are none."""
SCALE_TAGS = {"float16": 0x01, "bfloat16": 0x02, "float32": 0x03}
_WIDE_INTEGERS = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int4",
    "uint4",
    "int2",
    "uint2",
)


def _pack(form: str, quantization: object, *values: object) -> bytes:
    try:
        return struct.pack(form, *values)
    except (struct.error, OverflowError) as error:
        raise InputError(f"{quantization} has a field that its bytes cannot hold: {error}") from None


def _symmetry(zero_point_index: int | None) -> tuple[int, int]:
    """Flags and stored index."""
    return (SYMMETRIC, NO_BUFFER) if zero_point_index is None else (0, zero_point_index)


def _with_zero_points(index: int | None) -> str:
    return "" if index is None else ", int32 zero points"


@dataclass(frozen=True, slots=True)
class PerTensorAffine:
    """Scheme 0x01: one scale and zero point for the whole tensor, `x = scale * (q - zero_point)`.

    Attributes:
        scale: rounded to float32, as it is stored.
        zero_point: int32.

    Source: Hurray format, 3.1.
    """

    tag: ClassVar[int] = 0x01
    length: ClassVar[int] = 16
    storage: ClassVar[tuple[str, ...]] = _WIDE_INTEGERS

    scale: float
    zero_point: int = 0

    def __post_init__(self) -> None:
        """Round the scale to float32, so that the value shown is the one stored."""
        with np.errstate(over="ignore"):
            object.__setattr__(self, "scale", float(np.float32(self.scale)))

    def describe(self) -> str:
        """One line: scheme and settings."""
        return f"per-tensor affine, scale {self.scale:.9g}, zero point {self.zero_point}"

    def encode(self) -> bytes:
        """The 16 bytes of the section."""
        return _pack("<BBHfi4x", self, self.tag, 1, 0, self.scale, self.zero_point)


@dataclass(frozen=True, slots=True)
class PerChannelAffine:
    """Scheme 0x02: a float32 scale (and int32 zero point) per index along `axis`.

    Attributes:
        axis: the axis that the parameters run along.
        scale_index: buffer of the scales.
        zero_point_index: buffer of the zero points; None: symmetric, all zero.

    Source: Hurray format, 3.2.
    """

    tag: ClassVar[int] = 0x02
    length: ClassVar[int] = 20
    storage: ClassVar[tuple[str, ...]] = _WIDE_INTEGERS
    scale_type: ClassVar[str] = "float32"

    axis: int
    scale_index: int = 1
    zero_point_index: int | None = None

    def describe(self) -> str:
        """One line: scheme and settings."""
        return f"per-channel affine along axis {self.axis}{_with_zero_points(self.zero_point_index)}"

    def encode(self) -> bytes:
        """The 20 bytes of the section."""
        flags, index = _symmetry(self.zero_point_index)
        return _pack(
            "<BBHIIIB3x",
            self,
            self.tag,
            1,
            flags,
            self.axis,
            self.scale_index,
            index,
            SCALE_TAGS["float32"],
        )


@dataclass(frozen=True, slots=True)
class PerBlockAffine:
    """Scheme 0x03: a scale (and int32 zero point) per block of elements along `axis`.

    Attributes:
        axis: the blocked axis.
        block_size: elements per block, a power of two >= 2.
        scale_index: buffer of the scales.
        zero_point_index: buffer of the zero points; None: symmetric, all zero.
        scale_type: `float16`, `bfloat16` or `float32`.

    Source: Hurray format, 3.3.
    """

    tag: ClassVar[int] = 0x03
    length: ClassVar[int] = 24
    storage: ClassVar[tuple[str, ...]] = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
    block_range: ClassVar[tuple[int, int]] = (2, 1 << 31)

    axis: int
    block_size: int
    scale_index: int = 1
    zero_point_index: int | None = None
    scale_type: str = "float16"

    def describe(self) -> str:
        """One line: scheme and settings."""
        blocks = f"blocks of {self.block_size} along axis {self.axis}, {self.scale_type} scales"
        return f"per-block affine, {blocks}{_with_zero_points(self.zero_point_index)}"

    def encode(self) -> bytes:
        """The 24 bytes of the section."""
        if self.scale_type not in SCALE_TAGS:
            raise InputError(
                f"unknown scale type {self.scale_type!r}",
                found=self.scale_type,
                field="scale_type",
                hint=f"one of {', '.join(SCALE_TAGS)}",
            )
        flags, index = _symmetry(self.zero_point_index)
        return _pack(
            "<BBHIIIIB3x",
            self,
            *(self.tag, 1, flags, self.axis, self.block_size, self.scale_index, index),
            SCALE_TAGS[self.scale_type],
        )


@dataclass(frozen=True, slots=True)
class NF4:
    """Scheme 0x04: 4-bit codes of a fixed table and a float32 scale per block.

    Attributes:
        axis: the blocked axis.
        block_size: elements per block, a power of two >= 8.
        scale_index: buffer of the scales.

    Source: Hurray format, 3.4.
    """

    tag: ClassVar[int] = 0x04
    length: ClassVar[int] = 16
    storage: ClassVar[tuple[str, ...]] = ("uint4",)
    block_range: ClassVar[tuple[int, int]] = (8, 1 << 31)
    scale_type: ClassVar[str] = "float32"

    axis: int
    block_size: int = 64
    scale_index: int = 1

    def describe(self) -> str:
        """One line: scheme and settings."""
        return f"NF4, blocks of {self.block_size} along axis {self.axis}"

    def encode(self) -> bytes:
        """The 16 bytes of the section."""
        return _pack("<BBHIII", self, self.tag, 1, 0, self.axis, self.block_size, self.scale_index)


@dataclass(frozen=True, slots=True)
class MXFP:
    """Scheme 0x05: small floats (or integers) and a power-of-two scale byte per block.

    Attributes:
        axis: the blocked axis.
        block_size: elements per block, a power of two, 16 to 2048; OCP MX knows only 32.
        scale_index: buffer of the scale bytes.

    Source: Hurray format, 3.5.
    """

    tag: ClassVar[int] = 0x05
    length: ClassVar[int] = 16
    storage: ClassVar[tuple[str, ...]] = (
        *("float8_e4m3", "float8_e5m2", "float4_e2m1", "float6_e2m3", "float6_e3m2"),
        *("int8", "int4"),
    )
    block_range: ClassVar[tuple[int, int]] = (16, 2048)
    scale_type: ClassVar[str] = "float8_e8m0"

    axis: int
    block_size: int = 32
    scale_index: int = 1

    def describe(self) -> str:
        """One line: scheme and settings."""
        return f"MX, blocks of {self.block_size} along axis {self.axis}"

    def encode(self) -> bytes:
        """The 16 bytes of the section."""
        return _pack("<BBHIII", self, self.tag, 1, 0, self.axis, self.block_size, self.scale_index)


@dataclass(frozen=True, slots=True)
class UnknownQuantization:
    """A section of a scheme that this version does not know (permissive reading only).

    Attributes:
        data: the bytes of the section; the tensor's data must not be interpreted.
    """

    data: bytes

    @property
    def tag(self) -> int:
        """The scheme tag."""
        return self.data[0]

    def describe(self) -> str:
        """One line: scheme and settings."""
        return f"unknown scheme 0x{self.tag:02X}"

    def encode(self) -> bytes:
        """The bytes of the section."""
        return self.data


BlockScheme = PerBlockAffine | NF4 | MXFP
KnownQuantization = PerTensorAffine | PerChannelAffine | BlockScheme
Quantization = KnownQuantization | UnknownQuantization

SCHEMES: dict[int, type[KnownQuantization]] = {
    kind.tag: kind for kind in (PerTensorAffine, PerChannelAffine, PerBlockAffine, NF4, MXFP)
}


def parameter_indices(quantization: Quantization) -> dict[str, int]:
    """Buffer index of each parameter array of a scheme, by the name of its field."""
    found: dict[str, int] = {}
    if isinstance(quantization, (PerTensorAffine, UnknownQuantization)):
        return found
    found["scale_index"] = quantization.scale_index
    if (
        isinstance(quantization, (PerChannelAffine, PerBlockAffine))
        and quantization.zero_point_index is not None
    ):
        found["zero_point_index"] = quantization.zero_point_index
    return found

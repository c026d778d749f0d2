"""Reads quantization sections and checks the rules that need no tensor (R1 .. R6, R10, R15, R20, R22)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from ..errors import DescriptorError
from .quantization import (
    MXFP,
    NF4,
    NO_BUFFER,
    SCALE_TAGS,
    SCHEMES,
    SYMMETRIC,
    KnownQuantization,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    Quantization,
    UnknownQuantization,
)
from .reader import Cursor
from .rules import broken

_DEFINED_FLAGS = {PerChannelAffine.tag: SYMMETRIC, PerBlockAffine.tag: SYMMETRIC}
_SCALE_NAMES = {tag: name for name, tag in SCALE_TAGS.items()}
_BODIES = {
    PerTensorAffine.tag: struct.Struct("<fi"),
    PerChannelAffine.tag: struct.Struct("<IIIB"),
    PerBlockAffine.tag: struct.Struct("<IIIIB"),
    NF4.tag: struct.Struct("<III"),
    MXFP.tag: struct.Struct("<III"),
}
_FIELD_OFFSETS = {
    "scale": (4, 4, 4, 4, 4),
    "zero_point": (8, 8, 8, 8, 8),
    "axis": (4, 4, 4, 4, 4),
    "block_size": (8, 8, 8, 8, 8),
    "scale_index": (8, 8, 12, 12, 12),
    "zero_point_index": (12, 12, 16, 16, 16),
    "scale_type": (16, 16, 20, 20, 20),
}


def decode_quantization(data: bytes, *, permissive: bool = False) -> Quantization:
    """Decode the bytes of a quantization section; bytes beyond the scheme's length are ignored.

    Args:
        data: the section, without its length field.
        permissive: return schemes that are not known as UnknownQuantization.

    Raises:
        DescriptorError: a rule of the format is broken; `offset` counts from the section's first byte.

    Source: Hurray format, 3.
    """
    return read_quantization(Cursor(bytes(data), too_short), permissive=permissive)[0]


def read_quantization(section: Cursor, *, permissive: bool) -> tuple[Quantization, bytes]:
    """Read a section to its end: the scheme and the bytes that follow it."""
    start, length = section.offset, section.remaining
    tag = section.u8("quantization.scheme_tag")
    kind = SCHEMES.get(tag)
    if kind is None:
        return _unknown_scheme(tag, section, permissive=permissive), b""
    if length < kind.length:
        raise too_short("quantization", start, kind.length, length)
    flags = _read_header(kind, section)
    fields = section.unpack(_BODIES[tag], "quantization")
    _check_reserved(section, start + kind.length)
    quantization = _build(kind, flags, fields, start)
    for error in quantization_violations(quantization, start):
        raise error
    return quantization, section.take(section.remaining, "quantization")


def quantization_violations(quantization: Quantization, start: int = 0) -> Iterator[DescriptorError]:
    """Each broken rule about the section alone (R10, R20); `start` is the section's offset."""
    if isinstance(quantization, PerTensorAffine):
        scale = quantization.scale
        if not math.isfinite(scale) or scale == 0:
            message = f"the scale is {scale}"
            yield broken("R20", message, field="quantization.scale", offset=start + 4, found=scale)
    elif isinstance(quantization, (PerBlockAffine, NF4, MXFP)):
        size = quantization.block_size
        low, high = quantization.block_range
        if not low <= size <= high or size & (size - 1):
            ends = f"{low} to {high}" if high < 1 << 31 else f"{low} or more"
            yield broken(
                "R10",
                f"block size {size} is not a power of two, {ends}",
                field="quantization.block_size",
                offset=start + 8,
                found=size,
            )


def field_offset(quantization: Quantization, field: str) -> int:
    """Offset of a field in the section of a scheme."""
    return _FIELD_OFFSETS[field][quantization.tag - 1]


def too_short(field: str, offset: int, needed: int, there: int) -> DescriptorError:
    """R5: the section ends before the scheme does."""
    message = f"the section has {there} bytes where {needed} are needed"
    return broken("R5", message, field=field, offset=offset, found=there)


def _unknown_scheme(tag: int, section: Cursor, *, permissive: bool) -> UnknownQuantization:
    field, offset = "quantization.scheme_tag", section.offset - 1
    if tag in (0x00, 0xFF):
        raise broken("R1", f"scheme tag 0x{tag:02X}", field=field, offset=offset, found=tag)
    if not permissive:
        space = "private" if tag >= 0xF0 else "reserved" if tag >= 0x60 else "not assigned"
        raise broken(
            "R2",
            f"scheme tag 0x{tag:02X} is {space}",
            field=field,
            offset=offset,
            found=tag,
            hint="permissive reading keeps the section, without interpreting the data",
        )
    return UnknownQuantization(bytes([tag]) + section.take(section.remaining, "quantization"))


def _read_header(kind: type[KnownQuantization], section: Cursor) -> int:
    """R3 and R4: version and flags, which are returned."""
    offset = section.offset
    version = section.u8("quantization.scheme_version")
    if version != 1:
        message = f"{kind.__name__} has scheme version {version}"
        raise broken("R3", message, field="quantization.scheme_version", offset=offset, found=version)
    flags = section.u16("quantization.flags")
    if flags & ~_DEFINED_FLAGS.get(kind.tag, 0):
        message = f"{kind.__name__} has flags 0x{flags:04X}"
        raise broken("R4", message, field="quantization.flags", offset=offset + 1, found=flags)
    return flags


def _check_reserved(section: Cursor, end: int) -> None:
    """R6: the bytes from here to the end of the scheme are zero."""
    offset = section.offset
    reserved = section.take(end - offset, "quantization.reserved")
    if any(reserved):
        message = f"reserved bytes are {reserved.hex(' ')}"
        raise broken("R6", message, field="quantization.reserved", offset=offset, found=reserved)


def _build(
    kind: type[KnownQuantization], flags: int, fields: tuple[int, ...], start: int
) -> KnownQuantization:
    if kind is PerTensorAffine:
        return PerTensorAffine(*fields)
    if kind is PerChannelAffine:
        axis, scale_index, stored, scale_tag = fields
        zero_point_index = _zero_point_index(kind, flags, stored, start)
        _scale_name(kind, scale_tag, ("float32",), start)
        return PerChannelAffine(axis, scale_index, zero_point_index)
    if kind is PerBlockAffine:
        axis, block_size, scale_index, stored, scale_tag = fields
        zero_point_index = _zero_point_index(kind, flags, stored, start)
        scale_type = _scale_name(kind, scale_tag, tuple(SCALE_TAGS), start)
        return PerBlockAffine(axis, block_size, scale_index, zero_point_index, scale_type)
    return NF4(*fields) if kind is NF4 else MXFP(*fields)


def _zero_point_index(kind: type[KnownQuantization], flags: int, stored: int, start: int) -> int | None:
    """R15, and R13 where zero points are needed and there are none."""
    offset = start + _FIELD_OFFSETS["zero_point_index"][kind.tag - 1]
    if flags & SYMMETRIC:
        if stored == NO_BUFFER:
            return None
        rule, message = "R15", f"a symmetric scheme has zero-point index {stored}"
    elif stored != NO_BUFFER:
        return stored
    else:
        rule, message = "R13", "zero points are needed, but their index is 0xFFFFFFFF (none)"
    raise broken(rule, message, field="quantization.zero_point_index", offset=offset, found=stored)


def _scale_name(kind: type[KnownQuantization], tag: int, allowed: tuple[str, ...], start: int) -> str:
    """R22: the name of a scale type."""
    name = _SCALE_NAMES.get(tag)
    if name in allowed:
        return name
    raise broken(
        "R22",
        f"scale type tag 0x{tag:02X}, need {' or '.join(f'0x{SCALE_TAGS[n]:02X} ({n})' for n in allowed)}",
        field="quantization.scale_type",
        offset=start + _FIELD_OFFSETS["scale_type"][kind.tag - 1],
        found=tag,
    )

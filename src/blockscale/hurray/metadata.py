"""Key-value metadata of a `.hrry` file: bytes to a dict and back, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import ContainerError, InputError
from .reader import Cursor
from .rules import RULES, broken_file

MAX_NAME = 0xFFFF
_STRING, _I64, _U64, _F64, _BOOL, _BYTES, _ARRAY = range(1, 8)
_KINDS = {_STRING: str, _I64: int, _U64: int, _F64: float, _BOOL: bool, _BYTES: bytes}
_LEAST = {_STRING: 4, _I64: 8, _U64: 8, _F64: 8, _BOOL: 1, _BYTES: 4}
_NUMBERS = {_I64: struct.Struct("<q"), _U64: struct.Struct("<Q"), _F64: struct.Struct("<d")}


class U64(int):
    """An integer that the file holds as unsigned 64 bits; plain ones are signed where they fit."""


class MetadataList(list[Any]):
    """A list of metadata that knows its element kind (`tag`), also when it is empty."""

    def __init__(self, values: Iterable[Any] = (), tag: int = _STRING) -> None:
        super().__init__(values)
        self.tag = tag


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """The metadata section.

    Args:
        metadata: str keys; values str, int (64 bits), float, bool, bytes, or lists of one of these.

    Raises:
        InputError: a key or value that the section cannot hold; `field` names the key.

    Source: Hurray format, 4.1.
    """
    parts = [struct.pack("<I", len(metadata))]
    for key, value in metadata.items():
        name = encode_name(key, "metadata key", "F11")
        tag, payload = _encode_value(key, value)
        parts += [struct.pack("<H", len(name)), name, bytes([tag]), payload]
    return b"".join(parts)


def encode_name(name: str, what: str, rule: str) -> bytes:
    """A key or tensor name as UTF-8 of 1 to 65535 bytes; InputError if it is none."""
    text, data = str(RULES[rule]), b""
    if isinstance(name, str):
        try:
            data = name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{what} {name!r} is not Unicode text: {error.reason}", rule=text) from None
    if not 1 <= len(data) <= MAX_NAME:
        raise InputError(f"{what} {str(name)[:40]!r} has {len(data)} bytes", found=name, rule=text)
    return data


def decode_metadata(data: bytes, base: int = 0) -> dict[str, Any]:
    """Read a metadata section; integers stored unsigned come as `U64`, arrays as `MetadataList`.

    Args:
        data: the section.
        base: its offset in the file, for errors.

    Raises:
        ContainerError: the section breaks a rule.
    """
    cursor = Cursor(data, _overrun, base=base)
    count = cursor.u32("metadata.count")
    if count > cursor.remaining // 4:  # an entry takes 2 + 1 + 1 bytes and more
        message = f"{count} entries in {cursor.remaining} bytes"
        raise broken_file("F22", message, field="metadata.count", offset=base, found=count)
    metadata: dict[str, Any] = {}
    for _ in range(count):
        offset = cursor.offset
        key = read_name(cursor, "metadata key", "F11")
        if key in metadata:
            message = f"the key {key!r} appears twice"
            raise broken_file("F11", message, field="metadata key", offset=offset, found=key)
        metadata[key] = _decode_value(cursor, key)
    if cursor.remaining:
        message = f"{cursor.remaining} bytes are left after the last entry"
        raise broken_file("F12", message, field="metadata", offset=cursor.offset)
    return metadata


def read_name(cursor: Cursor, what: str, rule: str) -> str:
    """A length-prefixed UTF-8 name that is not empty."""
    offset = cursor.offset
    data = cursor.take(cursor.u16(what), what)
    if not data:
        raise broken_file(rule, f"an empty {what}", field=what, offset=offset)
    return _text(data, what, rule, offset)


def _overrun(field: str, offset: int, needed: int, there: int) -> ContainerError:
    message = f"{needed} bytes are needed, {there} are left in the section"
    return broken_file("F12", message, field=field, offset=offset, found=there)


def _text(data: bytes, what: str, rule: str, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason} at byte {error.start}"
        raise broken_file(rule, message, field=what, offset=offset, found=data[:64]) from None


def _decode_value(cursor: Cursor, key: str) -> Any:
    offset, field = cursor.offset, f"metadata[{key!r}]"
    tag = cursor.u8(field)
    if tag in _KINDS:
        return _decode_scalar(cursor, tag, field)
    if tag != _ARRAY:
        raise broken_file("F12", f"value tag {tag}", field=field, offset=offset, found=tag)
    element = cursor.u8(field)
    if element not in _KINDS:
        raise broken_file("F12", f"element tag {element}", field=field, offset=offset + 1, found=element)
    count = cursor.u32(field)
    if count > cursor.remaining // _LEAST[element]:
        message = f"{count} elements in {cursor.remaining} bytes"
        raise broken_file("F22", message, field=field, offset=offset + 2, found=count)
    return MetadataList([_decode_scalar(cursor, element, field) for _ in range(count)], element)


def _decode_scalar(cursor: Cursor, tag: int, field: str) -> Any:
    offset = cursor.offset
    if tag in _NUMBERS:
        number = _NUMBERS[tag].unpack(cursor.take(8, field))[0]
        return U64(number) if tag == _U64 else number
    if tag == _BOOL:
        value = cursor.u8(field)
        if value > 1:
            raise broken_file("F12", f"a bool of {value}", field=field, offset=offset, found=value)
        return value == 1
    data = cursor.take(cursor.u32(field), field)
    return data if tag == _BYTES else _text(data, field, "F12", offset)


def _encode_value(key: str, value: Any) -> tuple[int, bytes]:
    if not isinstance(value, (list, tuple)):
        plain = _plain(key, value)
        tag = _tag_of(plain)
        return tag, _encode_scalar(key, tag, plain)
    items = [_plain(key, item) for item in value]
    tags = {_tag_of(item) for item in items}
    if tags == {_I64, _U64}:  # one large number makes the whole list unsigned
        tags = {_U64}
    tag = value.tag if isinstance(value, MetadataList) else max(tags, default=_STRING)
    same = {_I64, _U64} if tag in (_I64, _U64) else {tag}
    if tag not in _KINDS or not tags <= same:
        message = "the elements of a list are of different kinds"
        raise InputError(message, field=f"metadata[{key!r}]", found=value, rule=str(RULES["F12"]))
    payload = b"".join(_encode_scalar(key, tag, item) for item in items)
    return _ARRAY, struct.pack("<BI", tag, len(items)) + payload


def _plain(key: str, value: Any) -> Any:
    """NumPy scalars and byte buffers as Python's own."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, (str, bytes, bool, int, float)):
        raise InputError(
            f"a {type(value).__name__} cannot be metadata",
            field=f"metadata[{key!r}]",
            found=value,
            rule=str(RULES["F12"]),
            hint="str, int, float, bool, bytes, or a list of one of these",
        )
    return value


def _tag_of(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _U64 if isinstance(value, U64) or value >= 1 << 63 else _I64
    if isinstance(value, float):
        return _F64
    return _STRING if isinstance(value, str) else _BYTES


def _encode_scalar(key: str, tag: int, value: Any) -> bytes:
    try:
        if tag in _NUMBERS:
            return _NUMBERS[tag].pack(value)
        if tag == _BOOL:
            return bytes([bool(value)])
        data = value.encode() if tag == _STRING else bytes(value)
        return struct.pack("<I", len(data)) + data
    except (struct.error, UnicodeEncodeError, AttributeError, TypeError) as error:
        message = f"{str(value)[:40]!r} cannot be stored: {error}"
        raise InputError(message, field=f"metadata[{key!r}]", rule=str(RULES["F12"])) from None

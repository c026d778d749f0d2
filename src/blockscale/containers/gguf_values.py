"""Metadata values of GGUF files: kept as stored, so that rewriting cannot change one."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .gguf_cursor import Cursor, show

_MAX_DEPTH = 4
_U64 = struct.Struct("<Q")
_HEAD = struct.Struct("<IQ")  # of an array: item type, count


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of metadata values.

    Attributes:
        id: its number in files.
        name: its name.
        dtype: little-endian dtype of a number, else None.
        least: fewest bytes that a value takes.
    """

    id: int
    name: str
    dtype: np.dtype[Any] | None
    least: int


def _number(number: int, name: str, dtype: Any) -> ValueType:
    kind = np.dtype(dtype).newbyteorder("<")
    return ValueType(number, name, kind, kind.itemsize)


# fmt: off
_TABLE = (
    _number(0, "uint8", np.uint8),       _number(1, "int8", np.int8),
    _number(2, "uint16", np.uint16),     _number(3, "int16", np.int16),
    _number(4, "uint32", np.uint32),     _number(5, "int32", np.int32),
    _number(10, "uint64", np.uint64),    _number(11, "int64", np.int64),
    _number(6, "float32", np.float32),   _number(12, "float64", np.float64),
    _number(7, "bool", np.bool_),
    ValueType(8, "string", None, 8),     ValueType(9, "array", None, _HEAD.size),
)
# fmt: on

VALUE_TYPES: dict[str, ValueType] = {row.name: row for row in _TABLE}
_BY_ID: dict[int, ValueType] = {row.id: row for row in _TABLE}


@dataclass(frozen=True)
class GgufValue:
    """One metadata value.

    Attributes:
        type: `uint8` .. `int64`, `float32`, `float64`, `bool`, `string` or `array`.
        raw: the bytes as stored after the type number; of an array: item type, count, items.
    """

    type: str
    raw: bytes

    @property
    def item_type(self) -> str | None:
        """Type of an array's items; None of other values."""
        return _BY_ID[_HEAD.unpack_from(self.raw)[0]].name if self.type == "array" else None

    def __len__(self) -> int:
        """Number of an array's items; 1 of other values."""
        return int(_HEAD.unpack_from(self.raw)[1]) if self.type == "array" else 1

    @cached_property
    def value(self) -> Any:
        """As Python has it: int, float, bool, str; arrays: a read-only ndarray, strings a list of str.

        Bytes of a string that are not UTF-8 show as hexadecimal escapes; `raw` has them unchanged.
        """
        return _decode(self.raw, 0, VALUE_TYPES[self.type])[0]

    def __repr__(self) -> str:
        """Type and (shortened) value."""
        return f"GgufValue({self.type!r}, {show(self.value)})"


def read_value(cursor: Cursor, key: str) -> GgufValue:
    """The value at the cursor, which begins with its type number.

    Raises:
        ContainerError: an unknown type, or lengths that do not fit into the file.
    """
    kind = _read_type(cursor, key)
    begin = cursor.at
    _skip(cursor, kind, key, 0)
    return GgufValue(kind.name, cursor.buffer[begin : cursor.at])


def _read_type(cursor: Cursor, key: str) -> ValueType:
    begin, number = cursor.at, cursor.u32(key)
    if number not in _BY_ID:
        rule = f"value types are 0 to {len(_BY_ID) - 1}"
        raise cursor.error(f"the value has type {number}", rule, found=number, field=key, offset=begin)
    return _BY_ID[number]


def _skip(cursor: Cursor, kind: ValueType, key: str, depth: int) -> None:
    if kind.name == "array":
        _skip_array(cursor, key, depth)
    elif kind.name == "string":
        _skip_strings(cursor, 1, key)
    else:
        _skip_numbers(cursor, kind, 1, key)


def _skip_array(cursor: Cursor, key: str, depth: int) -> None:
    item = _read_type(cursor, key)
    count = cursor.count(key, item.least)
    if item.name == "string":
        _skip_strings(cursor, count, key)
    elif item.name != "array":
        _skip_numbers(cursor, item, count, key)
    elif depth + 1 == _MAX_DEPTH:
        raise cursor.error("arrays are nested too deeply", f"{_MAX_DEPTH} levels at most", field=key)
    else:
        for _ in range(count):
            _skip_array(cursor, key, depth + 1)


def _skip_numbers(cursor: Cursor, kind: ValueType, count: int, key: str) -> None:
    end = cursor.need(count * kind.least, key)
    if kind.name == "bool":
        values = np.frombuffer(cursor.buffer, np.uint8, count, cursor.at)
        if count and values.max() > 1:
            first = int(np.argmax(values > 1))
            message = f"a bool is {values[first]}"
            rule = "a bool is 0 or 1"
            raise cursor.error(message, rule, found=int(values[first]), field=key, offset=cursor.at + first)
    cursor.at = end


def _skip_strings(cursor: Cursor, count: int, key: str) -> None:
    """Walk over strings; vocabularies have hundreds of thousands, so the loop does nothing else."""
    unpack = _U64.unpack_from
    at, buffer = cursor.at, cursor.buffer
    edge = len(buffer) - 8
    for _ in range(count):
        if at > edge:
            cursor.at = at
            cursor.need(8, key)
            buffer, edge = cursor.buffer, len(cursor.buffer) - 8
        begin = at
        at += 8 + unpack(buffer, at)[0]
        if at > edge:  # also where a length is nonsense
            cursor.at = begin
            cursor.need(at - begin, key)
            buffer, edge = cursor.buffer, len(cursor.buffer) - 8
    cursor.at = at


def _decode(raw: bytes, at: int, kind: ValueType) -> tuple[Any, int]:
    """The value at `at` and where it ends; lengths have been checked by then."""
    if kind.dtype is not None:
        end = at + kind.least
        return np.frombuffer(raw, kind.dtype, 1, at)[0].item(), end
    if kind.name == "string":
        end = at + 8 + _U64.unpack_from(raw, at)[0]
        return raw[at + 8 : end].decode("utf-8", "backslashreplace"), end
    number, count = _HEAD.unpack_from(raw, at)
    item, at = _BY_ID[number], at + _HEAD.size
    if item.dtype is not None:
        return np.frombuffer(raw, item.dtype, count, at), at + count * item.least
    items = []
    for _ in range(count):
        value, at = _decode(raw, at, item)
        items.append(value)
    return items, at


def gguf_value(value: Any, type: str | None = None) -> GgufValue:
    """A metadata value from a Python one.

    Args:
        value: bool, int, float, str, a NumPy scalar or one-dimensional array, or a list or tuple of one kind.
        type: type of the number or of the items. By default bool, str and NumPy dtypes are as they are; an
            integer becomes the first of uint32, int32, uint64, int64 that holds it (all of a list); a float
            becomes float32 if that is exact, else float64.

    Raises:
        InputError: a value that GGUF, or `type`, cannot hold exactly.
    """
    if isinstance(value, GgufValue):
        return value
    if isinstance(value, np.ndarray):
        type = type or value.dtype.name
        value = value.tolist()
    elif isinstance(value, np.generic):
        return gguf_value(value.item(), type or value.dtype.name)
    if not isinstance(value, list | tuple):
        kind = _type_of([value], type)
        return GgufValue(kind.name, _encode_items([value], kind))
    kind = _type_of(value, type)
    return GgufValue("array", _HEAD.pack(kind.id, len(value)) + _encode_items(value, kind))


def _type_of(items: list[Any] | tuple[Any, ...], wanted: str | None) -> ValueType:
    name = wanted or _guess(items)
    if name not in VALUE_TYPES or name == "array":
        found = show(items[0]) if items else "an empty list"
        raise InputError(
            f"no type of GGUF metadata fits {found}" if wanted is None else f"unknown value type {wanted!r}",
            found=wanted,
            rule="metadata are numbers, booleans, strings, and lists of one of them",
            hint=f"type= one of {', '.join(name for name in VALUE_TYPES if name != 'array')}",
        )
    return VALUE_TYPES[name]


def _guess(items: list[Any] | tuple[Any, ...]) -> str:
    kinds = {type(item) for item in items}
    if kinds == {bool}:
        return "bool"
    if kinds == {str}:
        return "string"
    if kinds == {int}:
        names = ("uint32", "int32", "uint64", "int64")
        return next((n for n in names if all(_fits(item, VALUE_TYPES[n]) for item in items)), "")
    if kinds and kinds <= {int, float}:
        return "float32" if all(_fits(item, VALUE_TYPES["float32"]) for item in items) else "float64"
    return ""


def _fits(item: Any, kind: ValueType) -> bool:
    """Whether a number survives being stored."""
    if kind.name == "string":
        return isinstance(item, str)
    if kind.dtype is None or isinstance(item, bool) != (kind.name == "bool"):
        return False
    if kind.dtype.kind in "iu":
        info = np.iinfo(kind.dtype)
        return isinstance(item, int) and info.min <= item <= info.max
    if kind.name == "bool":
        return True
    if not isinstance(item, int | float):
        return False
    try:
        with np.errstate(over="ignore"):
            return bool(float(kind.dtype.type(item)) == item or math.isnan(item))
    except OverflowError:  # an int beyond float64
        return False


def _encode_items(items: list[Any] | tuple[Any, ...], kind: ValueType) -> bytes:
    bad = next((item for item in items if not _fits(item, kind)), None)
    if bad is not None or None in items:
        raise InputError(
            f"{show(bad)} does not fit {kind.name}",
            found=bad,
            rule="metadata are stored exactly, one type for all items",
        )
    if kind.dtype is None:
        encoded = [_encode_text(item) for item in items]
        return b"".join(_U64.pack(len(text)) + text for text in encoded)
    array: NDArray[Any] = np.array(items, kind.dtype)
    return array.tobytes()


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{show(text)} is not Unicode text", found=text, rule="strings are UTF-8") from None

"""Reading the header of a safetensors file without trusting it.

A file is a little-endian 64-bit header length, a JSON header, and one buffer that the tensors tile.
Source: https://github.com/huggingface/safetensors, README "Format" and `tensor.rs`, as of 0.8.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import BlockscaleError, ContainerError, error_context
from .base import read_exactly
from .safetensors_guard import ITEMS_RULE, too_many_items
from .safetensors_table import DTYPES, MAX_HEADER, METADATA, ArrayEntry, StoredDtype, is_text
from .sniff import PEEK, recognise_foreign

_MAX_SIZE = 2**63 - 1
_FIELDS = ("dtype", "shape", "data_offsets")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True)
class Header:
    """A header that has been checked.

    Attributes:
        metadata: the free-form strings.
        entries: name to entry, in the order of the offsets.
        problems: what is odd but harmless, one sentence each.
    """

    metadata: dict[str, str]
    entries: dict[str, ArrayEntry]
    problems: list[str]


def read_header(fd: int, file: str, *, tolerant: bool = False) -> Header:
    """Read and check the header of an open file; no size in it is trusted before it is checked.

    Args:
        fd: descriptor of a regular file.
        file: its name, for messages.
        tolerant: let bytes after the last tensor pass, as a problem.

    Raises:
        ContainerError: the file breaks a rule of the format, or is of another kind.
    """
    with error_context(file=file):
        size = os.fstat(fd).st_size
        first = bytearray(min(size, PEEK))
        read_exactly(fd, 0, memoryview(first), file=file)
        text = bytearray(_header_length(bytes(first), size))
        read_exactly(fd, 8, memoryview(text), file=file)
        return parse_header(text, size, tolerant=tolerant)


def _header_length(first: bytes, size: int) -> int:
    """Bytes of the JSON text: at most `MAX_HEADER`, and inside the file."""
    length = int.from_bytes(first[:8], "little")
    fault = None
    if size < 10:
        fault = f"{size} bytes are too few for a safetensors file"
    elif length > MAX_HEADER:
        fault = f"the header would be {length:,} bytes long"
    elif length < 2:
        fault = f"the header length is {length}, too short for any header"
    elif first[8:9] != b"{":
        fault = f"the header begins with {first[8:9]!r} instead of '{{'"
    elif 8 + length > size:
        fault = f"the header ends at byte {8 + length:,}, but the file has {size:,} bytes"
    if fault is None:
        return length
    rule = f"8 bytes of header length (2 to {MAX_HEADER:,}), then that many bytes of JSON"
    foreign = recognise_foreign(first)
    if foreign is not None and foreign.kind != "safetensors":
        raise _error(foreign.text, rule, first[:16], hint=foreign.hint)
    hint = "the file is cut short or is not safetensors: download or write it again"
    raise _error(fault, rule, length, field="header length", offset=0, hint=hint)


def parse_header(text: bytes | bytearray, file_size: int, *, tolerant: bool = False) -> Header:
    """Check a header.

    Args:
        text: the JSON text, without the eight bytes before it.
        file_size: bytes of the whole file.
        tolerant: let bytes after the last tensor pass, as a problem.

    Raises:
        ContainerError: the header breaks a rule of the format.
    """
    raw = _load_json(text)
    metadata = _check_metadata(raw.pop(METADATA, None))
    problems: list[str] = []
    start = 8 + len(text)
    entries = [_read_entry(name, info, start, problems) for name, info in raw.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    surplus = _check_cover(entries, start, file_size, tolerant=tolerant)
    problems += [surplus] if surplus else []
    return Header(metadata, {entry.name: entry for entry in entries}, problems)


def find_header_faults(fd: int, file: str) -> list[ContainerError]:
    """Every broken rule of a header, not only the first; one that is no JSON object hides the others.

    Args:
        fd: descriptor of a regular file.
        file: its name, for messages.
    """
    found: list[ContainerError] = []
    size = os.fstat(fd).st_size
    first = bytearray(min(size, PEEK))
    try:
        read_exactly(fd, 0, memoryview(first), file=file)
        text = bytearray(_header_length(bytes(first), size))
        read_exactly(fd, 8, memoryview(text), file=file)
        raw = _load_json(text)
    except ContainerError as error:
        return [error]
    entries = []
    try:
        _check_metadata(raw.pop(METADATA, None))
    except ContainerError as error:
        found.append(error)
    for name, info in raw.items():
        try:
            entries.append(_read_entry(name, info, 8 + len(text), []))
        except ContainerError as error:
            found.append(error)
    if len(entries) == len(raw):  # a tensor that cannot be read would look like a hole
        entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
        found += _cover_faults(entries, 8 + len(text), size)
    return found


def _load_json(text: bytes | bytearray) -> dict[str, Any]:
    rule = "the header is one JSON object in UTF-8"
    if (fault := too_many_items(text)) is not None:
        raise _error(fault, ITEMS_RULE, hint="the file is damaged or hostile: download or write it again")
    try:
        decoded = text.decode("utf-8")
        raw = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_constant)
    except BlockscaleError:
        raise
    except UnicodeDecodeError as error:
        at, found = 8 + error.start, bytes(text[error.start : error.end])
        raise _error(f"the header is not UTF-8 at byte {at:,}", rule, found) from None
    except RecursionError:
        raise _error("the header is nested too deeply", rule) from None
    except json.JSONDecodeError as error:
        raise _error(f"the header is not JSON: {error}", rule, bytes(text[:32])) from None
    except ValueError:  # Python converts no integer of thousands of digits
        raise _error("the header contains a number of thousands of digits", rule) from None
    if not isinstance(raw, dict):
        raise _error(f"the header is {_show(raw)}", rule, raw)
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _error(f"the key {_show(key)} occurs twice", "keys of the header are unique", key)
    return found


def _constant(text: str) -> NoReturn:
    raise _error(f"the header contains {text}", "numbers of the header are integers", text)


def _check_metadata(raw: Any) -> dict[str, str]:
    if raw is None:
        return {}
    rule = f"{METADATA} maps strings to strings"
    if not isinstance(raw, dict):
        raise _error(f"found {_show(raw)}", rule, raw, field=METADATA)
    for key, value in raw.items():
        if not (isinstance(value, str) and is_text(key) and is_text(value)):
            message = f"the value of {_show(key)} is {_show(value)}"
            raise _error(message, rule, value, field=METADATA)
    return raw


def _read_entry(name: str, info: Any, start: int, problems: list[str]) -> ArrayEntry:
    rule = f"tensors have Unicode names and the fields {', '.join(_FIELDS)}"
    if not is_text(name):
        raise _error(f"the tensor name {_show(name)} is not Unicode text", rule, name)
    if not isinstance(info, dict):
        raise _error(f"its description is {_show(info)}", rule, info, tensor=name)
    for field in _FIELDS:
        if field not in info:
            raise _error("the field is missing", rule, list(info), tensor=name, field=field)
    if extra := [key for key in info if key not in _FIELDS]:
        problems.append(f"tensor {_show(name)}: unknown fields {_show(extra)} are ignored")
    stored = _read_dtype(name, info["dtype"], problems)
    shape = _read_counts(name, "shape", info["shape"])
    offsets = _read_counts(name, "data_offsets", info["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        rule, found = "data_offsets is [begin, end], begin <= end", list(offsets)
        raise _error(f"found {_show(found)}", rule, found, tensor=name, field="data_offsets")
    begin, nbytes = start + offsets[0], offsets[1] - offsets[0]
    _check_size(name, stored, shape, nbytes)
    dtype, bits = (stored.dtype, stored.bits) if stored else (None, None)
    return ArrayEntry(name, info["dtype"], dtype, bits, shape, begin, nbytes)


def _read_dtype(name: str, raw: Any, problems: list[str]) -> StoredDtype | None:
    if not (isinstance(raw, str) and is_text(raw)):
        raise _error(f"found {_show(raw)}", "dtype is a string", raw, tensor=name, field="dtype")
    if raw not in DTYPES:
        problems.append(
            f"tensor {_show(name)}: the dtype {_show(raw)} is unknown; only its bytes can be read"
        )
    return DTYPES.get(raw)


def _read_counts(name: str, field: str, raw: Any) -> tuple[int, ...]:
    rule = f"{field} is a list of integers from 0 to 2**63 - 1"
    if not isinstance(raw, list):
        raise _error(f"found {_show(raw)}", rule, raw, tensor=name, field=field)
    for value in raw:
        if type(value) is not int or not 0 <= value <= _MAX_SIZE:  # isinstance takes True for 1
            message = f"found {_show(value)} in {_show(raw)}"
            raise _error(message, rule, value, tensor=name, field=field)
    return tuple(raw)


def _check_size(name: str, stored: StoredDtype | None, shape: tuple[int, ...], size: int) -> None:
    """Shape, dtype and byte count agree, in Python integers, which do not overflow."""
    bits = stored.bits if stored else 8
    count = 1
    for dim in shape:
        count *= dim or 1  # NumPy multiplies the other sizes even where one is zero
        if count * max(bits, 8) // 8 > _MAX_SIZE:  # at once: long lists would make huge products
            message = f"{_show(list(shape))} is too large"
            rule = "the sizes of a tensor multiply to less than 2**63 bytes"
            raise _error(message, rule, shape, tensor=name, field="shape")
    need = 0 if 0 in shape else count * bits
    if stored is None or need == 8 * size:
        return
    wants = f"{need // 8:,} bytes" if need % 8 == 0 else f"{need:,} bits, not whole bytes"
    raise _error(
        f"{stored.name} of shape {_show(list(shape))} takes {wants}; it is given {size:,} bytes",
        "bytes = product of shape * bits per element / 8, exactly",
        size,
        tensor=name,
        field="data_offsets",
    )


def _check_cover(entries: list[ArrayEntry], start: int, size: int, *, tolerant: bool) -> str | None:
    """Tensors tile the buffer, so nothing can hide in it. Returns a sentence on any surplus."""
    for error in _cover_faults(entries, start, size):
        if error.tensor is None and tolerant:
            return error.message
        raise error
    return None


def _cover_faults(entries: list[ArrayEntry], start: int, size: int) -> Iterator[ContainerError]:
    """Each place where the tensors, in the order of their offsets, do not tile the buffer."""
    rule = "tensors cover the buffer exactly: no hole, no overlap, nothing after the last"
    end, last = start, None
    for entry in entries:
        fault = hint = None
        begin, gap = entry.offset - start, entry.offset - end
        if gap < 0:
            fault = f"it begins at {begin:,}, {-gap:,} bytes inside {_before(last)}"
        elif gap > 0:
            fault = f"it begins at {begin:,}; the {gap:,} bytes after {_before(last)} belong to nothing"
        elif entry.offset + entry.nbytes > size:
            fault = f"it ends at byte {entry.offset + entry.nbytes:,}, the file at {size:,}"
            hint = "the file is cut short: download or write it again"
        if fault:
            yield _error(fault, rule, begin, tensor=entry.name, field="data_offsets", hint=hint)
        if entry.offset + entry.nbytes >= end:
            end, last = entry.offset + entry.nbytes, entry.name
    if end < size:
        surplus = f"{size - end:,} bytes follow {_before(last)}, from byte {end:,} of the file on"
        yield _error(surplus, rule, size - end, hint="tolerant=True ignores them")


def _before(name: str | None) -> str:
    return "the header" if name is None else f"tensor {_show(name)}"


def _show(value: Any) -> str:
    """A short representation: a hostile value must not flood the message."""
    return _SHORT.repr(value)


def _error(message: str, rule: str, found: Any = None, **where: Any) -> ContainerError:
    return ContainerError(message, rule=f"safetensors: {rule}", found=found, **where)

"""Laying out a GGUF file before any data exist, from specs alone."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError, error_context
from .gguf_header import MAGIC, VERSIONS, align_up, read_alignment
from .gguf_types import MAX_DIMS, MAX_NAME, GgmlType, GgufEntry, explain_length, ggml_type
from .gguf_values import VALUE_TYPES, GgufValue, gguf_value

Spec = tuple[str, "str | GgmlType", Sequence[int]]
"""Name, type (`"Q4_0"`) and shape (in elements, NumPy's order) of a tensor to come."""

_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before its data.

    Attributes:
        prefix: all that precedes the data, padding included.
        entries: name to entry, in the order of the specs and of the offsets.
        size: bytes of the whole file.
    """

    prefix: bytes
    entries: dict[str, GgufEntry]
    size: int


def plan_layout(
    specs: Sequence[Spec],
    metadata: Mapping[str, Any] | None = None,
    *,
    version: int = 3,
    pad_end: bool = True,
) -> Layout:
    """Lay out a file: tensors in the order of `specs`, each at the next multiple of the alignment.

    Args:
        specs: name, type and shape of each tensor.
        metadata: key to `GgufValue`, or to anything that `gguf_value` takes. `general.alignment` (uint32)
            sets the alignment, else 32.
        version: 2 or 3.
        pad_end: whether padding follows the last tensor, as llama.cpp and the gguf package write it.

    Raises:
        InputError: a name twice or too long, an unknown type, a shape that is not whole blocks, or metadata
            that GGUF cannot hold.
        ContainerError: an alignment that is none.
    """
    if version not in VERSIONS:
        raise InputError(f"GGUF version {version!r} is not written", found=version, rule="versions 2 and 3")
    values = {_check_key(key): gguf_value(value) for key, value in (metadata or {}).items()}
    alignment = read_alignment(values)
    planned: dict[str, GgufEntry] = {}
    end = 0
    for name, kind, shape in specs:
        with error_context(tensor=name if isinstance(name, str) else repr(name)):
            if name in planned:
                raise InputError("the name occurs twice", rule="names of tensors are unique")
            entry = _plan_entry(name, ggml_type(kind), shape)
        planned[name] = replace(entry, offset=align_up(end, alignment))
        end = planned[name].offset + entry.nbytes
    head = _encode_header(values, planned, version)
    start = align_up(len(head), alignment) if planned or pad_end else len(head)
    entries = {name: replace(e, offset=start + e.offset) for name, e in planned.items()}
    size = align_up(start + end, alignment) if pad_end else start + end
    return Layout(head.ljust(start, b"\0"), entries, size)


def _check_key(key: Any) -> str:
    if not isinstance(key, str) or not key or len(_encode(key)) > 65535:
        raise InputError(
            f"{key!r:.80} is no metadata key", found=key, rule="keys are text of 1 to 65,535 bytes"
        )
    return key


def _plan_entry(name: Any, kind: GgmlType, shape: Sequence[int]) -> GgufEntry:
    """An entry without offset."""
    if not isinstance(name, str) or not 0 < len(_encode(name)) <= MAX_NAME:
        raise InputError(
            f"the name takes {len(_encode(str(name)))} bytes",
            rule=f"ggml has room for names of 1 to {MAX_NAME} bytes",
            found=name,
            hint="give the tensor a shorter name",
        )
    sizes = tuple(operator.index(n) for n in shape)
    if len(sizes) > MAX_DIMS or any(n < 1 for n in sizes) or math.prod(sizes) >= 1 << 63:
        raise InputError(
            f"the shape {sizes} cannot be stored",
            rule=f"ggml has up to {MAX_DIMS} dimensions, none of them zero",
            found=sizes,
        )
    uneven = explain_length(sizes, kind.block_size)
    if uneven is not None:
        rule = f"rows of {kind.name} are whole blocks of {kind.block_size}"
        raise InputError(uneven, rule=f"GGUF: {rule}", found=sizes, hint="another type, such as F16 or BF16")
    nbytes = math.prod(sizes[:-1]) * kind.row_bytes(sizes[-1] if sizes else 1)
    return GgufEntry(name, kind, sizes, 0, nbytes)


def _encode_header(values: Mapping[str, GgufValue], entries: Mapping[str, GgufEntry], version: int) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", version, len(entries), len(values))]
    for key, value in values.items():
        parts += [_text(key), struct.pack("<I", VALUE_TYPES[value.type].id), value.raw]
    for entry in entries.values():
        sizes = tuple(reversed(entry.shape))
        parts += [_text(entry.name), struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(struct.pack("<IQ", entry.type.id, entry.offset))
    return b"".join(parts)


def _text(text: str) -> bytes:
    raw = _encode(text)
    return _U64.pack(len(raw)) + raw


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{text!r:.80} is not Unicode text", found=text, rule="names are UTF-8") from None

"""Laying out a safetensors file before any data exist, from specs alone."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from .safetensors_guard import ITEMS_RULE, too_many_items
from .safetensors_table import DTYPES, MAX_HEADER, METADATA, ArrayEntry, is_text

Spec = tuple[str, str, Sequence[int]]
"""Name, dtype name and shape (in elements) of a tensor to come."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before its data.

    Attributes:
        prefix: header length and header, all that precedes the data.
        entries: name to entry, in the order of the offsets.
        size: bytes of the whole file.
    """

    prefix: bytes
    entries: dict[str, ArrayEntry]
    size: int


def plan_layout(
    specs: Sequence[Spec], metadata: Mapping[str, str] | None = None, *, keep_order: bool = False
) -> Layout:
    """Lay out a file.

    Args:
        specs: name, dtype name and shape in elements of each tensor.
        metadata: strings to strings, written in this order; None leaves the key out.
        keep_order: keep the order of `specs`. By default tensors lie as the safetensors package
            puts them: by dtype, those of strict alignment first, then by name.

    Raises:
        InputError: a name twice, an unknown dtype, a shape that is not whole bytes, metadata that
            are not strings, or a header above 100 MB.

    Source: safetensors 0.8, `tensor.rs`, `prepare`.
    """
    planned = [_plan_entry(*spec) for spec in specs]
    if not keep_order:
        planned.sort(key=lambda entry: (-DTYPES[entry.dtype_name].rank, entry.name))
    header: dict[str, Any] = {}
    if metadata is not None:
        header[METADATA] = _plan_metadata(metadata)
    begins, end = [], 0
    for entry in planned:
        if entry.name in header:
            raise InputError("the name occurs twice", tensor=entry.name, rule="names of tensors are unique")
        begins.append(end)
        end += entry.nbytes
        header[entry.name] = {
            "dtype": entry.dtype_name,
            "shape": entry.shape,
            "data_offsets": (begins[-1], end),
        }
    prefix = _encode_header(header)
    start = len(prefix)
    entries = {
        entry.name: replace(entry, offset=start + begin) for entry, begin in zip(planned, begins, strict=True)
    }
    return Layout(prefix, entries, start + end)


def _encode_header(header: dict[str, Any]) -> bytes:
    """Length and JSON; padded with spaces so that data begin at a multiple of eight."""
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if (fault := too_many_items(text)) is not None:
        raise InputError(fault, rule=ITEMS_RULE, hint="spread the tensors over several files")
    if len(text) > MAX_HEADER:
        raise InputError(
            f"the header takes {len(text):,} bytes",
            rule=f"a safetensors header has at most {MAX_HEADER:,} bytes",
            hint="spread the tensors over several files",
        )
    return len(text).to_bytes(8, "little") + text


def _plan_entry(name: str, dtype_name: str, shape: Sequence[int]) -> ArrayEntry:
    """An entry without its offset."""
    if not isinstance(name, str) or name == METADATA or not is_text(name):
        raise InputError(
            f"{name!r} cannot name a tensor",
            rule=f"names are Unicode strings; {METADATA} is reserved",
            found=name,
        )
    if dtype_name not in DTYPES:
        raise InputError(
            f"safetensors has no dtype {dtype_name!r}",
            tensor=name,
            found=dtype_name,
            hint=f"one of {', '.join(DTYPES)}",
        )
    stored = DTYPES[dtype_name]
    sizes = tuple(operator.index(dim) for dim in shape)
    n_bits = math.prod(sizes) * stored.bits
    if any(dim < 0 for dim in sizes):
        raise InputError(f"a size is negative: {list(sizes)}", tensor=name, found=sizes)
    if n_bits % 8:
        raise InputError(
            f"{dtype_name} of shape {list(sizes)} takes {n_bits:,} bits, not whole bytes",
            rule="safetensors: product of shape * bits per element is a multiple of 8",
            tensor=name,
            found=sizes,
            hint="pad the last dimension",
        )
    return ArrayEntry(name, dtype_name, stored.dtype, stored.bits, sizes, 0, n_bits // 8)


def _plan_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    for pair in metadata.items():
        if not all(isinstance(text, str) and is_text(text) for text in pair):
            raise InputError(
                f"{pair!r} is not a pair of strings",
                rule=f"safetensors: {METADATA} maps strings to strings",
                field=METADATA,
                found=pair,
            )
    return dict(metadata)

"""Telling a header that would take far more memory than its bytes, before it is parsed.

Parsing makes some 60 to 200 bytes out of two to seven where a header is nothing but tiny lists or numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MAX_TENSORS = 1_000_000
_SMALL = 1 << 22  # bytes: what cannot grow beyond a hundred megabytes
_SLACK = 200_000  # of the file's own metadata, and of unknown fields
_PIECE = 1 << 20
_QUOTE, _MARKS = ord('"'), b"{[:,"
ITEMS_RULE = f"a header describes at most {MAX_TENSORS:,} tensors, each by three fields and two lists"


def too_many_items(text: bytes | bytearray) -> str | None:
    """What a header has too many of, in a sentence; None if it may be parsed.

    Args:
        text: the JSON text.
    """
    if len(text) <= _SMALL or _excess(*(text.count(mark) for mark in _MARKS)) is None:
        return None
    counts = np.zeros(256, np.int64)
    for piece in _outside_strings(text):  # names and metadata may hold whatever they like
        counts += np.bincount(piece, minlength=256)
    return _excess(*(int(counts[mark]) for mark in _MARKS))


def _outside_strings(text: bytes | bytearray) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """The bytes of a JSON text that belong to no string, in pieces."""
    clean, inside = text.replace(b"\\\\", b"__").replace(b'\\"', b"__"), 0
    for begin in range(0, len(clean), _PIECE):
        piece = np.frombuffer(clean, np.uint8, min(_PIECE, len(clean) - begin), begin)
        parity = np.bitwise_xor.accumulate((piece == _QUOTE).view(np.uint8)) ^ inside
        inside = int(parity[-1])
        yield piece[parity == 0]


def _excess(objects: int, lists: int, pairs: int, items: int) -> str | None:
    if objects > MAX_TENSORS + _SLACK:
        return f"the header has {objects:,} objects"
    if lists > 3 * objects + _SLACK:
        return f"the header has {lists:,} lists in {objects:,} objects"
    if pairs > 6 * objects + _SLACK:
        return f"the header has {pairs:,} fields in {objects:,} objects"
    if items > 40 * objects + _SLACK:
        return f"the header has {items:,} items in {objects:,} objects"
    return None

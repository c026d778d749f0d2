"""Words of compressed-tensors to canonical rows and back, exact and near memory speed.

Four and eight bit words are little-endian bit strings like the canonical form; only the offset differs:
stored is code plus `2**(bits - 1)`, which on two's complement codes is a flip of the top bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..packing import pack_codes, unpack_codes

_SLAB_BYTES = 1 << 22
_TOP_BITS = {2: 0xAA, 4: 0x88, 8: 0x80}
_WORD = np.dtype("<i4")


def rows_from_bytes(
    stored: NDArray[np.uint8], bits: int, length: int, row_bytes: int, *, flip: bool
) -> NDArray[np.uint8]:
    """Rows of stored bytes in another width; copies nothing if they are right as they are.

    Args:
        stored: uint8 `(rows, stored_bytes)`, each row beginning with `length` codes.
        bits: 2, 4 or 8.
        length: codes per row.
        row_bytes: bytes per row of the result; what lies behind the codes is zero.
        flip: flip the top bit of each code.

    Returns:
        uint8 `(rows, row_bytes)`.
    """
    used, odd = -(-length * bits // 8), length * bits % 8
    if not flip and not odd and stored.shape[1] == row_bytes == used:
        return stored
    whole = used == row_bytes
    rows = np.empty((len(stored), row_bytes), np.uint8)
    mask = np.uint8(_TOP_BITS[bits] if flip else 0)
    step = max(1, _SLAB_BYTES // max(1, row_bytes))
    for begin in range(0, len(stored), step):
        part = rows[begin : begin + step]
        np.bitwise_xor(stored[begin : begin + step, :used], mask, out=part[:, :used])
        if not whole:
            part[:, used:] = 0
        if odd:
            part[:, used - 1] &= np.uint8((1 << odd) - 1)
    return rows


def words_of(rows: NDArray[np.uint8], bits: int, length: int, *, flip: bool) -> NDArray[np.int32]:
    """Canonical rows as 32-bit words.

    Args:
        rows: uint8 `(rows, row_bytes)`.
        bits: 2, 4 or 8.
        length: codes per row.
        flip: flip the top bit of each code.

    Returns:
        int32 `(rows, ceil(length * bits / 32))`; bits behind the last code are zero.
    """
    width = -(-length * bits // 32) * 4
    return np.ascontiguousarray(rows_from_bytes(rows, bits, length, width, flip=flip)).view(_WORD)


def unpack_zero_points(words: NDArray[Any], bits: int, rows: int) -> NDArray[np.int32]:
    """Zero points packed along the rows.

    Args:
        words: int32 `(..., ceil(rows * bits / 32), groups)`.
        bits: 2, 4 or 8.
        rows: rows of the weight.

    Returns:
        int32 `(..., rows, groups)`, as stored: `0 .. 2**bits - 1`.
    """
    turned = np.ascontiguousarray(np.swapaxes(words, -1, -2), dtype=_WORD)
    count = turned.shape[-1] * 32 // bits
    codes = unpack_codes(turned.view(np.uint8), bits, count)[..., :rows]
    return np.ascontiguousarray(np.swapaxes(codes, -1, -2), dtype=np.int32)


def pack_zero_points(values: NDArray[np.int32], bits: int, lead: Sequence[int]) -> NDArray[np.int32]:
    """Undo `unpack_zero_points`.

    Args:
        values: int32 `(rows of the whole weight, groups)`, each in `0 .. 2**bits - 1`.
        bits: 2, 4 or 8.
        lead: the weight's shape without its last axis.

    Returns:
        int32 `(*lead[:-1], ceil(lead[-1] * bits / 32), groups)`.
    """
    turned = np.swapaxes(values.reshape(*lead, values.shape[1]), -1, -2).astype(np.uint8)
    packed = pack_codes(np.ascontiguousarray(turned), bits)
    out = np.zeros((*packed.shape[:-1], -(-lead[-1] * bits // 32) * 4), np.uint8)
    out[..., : packed.shape[-1]] = packed
    return np.ascontiguousarray(np.swapaxes(out.view(_WORD), -1, -2))

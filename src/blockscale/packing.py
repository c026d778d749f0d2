"""Packings: how codes lie in bytes. One canonical rule for all widths, in NumPy.

Element `n` occupies bits `n*b .. n*b+b-1` of one little-endian bit string (Hurray format, 1.3; OCP files
pack alike): even nibble low, odd nibble high; four 6-bit codes in three bytes, whole groups stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import ContainerError


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` contiguous codes of `bits` bits take (6-bit: whole groups of four codes)."""
    if bits == 6:
        return 3 * -(-count // 4)
    return -(-count * bits // 8)


def pack_codes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack the last axis.

    Args:
        codes: uint8 `(..., n)`, each in `0 .. 2**bits - 1` (higher bits are dropped).
        bits: 2, 4, 6 or 8.

    Returns:
        uint8 `(..., packed_size(n, bits))`; unused bits at the end are zero.
    """
    codes = np.ascontiguousarray(codes, dtype=np.uint8)
    if bits == 8:
        return codes
    group, width = (4, 3) if bits == 6 else (8 // bits, 1)
    n = codes.shape[-1]
    pad = -n % group
    if pad:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], pad), np.uint8)], axis=-1)
    parts = (codes & ((1 << bits) - 1)).reshape(*codes.shape[:-1], -1, group).astype(np.uint32)
    word = np.zeros(parts.shape[:-1], np.uint32)
    for j in range(group):
        word |= parts[..., j] << np.uint32(j * bits)
    out = np.stack([(word >> np.uint32(8 * k)).astype(np.uint8) for k in range(width)], axis=-1)
    return out.reshape(*codes.shape[:-1], -1)


def unpack_codes(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Unpack the last axis.

    Args:
        packed: uint8 `(..., m)` with `m == packed_size(count, bits)`.
        bits: 2, 4, 6 or 8.
        count: codes per row.

    Returns:
        uint8 `(..., count)`.

    Raises:
        ContainerError: `m` is not what `count` codes take.
    """
    need = packed_size(count, bits)
    if packed.shape[-1] != need:
        raise ContainerError(
            f"{packed.shape[-1]} bytes for {count} codes of {bits} bits, which take {need}",
            rule="packed size = ceil(count * bits / 8); 6-bit codes in whole groups of 3 bytes",
            found=packed.shape[-1],
        )
    if bits == 8:
        return packed
    group, width = (4, 3) if bits == 6 else (8 // bits, 1)
    words = packed.reshape(*packed.shape[:-1], -1, width).astype(np.uint32)
    word = np.zeros(words.shape[:-1], np.uint32)
    for k in range(width):
        word |= words[..., k] << np.uint32(8 * k)
    mask = np.uint32((1 << bits) - 1)
    codes = [((word >> np.uint32(j * bits)) & mask).astype(np.uint8) for j in range(group)]
    return np.stack(codes, axis=-1).reshape(*packed.shape[:-1], -1)[..., :count]

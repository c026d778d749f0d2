"""Packings: how codes lie in bytes. One canonical rule for all widths, and a table of other orders.

Element `n` occupies bits `n*b .. n*b+b-1` of one little-endian bit string (Hurray format, 1.3; OCP files
pack alike): even nibble low, odd nibble high; four 6-bit codes in three bytes, whole groups stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ContainerError


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` contiguous codes of `bits` bits take (6-bit: whole groups of four codes)."""
    if bits == 6:
        return 3 * -(-count // 4)
    return -(-count * bits // 8)


def unit_codes(bits: int) -> int:
    """Codes of the least unit that ends on a byte; of six bits, those of a whole group."""
    return _group(bits)[0]


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
    group, width, word_type = _group(bits)
    pad = -codes.shape[-1] % group
    if pad:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], pad), np.uint8)], axis=-1)
    parts = codes.reshape(*codes.shape[:-1], codes.shape[-1] // group, group)
    mask = word_type((1 << bits) - 1)
    word: NDArray[Any] = parts[..., 0] & mask
    for j in range(1, group):
        word |= (parts[..., j] & mask) << word_type(j * bits)
    if width == 1:
        return word
    out = np.stack([(word >> word_type(8 * k)).astype(np.uint8) for k in range(width)], axis=-1)
    return out.reshape(*codes.shape[:-1], parts.shape[-2] * width)


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
    group, width, word_type = _group(bits)
    words = packed.reshape(*packed.shape[:-1], need // width, width)
    word = words[..., 0].astype(word_type)
    for k in range(1, width):
        word |= words[..., k].astype(word_type) << word_type(8 * k)
    codes = np.empty((*word.shape, group), np.uint8)
    for j in range(group):
        codes[..., j] = (word >> word_type(j * bits)) & word_type((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], need // width * group)[..., :count]


def _group(bits: int) -> tuple[int, int, Any]:
    """Codes and bytes of the least unit that begins on a byte, and a type that holds it."""
    return (4, 3, np.uint32) if bits == 6 else (8 // bits, 1, np.uint8)


@dataclass(frozen=True, slots=True)
class Packing:
    """How toolchains order codes inside a word or block; bits within it run little-endian.

    Attributes:
        name: who packs so.
        bits: width of a code.
        order: `order[p]` is the element that lies at bit `p * bits` of its group; the group's length is
            `len(order)`.
    """

    name: str
    bits: int
    order: tuple[int, ...]

    @property
    def group(self) -> int:
        """Elements per group."""
        return len(self.order)


def _halves(size: int) -> tuple[int, ...]:
    """Byte j holds elements j (low nibble) and j + size / 2 (high nibble)."""
    return tuple(j + half * size // 2 for j in range(size // 2) for half in (0, 1))


# fmt: off
PACKINGS: dict[str, Packing] = {p.name: p for p in (
    Packing("gptq2",       2, tuple(range(16))),             # 16 codes in an int32
    Packing("gptq4",       4, tuple(range(8))),              # 8 codes in an int32: columns 0..7 -> 0x76543210
    Packing("gptq8",       8, tuple(range(4))),
    Packing("awq4",        4, (0, 2, 4, 6, 1, 3, 5, 7)),     # columns 0..7 -> 0x75316420
    Packing("ggml_halves", 4, _halves(32)),                  # codes 0..15, 0..15 -> 00 11 22 .. ff
)}
# fmt: on


def pack_groups(codes: NDArray[np.uint8], packing: Packing) -> NDArray[np.uint8]:
    """Pack the last axis in the order of a packing.

    Args:
        codes: uint8 `(..., n)`, n a multiple of the group.
        packing: a row of `PACKINGS`.

    Returns:
        uint8 `(..., n * bits / 8)`; `.view("<i4")` makes 32-bit words of it.

    Raises:
        ContainerError: n is no multiple of the group.
    """
    n = codes.shape[-1]
    if n % packing.group:
        raise ContainerError(
            f"{n} codes do not fill groups of {packing.group} ({n % packing.group} left over)",
            rule=f"the packing {packing.name} takes whole groups",
            found=n,
        )
    groups = np.asarray(codes).reshape(*codes.shape[:-1], n // packing.group, packing.group)
    return pack_codes(groups[..., list(packing.order)].reshape(codes.shape), packing.bits)


def unpack_groups(packed: NDArray[np.uint8], packing: Packing) -> NDArray[np.uint8]:
    """Undo `pack_groups`: uint8 `(..., m)` bytes to uint8 `(..., m * 8 / bits)` codes."""
    n = packed.shape[-1] * 8 // packing.bits
    codes = unpack_codes(packed, packing.bits, n)
    groups = codes.reshape(*packed.shape[:-1], n // packing.group, packing.group)
    return groups[..., np.argsort(packing.order)].reshape(*packed.shape[:-1], n)

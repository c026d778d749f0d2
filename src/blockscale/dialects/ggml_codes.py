"""Codes of ggml's blocks to canonical packed codes and back, at about the speed of memory.

Blocks of 32 four-bit codes hold element j in the low nibble of byte j and element j + 16 in the high one
(the packing `ggml_halves`); the canonical form holds elements 2j and 2j + 1. Both are 16 bytes, so a step
treats a chunk of blocks as 64-bit words, eight codes' pairs at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CHUNK = 8192  # blocks that stay in cache from one pass to the next
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR = np.uint64(4)


def copy_bytes(source: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Copy `(n, width)` bytes between arrays whose rows are contiguous; whole rows as items are fastest."""
    item = f"V{source.shape[1]}"
    out.view(item)[:] = source.view(item)


def halves_to_pairs(source: NDArray[np.uint8], out: NDArray[np.uint8], flip: int = 0) -> None:
    """Reorder nibbles: `ggml_halves` to canonical.

    Args:
        source: uint8 `(n, 16)`, may be strided between blocks.
        out: uint8 `(n, 16)`, contiguous.
        flip: byte that every result byte is XORed with (0x88: code + 8 to two's complement).
    """
    words = out.view(np.uint64)
    for begin in range(0, len(source), _CHUNK):
        part = np.empty((min(_CHUNK, len(source) - begin), 16), np.uint8)
        copy_bytes(source[begin : begin + _CHUNK], part)
        x = part.reshape(-1).view(np.uint64)
        for half in (0, 1):
            y = (x >> _FOUR if half else x) & _NIBBLES
            y |= y >> _FOUR  # byte 2k now holds nibbles 2k and 2k + 1
            pairs = y.view(np.uint16).astype(np.uint8)
            if flip:
                pairs ^= np.uint8(flip)
            words[begin : begin + _CHUNK, half] = pairs.view(np.uint64)


def pairs_to_halves(source: NDArray[np.uint8], out: NDArray[np.uint8], flip: int = 0) -> None:
    """Undo `halves_to_pairs`: `source` is contiguous, `out` may be strided between blocks."""
    words = source.view(np.uint64)
    for begin in range(0, len(source), _CHUNK):
        part = words[begin : begin + _CHUNK]
        both = _spread(part[:, 0], flip) | (_spread(part[:, 1], flip) << _FOUR)
        copy_bytes(both.view(np.uint8).reshape(-1, 16), out[begin : begin + _CHUNK])


def _spread(words: NDArray[np.uint64], flip: int) -> NDArray[np.uint64]:
    """One nibble per byte: uint64 `(n,)` of sixteen nibbles to uint64 `(2 * n,)`, the upper nibbles zero."""
    pairs = np.ascontiguousarray(words).view(np.uint8)
    if flip:
        pairs = pairs ^ np.uint8(flip)
    wide = pairs.astype(np.uint16)
    wide |= wide << np.uint16(4)
    return wide.view(np.uint64) & _NIBBLES


def read_five_bits(
    nibbles: NDArray[np.uint8], high: NDArray[np.uint8], out: NDArray[np.uint8], bias: int
) -> None:
    """Five-bit codes, one per byte.

    Args:
        nibbles: uint8 `(n, 16)` in the order `ggml_halves`.
        high: uint8 `(n, 4)`, the fifth bits, little-endian.
        out: uint8 `(n, 32)`, contiguous; two's complement where bias is not 0.
        bias: subtracted from the stored code.
    """
    for begin in range(0, len(nibbles), _CHUNK):
        part = np.empty((len(nibbles[begin : begin + _CHUNK]), 16), np.uint8)
        copy_bytes(nibbles[begin : begin + _CHUNK], part)
        bits = np.unpackbits(
            np.ascontiguousarray(high[begin : begin + _CHUNK]).reshape(-1), bitorder="little"
        )
        codes = out[begin : begin + _CHUNK]
        copy_bytes(part & np.uint8(15), codes[:, :16])
        copy_bytes(part >> np.uint8(4), codes[:, 16:])
        bits <<= np.uint8(4)
        flat = codes.reshape(-1)
        flat |= bits
        if bias:
            flat -= np.uint8(bias)


def write_five_bits(
    codes: NDArray[np.uint8], nibbles: NDArray[np.uint8], high: NDArray[np.uint8], bias: int
) -> None:
    """Undo `read_five_bits`; codes beyond five bits lose their upper bits."""
    for begin in range(0, len(codes), _CHUNK):
        stored = codes[begin : begin + _CHUNK] + np.uint8(bias)
        low = stored & np.uint8(15)
        copy_bytes(low[:, :16] | (low[:, 16:] << np.uint8(4)), nibbles[begin : begin + _CHUNK])
        bits = np.packbits(((stored >> np.uint8(4)) & np.uint8(1)).reshape(-1), bitorder="little")
        copy_bytes(bits.reshape(-1, 4), high[begin : begin + _CHUNK])

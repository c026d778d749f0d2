"""Codes in 32-bit words, as GPTQ and AWQ store them, to canonical rows and back; in NumPy, at memory speed.

A word is read little-endian: field `p` lies at bit `p * bits`. In GPTQ the fields of a word are consecutive
inputs of one output, so the four bytes of a word *are* the canonical packing of those inputs and only whole
words move. In AWQ the fields are outputs 8c + (0, 2, 4, 6, 1, 3, 5, 7) of one input, so eight words of eight
inputs are transposed as 8 x 8 nibbles first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..packing import PACKINGS, Packing, pack_groups, unpack_groups

U32 = NDArray[np.uint32]
U8 = NDArray[np.uint8]

WORD = np.dtype("<u4")
ONES: dict[int, int] = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""A 1 in every field of a word, by width of the fields."""

_LINE = 16  # words in a cache line
_TILE = 1024
_COLUMNS, _WORDS = 32, 512  # of an AWQ matrix and of its rows, worked on together: 0.5 MB


def fields_per_word(bits: int) -> int:
    """Codes in a 32-bit word."""
    return 32 // bits


def transpose_words(words: NDArray[Any], out: NDArray[Any]) -> None:
    """`out[...] = words.T`, a tile at a time.

    Args:
        words: 32-bit `(m, n)`.
        out: 32-bit `(n, m)`, any strides.
    """
    m, n = words.shape
    high, wide = (_LINE, _TILE) if n > _LINE else (_TILE, _LINE)
    for i in range(0, m, high):
        for j in range(0, n, wide):
            out[j : j + wide, i : i + high] = words[i : i + high, j : j + wide].T


def transpose_nibbles(block: U32) -> None:
    """Transpose 8 x 8 nibbles in place: nibble p of word i changes places with nibble i of word p.

    Args:
        block: uint32 `(8, ...)`, C-contiguous; each position behind the first axis is a matrix of its own.
    """
    for distance, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        pairs = block.reshape(4 // distance, 2, distance, *block.shape[1:])
        low, high = pairs[:, 0], pairs[:, 1]
        shift = np.uint32(4 * distance)
        swap = low >> shift
        swap ^= high
        swap &= np.uint32(mask)
        high ^= swap
        swap <<= shift
        low ^= swap


def gptq_to_rows(qweight: U32, out: U32) -> None:
    """GPTQ words to canonical rows.

    Args:
        qweight: uint32 `(n_words, n_out)`, words along the input.
        out: uint32 `(n_out, >= n_words)`, zeroed; canonical rows seen as words.
    """
    transpose_words(qweight, out[:, : qweight.shape[0]])


def rows_to_gptq(rows: U32, out: U32) -> None:
    """Undo `gptq_to_rows`: uint32 `(n_out, >= n_words)` to `(n_words, n_out)`."""
    transpose_words(rows[:, : out.shape[0]], out)


def awq_to_rows(qweight: U32, out: U32) -> None:
    """AWQ words to canonical rows.

    Args:
        qweight: uint32 `(n_in, n_out / 8)`, words along the output.
        out: uint32 `(n_out, >= ceil(n_in / 8))`, zeroed; canonical rows seen as words.
    """
    n_in, n_columns = qweight.shape
    by_output = out.reshape(n_columns, 8, out.shape[1])
    for i in range(0, n_in, 8 * _LINE):
        slab = qweight[i : i + 8 * _LINE]
        missing = -len(slab) % 8
        if missing:
            slab = np.concatenate([slab, np.zeros((missing, n_columns), WORD)])
        # (8, k, n_columns): word of input 8k + first index; always a copy, since it is changed
        block = slab.reshape(-1, 8, n_columns).swapaxes(0, 1).copy(order="C")
        transpose_nibbles(block)
        for p, output in enumerate(PACKINGS["awq4"].order):
            k = slice(i // 8, i // 8 + block.shape[1])
            transpose_words(block[p], by_output[:, output, k])


def rows_to_awq(rows: U32, out: U32) -> None:
    """Undo `awq_to_rows`: uint32 `(n_out, >= n_in / 8)` to `(n_in, n_out / 8)`; n_in a multiple of 8."""
    n_in, n_columns = out.shape
    by_input = out.reshape(n_in // 8, 8, n_columns)
    for c in range(0, n_columns, _COLUMNS):
        for k in range(0, n_in // 8, _WORDS):
            part = by_input[k : k + _WORDS, :, c : c + _COLUMNS]
            chunk = np.empty((len(part), 8 * part.shape[2]), WORD)
            transpose_words(rows[8 * c : 8 * (c + _COLUMNS), k : k + len(part)], chunk)
            by_output = chunk.reshape(len(part), -1, 8)
            block = np.empty((8, len(part), part.shape[2]), WORD)
            for p, output in enumerate(PACKINGS["awq4"].order):
                block[p] = by_output[:, :, output]
            transpose_nibbles(block)
            part[...] = block.swapaxes(0, 1)


def unpack_fields(words: NDArray[Any], packing: Packing, count: int) -> U8:
    """Fields of words along the last axis.

    Args:
        words: 32-bit `(..., n)`.
        packing: order of the fields in a word.
        count: fields wanted, at most those that `n` words hold.

    Returns:
        uint8 `(..., count)`.
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    return unpack_groups(data, packing)[..., :count]


def pack_fields(fields: U8, packing: Packing) -> NDArray[np.int32]:
    """Undo `unpack_fields`: uint8 `(..., n)`, whole words, to int32 `(..., n * bits / 32)`."""
    return np.ascontiguousarray(pack_groups(fields, packing)).view("<i4").view(np.int32)


def constant_field(words: NDArray[Any], bits: int, n_out: int) -> int | None:
    """The number that every field holds, or None if they differ or there are none.

    Args:
        words: 32-bit `(..., n)`.
        bits: width of a field.
        n_out: fields that count along the last axis; the last word may be partial.
    """
    data = np.ascontiguousarray(words).view(WORD)
    if not data.size or not n_out:
        return None
    first = int(data.flat[0]) & ((1 << bits) - 1)
    full, rest = divmod(n_out, fields_per_word(bits))
    word = np.uint32(first * ONES[bits])
    if (data[..., :full] != word).any():
        return None
    if rest:
        mask = np.uint32((1 << (rest * bits)) - 1)
        if ((data[..., full] ^ word) & mask).any():
            return None
    return first


def count_all_ones(words: NDArray[Any], bits: int, n_out: int) -> tuple[int, int]:
    """Fields that have all bits set; arguments as `constant_field`.

    Returns:
        How many there are, and how many words have such a field below the top one and nothing but such fields
        above it.
    """
    data = np.ascontiguousarray(words).view(WORD)
    marks = data.copy()
    shift = 1
    while shift < bits:
        marks &= marks >> np.uint32(shift)
        shift *= 2
    marks &= np.uint32(ONES[bits])
    rest = n_out % fields_per_word(bits)
    if rest and data.size:
        marks[..., -1] &= np.uint32((1 << (rest * bits)) - 1)
    marks = marks[marks != 0]
    lowest = marks & (~marks + np.uint32(1))
    filled = (marks == np.uint32(ONES[bits]) & ~(lowest - np.uint32(1))) & (lowest < 1 << (32 - bits))
    return int(np.bitwise_count(marks).sum()), int(filled.sum())


def clear_padding(packed: U8, length: int, bits: int) -> None:
    """Zero the bits of canonical rows behind `length` codes, in place; uint8 `(rows, row_bytes)`."""
    full, rest = divmod(length * bits, 8)
    if rest:
        packed[:, full] &= np.uint8((1 << rest) - 1)
        full += 1
    packed[:, full:] = 0

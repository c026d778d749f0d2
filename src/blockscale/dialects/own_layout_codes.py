"""Codes packed along the last dimension, as files keep them, to canonical rows and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid
from ..packing import pack_codes, packed_size, unpack_codes
from ..tensor import BlockTensor

_SLAB_CODES = 1 << 22


def packed_rows(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Pack the last axis of unpacked codes (one per byte), a slab at a time."""
    lead, length = codes.shape[:-1], codes.shape[-1]
    flat = np.ascontiguousarray(codes).view(np.uint8).reshape(math.prod(lead), length)
    out = np.empty((len(flat), packed_size(length, bits)), np.uint8)
    step = max(1, _SLAB_CODES // max(1, length))
    for begin in range(0, len(flat), step):
        _pack(flat[begin : begin + step], bits, out[begin : begin + step])
    return out.reshape(*lead, out.shape[1])


def unpacked_rows(packed: NDArray[np.uint8], bits: int, length: int) -> NDArray[np.uint8]:
    """Unpack the last axis to one code per byte, a slab at a time."""
    lead = packed.shape[:-1]
    flat = packed.reshape(math.prod(lead), packed.shape[-1])
    out = np.empty((len(flat), length), np.uint8)
    step = max(1, _SLAB_CODES // max(1, length))
    for begin in range(0, len(flat), step):
        _unpack(flat[begin : begin + step], bits, out[begin : begin + step])
    return out.reshape(*lead, length)


def _pack(codes: NDArray[np.uint8], bits: int, out: NDArray[np.uint8]) -> None:
    """`pack_codes` into `out`; whole bytes of 2 or 4 bit codes by byte-wide shifts, which is much faster."""
    per = 8 // bits
    if 8 % bits or codes.shape[1] % per:
        out[...] = pack_codes(codes, bits)
        return
    mask = np.uint8((1 << bits) - 1)
    np.bitwise_and(codes[:, ::per], mask, out=out)
    for j in range(1, per):
        out |= (codes[:, j::per] & mask) << np.uint8(j * bits)


def _unpack(packed: NDArray[np.uint8], bits: int, out: NDArray[np.uint8]) -> None:
    """`unpack_codes` into `out`, as `_pack`."""
    per = 8 // bits
    if 8 % bits or out.shape[1] % per:
        out[...] = unpack_codes(packed, bits, out.shape[1])
        return
    mask = np.uint8((1 << bits) - 1)
    for j in range(per):
        np.bitwise_and(packed >> np.uint8(j * bits), mask, out=out[:, j::per])


def stored_codes(w: BlockTensor) -> NDArray[np.uint8]:
    """Codes packed along the last dimension, `(*shape[:-1], bytes)`; no copy if they lie so already."""
    grid, bits = w.grid, w.scheme.element.bits
    width = packed_size(grid.shape[-1], bits)
    if grid.axis == len(grid.shape) - 1:
        return np.ascontiguousarray(w.packed[:, :width]).reshape(*grid.shape[:-1], width)
    if grid.axis == 0:
        return packed_rows(w.codes(), bits)
    out, step = np.empty((*grid.shape[:-1], width), np.uint8), _slab(grid)
    for begin in range(0, grid.shape[0], step):
        out[begin : begin + step] = packed_rows(w[begin : begin + step].codes(), bits)
    return out


def canonical_codes(stored: NDArray[np.uint8], grid: BlockGrid, bits: int) -> NDArray[np.uint8]:
    """Canonical packed rows from codes packed along the last dimension; no copy if they lie so already."""
    row_bytes = grid.row_bytes(bits)
    last = grid.axis == len(grid.shape) - 1
    if last and grid.length * bits == row_bytes * 8:
        return stored.reshape(grid.rows, row_bytes)
    rows = np.zeros((grid.rows, row_bytes), np.uint8)
    width = packed_size(grid.length, bits)
    if last:
        rows[:, :width] = stored.reshape(grid.rows, width)
        _clear_behind(rows, grid.length * bits)
        return rows
    at, step = 0, _slab(grid)
    for begin in range(0, grid.shape[0], step):
        codes = unpacked_rows(stored[begin : begin + step], bits, grid.shape[-1])
        turned = np.ascontiguousarray(np.moveaxis(codes, grid.axis, -1))
        part = packed_rows(turned, bits).reshape(math.prod(turned.shape[:-1]), width)
        rows[at : at + len(part), :width] = part
        at += len(part)
    return rows


def _slab(grid: BlockGrid) -> int:
    """Rows of the first dimension to take at once; all of them if it is the blocked axis."""
    if grid.axis == 0:
        return max(1, grid.shape[0])
    return max(1, _SLAB_CODES * grid.shape[0] // max(1, math.prod(grid.shape)))


def block_rows(array: NDArray[Any], grid: BlockGrid, length: int) -> NDArray[Any]:
    """Move the axis last: `(rows, length)`, contiguous."""
    return np.ascontiguousarray(np.moveaxis(array, grid.axis, -1)).reshape(grid.rows, length)


def _clear_behind(rows: NDArray[np.uint8], n_bits: int) -> None:
    """Zero the bits of each row behind the first `n_bits`; a file may hold anything there."""
    full, odd = divmod(n_bits, 8)
    if odd:
        rows[:, full] &= np.uint8((1 << odd) - 1)
    rows[:, full + bool(odd) :] = 0

"""Reading GPTQ weights: as BlockTensor, as values, or as sorted columns with their permutation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..errors import UnsupportedError, error_context
from ..packing import PACKINGS, pack_codes, unpack_codes
from ..tensor import BlockTensor
from .base import Load, Weight
from .stored_parts import part_findings, refuse_unreadable
from .word_parts import as_words, load_part
from .word_read import read_scales, read_zero_points
from .words import U8, WORD, clear_padding, gptq_to_rows

_SLAB_ELEMENTS = 1 << 21


def read(weight: Weight, load: Load) -> BlockTensor:
    """One weight as BlockTensor `[out, in]` (`[experts, out, in]`), blocks along the input.

    Raises:
        UnsupportedError: a weight in activation order, whose groups are not contiguous columns.
        FormatError: parts that do not fit the weight; zero points that cannot be known.
    """
    with error_context(tensor=weight.name):
        if weight.settings["act_order"]:
            refuse_unreadable(weight)
        return _assemble(weight, load)


def read_dense(weight: Weight, load: Load) -> NDArray[np.float32]:
    """The values of any weight, in the order of the plain one; float32, shaped as the weight.

    Each is `float32(q - z) * float32(s)`, with scale and zero point of the group that g_idx names.
    """
    if not weight.settings["act_order"]:
        return read(weight, load).dequantize()
    with error_context(tensor=weight.name):
        w = _assemble(weight, load)
        index = _load_index(weight, load)
        bits, n_in = w.scheme.element.bits, w.grid.length
        groups = slice(None, None, weight.settings["blocks_per_group"])
        scales = w.row_scales.astype(np.float32)[:, groups]
        zeros = _offsets(w)[:, groups]
        out = np.empty(weight.shape, np.float32)
        for rows in _slabs(w.grid):
            codes = unpack_codes(w.packed[rows], bits, w.grid.padded_length)[:, :n_in]
            steps = np.subtract(codes, zeros[rows][:, index], dtype=np.int64)
            np.multiply(steps.astype(np.float32), scales[rows][:, index], out=out[rows])
        return out


def read_sorted(weight: Weight, load: Load) -> tuple[BlockTensor, NDArray[np.int64]]:
    """A weight with its columns sorted by group, and the permutation that did it.

    Args:
        weight: from `recognise`.
        load: loads a stored tensor.

    Returns:
        `w`, `order`: column k of `w` is column `order[k]` of the weight, so that
        `dense[:, order] = w.dequantize()` restores it. Sorting is stable.

    Raises:
        UnsupportedError: groups of unequal size (`read_dense` reads those too).
    """
    if not weight.settings["act_order"]:
        return read(weight, load), np.arange(weight.shape[-1])
    with error_context(tensor=weight.name):
        index = _load_index(weight, load)
        _check_equal_groups(index, weight.settings["group_size"])
        order = np.argsort(index, kind="stable")
        w = _assemble(weight, load)
        bits, grid = w.scheme.element.bits, w.grid
        packed = np.zeros_like(w.packed)
        for rows in _slabs(grid):
            padded = np.zeros((rows.stop - rows.start, grid.padded_length), np.uint8)
            codes = unpack_codes(w.packed[rows], bits, grid.padded_length)
            np.take(codes, order, axis=1, out=padded[:, : grid.length])
            packed[rows] = pack_codes(padded, bits)
        return BlockTensor(grid, w.scheme, packed, w.row_scales, w.row_offsets), order


def findings(weight: Weight, load: Load) -> tuple[str, ...]:
    """What is odd in the data of a weight: constant words, scales not finite or zero (reads all of them)."""
    return part_findings(weight, load, weight.parts["qweight"], weight.parts["scales"])


def _assemble(weight: Weight, load: Load) -> BlockTensor:
    """Codes in the stored order of columns, scales and zero points by group."""
    grid = block_grid(weight.shape, weight.axis, weight.scheme.block_size)
    scales = read_scales(weight, load, grid)
    zeros = read_zero_points(weight, load, grid, PACKINGS[f"gptq{weight.scheme.element.bits}"])
    return BlockTensor(grid, weight.scheme, _read_codes(weight, load, grid), scales, zeros)


def _read_codes(weight: Weight, load: Load, grid: BlockGrid) -> U8:
    """Canonical rows: uint8 `(rows, row_bytes)`."""
    *lead, n_out, n_in = weight.shape
    bits = weight.scheme.element.bits
    n_words = -(-n_in * bits // 32)
    row_bytes = grid.row_bytes(bits)
    array = load_part(weight, "qweight", load, (*lead, n_words, n_out))
    words = as_words(array, weight.parts["qweight"]).reshape(-1, n_words, n_out)
    rows = np.zeros((grid.rows, max(n_words, -(-row_bytes // 4))), WORD)
    for e in range(math.prod(lead)):
        gptq_to_rows(words[e], rows[e * n_out : (e + 1) * n_out])
    packed = np.ascontiguousarray(rows.view(np.uint8)[:, :row_bytes])
    if n_words * 32 > n_in * bits:
        clear_padding(packed, n_in, bits)
    return packed


def _load_index(weight: Weight, load: Load) -> NDArray[np.int64]:
    return load_part(weight, "g_idx", load, (weight.shape[-1],)).astype(np.int64)


def _check_equal_groups(index: NDArray[np.int64], group_size: int) -> None:
    sizes = np.bincount(index)
    if (sizes[:-1] != group_size).any() or sizes[-1] > group_size:
        raise UnsupportedError(
            f"groups of {sizes.min()} to {sizes.max()} columns",
            rule=f"sorted columns make blocks only if groups have {group_size} columns (the last: at most)",
            found=int(sizes.max()),
            hint="read_dense gives the values",
        )


def _offsets(w: BlockTensor) -> NDArray[Any]:
    return np.zeros(w.row_scales.shape, np.int32) if w.row_offsets is None else w.row_offsets


def _slabs(grid: BlockGrid) -> list[slice]:
    step = max(1, _SLAB_ELEMENTS // grid.padded_length)
    return [slice(i, min(i + step, grid.rows)) for i in range(0, grid.rows, step)]

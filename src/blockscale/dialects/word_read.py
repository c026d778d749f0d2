"""Scales and zero points of GPTQ and AWQ weights, as the rows of a BlockTensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import first_index
from ..blocks import BlockGrid
from ..errors import FormatError
from ..packing import Packing
from .base import Load, Weight
from .stored_parts import check_finite
from .word_parts import as_words, load_part
from .words import ONES, unpack_fields


def _groups(weight: Weight, grid: BlockGrid) -> int:
    repeat: int = weight.settings["blocks_per_group"]
    return -(-grid.blocks_per_row // repeat)


def _to_rows(weight: Weight, grid: BlockGrid, values: NDArray[Any]) -> NDArray[Any]:
    """`(..., groups, out)` to C-contiguous `(rows, blocks_per_row)`, a number per block."""
    rows = np.swapaxes(values, -1, -2).reshape(grid.rows, -1)
    repeat: int = weight.settings["blocks_per_group"]
    if repeat > 1:
        rows = np.repeat(rows, repeat, axis=1)[:, : grid.blocks_per_row]
    return np.ascontiguousarray(rows)


def read_scales(weight: Weight, load: Load, grid: BlockGrid) -> NDArray[Any]:
    """Scales as stored, `(rows, blocks_per_row)`.

    Raises:
        FormatError: another shape or dtype than the weight needs; NaN or infinite scales.
    """
    *lead, n_out, _ = weight.shape
    scales = load_part(weight, "scales", load, (*lead, _groups(weight, grid), n_out))
    check_finite(scales, weight.name, weight.parts["scales"])
    wanted = weight.scheme.scale.dtype
    if scales.dtype != wanted:
        raise FormatError(
            f"scales are {scales.dtype}, the header said {wanted}",
            found=str(scales.dtype),
            tensor=weight.parts["scales"],
        )
    rows = _to_rows(weight, grid, scales)
    return rows.copy() if np.shares_memory(rows, scales) else rows  # a BlockTensor freezes its parts


def read_zero_points(weight: Weight, load: Load, grid: BlockGrid, packing: Packing) -> NDArray[np.int32]:
    """Zero points as they are subtracted, int32 `(rows, blocks_per_row)`.

    Raises:
        FormatError: another shape than the weight needs; plain zero points that are no integers; words of
            which nobody says whether they hold z or z - 1.
    """
    *lead, n_out, _ = weight.shape
    groups = _groups(weight, grid)
    bias: int | None = weight.settings["zero_point_bias"]
    if not weight.settings["packed_zeros"]:
        plain = load_part(weight, "qzeros", load, (*lead, groups, n_out))
        return _to_rows(weight, grid, _integral(plain, weight) + np.int32(bias or 0))
    if bias is None:
        raise FormatError(
            "whether its zero points are stored as z or z - 1 cannot be known: the config is missing",
            rule="checkpoint_format gptq stores z - 1, gptq_v2 stores z; every element is off by one step "
            "in the wrong reading",
            hint="give the config, or force zero_point_bias",
            tensor=weight.parts["qzeros"],
        )
    columns = -(-n_out * packing.bits // 32)
    array = load_part(weight, "qzeros", load, (*lead, groups, columns))
    words = as_words(array, weight.parts["qzeros"])
    return _to_rows(weight, grid, _from_fields(words, bias, weight, packing, n_out))


def _from_fields(
    words: NDArray[np.uint32], bias: int, weight: Weight, packing: Packing, n_out: int
) -> NDArray[np.int32]:
    """int32 `(..., groups, out)`; a field of all ones plus 1 is read as the settings say."""
    reading = weight.settings.get("all_ones", "zero")
    if bias and reading == "carry":
        words = words + np.uint32(ONES[packing.bits])
        bias = 0
    zeros = unpack_fields(words, packing, n_out).astype(np.int32)
    zeros += np.int32(bias)
    if reading != "power":
        zeros &= np.int32((1 << packing.bits) - 1)
    return zeros


def _integral(plain: NDArray[Any], weight: Weight) -> NDArray[np.int32]:
    values = plain.astype(np.float64)
    rounded = np.rint(values)
    limit = np.iinfo(np.int32)
    bad = ~(np.abs(values) < limit.max) | (values != rounded)
    if bad.any():
        first = first_index(bad)
        finite = values[np.isfinite(values)]
        error = float(np.abs(finite - np.rint(finite)).max(initial=0.0))
        raise FormatError(
            f"{int(bad.sum())} of {bad.size} plain zero points are no 32-bit integers, the first is "
            f"{values[first]} at {list(first)}; rounding would move zero points by up to {error:.3g} steps",
            rule="zero points are integers (x = s * (q - z), z int32)",
            found=float(values[first]),
            hint="quantize again with integer zero points; or dequantize with the tool that wrote the file",
            tensor=weight.parts["qzeros"],
        )
    return rounded.astype(np.int32)

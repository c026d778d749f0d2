"""Metrics: how far decoded values are from the originals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .errors import InputError, SchemeError

_SLAB_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorError:
    """Error of one tensor.

    Attributes:
        mse: mean squared error.
        relative_mse: sum of squared errors / sum of squared originals.
        sqnr_db: -10 log10(relative_mse), dB.
        max_abs: largest absolute error.
        cosine: cosine similarity of decoded and original values.
        saturated: elements beyond what their block can hold.
        saturated_share: their share of all elements.
        elements: number of elements.
    """

    mse: float
    relative_mse: float
    sqnr_db: float
    max_abs: float
    cosine: float
    saturated: int
    saturated_share: float
    elements: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockErrors:
    """The figures of TensorError as arrays, one entry per block or per channel."""

    mse: NDArray[np.float64]
    relative_mse: NDArray[np.float64]
    sqnr_db: NDArray[np.float64]
    max_abs: NDArray[np.float64]
    cosine: NDArray[np.float64]
    saturated: NDArray[np.int64]
    saturated_share: NDArray[np.float64]
    elements: NDArray[np.int64]


# Columns of the sums that all figures derive from.
_SUMS = ("error", "reference", "decoded", "product", "max_abs", "saturated", "elements")


def measure_error(
    reference: NDArray[Any],
    decoded: NDArray[Any],
    limits: tuple[NDArray[np.float64], NDArray[np.float64]],
    grid: BlockGrid,
    per: str | None = None,
) -> TensorError | BlockErrors:
    """Compare decoded values with originals, in float64.

    Args:
        reference: originals, the tensor's shape.
        decoded: decoded values, the tensor's shape.
        limits: smallest and largest value each block can hold, float64 `(rows, blocks_per_row)`.
        grid: geometry of the blocks.
        per: None, `"block"` or `"channel"` (one line along the axis).

    Returns:
        A TensorError, or BlockErrors shaped as the scales or as the tensor without its axis. A block of
        zeros that decodes to zeros has relative error 0, SQNR inf and cosine 1.

    Raises:
        InputError: shapes differ.
        SchemeError: unknown `per`.
    """
    if reference.shape != grid.shape:
        raise InputError(
            f"the reference has shape {reference.shape}, the tensor {grid.shape}",
            found=reference.shape,
            field="reference",
        )
    if per not in (None, "block", "channel"):
        raise SchemeError(f"unknown per={per!r}", found=per, hint="None, 'block' or 'channel'")
    sums = _block_sums(reference, decoded, limits, grid)
    if per == "block":
        return _figures(sums.reshape(*grid.outer_shape, grid.blocks_per_row, len(_SUMS)), grid.axis)
    rows = _add_up(sums, axis=1)
    if per == "channel":
        return _figures(rows.reshape(*grid.outer_shape, len(_SUMS)), None)
    return _total(_add_up(rows, axis=0))


def compare_arrays(reference: NDArray[Any], decoded: NDArray[Any]) -> TensorError:
    """The same figures for two plain arrays of one shape; nothing counts as saturated."""
    grid = BlockGrid((1, max(reference.size, 1)), 1, 2)
    if reference.size == 0:
        return _total(np.zeros(len(_SUMS)))
    blocks = (1, grid.blocks_per_row)
    limits = (np.full(blocks, -np.inf), np.full(blocks, np.inf))
    flat = (reference.reshape(grid.shape), decoded.reshape(grid.shape))
    return cast(TensorError, measure_error(*flat, limits, grid))


def _block_sums(
    reference: NDArray[Any],
    decoded: NDArray[Any],
    limits: tuple[NDArray[np.float64], NDArray[np.float64]],
    grid: BlockGrid,
) -> NDArray[np.float64]:
    """float64 `(rows, blocks_per_row, len(_SUMS))`, a slab of rows at a time."""
    out = np.zeros((grid.rows, grid.blocks_per_row, len(_SUMS)))
    if out.size == 0:
        return out
    x_rows = np.moveaxis(reference, grid.axis, -1).reshape(grid.rows, grid.length)
    y_rows = np.moveaxis(decoded, grid.axis, -1).reshape(grid.rows, grid.length)
    starts = np.arange(0, grid.length, grid.block_size)
    sizes = np.diff(np.append(starts, grid.length))
    step = max(1, _SLAB_ELEMENTS // grid.length)
    for begin in range(0, grid.rows, step):
        part = slice(begin, begin + step)
        x, y = x_rows[part].astype(np.float64), y_rows[part].astype(np.float64)
        error = np.abs(x - y)
        low, high = (np.repeat(limit[part], sizes, axis=1) for limit in limits)
        columns = (error * error, x * x, y * y, x * y, None, (x < low) | (x > high), None)
        for j, column in enumerate(columns):
            if column is not None:
                out[part, :, j] = np.add.reduceat(column, starts, axis=1, dtype=np.float64)
        out[part, :, 4] = np.maximum.reduceat(error, starts, axis=1)
        out[part, :, 6] = sizes
    return out


def _add_up(sums: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    total = sums.sum(axis=axis)
    if sums.size:
        total[..., 4] = sums[..., 4].max(axis=axis)
    return np.asarray(total)


def _figures(sums: NDArray[np.float64], axis: int | None) -> BlockErrors:
    error, reference, decoded, product, max_abs, saturated, elements = (
        sums[..., j] if axis is None else np.moveaxis(sums[..., j], -1, axis) for j in range(len(_SUMS))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(reference > 0, error / reference, np.where(error > 0, np.inf, 0.0))
        cosine = product / np.sqrt(reference * decoded)
        same = (reference == 0) & (decoded == 0)
        share = np.where(elements > 0, saturated / elements, 0.0)
        return BlockErrors(
            np.where(elements > 0, error / elements, 0.0),
            relative,
            -10 * np.log10(relative),
            max_abs,
            np.where(same, 1.0, np.where(reference * decoded > 0, cosine, 0.0)),
            saturated.astype(np.int64),
            share,
            elements.astype(np.int64),
        )


def _total(sums: NDArray[np.float64]) -> TensorError:
    f = _figures(sums[None, :], None)
    return TensorError(
        float(f.mse[0]),
        float(f.relative_mse[0]),
        float(f.sqnr_db[0]) if f.relative_mse[0] else math.inf,
        float(f.max_abs[0]),
        float(f.cosine[0]),
        int(f.saturated[0]),
        float(f.saturated_share[0]),
        int(f.elements[0]),
    )

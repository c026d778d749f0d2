"""Metrics: how far decoded values are from the originals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import is_one_of
from .blocks import BlockGrid
from .errors import InputError, SchemeError

_SLAB_ELEMENTS = 1 << 20
_CHUNK_ELEMENTS = 1 << 15  # what `sum_errors` widens at once: stays in a core's cache


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
    if not is_one_of(per, (None, "block", "channel")):
        raise SchemeError(f"unknown per={per!r}", found=per, hint="None, 'block' or 'channel'")
    sums = block_sums(reference, decoded, limits, grid)
    if per == "block":
        return _figures(sums.reshape(*grid.outer_shape, grid.blocks_per_row, len(_SUMS)), grid.axis)
    rows = _add_up(sums, axis=1)
    if per == "channel":
        return _figures(rows.reshape(*grid.outer_shape, len(_SUMS)), None)
    return _total(_add_up(rows, axis=0))


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """The sums that the figures of TensorError derive from; those of parts add up to those of the whole.

    Attributes:
        error: sum of squared errors.
        reference: sum of squared originals.
        decoded: sum of squared decoded values.
        product: sum of original times decoded.
        max_abs: largest absolute error.
        saturated: elements beyond what their block can hold.
        elements: elements that take part in the sums: those that are finite on both sides.
        nonfinite: elements that are NaN or infinite on one side only, or differently on both.
        skipped: elements that are the same NaN or infinity on both sides.
    """

    error: float = 0.0
    reference: float = 0.0
    decoded: float = 0.0
    product: float = 0.0
    max_abs: float = 0.0
    saturated: int = 0
    elements: int = 0
    nonfinite: int = 0
    skipped: int = 0

    def __add__(self, other: ErrorSums) -> ErrorSums:
        """Sums of two parts together."""
        return ErrorSums(
            self.error + other.error,
            self.reference + other.reference,
            self.decoded + other.decoded,
            self.product + other.product,
            max(self.max_abs, other.max_abs),
            self.saturated + other.saturated,
            self.elements + other.elements,
            self.nonfinite + other.nonfinite,
            self.skipped + other.skipped,
        )

    def figures(self) -> TensorError:
        """The figures of everything that was added up."""
        return _total(np.array([getattr(self, name) for name in _SUMS], np.float64))


def sum_errors(
    reference: NDArray[Any],
    decoded: NDArray[Any],
    limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    block_size: int = 1,
) -> ErrorSums:
    """Sums of errors of a part of a tensor, in float64; several times faster than sums per block.

    Args:
        reference: originals `(rows, length)`.
        decoded: decoded values, the same shape.
        limits: smallest and largest value each block can hold, float64 `(rows, blocks_per_row)`, or None
            where nothing saturates.
        block_size: elements per block, if there are limits.
    """
    rows, length = reference.shape
    total = ErrorSums()
    blocks = max(1, -(-min(length, _CHUNK_ELEMENTS) // block_size))  # in each line of a chunk
    width = blocks * block_size
    step = max(1, _CHUNK_ELEMENTS // width)
    for top, left in product(range(0, rows, step), range(0, length, width)):
        part = (slice(top, top + step), slice(left, left + width))
        x, y = reference[part].astype(np.float64), decoded[part].astype(np.float64)
        first = left // block_size
        cut = (part[0], slice(first, first + blocks))
        ends = None if limits is None else (limits[0][cut], limits[1][cut])
        total += _chunk_sums(x, y, ends, block_size)
    return total


def _chunk_sums(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    ends: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
    block_size: int,
) -> ErrorSums:
    saturated = 0 if ends is None else _count_saturated(x, *ends, block_size)
    a, b = x.reshape(-1), y.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        d = a - b
        sums = [float(np.einsum("i,i", p, q)) for p, q in ((d, d), (a, a), (b, b), (a, b))]
    if not math.isfinite(sum(sums)):
        finite = np.isfinite(a) & np.isfinite(b)
        same = int(np.count_nonzero(~finite & ((a == b) | (np.isnan(a) & np.isnan(b)))))
        if not finite.all():
            rest = _chunk_sums(a[finite][None], b[finite][None], None, 1) if finite.any() else ErrorSums()
            other = a.size - rest.elements - same
            return rest + ErrorSums(saturated=saturated, nonfinite=other, skipped=same)
    largest = float(max(d.max(), -d.min()))
    return ErrorSums(sums[0], sums[1], sums[2], sums[3], largest, saturated, a.size)


def _count_saturated(
    x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], block_size: int
) -> int:
    """Elements outside of their block's limits; the last block of a row may be partial."""
    whole = x.shape[1] // block_size
    head = x[:, : whole * block_size].reshape(x.shape[0], whole, block_size)
    tail = x[:, whole * block_size :]
    count = np.count_nonzero(head < low[:, :whole, None]) + np.count_nonzero(head > high[:, :whole, None])
    if tail.size:
        count += np.count_nonzero(tail < low[:, whole:]) + np.count_nonzero(tail > high[:, whole:])
    return int(count)


def block_sums(
    reference: NDArray[Any],
    decoded: NDArray[Any],
    limits: tuple[NDArray[np.float64], NDArray[np.float64]],
    grid: BlockGrid,
) -> NDArray[np.float64]:
    """The sums of each block: float64 `(rows, blocks_per_row, 7)`, in the order of ErrorSums' fields."""
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
        relative = np.where(np.isnan(error + reference), np.nan, relative)  # a NaN is never a good match
        cosine = product / np.sqrt(reference * decoded)
        same = (reference == 0) & (decoded == 0)
        share = np.where(elements > 0, saturated / elements, 0.0)
        return BlockErrors(
            np.where(elements > 0, error / elements, 0.0),
            relative,
            -10 * np.log10(relative),
            max_abs,
            np.where(same, 1.0, np.where(reference * decoded == 0, 0.0, cosine)),
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

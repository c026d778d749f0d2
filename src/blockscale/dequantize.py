"""Dequantizing: canonical parts to values of the tensor's shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .arguments import as_dtype, check_type
from .blocks import BlockGrid, copy_in_bands
from .elements import ELEMENTS
from .errors import InputError, OverflowingValueError
from .native import dequantize_matrix
from .schemes import Scheme

_OUTPUTS = tuple(ELEMENTS[name].dtype for name in ("float32", "float16", "bfloat16"))
_SLAB_BYTES = 32 << 20


def dequantize_rows(
    scheme: Scheme,
    grid: BlockGrid,
    packed: NDArray[np.uint8],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    dtype: DTypeLike = np.float32,
    out: NDArray[Any] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Values of a block-scaled tensor from its canonical parts; see `BlockTensor.dequantize`.

    Args:
        scheme: what the numbers mean.
        grid: shape, axis and block size.
        packed: uint8 `(rows, row_bytes)`.
        scales: `(rows, blocks_per_row)` of the scheme's scale dtype.
        offsets: int32 zero points or float16 minimums, shaped as scales, or None.
        dtype: float32, float16 or bfloat16.
        out: array of the tensor's shape, or None.
        threads: at most this many; None: all processors.

    Raises:
        InputError: dtype or `out` that does not fit.
        OverflowingValueError: a finite value that becomes infinite in a 16-bit result.
    """
    out = _output(grid, dtype, out)
    moved = np.moveaxis(out, grid.axis, -1)
    if moved.flags.c_contiguous:
        rows = moved.reshape(grid.rows, grid.length)
        lost = dequantize_matrix(scheme, grid, packed, scales, offsets, rows, threads)
    else:
        lost = _through_slabs(scheme, grid, packed, scales, offsets, moved, threads)
    if lost:
        raise OverflowingValueError(
            f"{lost} of {out.size} values are beyond {out.dtype}",
            found=lost,
            rule="a finite value stays finite",
            hint="dequantize to float32" if out.dtype != np.float16 else "bfloat16 or float32",
        )
    return out


def _output(grid: BlockGrid, dtype: DTypeLike, out: NDArray[Any] | None) -> NDArray[Any]:
    if out is not None:
        check_type(out, np.ndarray, "out", "an array")
    wanted = as_dtype(dtype, "dtype") if out is None else out.dtype
    if wanted not in _OUTPUTS:
        raise InputError(f"cannot dequantize to {wanted}", found=wanted, hint="float32, float16 or bfloat16")
    if out is None:
        return np.empty(grid.shape, wanted)
    if out.shape != grid.shape or not out.flags.writeable:
        raise InputError(
            f"out has shape {out.shape} (writeable: {out.flags.writeable}), the tensor {grid.shape}",
            found=out.shape,
            field="out",
        )
    return out


def _through_slabs(
    scheme: Scheme,
    grid: BlockGrid,
    packed: NDArray[np.uint8],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    moved: NDArray[Any],
    threads: int | None,
) -> int:
    """Decode some rows at a time into a buffer, then copy to wherever they belong."""
    lines = grid.outer_shape[-1] if grid.outer_shape else 1
    step = max(1, _SLAB_BYTES // max(1, grid.length * moved.dtype.itemsize))
    lost = 0
    for outer, index in enumerate(np.ndindex(*grid.outer_shape[:-1])):
        target = moved[index].reshape(lines, grid.length) if moved.ndim == 1 else moved[index]
        for begin in range(0, lines, step):
            end = min(begin + step, lines)
            rows = slice(outer * lines + begin, outer * lines + end)
            buffer = np.empty((end - begin, grid.length), moved.dtype)
            part = BlockGrid(buffer.shape, 1, grid.block_size)
            shifts = None if offsets is None else offsets[rows]
            lost += dequantize_matrix(scheme, part, packed[rows], scales[rows], shifts, buffer, threads)
            copy_in_bands(buffer, target[begin:end])
    return lost

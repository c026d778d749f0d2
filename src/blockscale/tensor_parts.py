"""Checks and canonical forms of the parts of a BlockTensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_array, is_integer
from .blocks import BlockGrid, as_rows
from .errors import InputError, RowIndexError
from .schemes import Scheme


def offset_dtype(scheme: Scheme) -> np.dtype[Any] | None:
    """Dtype of the offsets of a scheme, or None."""
    if scheme.offset == "zero_point":
        return np.dtype(np.int32)
    return scheme.scale.dtype if scheme.offset == "minimum" else None


def check_part(name: str, part: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """InputError unless a part is contiguous and has this shape and dtype."""
    if part.shape != shape or part.dtype != dtype or not part.flags.c_contiguous:
        raise InputError(
            f"{name} are {part.dtype} {part.shape}, need contiguous {dtype} {shape}",
            found=part.shape,
            field=name,
        )


def row_span(size: int, index: Any) -> int | range:
    """The rows that an index or a slice names."""
    if not isinstance(index, slice) and not is_integer(index):
        raise InputError(
            f"an index is an integer or a slice, not {type(index).__name__}",
            found=index,
            rule="slices take whole rows of the first dimension",
            hint="w.dequantize()[...] for anything else",
        )
    try:
        span: int | range = range(size)[index]
    except IndexError:
        raise RowIndexError(f"row {index} of {size}", found=index, rule=f"-{size} <= row < {size}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the slice {index} cannot be taken: {error}", found=index) from None
    return span


def block_rows(name: str, values: ArrayLike, grid: BlockGrid, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Scales or offsets, shaped like the tensor, as rows along the axis; a copy."""
    array = as_array(values, name)
    if array.shape != grid.scale_shape:
        raise InputError(
            f"{name} have shape {array.shape}, need {grid.scale_shape}",
            found=array.shape,
            field=name,
            rule="one per block: the tensor's shape with the axis replaced by the block count",
        )
    if array.dtype != dtype:
        as_bytes = dtype.itemsize == 1 and array.dtype == np.uint8
        if as_bytes:
            array = array.view(dtype)
        elif dtype == np.int32 and np.issubdtype(array.dtype, np.integer):
            info = np.iinfo(np.int32)
            if array.size and (array.min() < info.min or array.max() > info.max):
                raise InputError(f"{name} do not fit int32", field=name)
            array = array.astype(np.int32)
        else:
            raise InputError(f"{name} are {array.dtype}, need {dtype}", found=array.dtype, field=name)
    return as_rows(array, grid.axis).copy()


def bit_patterns(rows: NDArray[Any], scheme: Scheme) -> NDArray[np.uint8]:
    """Codes as the bits that are packed, a byte each."""
    element = scheme.element
    if rows.dtype == element.dtype:
        return rows.view(np.uint8) & np.uint8((1 << element.bits) - 1)
    if not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"codes are {rows.dtype}, need {element.dtype} or integers",
            found=rows.dtype,
            field="codes",
        )
    if element.kind in ("int", "uint"):
        low, high = int(element.min), int(element.max)
    else:
        low, high = 0, (1 << element.bits) - 1
    if rows.size and (rows.min() < low or rows.max() > high):
        raise InputError(
            f"codes lie in {rows.min()} .. {rows.max()}, {element.name} holds {low} .. {high}",
            field="codes",
        )
    return (rows.astype(np.int64) & ((1 << element.bits) - 1)).astype(np.uint8)

"""Checks and canonical forms of the parts of a BlockTensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_array, first_index, is_integer
from .blocks import BlockGrid, as_rows
from .elements import Element
from .errors import InputError, RowIndexError
from .packing import unpack_codes
from .schemes import Scheme


class Preparable:
    """A place beside the value for what someone made of it and wants again; not copied, not pickled."""

    __slots__ = ("_prepared",)
    _prepared: object

    @property
    def prepared(self) -> object:
        """What `prepare` was given last, or None."""
        return getattr(self, "_prepared", None)

    def prepare(self, made: object) -> None:
        """Keep `made` as long as the tensor lives."""
        object.__setattr__(self, "_prepared", made)


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


def code_rows(packed: NDArray[np.uint8], grid: BlockGrid, element: Element) -> NDArray[Any]:
    """Unpacked codes without padding, `(rows, length)` of the element's dtype."""
    rows = unpack_codes(packed, element.bits, grid.padded_length)[:, : grid.length]
    if element.kind == "int" and element.bits < 8:  # ml_dtypes wants the sign extended
        sign = 1 << (element.bits - 1)
        rows = ((rows ^ sign).astype(np.int8) - sign).view(np.uint8)
    return np.ascontiguousarray(rows).view(element.dtype)


def sliced_rows(grid: BlockGrid, index: int | slice) -> tuple[BlockGrid, slice]:
    """What a slice along the first dimension leaves, and the rows of the canonical form that it takes.

    Raises:
        InputError: the first dimension is blocked, or the step is not 1.
    """
    if grid.axis == 0:
        raise InputError(
            "the first dimension carries the blocks and cannot be sliced",
            found=grid.axis,
            rule="slices take whole rows",
            hint="dequantize() first, or slice another way",
        )
    span = row_span(grid.shape[0], index)
    if isinstance(span, int):
        start, count, shape, axis = span, 1, grid.shape[1:], grid.axis - 1
    else:
        if span.step != 1:
            raise InputError(f"step {span.step} is not supported", rule="slices have step 1")
        start, count = span.start, len(span)
        shape, axis = (count, *grid.shape[1:]), grid.axis
    per = grid.rows // grid.shape[0] if grid.shape[0] else 0
    return BlockGrid(shape, axis, grid.block_size), slice(start * per, (start + count) * per)


def check_affine_scales(scales: NDArray[Any]) -> None:
    """InputError if a scale `(rows, blocks)` is zero, NaN or infinite; names the count and the first."""
    values = scales.astype(np.float64)
    bad = ~np.isfinite(values) | (values == 0)
    if bad.any():
        first = first_index(bad)
        raise InputError(
            f"{int(bad.sum())} of {bad.size} scales are zero, NaN or infinite, "
            f"the first is {values[first]} at row {first[0]}, block {first[1]}",
            found=float(values[first]),
            field="scales",
            rule="an affine scale is finite and not zero (Hurray format, 3.6 rule 20)",
        )


def block_limits(
    scheme: Scheme, row_scales: NDArray[Any], offsets: NDArray[Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value that each block can hold, shaped as the scales.

    Integer codes round, so their limit lies half a step beyond the last code.
    """
    scales: NDArray[np.float64] = row_scales.astype(np.float64)
    if scheme.is_mx:
        top = scales * scheme.max_value
        return -top, top
    low, high = scheme.element.min - 0.5, scheme.element.max + 0.5
    if scheme.offset == "zero_point" and offsets is not None:
        z = offsets.astype(np.float64)
        ends = scales * (low - z), scales * (high - z)
    else:
        shift = np.float64(0) if offsets is None else offsets.astype(np.float64)
        ends = scales * low + shift, scales * high + shift
    return np.minimum(*ends), np.maximum(*ends)

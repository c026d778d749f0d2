"""The door to the matmul kernels: describes weights to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from .blocks import BlockGrid
from .native import CREW, INPUT_DTYPES, LINE, address, as_bytes, chosen_isa
from .schemes import Scheme
from .threads import thread_share

SEGMENT = 32
"""Activations in 8 bits share a scale per so many elements."""
_OFFSETS = {"none": 0, "zero_point": 1, "minimum": 2}
# The order of the kernels' LinearKind (kernels/table.h); 0: from the table of values.
_KINDS = {"int4": 1, "uint4": 2, "int8": 3, "uint8": 4, "float4_e2m1": 5, "float8_e4m3": 6, "float8_e5m2": 7}
# Element values times 2**this are integers of 8 bits (float types; integers are their own).
_FRACTION_BITS = {"float4_e2m1": 1, "float6_e2m3": 3}
_NO_SCALES = np.empty(0, np.uint8)
_NO_INTEGERS = np.empty(0, np.int16)
_NO_VALUES = np.empty(0, np.float32)
# Multiplications below which a second thread costs more than it saves.
_PER_THREAD = 1 << 21
_NO_MEMORY, _NOT_FINITE = 0, 2  # answers of linear_int8 (kernels/bind_linear.cpp)
_NO_TILE = "no memory for a tile of the matmul"


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight `(rows, length)` with blocks along the length, as the kernels take it.

    Attributes:
        rows: outputs.
        length: the reduction.
        block_size: elements per block.
        native: the same, checked, as the kernels take it; it keeps the arrays.
        is_integer: whether 8-bit activations meet integer codes.
    """

    rows: int
    length: int
    block_size: int
    native: _kernels.LinearWeight
    is_integer: bool


@lru_cache(maxsize=64)
def _scheme_numbers(scheme: Scheme) -> tuple[tuple[Any, ...], NDArray[np.float32], NDArray[np.int16]]:
    """The numbers of LinearSpec that depend on the scheme, the values and the integers of its codes."""
    element = scheme.element
    fraction = 0 if element.is_integer else _FRACTION_BITS.get(element.name)
    integers = _NO_INTEGERS
    if fraction is not None:
        integers = (element.values * np.float32(1 << fraction)).astype(np.int16)
    unit = 2.0**scheme.value_exponent
    numbers = (
        element.bits,
        int(not scheme.is_mx),
        0 if scheme.is_mx else INPUT_DTYPES.index(scheme.scale.dtype),
        _OFFSETS[scheme.offset],
        _KINDS.get(element.name, 0),
        unit,
        unit * 2.0 ** -(fraction or 0),
    )
    return numbers, element.values * np.float32(unit), integers


def block_weight(
    scheme: Scheme,
    grid: BlockGrid,
    packed: NDArray[np.uint8],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    long_tiles: bool = _kernels.long_tiles,
) -> Weight:
    """A weight in canonical form, blocks along its last axis. `long_tiles`: what suits the processor."""
    numbers, values, integers = _scheme_numbers(scheme)
    size = (grid.rows, grid.length, grid.block_size, grid.row_bytes(scheme.element.bits))
    native = _kernels.linear_weight(
        (*numbers, *size),
        values,
        integers,
        as_bytes(packed),
        as_bytes(scales),
        None if offsets is None else as_bytes(offsets),
        long_tiles,
    )
    return Weight(grid.rows, grid.length, grid.block_size, native, integers.size > 0)


def dense_weight(values: NDArray[np.float32]) -> Weight:
    """A plain float32 weight `(rows, length)`, contiguous."""
    rows, length = values.shape
    numbers = (32, 2, 0, 0, 0, 1.0, 1.0, rows, length, SEGMENT, 4 * length)
    native = _kernels.linear_weight(
        numbers, _NO_VALUES, _NO_INTEGERS, as_bytes(values), _NO_SCALES, None, _kernels.long_tiles
    )
    return Weight(rows, length, SEGMENT, native, False)


def linear_float(
    a: NDArray[np.float32], w: Weight, out: NDArray[np.float32], threads: int | None, isa: int | None = None
) -> None:
    """`out = a w^T` in the fixed float32 order.

    Args:
        a: float32 `(m, length rounded up to 16)`, contiguous, zeros past the length.
        w: the weight.
        out: float32 `(m, w.rows)`, contiguous.
        threads: at most this many; None: all processors.
        isa: index into ISAS; None: the chosen one.

    Raises:
        MemoryError: no memory for a tile.
    """
    kernels = chosen_isa() if isa is None else isa
    done = _kernels.linear_float(CREW, _share(w, len(a), threads), kernels, a, out, w.native)
    if not done:
        raise MemoryError(_NO_TILE)


def linear_int8(
    a: NDArray[np.float32], w: Weight, out: NDArray[np.float32], threads: int | None, isa: int | None = None
) -> bool:
    """`out = a w^T` with `a` quantized to 8 bits and integer dot products; arguments as `linear_float`.

    Returns:
        False if activations are NaN or infinite; nothing is written then.
    """
    kernels = chosen_isa() if isa is None else isa
    answer = _kernels.linear_int8(CREW, _share(w, len(a), threads), kernels, a, out, w.native)
    if answer == _NO_MEMORY:
        raise MemoryError(_NO_TILE)
    return answer != _NOT_FINITE


def is_lined(array: NDArray[Any]) -> bool:
    """Whether an array is contiguous and begins on a cache line."""
    return array.flags.c_contiguous and address(array) % LINE == 0


def _share(w: Weight, rows: int, threads: int | None) -> int:
    return thread_share(rows * w.rows * w.length, threads, _PER_THREAD)

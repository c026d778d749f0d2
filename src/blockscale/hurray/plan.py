"""Descriptors of tensors before their data: what a file will hold, or why it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arguments import first_index
from ..blocks import BlockGrid, block_grid
from ..errors import BlockscaleError, BlockSizeError, InputError, NonFiniteError, SchemeError
from ..schemes import Scheme
from ..tensor import BlockTensor
from .descriptor import TensorDescriptor
from .geometry import data_size
from .quantization import MXFP, PerBlockAffine
from .quantized import HurrayTensor
from .rules import RULES
from .sections import file_buffer
from .types import storage_type_of


def plan_array(shape: Iterable[int], dtype: DTypeLike) -> TensorDescriptor:
    """The descriptor of a plain array, from its shape and dtype alone.

    Raises:
        InputError: a dtype or rank that the format cannot hold.
    """
    kind, dims = storage_type_of(np.dtype(dtype)), tuple(int(n) for n in shape)
    return _checked(TensorDescriptor(kind.tag, dims, (file_buffer(data_size(dims, kind.bits, None)),)))


def plan_tensor(shape: Iterable[int], axis: int, scheme: Scheme) -> TensorDescriptor:
    """The descriptor of a block-scaled tensor, from its shape and scheme alone.

    Buffers: codes of the padded shape, then scales, then zero points if the scheme has them.

    Args:
        shape: shape of the tensor.
        axis: the blocked axis; negative axes count from the end.
        scheme: what the numbers mean.

    Raises:
        SchemeError: a scheme that the format cannot hold (`minimum` offsets).
        BlockSizeError: a block size that it cannot hold on this axis.

    Source: Hurray format, 3.3, 3.5, 3.9.
    """
    return _plan_blocks(block_grid(tuple(shape), axis, scheme.block_size), scheme)


@lru_cache(maxsize=1024)
def _plan_blocks(grid: BlockGrid, scheme: Scheme) -> TensorDescriptor:
    if scheme.offset == "minimum":
        raise SchemeError(
            f"{scheme.name} adds a minimum per block, .hrry files have integer zero points",
            found=scheme.name,
            field="scheme",
            rule="x = scale * (code - zero_point) (Hurray 3.3)",
            hint="quantize to scheme('uint4', symmetric=False) or 'uint8', or keep the GGUF file",
        )
    quantization = _mx(grid) if scheme.is_mx else _affine(grid, scheme)
    bits = scheme.element.bits
    sizes = [data_size(grid.shape, bits, quantization), grid.n_blocks * scheme.scale.bits // 8]
    if scheme.offset == "zero_point":
        sizes.append(4 * grid.n_blocks)
    buffers = tuple(file_buffer(n) for n in sizes)
    return _checked(TensorDescriptor(scheme.element.tag, grid.shape, buffers, quantization=quantization))


def describe_tensor(value: Any) -> TensorDescriptor:
    """The descriptor under which a BlockTensor, HurrayTensor or array is stored; no data are read.

    Raises:
        InputError: the format cannot hold it.
    """
    if isinstance(value, BlockTensor):
        return plan_tensor(value.shape, value.axis, value.scheme)
    if isinstance(value, HurrayTensor):
        return value.descriptor
    if isinstance(value, np.ndarray):
        return plan_array(value.shape, value.dtype)
    raise InputError(
        f"a .hrry file holds arrays and block-scaled tensors, not {type(value).__name__}",
        found=type(value).__name__,
        hint="numpy.asarray(...) first",
    )


def check_storable(w: BlockTensor) -> None:
    """Check the scales of a tensor that is about to be stored.

    Raises:
        NonFiniteError: an MX block that is marked NaN.
        InputError: a scale that the format has no code for.

    Source: Hurray format, 3.6 rules 20 and 23, 3.7.
    """
    if not w.scheme.is_mx:
        w.validate()
        return
    codes = w.row_scales.view(np.uint8)
    lowest = 1 - w.scheme.value_exponent
    nan, low = codes == 255, codes < lowest
    if nan.any():
        raise NonFiniteError(
            f"{_count(nan)} marked NaN (scale byte 0xFF)",
            found=255,
            field="scales",
            rule=str(RULES["R23"]),
            hint="replace the non-finite values and quantize again; a .hrry file has no NaN blocks",
        )
    if low.any():
        raise InputError(
            f"{_count(low)} scaled by less than byte {lowest}, the least of {w.scheme.name} in a .hrry file",
            found=int(codes[low].min()),
            field="scales",
            rule=str(RULES["R23"]),
            hint="bs.mx.raise_scales(w)" if lowest == 1 else f"quantize(..., min_scale_byte={lowest})",
        )


def _count(bad: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    row, block = first_index(bad)
    n = int(bad.sum())
    return f"{n} of {bad.size} blocks (the first: row {row}, block {block}) {'is' if n == 1 else 'are'}"


def _affine(grid: BlockGrid, scheme: Scheme) -> PerBlockAffine:
    if 0 < grid.length < grid.block_size:
        largest = 1 << (grid.length.bit_length() - 1)
        raise BlockSizeError(
            f"blocks of {grid.block_size} along axis {grid.axis}, which has {grid.length} elements",
            found=grid.block_size,
            field="block_size",
            rule=str(RULES["R11"]),
            hint=f"block_size={largest}, or another axis" if largest > 1 else "another axis",
        )
    zero_points = 2 if scheme.offset == "zero_point" else None
    return PerBlockAffine(grid.axis, grid.block_size, 1, zero_points, scheme.scale.name)


def _mx(grid: BlockGrid) -> MXFP:
    low, high = MXFP.block_range
    if not low <= grid.block_size <= high:
        raise BlockSizeError(
            f"MX blocks of {grid.block_size} elements",
            found=grid.block_size,
            field="block_size",
            rule=str(RULES["R10"]),
            hint="block_size=32, the one of OCP MX",
        )
    if grid.length == 0 or grid.has_partial_blocks:
        raise BlockSizeError(
            f"axis {grid.axis} has {grid.length} elements: no whole MX blocks of {grid.block_size}",
            found=grid.length,
            field="block_size",
            rule=str(RULES["R12"]),
            hint=_whole_blocks(grid),
        )
    return MXFP(grid.axis, grid.block_size, 1)


def _whole_blocks(grid: BlockGrid) -> str:
    """What would make whole blocks of this tensor."""
    divisor = grid.length & -grid.length
    advice = [f"block_size={divisor}"] if divisor >= MXFP.block_range[0] else []
    others = [i for i, n in enumerate(grid.shape) if n and n % grid.block_size == 0]
    advice += [f"axis={others[-1]}"] if others else []
    if grid.length:
        advice.append(f"pad the axis to {grid.padded_length}")
    advice.append("an affine scheme such as int4, which may end in a partial block")
    return ", or ".join(advice)


def _checked(descriptor: TensorDescriptor) -> TensorDescriptor:
    try:
        return descriptor.check()
    except BlockscaleError as error:
        raise InputError(
            error.message, rule=error.rule, found=error.found, hint=error.hint, field=error.field
        ) from None

"""Q4_1 and Q5_1 as scale and integer zero point, for formats without minimums.

`x = d * q + m` equals `s * (c - z)` with `s = d / k`, `c = k * q` and `z = -k * m / d` where that is an
integer, which it rarely is. With eight-bit codes k may be up to 17 (Q5_1: 8), and some k comes close.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..native_minimum import rewrite_minimums
from ..packing import pack_codes, unpack_codes
from ..schemes import Scheme, scheme
from ..tensor import BlockTensor

_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A tensor with minimums, written with zero points.

    Attributes:
        tensor: the tensor.
        exact_blocks: blocks whose values are all unchanged.
        largest_error: largest difference of a value.
        largest_steps: the same in units of the block's old scale; 0.5 is half a code.
        squared_error: sum of the squared differences, in float64.
        squared_sum: sum of the squares of the old values.
    """

    tensor: BlockTensor
    exact_blocks: int
    largest_error: float
    largest_steps: float
    squared_error: float
    squared_sum: float


def zero_point_schemes(w: Scheme) -> tuple[Scheme, ...]:
    """Schemes that `with_zero_points` can write a scheme with minimums to, the most compact first."""
    eight = scheme("uint8", block_size=w.block_size, scale="float32")
    four = scheme("uint4", block_size=w.block_size, scale=w.scale.name)
    return (four, eight) if w.element.bits == 4 else (eight,)


def with_zero_points(w: BlockTensor, target: Scheme) -> Rewritten:
    """Write a tensor with minimums as one with zero points, as `rewritten`, and say what that costs."""
    return _measure(w, rewritten(w, target))


def rewritten(w: BlockTensor, target: Scheme, *, threads: int | None = None) -> BlockTensor:
    """Write a tensor with minimums as one with zero points.

    uint4 keeps codes and scales and rounds the zero point, at an error of up to half a code; uint8 takes,
    block by block, the k and zero point with the least squared error, and the scale that then fits best.

    Args:
        w: a tensor of a scheme with minimums (q4_1, q5_1), or whole rows of it.
        target: one of `zero_point_schemes(w.scheme)`.
        threads: at most this many threads; None: all processors.

    Raises:
        InputError: `w` has no minimums, or blocks that are partial or not along the last dimension; another
            target.
    """
    if w.row_offsets is None or w.scheme.offset != "minimum" or w.scheme.scale.name != "float16":
        raise InputError(f"{w.scheme.name} has no float16 minimums", found=w.scheme.name, field="scheme")
    if target not in zero_point_schemes(w.scheme):
        names = " or ".join(s.describe() for s in zero_point_schemes(w.scheme))
        raise InputError(f"{target.describe()} is no target here", found=target.name, hint=names)
    grid = w.grid
    if grid.has_partial_blocks or grid.axis != len(grid.shape) - 1:
        raise InputError("whole blocks along the last dimension are needed, as GGUF has them", found=w.shape)
    bits = w.scheme.element.bits
    d, m = (np.ascontiguousarray(a) for a in (w.row_scales, w.row_offsets))
    if target.element.bits == 4:
        return _rounded(w, target, d.astype(np.float64), m.astype(np.float64))
    largest_k = int(target.element.max) // (31 if bits == 8 else 15)
    packed = np.ascontiguousarray(w.packed)
    codes, s, z = rewrite_minimums(packed, d, m, bits, grid.block_size, largest_k, threads=threads)
    shape = (grid.rows, grid.blocks_per_row)
    return BlockTensor(grid, target, codes.reshape(grid.rows, -1), s.reshape(shape), z.reshape(shape))


def _rounded(w: BlockTensor, target: Scheme, d: NDArray[np.float64], m: NDArray[np.float64]) -> BlockTensor:
    """The same codes and scales with the nearest zero points.

    Blocks of one value (d = 0 in ggml) get that value as the scale, where it fits, and the code one beside
    the zero point.
    """
    grid = w.grid
    codes = unpack_codes(w.packed, w.scheme.element.bits, grid.padded_length).reshape(*d.shape, -1)
    z = np.clip(np.rint(-m / d), -_INT32, _INT32)
    value = (d * codes[..., 0] + m).astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        stored = np.abs(value).astype(target.scale.dtype).astype(np.float64)
    constant = (codes == codes[..., :1]).all(axis=-1) & (stored == np.abs(value))
    s = np.where(constant, np.where(value == 0, 1.0, np.abs(value)), d)
    z = np.where(constant, (value < 0).astype(np.float64), z)
    new = np.where(constant[..., None], (value > 0).astype(np.uint8)[..., None], codes)
    packed = pack_codes(new.reshape(grid.rows, -1), target.element.bits)
    return BlockTensor(grid, target, packed, s.astype(target.scale.dtype), z.astype(np.int32))


def _measure(w: BlockTensor, tensor: BlockTensor) -> Rewritten:
    old: NDArray[Any] = w.dequantize().reshape(w.grid.n_blocks, -1)
    error: NDArray[np.float64] = np.abs(tensor.dequantize().reshape(old.shape) - old.astype(np.float64))
    worst = error.max(axis=1, initial=0)
    return Rewritten(
        tensor,
        int(np.count_nonzero(worst == 0)),
        float(worst.max(initial=0)),
        float((worst / np.abs(w.row_scales.astype(np.float64).reshape(-1))).max(initial=0)),
        float(np.square(error).sum()),
        float(np.square(old, dtype=np.float64).sum()),
    )

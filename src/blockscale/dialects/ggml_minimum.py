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
from ..packing import pack_codes, unpack_codes
from ..schemes import Scheme, scheme
from ..tensor import BlockTensor

_INT32 = 2**31 - 1
_NOISE = 1e-13  # of the sum of squares: errors that float64 cannot tell apart


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
    """Write a tensor with minimums as one with zero points, and say what that costs.

    uint4 keeps codes and scales and rounds the zero point, at an error of up to half a code; uint8 takes,
    block by block, the k and zero point with the least squared error, and the scale that then fits best.

    Args:
        w: a tensor of a scheme with minimums (q4_1, q5_1), or whole rows of it.
        target: one of `zero_point_schemes(w.scheme)`.

    Raises:
        InputError: `w` has no minimums, or blocks that are partial or not along the last dimension; another
            target.
    """
    if w.row_offsets is None or w.scheme.offset != "minimum":
        raise InputError(f"{w.scheme.name} has no minimums", found=w.scheme.name, field="scheme")
    if target not in zero_point_schemes(w.scheme):
        names = " or ".join(s.describe() for s in zero_point_schemes(w.scheme))
        raise InputError(f"{target.describe()} is no target here", found=target.name, hint=names)
    grid = w.grid
    if grid.has_partial_blocks or grid.axis != len(grid.shape) - 1:
        raise InputError("whole blocks along the last dimension are needed, as GGUF has them", found=w.shape)
    codes = unpack_codes(w.packed, w.scheme.element.bits, grid.padded_length).reshape(grid.n_blocks, -1)
    d = w.row_scales.astype(np.float64).reshape(-1)
    m = w.row_offsets.astype(np.float64).reshape(-1)
    top = 31 if w.scheme.element.bits == 8 else 15
    factor = int(target.element.max) // top
    k, s, z = _fit(codes, d, m, factor if target.element.bits == 8 else 1)
    new = codes * k.astype(np.uint8)[:, None]
    s, z, new = _constant_blocks(codes, d, m, target, s, z, new)
    tensor = BlockTensor(
        grid,
        target,
        pack_codes(new.reshape(grid.rows, -1), target.element.bits),
        s.astype(target.scale.dtype).reshape(grid.rows, -1),
        z.astype(np.int32).reshape(grid.rows, -1),
    )
    return _measure(w, tensor)


def _fit(
    codes: NDArray[np.uint8], d: NDArray[np.float64], m: NDArray[np.float64], largest_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """k, scale and zero point per block; all from sums of codes and of their squares."""
    n = codes.shape[1]
    q1 = codes.sum(axis=1, dtype=np.int64).astype(np.float64)
    wide = codes.astype(np.int64)
    q2 = (wide * wide).sum(axis=1).astype(np.float64)
    if largest_k == 1:
        return np.ones(len(d), np.int64), d, np.clip(np.rint(-m / d), -_INT32, _INT32)
    total = d * d * q2 + 2 * d * m * q1 + n * m * m
    best = np.full(len(d), np.inf)
    k_best, s_best, z_best = np.ones(len(d), np.int64), d.copy(), np.zeros(len(d))
    for k in range(1, largest_k + 1):
        exact_z = -k * m / d
        for z in (np.floor(exact_z), np.ceil(exact_z)):
            z = np.clip(z, -_INT32, _INT32)
            a = d * k * q2 + (m * k - d * z) * q1 - n * m * z
            b = k * k * q2 - 2 * k * z * q1 + n * z * z
            s = np.divide(a, b, out=d / k, where=b > 0).astype(np.float32).astype(np.float64)
            err = total - 2 * s * a + s * s * b
            better = (err < best - _NOISE * total) & (s != 0)
            best[better], k_best[better] = err[better], k
            s_best[better], z_best[better] = s[better], z[better]
    return k_best, s_best, z_best


def _constant_blocks(
    codes: NDArray[np.uint8],
    d: NDArray[np.float64],
    m: NDArray[np.float64],
    target: Scheme,
    s: NDArray[np.float64],
    z: NDArray[np.float64],
    new: NDArray[np.uint8],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8]]:
    """Blocks of one value (d = 0 in ggml): that value as the scale, the code one beside the zero point."""
    value = (d * codes[:, 0] + m).astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        stored = np.abs(value).astype(target.scale.dtype).astype(np.float64)
    constant = (codes == codes[:, :1]).all(axis=1) & (stored == np.abs(value))
    scale = np.where(value == 0, 1.0, np.abs(value))
    zero = (value < 0).astype(np.float64)
    code = (value > 0).astype(np.uint8)
    s, z = np.where(constant, scale, s), np.where(constant, zero, z)
    return s, z, np.where(constant[:, None], code[:, None], new)


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

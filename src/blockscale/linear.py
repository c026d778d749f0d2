"""The matmul whose weight stays packed: `y = a @ w.T + bias`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import is_one_of
from .errors import InputError, OverflowingValueError
from .linear_checks import (
    check_activations,
    check_axis,
    check_bias,
    check_experts,
    check_finite,
    check_output,
    check_reduction,
)
from .native import lined_zeros
from .native_linear import (
    SEGMENT,
    Weight,
    block_weight,
    dense_weight,
    is_lined,
    linear_float,
    linear_int8,
)
from .tensor import BlockTensor

_FLOAT32 = np.dtype(np.float32)
_LANES = 16  # rows of activations are padded to a multiple
# Putting activations on a cache line costs more than it saves for weights of fewer elements,
# and for this many rows of activations.
_SMALL, _MANY_ROWS = 1 << 18, 32


def linear(
    a: ArrayLike,
    w: BlockTensor,
    bias: ArrayLike | None = None,
    *,
    activations: str | None = None,
    on_wrong_axis: str = "error",
    experts: ArrayLike | None = None,
    out: NDArray[Any] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """`a @ w.T + bias` with the weight packed; the same bits for any number of threads and processor.

    **Order and error.** In float32, element k of the reduction goes to lane `k mod 16` by one fused
    multiply-add, ascending, and the lanes are halved (8 + 4 + 2 + 1). With `W = w.dequantize()`,
    `u = 2**-24`, `n = ceil(K / 16) + 4` (one more with a bias) and `gamma = n u / (1 - n u)`:

        |y - exact| <= gamma * (sum |a| |W| + |bias|)

    (plus `K 2**-149` where products underflow; nothing is promised where they overflow). K = 4096 gives
    `gamma = 1.55e-5`, where an arbitrary order may need `2.4e-4`.

    `activations="int8"` first rounds `a`, per 32 elements, to `a' = s q` with `s = max |a| / 127` and
    integers q: `|a - a'| <= 0.501 s`. Products of codes are added exactly, as integers; the S segments of up
    to 32 elements of one block then as float32 in sixteen lanes. The bound holds with `a'` for `a`, the real
    numbers that codes and scales stand for as `W`, and `n = ceil(S / 16) + 6`. For `q4_1`,
    `n = 2 ceil(S / 16) + 6` and `|s q| + |m|` takes the place of `|W|`. MXFP8 and MXFP6 E3M2, whose codes are
    no small integers, multiply `a'` in float32 as above. Where products of scales underflow, no bound holds.
    `docs/linear.md` has both definitions in full.

    **Special values.** In float32, NaN and infinities in `a` do what IEEE says, in their rows only; an MX
    block with scale NaN makes its outputs NaN. `activations="int8"` refuses non-finite `a`.

    Args:
        a: float32, float16 or bfloat16 `(..., K)`.
        w: `(N, K)` with blocks along K; or `(E, N, K)` with `experts`.
        bias: float32, float16 or bfloat16 `(N,)`, or `(E, N)` with `experts`; added in float32.
        activations: None for full precision, `"int8"` for integer dot products.
        on_wrong_axis: `"error"`, or `"dequantize"`: decode the whole weight where blocks do not run along K.
        experts: integers shaped like `a` without K: which of the E matrices each row meets.
        out: array `(..., N)` to write into: float32, or the dtype of `a`; it may be `a` or `bias` itself.
        threads: at most this many; None: all processors.

    Returns:
        `(..., N)` in the dtype of `a` (rounded once from float32), or `out`.

    Raises:
        BlockAxisError: blocks do not run along the reduction axis.
        InputError: shapes, dtypes or options that do not fit.
        NonFiniteError: non-finite activations with `activations="int8"`.
        OverflowingValueError: a finite result beyond float16 or bfloat16.
    """
    if bias is None and experts is None and activations is not None:
        ready = _ready(a, w, out, activations, on_wrong_axis)
        if ready is not None:
            return _linear_ready(*ready, out, threads)
    x = check_activations(a, activations)
    if not isinstance(w, BlockTensor):
        raise InputError(
            f"the weight is a {type(w).__name__}, not a BlockTensor",
            found=type(w).__name__,
            field="w",
            hint="w = bs.quantize(weight, 'mxfp4'); or NumPy's a @ w.T",
        )
    index = None
    known = w.prepared  # of a matrix with blocks along K
    if not isinstance(known, Weight) or x.shape[-1] != known.length or experts is not None:
        index = check_experts(experts, x, w)
        check_reduction(x, w)
    if not isinstance(known, Weight) or not is_one_of(on_wrong_axis, ("error",)):
        check_axis(w, on_wrong_axis)
    outputs, length = w.shape[-2:]
    result_shape = (*x.shape[:-1], outputs)
    given = out is not None
    out = check_output(out, result_shape, x.dtype)
    bias_rows = check_bias(bias, w)
    lined = activations is None and outputs * length > _SMALL and x.size < _MANY_ROWS * length
    rows = _padded_rows(x, lined)
    direct = (
        out.dtype == np.float32
        and out.flags.c_contiguous
        and out.size > 0
        and not (given and _overlaps(out, x, bias_rows))
    )
    y = out if direct else np.empty(result_shape, np.float32)
    if y.ndim != 2:
        y = y.reshape(rows.shape[0], outputs)
    if index is not None:
        if activations == "int8":
            check_finite(x)
        _multiply_experts(rows, w, index, bias_rows, y, activations, threads)
    else:
        if not _multiply(rows, _weight(w), y, activations, threads):
            check_finite(x)
        if bias_rows is not None:
            y += bias_rows
    if not direct:
        _store(y.reshape(result_shape), out)
    return out


def _ready(
    a: Any, w: Any, out: Any, activations: Any, on_wrong_axis: Any
) -> tuple[NDArray[np.float32], Weight] | None:
    """Activations and weight of a call in which all is as the kernels for 8-bit activations take it.

    Only a short cut: quick looks, where checks and conversions would take longer than a small matmul.
    """
    known = w.prepared if type(w) is BlockTensor else None
    if type(known) is not Weight or not known.is_integer or type(a) is not np.ndarray or a.ndim != 2:
        return None
    if not is_one_of(activations, ("int8",)) or not is_one_of(on_wrong_axis, ("error",)):
        return None
    rows, length = a.shape
    if length != known.length or length % _LANES or not length or a.dtype is not _FLOAT32:
        return None
    flags = a.flags
    if not flags.c_contiguous:
        return None
    if out is None:
        return a, known
    if type(out) is not np.ndarray or out.dtype is not _FLOAT32 or out.shape != (rows, known.rows):
        return None
    given = out.flags
    apart = out is not a and given.owndata and flags.owndata
    return (a, known) if apart and given.c_contiguous and given.writeable else None


def _linear_ready(
    a: NDArray[np.float32], w: Weight, out: NDArray[Any] | None, threads: int | None
) -> NDArray[Any]:
    y = np.empty((a.shape[0], w.rows), np.float32) if out is None else out
    if not linear_int8(a, w, y, threads):
        check_finite(a)
    return y


def _overlaps(out: NDArray[Any], x: NDArray[Any], bias: NDArray[Any] | None) -> bool:
    """Whether writing to `out` may change what has yet to be read."""
    return np.may_share_memory(out, x) or (bias is not None and np.may_share_memory(out, bias))


def _multiply(
    rows: NDArray[np.float32], w: Weight, y: NDArray[np.float32], activations: str | None, threads: int | None
) -> bool:
    """Whether `y` was written: not if 8 bits should hold what is not finite."""
    if activations == "int8" and w.is_integer and w.length:
        return linear_int8(rows, w, y, threads)
    if activations == "int8":
        if not np.isfinite(rows).all():
            return False
        rows = _round_activations(rows)
    if w.length:
        linear_float(rows, w, y, threads)
    else:
        y[...] = 0
    return True


def _multiply_experts(
    rows: NDArray[np.float32],
    w: BlockTensor,
    index: NDArray[np.int64],
    bias: NDArray[np.float32] | None,
    y: NDArray[np.float32],
    activations: str | None,
    threads: int | None,
) -> None:
    """Rows of one expert together, so that each weight is read once."""
    whole = None if w.axis == 2 else w.dequantize()
    order = np.argsort(index, kind="stable")
    cuts = np.flatnonzero(np.diff(index[order])) + 1
    for part in np.split(order, cuts) if order.size else ():
        expert = int(index[part[0]])
        piece = np.empty((part.size, y.shape[1]), np.float32)
        one = _expert(w, expert) if whole is None else dense_weight(np.ascontiguousarray(whole[expert]))
        _multiply(rows[part], one, piece, activations, threads)
        y[part] = piece if bias is None else piece + bias[expert]


def _expert(w: BlockTensor, expert: int) -> Weight:
    """One of the matrices as the kernels take it, described once for each tensor."""
    if not isinstance(w.prepared, dict):
        w.prepare({})
    known: Any = w.prepared
    if expert not in known:
        known[expert] = _weight(w[expert])
    made: Weight = known[expert]
    return made


def _weight(w: BlockTensor) -> Weight:
    """The weight as the kernels take it, described once for each tensor."""
    known = w.prepared
    if isinstance(known, Weight):
        return known
    if w.axis == len(w.shape) - 1:
        made = block_weight(w.scheme, w.grid, w.packed, w.row_scales, w.row_offsets)
        w.prepare(made)
        return made
    return dense_weight(np.ascontiguousarray(w.dequantize()))


def _padded_rows(x: NDArray[Any], lined: bool) -> NDArray[np.float32]:
    """Float32 rows, zeros up to a multiple of 16; `x` itself where it is so already (and on a line)."""
    length = x.shape[-1]
    rows = x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), length)
    width = -(-length // _LANES) * _LANES
    if (
        width == length
        and rows.dtype == np.float32
        and (is_lined(rows) if lined else rows.flags.c_contiguous)
    ):
        return rows
    padded = lined_zeros((rows.shape[0], width), np.dtype(np.float32))
    if rows.dtype.itemsize == 2 and rows.dtype != np.float16:  # bfloat16: the upper half of a float32
        padded.view(np.uint32)[:, :length] = rows.view(np.uint16)
        padded.view(np.uint32)[...] <<= 16
    else:
        padded[:, :length] = rows
    return padded


def _round_activations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The values of activations in 8 bits, as the kernels round them."""
    width = -(-rows.shape[1] // SEGMENT) * SEGMENT
    x = np.zeros((rows.shape[0], width), np.float32)
    x[:, : rows.shape[1]] = rows
    x = x.reshape(rows.shape[0], -1, SEGMENT)
    scales = np.abs(x).max(axis=2, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(x / np.where(scales == 0, np.float32(1), scales)), -127, 127)
    return np.ascontiguousarray((codes * scales).reshape(rows.shape[0], width)[:, : rows.shape[1]])


def _store(y: NDArray[np.float32], out: NDArray[Any]) -> None:
    if out.dtype == np.float32:
        out[...] = y
        return
    with np.errstate(over="ignore"):
        narrow = y.astype(out.dtype)
    lost = int(np.count_nonzero(np.isinf(narrow) & np.isfinite(y)))
    if lost:
        raise OverflowingValueError(
            f"{lost} of {y.size} results are beyond {out.dtype}",
            found=lost,
            rule="a finite value stays finite",
            hint="out=np.empty(shape, np.float32), or float32 activations",
        )
    out[...] = narrow

"""What `linear` refuses, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_array, check_type, first_index, is_one_of
from .elements import ELEMENTS
from .errors import BlockAxisError, InputError, NonFiniteError
from .tensor import BlockTensor

_DTYPES = tuple(ELEMENTS[name].dtype for name in ("float32", "float16", "bfloat16"))


def check_activations(a: ArrayLike, activations: str | None) -> NDArray[Any]:
    """The activations as an array of a dtype that can be multiplied."""
    x = as_array(a, "a")
    if x.dtype not in _DTYPES:
        raise InputError(
            f"activations are {x.dtype}",
            found=x.dtype,
            field="a",
            rule="float32, float16 or bfloat16",
            hint="a.astype(np.float32)",
        )
    if x.ndim == 0:
        raise InputError("activations have no axis to reduce", found=x.shape, field="a")
    if not is_one_of(activations, (None, "int8")):
        raise InputError(
            f"activations={activations!r}", found=activations, field="activations", hint="None or 'int8'"
        )
    return x


def check_experts(experts: ArrayLike | None, x: NDArray[Any], w: BlockTensor) -> NDArray[np.int64] | None:
    """The matrix of each row, flat, or None where there is one matrix."""
    rank = len(w.shape)
    if experts is None:
        if rank != 2:
            raise InputError(
                f"a weight of shape {w.shape} is no matrix",
                found=w.shape,
                field="w",
                rule="(N, K), or (E, N, K) with experts=",
                hint="experts=, or w[i] for one of the matrices" if rank == 3 else None,
            )
        return None
    if rank != 3:
        raise InputError(
            f"experts= wants a weight (E, N, K), this one has shape {w.shape}", found=w.shape, field="w"
        )
    index = as_array(experts, "experts")
    if index.dtype.kind not in "iu" or index.shape != x.shape[:-1]:
        raise InputError(
            f"experts are {index.dtype} {index.shape}, need integers {x.shape[:-1]}",
            found=index.shape,
            field="experts",
            rule="one matrix number per row of a",
        )
    flat = index.reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= w.shape[0]):
        raise InputError(
            f"experts lie in {flat.min()} .. {flat.max()}, the weight has 0 .. {w.shape[0] - 1}",
            found=int(flat.max()),
            field="experts",
        )
    return flat.astype(np.int64)


def check_reduction(x: NDArray[Any], w: BlockTensor) -> None:
    """InputError unless the last axes are equally long."""
    length = w.shape[-1]
    if x.shape[-1] == length:
        return
    hint = None
    if x.shape[-1] == w.shape[-2]:
        hint = "the weight looks like (in, out), as GPT-2's Conv1D stores it: quantize weight.T"
    raise InputError(
        f"activations of shape {x.shape} reduce over {x.shape[-1]} elements, "
        f"the weight {w.shape} over {length}",
        found=x.shape,
        field="a",
        rule="a is (..., K), w is (N, K): y = a @ w.T",
        hint=hint,
    )


def check_axis(w: BlockTensor, on_wrong_axis: str) -> None:
    """BlockAxisError unless the blocks run along the last axis, or that does not matter."""
    if not is_one_of(on_wrong_axis, ("error", "dequantize")):
        raise InputError(
            f"on_wrong_axis={on_wrong_axis!r}",
            found=on_wrong_axis,
            field="on_wrong_axis",
            hint="'error' or 'dequantize'",
        )
    reduction = len(w.shape) - 1
    if w.axis == reduction or on_wrong_axis == "dequantize":
        return
    raise BlockAxisError(
        f"the matmul reduces over axis {reduction} of the weight {w.shape}, "
        f"its blocks run along axis {w.axis}",
        found=w.axis,
        field="w",
        rule="scales come out of the sum only where blocks run along the reduction axis",
        hint=f"bs.quantize(weight, ..., axis={reduction}) from the original; "
        f"bs.reblock(w, axis={reduction}), which rounds again and says how much; "
        "or on_wrong_axis='dequantize', which is slow",
    )


def check_output(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array to write to, made if there is none."""
    if out is None:
        return np.empty(shape, dtype)
    check_type(out, np.ndarray, "out", "an array")
    allowed = (np.dtype(np.float32), dtype)
    if out.shape != shape or out.dtype not in allowed or not out.flags.writeable:
        raise InputError(
            f"out is {out.dtype} {out.shape} (writeable: {out.flags.writeable}), "
            f"need {dtype} or float32 {shape}",
            found=out.shape,
            field="out",
        )
    return out


def check_bias(bias: ArrayLike | None, w: BlockTensor) -> NDArray[np.float32] | None:
    """The bias in float32, or None."""
    if bias is None:
        return None
    array = as_array(bias, "bias")
    if array.dtype not in _DTYPES or array.shape != w.shape[:-1]:
        raise InputError(
            f"bias is {array.dtype} {array.shape}, need float32, float16 or bfloat16 {w.shape[:-1]}",
            found=array.shape,
            field="bias",
        )
    return array.astype(np.float32)


def check_finite(x: NDArray[Any]) -> None:
    """NonFiniteError if anything is NaN or infinite."""
    good = np.isfinite(x)
    if not good.all():
        bad = ~good
        index = first_index(bad)
        raise NonFiniteError(
            f"{int(bad.sum())} of {x.size} activations are NaN or infinite; the first is {x[index]} at index "
            f"{list(index)}",
            found=float(x[index]),
            field="a",
            rule="only finite values can be quantized to 8 bits",
            hint="activations=None lets them through as IEEE says",
        )

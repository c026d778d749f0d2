"""Quantizing: an array of any shape and strides to a BlockTensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_array, is_integer, is_one_of
from .blocks import BlockGrid, as_rows, block_grid, check_padding
from .errors import InputError, NonFiniteError, ScaleOverflowError, SchemeError
from .native import INPUT_DTYPES, QuantizedRows, quantize_rows
from .report import QuantizeReport
from .rules import Rule, rule_for
from .schemes import Scheme
from .schemes import scheme as find_scheme
from .tensor import BlockTensor

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LARGEST_IMPORTANCE = 1e100
_NONFINITE = "mend the source; only MX schemes can mark a block as NaN"
_NONFINITE_MX = "mend the source; nonfinite='nan-block' marks such MX blocks as NaN"


def quantize(
    x: ArrayLike,
    scheme: str | Scheme,
    *,
    axis: int = -1,
    rule: str | Rule | None = None,
    block_size: int | None = None,
    importance: ArrayLike | None = None,
    nonfinite: str = "error",
    threads: int | None = None,
    min_scale_byte: int = 0,
) -> BlockTensor:
    """Quantize an array.

    Args:
        x: float64, float32, float16 or bfloat16, rank 1 .. 64, any strides.
        scheme: name of a scheme (`"mxfp4"`, `"int4"`, `"q8_0"` ...) or a Scheme.
        axis: the axis along which blocks run; the reduction axis of the matmul that will use the weight.
        rule: how scales are chosen; None: the scheme's default. docs/rules.md defines them all.
        block_size: elements per block instead of the scheme's own.
        importance: weights of the squared error, one per position along the axis, 0 to 1e100; for the rule
            `optimal`.
        nonfinite: `"error"` refuses NaN, infinities and values beyond float32; `"nan-block"` marks an MX
            block that has one as NaN (scale byte 255).
        threads: at most this many threads; None: all processors. The result does not depend on it.
        min_scale_byte: smallest E8M0 byte to use; 1 where the target has no byte 0 (Hurray).

    Returns:
        The BlockTensor; its `report` counts every inexact event.

    Raises:
        InputError: dtype, rank or importance that does not fit.
        AxisError, BlockSizeError, SchemeError: an argument out of range.
        NonFiniteError: non-finite values; names their number and the first index.
        ScaleOverflowError: a scale beyond its type.

    Source: docs/rules.md; OCP MX v1.0, 6.3; Hurray format, 3.3.
    """
    row = find_scheme(scheme, block_size=block_size)
    _check_least_byte(min_scale_byte)
    chosen = rule_for(row, rule)
    array = _as_float_array(x)
    grid = block_grid(array.shape, axis, row.block_size)
    check_padding(grid)
    if not is_one_of(nonfinite, ("error", "nan-block")) or (nonfinite == "nan-block" and not row.is_mx):
        raise SchemeError(
            f"nonfinite={nonfinite!r} does not fit scheme {row.name}",
            found=nonfinite,
            field="nonfinite",
            rule="only MX scales can say NaN",
            hint="nonfinite='error'",
        )
    rows = as_rows(array, grid.axis)
    parts = quantize_rows(
        rows,
        row,
        chosen,
        importance=_check_importance(importance, chosen, grid),
        min_byte=min_scale_byte,
        threads=threads,
    )
    bad = find_nonfinite(array) if parts.events["nonfinite"] and nonfinite == "error" else None
    if bad is not None:
        index = tuple(int(i) for i in np.unravel_index(bad[1], array.shape))
        raise nonfinite_error(bad[0], array.size, index, bad[2], _NONFINITE_MX if row.is_mx else _NONFINITE)
    if parts.events["scale_overflow"]:
        raise _overflow_error(rows, row, parts)
    report = _report(chosen, grid, parts)
    return BlockTensor(grid, row, parts.packed, parts.scales, parts.offsets, report)


def _as_float_array(x: ArrayLike) -> NDArray[Any]:
    array = as_array(x, "x")
    if array.dtype not in INPUT_DTYPES:
        native = array.dtype.newbyteorder("=") if array.dtype.kind == "f" else array.dtype
        if native in INPUT_DTYPES:
            return array.astype(native)
        raise InputError(
            f"cannot quantize {array.dtype}",
            found=array.dtype,
            rule="float64, float32, float16 or bfloat16",
            hint="x.astype(np.float32) if the numbers are weights",
        )
    return array


def _check_least_byte(least: int) -> None:
    if not is_integer(least) or not 0 <= least <= 254:
        raise InputError(
            f"min_scale_byte is {least!r}", found=least, field="min_scale_byte", rule="an E8M0 byte, 0 .. 254"
        )


def _check_importance(
    importance: ArrayLike | None, rule: Rule, grid: BlockGrid
) -> NDArray[np.float64] | None:
    if importance is None:
        return None
    if not rule.takes_importance:
        raise SchemeError(
            f"rule {rule.name!r} does not weigh errors", field="importance", hint="rule='optimal'"
        )
    weights = np.ascontiguousarray(as_array(importance, "importance", np.float64))
    if weights.shape != (grid.length,):
        raise InputError(
            f"importance has shape {weights.shape}, the axis {grid.length} positions",
            found=weights.shape,
            field="importance",
        )
    bad = ~(weights >= 0) | (weights > _LARGEST_IMPORTANCE)
    if bad.any():
        first = int(np.argmax(bad))
        raise InputError(
            f"{int(bad.sum())} importances are negative, not finite or too large, the first is "
            f"{weights[first]} at position {first}",
            found=float(weights[first]),
            field="importance",
            rule=f"0 <= importance <= {_LARGEST_IMPORTANCE:g}: weighted squares must fit float64",
            hint="only their ratios matter: divide them by their maximum",
        )
    return weights


def _report(rule: Rule, grid: BlockGrid, parts: QuantizedRows) -> QuantizeReport:
    counts = {k: n for k, n in parts.events.items() if k not in ("nonfinite", "scale_overflow")}
    return QuantizeReport(str(rule), grid.rows * grid.length, grid.n_blocks, **counts)


def find_nonfinite(array: NDArray[Any]) -> tuple[int, int, float] | None:
    """Count, flat index of the first, and value of the first of the values that cannot be quantized."""
    values = array.astype(np.float64).reshape(-1)
    bad = ~(np.abs(values) <= _FLOAT32_MAX)
    if not bad.any():
        return None
    first = int(np.argmax(bad))
    return int(bad.sum()), first, float(values[first])


def nonfinite_error(
    count: int, size: int, index: tuple[int, ...], found: float, hint: str | None
) -> NonFiniteError:
    """The error for `count` of `size` values, the first at `index`."""
    return NonFiniteError(
        f"{count} of {size} values are NaN, infinite or beyond float32; "
        f"the first is {found} at index {list(index)}",
        found=found,
        rule="only finite float32 values can be quantized",
        hint=hint,
    )


def _overflow_error(rows: NDArray[Any], scheme: Scheme, parts: QuantizedRows) -> ScaleOverflowError:
    amax = float(np.max(np.abs(rows.astype(np.float64)))) if rows.size else 0.0
    return ScaleOverflowError(
        f"{parts.events['scale_overflow']} of {parts.scales.size} blocks need a scale beyond "
        f"{scheme.scale.name} (largest {scheme.scale.max:g}); the largest magnitude is {amax:g}",
        found=amax,
        field="scales",
        rule="a scale is finite in its stored type",
        hint=_wider_scales(scheme),
    )


def _wider_scales(scheme: Scheme) -> str:
    """What to do where a scale overflows."""
    if scheme.offset == "minimum":
        return "another scheme, such as uint4 with bfloat16 scales"
    if scheme.scale.name == "float16":
        return "--scale bfloat16 or float32: scheme(..., scale='bfloat16')"
    if scheme.scale.name == "bfloat16":
        return "--scale float32: scheme(..., scale='float32')"
    return "more bits, or smaller numbers: these lie at the end of float32"

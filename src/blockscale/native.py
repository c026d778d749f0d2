"""The door to the compiled kernels: views dtypes as bytes, makes specs of the tables' rows."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import _kernels
from .blocks import BlockGrid
from .elements import ELEMENTS
from .errors import InputError
from .rules import Rule
from .schemes import Scheme
from .threads import GRAIN, SEARCH_GRAIN, thread_share

# The order of the kernels' InputType (kernels/table.h).
INPUT_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
)
# The order of the kernels' Event.
EVENTS = (
    "saturated",
    "saturated_blocks",
    "zeroed",
    "zero_blocks",
    "scales_raised",
    "scales_clamped",
    "nan_blocks",
    "unweighted_blocks",
    "nonfinite",
    "scale_overflow",
)
_OFFSETS = {"none": 0, "zero_point": 1, "minimum": 2}
_AFFINE_RULES = {"absmax": 0, "minmax": 1, "ggml": 2, "optimal": 3}
_NEVER = 2.0  # a significand lies in [1, 2): this threshold is never passed
ISAS: tuple[str, ...] = _kernels.isas
"""Instruction sets that this build has and this machine runs, slowest first."""
ISA_VARIABLE = "BLOCKSCALE_ISA"
COMPILER = f"{_kernels.compiler} {_kernels.flags}"
LINE = 64
"""Bytes of a cache line."""
CREW = _kernels.Crew()
"""The threads that help with kernels, started when first needed."""
atexit.register(CREW.close)  # daemon threads may be at work when the interpreter ends
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CREW.forget)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Parts of a quantized matrix in canonical form, and the counted events."""

    packed: NDArray[np.uint8]
    scales: NDArray[Any]
    offsets: NDArray[Any] | None
    events: dict[str, int]


@cache
def chosen_isa() -> int:
    """The instruction set to use, an index into ISAS: the last, or what BLOCKSCALE_ISA names.

    Read once, when the first kernel runs: not at import, so that a wrong name is an error like any other.

    Raises:
        InputError: BLOCKSCALE_ISA names what this build or machine does not have.
    """
    name = os.environ.get(ISA_VARIABLE, "")
    if not name:
        return len(ISAS) - 1
    if name not in ISAS:
        raise InputError(
            f"{ISA_VARIABLE}={name!r}: no such instruction set here",
            found=name,
            field=ISA_VARIABLE,
            rule=f"one of {', '.join(ISAS)}: what this build has and this processor runs",
            hint=f"unset {ISA_VARIABLE}; results are the same with each of them",
        )
    return ISAS.index(name)


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A flat uint8 view of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def address(array: NDArray[Any]) -> int:
    """Where an array lies; `array.ctypes` would cost a microsecond."""
    found: int = array.__array_interface__["data"][0]
    return found


def lined_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `np.empty`, from the start of a cache line on: vectors that cross lines cost twice."""
    return _lined(np.empty, shape, dtype)


def lined_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `np.zeros`, from the start of a cache line on."""
    return _lined(np.zeros, shape, dtype)


def _lined(
    make: Callable[[int, type[np.uint8]], NDArray[np.uint8]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = make(nbytes + LINE, np.uint8)
    start = -address(raw) % LINE
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def mx_spec(scheme: Scheme, rule: Rule, min_byte: int) -> tuple[Any, ...]:
    """The kernels' MxSpec (kernels/table.h)."""
    element = scheme.element
    is_float = element.kind == "float"
    return (
        element.bits,
        int(is_float),
        element.mantissa_bits if is_float else -scheme.value_exponent,
        element.bias,
        scheme.emax,
        scheme.max_value,
        int(rule.name == "mse"),
        exponent_threshold(scheme, rule),
        min_byte,
    )


def exponent_threshold(scheme: Scheme, rule: Rule) -> float:
    """The t of `e = E - emax + [m > t]` (docs/rules.md, "MX schemes")."""
    if rule.name == "ceil":
        return 1.0
    if rule.name == "rceil":
        return float(scheme.max_value * 2.0**-scheme.emax)
    if rule.name == "even":  # m >= t, so the largest float64 below t
        return float(np.nextafter(2 - 2.0 ** -(scheme.mantissa_bits + 1), 0))
    return _NEVER


def affine_spec(scheme: Scheme, rule: Rule) -> tuple[Any, ...]:
    """The kernels' AffineSpec (kernels/table.h)."""
    element = scheme.element
    low, high = int(element.min), int(element.max)
    if element.kind == "int" and (rule.name == "absmax" or "narrow" in rule.options):
        low = -high
    return (
        element.bits,
        low,
        high,
        INPUT_DTYPES.index(scheme.scale.dtype),
        _OFFSETS[scheme.offset],
        _AFFINE_RULES[rule.name],
        int("no-zero" not in rule.options),
        int("positive" in rule.options),
    )


def quantize_rows(
    x: NDArray[Any],
    scheme: Scheme,
    rule: Rule,
    *,
    importance: NDArray[np.float64] | None = None,
    min_byte: int = 0,
    threads: int | None = None,
    isa: int | None = None,
) -> QuantizedRows:
    """Quantize a contiguous matrix along its last axis.

    Args:
        x: `(rows, length)`, float64, float32, float16 or bfloat16, C-contiguous.
        scheme: what to make of it.
        rule: how scales are chosen.
        importance: float64 `(length,)`, weights of the squared error, or None.
        min_byte: smallest E8M0 byte to use (MX).
        threads: at most this many threads; None: all processors.
        isa: index into ISAS; None: the chosen one. The result does not depend on it.

    Raises:
        MemoryError: no memory for the kernels' scratch space.
    """
    grid = BlockGrid(x.shape, 1, scheme.block_size)
    rows, blocks, row_bytes = grid.rows, grid.blocks_per_row, grid.row_bytes(scheme.element.bits)
    packed = lined_empty((rows, row_bytes), np.dtype(np.uint8))
    scales = lined_empty((rows, blocks), scheme.scale.dtype)
    offsets = _empty_offsets(scheme, (rows, blocks))
    input_type = INPUT_DTYPES.index(x.dtype)
    flat = (as_bytes(x), as_bytes(packed), as_bytes(scales))
    flat_offsets = None if offsets is None else as_bytes(offsets)
    size = _regroup(grid, scheme, importance)
    spec = mx_spec(scheme, rule, min_byte) if scheme.is_mx else affine_spec(scheme, rule)

    kernels = chosen_isa() if isa is None else isa
    events = np.zeros(len(EVENTS), np.int64)
    share = thread_share(x.size, threads, SEARCH_GRAIN if _searches(scheme, rule) else GRAIN)
    first = (CREW, share, kernels, flat[0], input_type, size, spec)
    if scheme.is_mx:
        done = _kernels.quantize_mx(*first, *flat[1:], events)
    else:
        done = _kernels.quantize_affine(*first, importance, *flat[1:], flat_offsets, events)
    if not done:
        raise MemoryError("no memory for the scratch space of a block")
    counts = dict(zip(EVENTS, events.tolist(), strict=True))
    return QuantizedRows(packed, scales, offsets, counts)


def dequantize_matrix(
    scheme: Scheme,
    grid: BlockGrid,
    packed: NDArray[np.uint8],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    out: NDArray[Any],
    threads: int | None = None,
    isa: int | None = None,
) -> int:
    """Decode canonical parts into `out`, contiguous `(rows, length)`, float32, float16 or bfloat16.

    Returns:
        How many finite values became infinite in a 16-bit `out`.
    """
    element = scheme.element
    spec = (
        element.bits,
        int(not scheme.is_mx),
        0 if scheme.is_mx else INPUT_DTYPES.index(scheme.scale.dtype),
        _OFFSETS[scheme.offset],
        INPUT_DTYPES.index(out.dtype),
    )
    values = element.values * np.float32(2.0**scheme.value_exponent)
    flat = (as_bytes(packed), as_bytes(scales), None if offsets is None else as_bytes(offsets))
    size = _regroup(grid, scheme, None)
    kernels = chosen_isa() if isa is None else isa
    share = thread_share(out.size, threads, GRAIN)
    return _kernels.dequantize(CREW, share, kernels, *flat, size, spec, values, as_bytes(out))


def choose_scale_mse(
    x: NDArray[np.float64], scheme: Scheme, span: int, headroom: int, isa: int | None = None
) -> int:
    """The byte of least squared error among `base - span .. base + headroom`, ties to the larger."""
    from_rules = Rule("mse", "mx", ("none",), "")
    kernels = chosen_isa() if isa is None else isa
    return _kernels.choose_scale_mse(kernels, x, mx_spec(scheme, from_rules, 0), span, headroom)


def _searches(scheme: Scheme, rule: Rule) -> bool:
    """Whether blocks take much longer than their bytes; MXFP4's `mse` does not."""
    return rule.name == "optimal" or (rule.name == "mse" and scheme.element.name != "float4_e2m1")


def _empty_offsets(scheme: Scheme, shape: tuple[int, int]) -> NDArray[Any] | None:
    if scheme.offset == "none":
        return None
    dtype = np.dtype(np.int32) if scheme.offset == "zero_point" else ELEMENTS["float16"].dtype
    return lined_empty(shape, dtype)


def _regroup(
    grid: BlockGrid, scheme: Scheme, importance: NDArray[np.float64] | None
) -> tuple[int, int, int, int]:
    """Rows, length, block size and row bytes for the kernels.

    Rows of whole blocks that end on bytes may be cut anywhere between blocks; few long rows are cut into
    their blocks so that threads find work.
    """
    bits, row_bytes = scheme.element.bits, grid.row_bytes(scheme.element.bits)
    whole = not grid.has_partial_blocks and grid.block_size % 8 == 0 and grid.length > 0
    if whole and importance is None and grid.rows < 64:
        block_bytes = grid.block_size * bits // 8
        return grid.n_blocks, grid.block_size, grid.block_size, block_bytes
    return grid.rows, grid.length, grid.block_size, row_bytes

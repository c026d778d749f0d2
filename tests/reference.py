"""The right answer of docs/rules.md, in plain NumPy, written for reading.

Nothing here imports arithmetic of blockscale: schemes serve as rows of names and numbers, and the values of
elements and scales are built again (reference_numbers.py). The kernels must equal this code bit for bit.

A tensor is cut into blocks, `(n_blocks, width)` float64; each rule turns those into an `Encoded`; `quantize`
puts the parts back into the tensor's shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blockscale.schemes import Scheme
from reference_numbers import (
    F64,
    FIELDS,
    FLOAT32_MAX,
    FRACTION_BITS,
    I64,
    SCALE_DTYPES,
    U8,
    Bools,
    code_values,
    error_sum,
    exponent_and_significand,
    low_bits_to_int,
    magnitudes,
    round_to_type,
    smallest_scale,
)
from reference_optimal import Search, fit_every_scale, fit_float32

NAN_BYTE = 255
EVENTS = (
    "saturated",
    "saturated_blocks",
    "zeroed",
    "zero_blocks",
    "scales_raised",
    "scales_clamped",
    "nan_blocks",
    "unweighted_blocks",
)


class ScaleOverflow(OverflowError):
    """A scale (or minimum) that its stored type cannot hold."""


class NonFinite(ValueError):
    """NaN, an infinity or a number beyond float32; `count` and the first `index` of them."""

    def __init__(self, count: int, index: tuple[int, ...]) -> None:
        super().__init__(f"{count} values are not finite, the first at {index}")
        self.count = count
        self.index = index


@dataclass
class Result:
    """A quantized tensor, unpacked.

    Attributes:
        codes: uint8, the tensor's shape; the low bits of each code (int4 -8 is 0x8).
        scales: the tensor's shape with the axis replaced by the block count; uint8 bytes for MX, else the
            scale's dtype.
        zero_points: int32, shaped as scales, or None.
        minimums: float16, shaped as scales, or None.
        events: the counts of the table "Events".
    """

    codes: U8
    scales: NDArray[Any]
    zero_points: NDArray[np.int32] | None
    minimums: NDArray[np.float16] | None
    events: dict[str, int]


@dataclass
class Encoded:
    """What a rule makes of `(n_blocks, width)` values.

    Attributes:
        codes: `(n_blocks, width)` low bits of the codes.
        scales: `(n_blocks,)` scales as float64, or exponent bytes for MX.
        offsets: `(n_blocks,)` zero points or minimums (zeros where the scheme has neither).
        saturated: `(n_blocks, width)`, codes that were clamped.
        raised: `(n_blocks,)`, scales that would have been stored as zero.
        clamped: `(n_blocks,)`, MX exponents that were clamped.
        unweighted: `(n_blocks,)`, blocks whose importances were all zero.
    """

    codes: U8
    scales: F64
    offsets: F64
    saturated: Bools
    raised: Bools
    clamped: Bools
    unweighted: Bools


# ---------------------------------------------------------------- tensors


def quantize(
    x: ArrayLike,
    scheme: Scheme,
    *,
    axis: int = -1,
    rule: str | None = None,
    importance: ArrayLike | None = None,
    nonfinite: str = "error",
    min_byte: int = 0,
) -> Result:
    """Quantize a tensor of any rank; arguments as `blockscale.quantize`, the scheme carries the block size.

    Raises:
        NonFinite: a value that is not finite or beyond float32, and `nonfinite` is "error".
        ScaleOverflow: a scale that its type cannot hold.
    """
    values = np.moveaxis(np.asarray(x).astype(np.float64), axis, -1)
    if nonfinite == "error":
        _refuse_nonfinite(np.moveaxis(values, -1, axis))
    outer, length = values.shape[:-1], values.shape[-1]
    rows = values.reshape(math.prod(outer), length)
    weights = np.ones(length) if importance is None else np.asarray(importance).astype(np.float64)
    codes, scales, offsets = [np.zeros((len(rows), 0), np.uint8)], [np.zeros((len(rows), 0))], []
    events = dict.fromkeys(EVENTS, 0)
    for start, stop, width in _runs(length, scheme.block_size):
        shape = (len(rows), (stop - start) // width)
        blocks = rows[:, start:stop].reshape(-1, width)
        repeated = np.broadcast_to(weights[start:stop], (len(rows), stop - start)).reshape(-1, width)
        done, counts = quantize_blocks(blocks, scheme, rule, repeated, min_byte)
        codes.append(done.codes.reshape(len(rows), stop - start))
        scales.append(done.scales.reshape(shape))
        offsets.append(done.offsets.reshape(shape))
        events = {name: events[name] + counts[name] for name in EVENTS}
    parts = np.concatenate(scales, axis=1)
    shifts = np.concatenate([np.zeros((len(rows), 0)), *offsets], axis=1)

    def shaped(part: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(part.reshape(*outer, part.shape[1]), -1, axis)

    return Result(
        shaped(np.concatenate(codes, axis=1)),
        shaped(parts.astype(np.uint8 if scheme.is_mx else SCALE_DTYPES[scheme.scale.name])),
        shaped(shifts.astype(np.int32)) if scheme.offset == "zero_point" else None,
        shaped(shifts.astype(np.float16)) if scheme.offset == "minimum" else None,
        events,
    )


def _runs(length: int, block_size: int) -> Iterator[tuple[int, int, int]]:
    """The whole blocks of a row together, then the partial one: (start, stop, width of a block)."""
    whole = length - length % block_size
    if whole:
        yield 0, whole, block_size
    if length > whole:
        yield whole, length, length - whole


def _refuse_nonfinite(values: F64) -> None:
    bad = ~is_usable(values)
    if bad.any():
        raise NonFinite(int(bad.sum()), tuple(int(i) for i in np.argwhere(bad)[0]))


def is_usable(values: F64) -> Bools:
    """True for finite values within the float32 range."""
    return np.abs(values) <= FLOAT32_MAX


def quantize_blocks(
    blocks: F64, scheme: Scheme, rule: str | None, weights: F64, min_byte: int = 0
) -> tuple[Encoded, dict[str, int]]:
    """Quantize `(n_blocks, width)` values and count the events; those not finite become NaN blocks."""
    live = np.asarray(is_usable(blocks).all(-1))
    values = np.where(live[:, None], blocks, 0.0)
    name, _, options = (rule or scheme.default_rule).partition(":")
    if scheme.is_mx:
        done = encode_mx(values, scheme, name, min_byte)
    else:
        done = encode_affine(values, scheme, name, set(filter(None, options.split(","))), weights)
    done.codes[~live] = 0
    done.scales[~live] = NAN_BYTE
    if name == "ggml":
        values = values.astype(np.float32).astype(np.float64)
    return done, count_events(done, values, scheme, live)


def count_events(done: Encoded, values: F64, scheme: Scheme, live: Bools) -> dict[str, int]:
    """The table "Events"; blocks that are not `live` count as NaN blocks and as nothing else."""
    decoded = decode(done.codes, done.scales[:, None], done.offsets[:, None], scheme)
    zeroed = (values != 0) & (decoded == 0)
    saturated = done.saturated[live]
    return {
        "saturated": int(saturated.sum()),
        "saturated_blocks": int(saturated.any(-1).sum()),
        "zeroed": int(zeroed[live].sum()),
        "zero_blocks": int((~values[live].any(-1)).sum()),
        "scales_raised": int(done.raised[live].sum()),
        "scales_clamped": int(done.clamped[live].sum()),
        "nan_blocks": int((~live).sum()),
        "unweighted_blocks": int(done.unweighted[live].sum()),
    }


def dequantize(result: Result, scheme: Scheme, axis: int = -1) -> NDArray[np.float32]:
    """The float32 values that a Result stands for."""
    length = result.codes.shape[axis]

    def along(part: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(part, scheme.block_size, axis).take(np.arange(length), axis)

    offsets = result.zero_points if result.minimums is None else result.minimums
    shifts = np.zeros(result.codes.shape) if offsets is None else along(offsets).astype(np.float64)
    return decode(result.codes, along(result.scales).astype(np.float64), shifts, scheme)


def decode(codes: U8, scales: F64, offsets: F64, scheme: Scheme) -> NDArray[np.float32]:
    """Values of codes, with scales (MX: bytes) and offsets of a shape that broadcasts to theirs."""
    element = scheme.element
    if scheme.is_mx:
        table = code_values(element.name, element.bits)
        return decode_mx(table[codes], scales.astype(np.int64))
    numbers = low_bits_to_int(codes, element.bits, element.kind == "int")
    with np.errstate(over="ignore"):  # beyond float32 only where a file holds such a scale
        if scheme.offset == "minimum":
            products = scales.astype(np.float32) * numbers.astype(np.float32)
            return products + offsets.astype(np.float32)
        return scales.astype(np.float32) * (numbers - offsets.astype(np.int64)).astype(np.float32)


def decode_mx(values: F64, scale_bytes: I64) -> NDArray[np.float32]:
    """`2**(byte - 127) * value`, rounded once; NaN under byte 255."""
    with np.errstate(over="ignore"):
        exact = np.ldexp(values, scale_bytes - 127)
        return np.where(scale_bytes == NAN_BYTE, np.nan, exact).astype(np.float32)


# ---------------------------------------------------------------- MX


def encode_mx(values: F64, scheme: Scheme, rule: str, min_byte: int) -> Encoded:
    """Choose each block's exponent by a rule, then round the elements."""
    name = scheme.element.name
    amax = np.abs(values).max(-1)
    wanted = wanted_exponent(amax, name, "floor" if rule == "mse" else rule)
    exponent = np.clip(wanted, min_byte - 127, 127)
    clamped = (exponent != wanted) & (amax > 0)
    if rule == "mse":  # `clamped` then speaks of e0
        exponent = least_error_exponent(values, name, min_byte)
    exponent = np.where(amax > 0, exponent, 0)
    codes, saturated = mx_codes(values, exponent, scheme.element.bits, name)
    none = np.zeros(len(values), bool)
    zeros = np.zeros(len(values))
    scales = (exponent + 127).astype(np.float64)
    return Encoded(codes, scales, zeros, saturated, none, clamped, none)


def wanted_exponent(amax: F64, name: str, rule: str) -> I64:
    """`E - emax + [m > t]`, not yet clamped."""
    exponent, m = exponent_and_significand(amax)
    largest = magnitudes(name)[-1]
    emax = exponent_and_significand(largest)[0]
    mantissa_bits = FRACTION_BITS[name] if name in FRACTION_BITS else FIELDS[name][1]
    bracket = {
        "floor": np.zeros(m.shape, bool),
        "ceil": m > 1,
        "rceil": m > largest / 2.0**emax,
        "even": m >= 2 - 2.0 ** -(mantissa_bits + 1),
    }[rule]
    wanted: I64 = exponent - emax + bracket
    return wanted


def mx_magnitude_codes(values: F64, exponent: I64, name: str) -> tuple[I64, Bools]:
    """Index of the nearest magnitude of each element under its block's exponent, and what saturated."""
    table = magnitudes(name)
    middles = (table[:-1] + table[1:]) / 2
    size = np.abs(np.ldexp(values, -exponent[:, None]))
    below = np.searchsorted(middles, size, side="left")  # a middle itself: the smaller neighbour
    above = np.searchsorted(middles, size, side="right")  # a middle itself: the larger neighbour
    nearest = np.where(below % 2 == 0, below, above)
    fits = np.ldexp(table, exponent[:, None]) <= FLOAT32_MAX
    last = fits.sum(-1, keepdims=True) - 1
    return np.minimum(nearest, last), size > table[last]


def mx_codes(values: F64, exponent: I64, bits: int, name: str) -> tuple[U8, Bools]:
    """Codes of `(n_blocks, width)` values under the exponents `(n_blocks,)`, and what saturated."""
    index, saturated = mx_magnitude_codes(values, exponent, name)
    negative = np.signbit(values)
    if name in FRACTION_BITS:
        codes = np.where(negative, -index, index) & ((1 << bits) - 1)
    else:
        codes = index | (negative.astype(np.int64) << (bits - 1))
    return codes.astype(np.uint8), saturated


def mx_error(values: F64, exponent: I64, base: I64, name: str) -> F64:
    """`err` of each block under `exponent`, in units of `2**base`."""
    index, _ = mx_magnitude_codes(values, exponent, name)
    decoded = np.ldexp(magnitudes(name)[index], (exponent - base)[:, None])
    d = np.ldexp(np.abs(values), -base[:, None]) - decoded
    return error_sum(d * d)


def least_error_exponent(values: F64, name: str, min_byte: int = 0) -> I64:
    """The exponent of least error among all bytes, ties to the larger: every byte is tried."""
    base = np.clip(wanted_exponent(np.abs(values).max(-1), name, "floor"), min_byte - 127, 127)
    best = np.zeros(len(values), np.int64)
    least = np.full(len(values), np.inf)
    for byte in range(254, min_byte - 1, -1):
        exponent = np.full(len(values), byte - 127)
        err = mx_error(values, exponent, base, name)
        best = np.where(err < least, exponent, best)
        least = np.minimum(err, least)
    return best


def choose_scale(block: ArrayLike, name: str = "float4_e2m1") -> int:
    """Byte of one block by the rule `floor`."""
    values = np.asarray(block).astype(np.float64)[None]
    if not values.any():
        return 127
    exponent = wanted_exponent(np.abs(values).max(-1), name, "floor")
    return int(np.clip(exponent, -127, 127)[0]) + 127


def choose_scale_mse(block: ArrayLike, span: int, headroom: int, name: str = "float4_e2m1") -> int:
    """Byte of least error among `base - span .. base + headroom`, `base` by `floor`; ties to the larger."""
    values = np.asarray(block).astype(np.float64)[None]
    if not values.any():
        return 127
    base = choose_scale(block, name)
    window = range(max(base - span, 0), min(base + headroom, 254) + 1)
    unit = np.array([base - 127])
    errors = {byte: mx_error(values, np.array([byte - 127]), unit, name)[0] for byte in window}
    return max(window, key=lambda byte: (-errors[byte], byte))


# ---------------------------------------------------------------- affine


def code_range(scheme: Scheme, narrow: bool) -> tuple[int, int]:
    """`qmin, qmax`; unsigned types have no narrow range."""
    bits = scheme.element.bits
    if scheme.element.kind == "uint":
        return 0, (1 << bits) - 1
    half = 1 << (bits - 1)
    return (1 - half if narrow else -half), half - 1


def encode_affine(values: F64, scheme: Scheme, rule: str, options: set[str], weights: F64) -> Encoded:
    """Choose scales and offsets by a rule, then round the elements."""
    zero = ~values.any(-1)
    unweighted: Bools = np.zeros(len(values), bool)
    if rule == "ggml":
        return encode_ggml(values.astype(np.float32), scheme)
    if rule == "optimal":
        unweighted = np.asarray(~weights.any(-1))
        weights = np.where(unweighted[:, None], 1.0, weights)
        qmin, qmax = code_range(scheme, "narrow" in options)
        scales, z = optimal(values, weights, scheme, qmin, qmax, "positive" in options)
        raised = np.zeros(len(values), bool)
    else:
        qmin, qmax = code_range(scheme, rule == "absmax")
        scales, z, raised = plain(values, scheme, qmin, qmax, "no-zero" not in options)
    scales, z, raised = np.where(zero, 1.0, scales), np.where(zero, 0.0, z), raised & ~zero
    codes, saturated = affine_codes(values, scales, z, qmin, qmax)
    codes &= (1 << scheme.element.bits) - 1
    none = np.zeros(len(values), bool)
    return Encoded(codes.astype(np.uint8), scales, z, saturated, raised, none, unweighted)


def affine_codes(values: F64, scales: F64, z: F64, qmin: int, qmax: int) -> tuple[I64, Bools]:
    """`clip(rint(x / s) + z, qmin, qmax)` of each block, and what was clipped.

    Raises:
        ScaleOverflow: a value that would decode to infinity in float32.
    """
    unclipped = np.rint(values / scales[:, None]) + z[:, None]
    clipped = np.clip(unclipped, qmin, qmax)
    with np.errstate(over="ignore"):
        decoded = (clipped - z[:, None]).astype(np.float32) * scales.astype(np.float32)[:, None]
    if np.isinf(decoded).any():
        raise ScaleOverflow("a scale was rounded up so far that a value decodes to infinity")
    return clipped.astype(np.int64), clipped != unclipped


def store_scales(scales: F64, name: str) -> tuple[F64, Bools]:
    """Scales rounded to their type, zeros raised to its smallest value; and which were raised."""
    stored = round_to_type(scales, name)
    if np.isinf(stored).any():
        raise ScaleOverflow(f"a scale of {np.abs(scales).max()} does not fit {name}")
    return np.where(stored == 0, np.copysign(smallest_scale(name), scales), stored), stored == 0


def plain(values: F64, scheme: Scheme, qmin: int, qmax: int, with_zero: bool) -> tuple[F64, F64, Bools]:
    """Scales, zero points and which scales were raised, by `minmax` or (without zero point) `absmax`."""
    if scheme.offset == "none":
        largest = np.maximum(values, 0) if scheme.element.kind == "uint" else np.abs(values)
        amax = largest.max(-1)
        scales, raised = store_scales(amax / qmax, scheme.scale.name)
        none = amax == 0  # nothing that could be stored: as for a block of zeros
        return np.where(none, 1.0, scales), np.zeros(len(values)), raised & ~none
    low, high = values.min(-1), values.max(-1)
    if with_zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    wanted = (high - low) / (qmax - qmin)
    wanted = np.where((wanted == 0) & (low == high), np.abs(low), wanted)
    wanted = np.maximum(wanted, np.maximum(np.abs(low), np.abs(high)) / 2.0**30)
    scales, raised = store_scales(wanted, scheme.scale.name)
    z = np.rint(qmin - low / scales)
    return scales, np.clip(z, qmin, qmax) if with_zero else z, raised


# ---------------------------------------------------------------- affine: ggml


def encode_ggml(values: NDArray[np.float32], scheme: Scheme) -> Encoded:
    """As the gguf package, in float32, except where it would store a scale of zero."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        low, d = _ggml_parameters(values, scheme)
        stored = round_to_type(d.astype(np.float64), "float16")
        minimums = round_to_type(low.astype(np.float64), "float16")
        numbers, saturated = _ggml_codes(values, low, d, scheme)
    if np.isinf(stored).any() or np.isinf(minimums).any():
        raise ScaleOverflow("a scale or minimum does not fit float16")
    raised = stored == 0
    flat = (values == values[:, :1]).all(-1) if scheme.name == "q4_1" else ~values.any(-1)
    scales = np.where(raised, np.copysign(smallest_scale("float16"), d), stored)
    qmin, qmax = code_range(scheme, scheme.name == "q8_0")
    shifted = values.astype(np.float64) - minimums[:, None]
    other, clipped = affine_codes(shifted, scales, np.zeros(len(values)), qmin, qmax)
    numbers = np.where(raised[:, None], other, numbers)
    saturated = np.where(raised[:, None], clipped, saturated)
    scales = np.where(raised & flat, 1.0, scales)
    numbers = np.where((raised & flat)[:, None], 0, numbers)
    saturated &= ~(raised & flat)[:, None]
    codes = (numbers & ((1 << scheme.element.bits) - 1)).astype(np.uint8)
    none = np.zeros(len(values), bool)
    raised &= values.any(-1)  # blocks of zeros are counted as such
    return Encoded(codes, scales, minimums, saturated, raised, none, none)


def _ggml_parameters(values: NDArray[np.float32], scheme: Scheme) -> tuple[Any, Any]:
    """Minimum (zero without one) and unrounded scale of each block, float32."""
    zeros = np.zeros(len(values), np.float32)
    if scheme.name == "q4_1":
        first = values.argmin(-1)  # of -0 and 0 the first
        low = np.take_along_axis(values, first[:, None], -1)[:, 0]
        return low, (values.max(-1) - low) / np.float32(15)
    if scheme.name == "q4_0":
        first = np.abs(values).argmax(-1)
        return zeros, np.take_along_axis(values, first[:, None], -1)[:, 0] / np.float32(-8)
    return zeros, np.abs(values).max(-1) / np.float32(127)


def _ggml_codes(values: NDArray[np.float32], low: Any, d: Any, scheme: Scheme) -> tuple[I64, Bools]:
    """Codes from the unrounded scale; what comes of d = 0 is not used."""
    scaled = (values - low[:, None]) * (np.float32(1) / d)[:, None]
    scaled = np.where(np.isfinite(scaled), scaled, np.float32(0))
    if scheme.name == "q8_0":
        whole = np.floor(np.abs(scaled))
        away = whole + np.floor(2 * (np.abs(scaled) - whole))
        return np.copysign(away, scaled).astype(np.int64), np.zeros(values.shape, bool)
    half = np.float32(8.5) if scheme.name == "q4_0" else np.float32(0.5)
    unclipped = np.trunc(scaled + half).astype(np.int64)
    return np.minimum(unclipped, 15) - int(half), unclipped > 15


def optimal(
    values: F64, weights: F64, scheme: Scheme, qmin: int, qmax: int, positive: bool
) -> tuple[F64, F64]:
    """Scales and zero points of least `err`, block by block."""
    plain_s, plain_z, _ = plain(values, scheme, qmin, qmax, True)
    with_z = scheme.offset == "zero_point"
    z_limit = 16 << scheme.element.bits if with_z else 0
    signs = (1,) if with_z or positive else (1, -1)
    search = fit_float32 if scheme.scale.name == "float32" else fit_every_scale
    scales, z = np.ones(len(values)), np.zeros(len(values))
    for i, (x, w) in enumerate(zip(values, weights, strict=True)):
        block = Search(x, w, qmin, qmax, z_limit, signs)
        to_zero = float(error_sum(w * (x * x)))
        bound = min(to_zero, float(block.errors(plain_s[i : i + 1], plain_z[i : i + 1])[0]))
        key = search(block, scheme.scale.name, bound, (to_zero,))
        if len(key) > 1:
            scales[i], z[i] = key[-2:]
    return scales, z

"""Numbers of the reference: values of codes, rounding to a type, the sum of errors.

Built from (exponent bits, mantissa bits, bias) alone; see tests/reference.py.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]

FLOAT32_MAX = float(np.finfo(np.float32).max)

# exponent bits, mantissa bits, bias
FIELDS = {
    "float4_e2m1": (2, 1, 1),
    "float6_e2m3": (2, 3, 1),
    "float6_e3m2": (3, 2, 3),
    "float8_e4m3": (4, 3, 7),
    "float8_e5m2": (5, 2, 15),
    "float16": (5, 10, 15),
    "bfloat16": (8, 7, 127),
    "float32": (8, 23, 127),
}
# codes with the sign bit clear that are finite, where not all are
FINITE_CODES = {"float8_e4m3": 127, "float8_e5m2": 124}
# bits behind the binary point of an MX integer element
FRACTION_BITS = {"int8": 6, "int4": 2}
SCALE_DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}


def float_magnitudes(name: str) -> F64:
    """Values of the codes 0, 1, 2 .. with the sign bit clear, finite ones only; ascending."""
    exponent_bits, mantissa_bits, bias = FIELDS[name]
    count = FINITE_CODES.get(name, 1 << (exponent_bits + mantissa_bits))
    values = [_float_value(code, mantissa_bits, bias) for code in range(count)]
    return np.array(values, np.float64)


def _float_value(code: int, mantissa_bits: int, bias: int) -> float:
    exponent, fraction = divmod(code, 1 << mantissa_bits)
    if exponent == 0:
        return math.ldexp(fraction, 1 - bias - mantissa_bits)
    return math.ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits)


def magnitudes(name: str) -> F64:
    """Values of an MX element's codes that a quantizer uses, sign apart, ascending: index = code."""
    if name in FRACTION_BITS:
        bits = FRACTION_BITS[name] + 1
        return np.arange(1 << bits, dtype=np.float64) / (1 << FRACTION_BITS[name])
    return float_magnitudes(name)


def code_values(name: str, bits: int) -> F64:
    """Value of each of the `2**bits` codes of an MX element, NaN and infinities included."""
    if name in FRACTION_BITS:
        return low_bits_to_int(np.arange(1 << bits), bits, True) / (1 << FRACTION_BITS[name])
    half = np.full(1 << (bits - 1), np.nan)
    finite = float_magnitudes(name)
    half[: finite.size] = finite
    if name == "float8_e5m2":
        half[finite.size] = np.inf
    return np.concatenate([half, -half])


def low_bits_to_int(codes: NDArray[Any], bits: int, signed: bool) -> I64:
    """The integer that the low bits of a code mean."""
    codes = np.asarray(codes).astype(np.int64)
    return codes - ((codes >> (bits - 1)) << bits) if signed else codes


def exponent_and_significand(values: F64) -> tuple[I64, F64]:
    """`values = m * 2**E` with 1 <= m < 2 (0 for 0); frexp reads the bits and knows subnormals."""
    fraction, exponent = np.frexp(values)
    return exponent.astype(np.int64) - 1, 2 * fraction


def round_to_type(values: F64, name: str) -> F64:
    """Round to float16, bfloat16 or float32, halves to even; infinite beyond the largest value."""
    _, mantissa_bits, bias = FIELDS[name]
    exponent = np.maximum(exponent_and_significand(values)[0], 1 - bias)
    step = np.ldexp(1.0, exponent - mantissa_bits)
    rounded = np.rint(values / step) * step
    largest = math.ldexp(2 - 2.0**-mantissa_bits, bias)
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, values), rounded)


def smallest_scale(name: str) -> float:
    """The smallest positive value of a scale type."""
    _, mantissa_bits, bias = FIELDS[name]
    return math.ldexp(1.0, 1 - bias - mantissa_bits)


def positive_scales(name: str) -> F64:
    """Every finite positive value of float16 or bfloat16, ascending."""
    exponent_bits, mantissa_bits, bias = FIELDS[name]
    code = np.arange(1, ((1 << exponent_bits) - 1) << mantissa_bits)
    exponent, fraction = np.divmod(code, 1 << mantissa_bits)
    significand = fraction + np.where(exponent > 0, 1 << mantissa_bits, 0)
    scales: F64 = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    return scales


def error_sum(terms: F64) -> F64:
    """Sum over the last axis in the fixed order: 16 lanes, then lanes j and j + 8, + 4, + 2, + 1."""
    width = terms.shape[-1]
    padded = np.zeros((*terms.shape[:-1], -(-width // 16) * 16))
    padded[..., :width] = terms
    lanes = np.zeros((*terms.shape[:-1], 16))
    for start in range(0, padded.shape[-1], 16):
        lanes = lanes + padded[..., start : start + 16]
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
    return lanes[..., 0]

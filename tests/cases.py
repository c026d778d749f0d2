"""Named inputs for the tests of numbers: one function per kind, `(rng, n_blocks, width) -> float64 blocks`.

Values are float32 numbers unless a name says otherwise; `tensor` lays the blocks along any axis of any shape
and casts them to the dtype wanted (values a smaller type cannot hold are clipped to its largest).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

import reference_numbers as numbers

F64 = NDArray[np.float64]
Maker = Callable[[np.random.Generator, int, int], F64]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MX_ELEMENTS = (
    "float4_e2m1",
    "float6_e2m3",
    "float6_e3m2",
    "float8_e4m3",
    "float8_e5m2",
    "int8",
    "int4",
)


def _signs(rng: np.random.Generator, n: int, width: int) -> F64:
    return rng.choice(np.array([-1.0, 1.0]), (n, width))


def _powers(rng: np.random.Generator, n: int, low: int, high: int, width: int = 1) -> F64:
    powers: F64 = np.ldexp(1.0, rng.integers(low, high, (n, width)))
    return powers


def normal(rng: np.random.Generator, n: int, width: int) -> F64:
    """N(0, 1)."""
    return rng.standard_normal((n, width))


def laplace(rng: np.random.Generator, n: int, width: int) -> F64:
    """Laplace."""
    return rng.laplace(size=(n, width))


def student_t5(rng: np.random.Generator, n: int, width: int) -> F64:
    """Student t, 5 degrees of freedom."""
    return rng.standard_t(5, (n, width))


def student_t3(rng: np.random.Generator, n: int, width: int) -> F64:
    """Student t, 3 degrees of freedom."""
    return rng.standard_t(3, (n, width))


def one_sided(rng: np.random.Generator, n: int, width: int) -> F64:
    """Far from zero on one side: zero points outside the code range are best."""
    return _signs(rng, n, 1) * (1 + 0.1 * rng.standard_normal((n, width)))


def wide(rng: np.random.Generator, n: int, width: int) -> F64:
    """Magnitudes over 60 binades."""
    return _signs(rng, n, width) * np.exp2(rng.uniform(-30, 30, (n, width)))


def ties(rng: np.random.Generator, n: int, width: int) -> F64:
    """Midpoints of an element type and both their float32 neighbours; the first element fixes the scale."""
    out = np.empty((n, width))
    for row in out:
        table = numbers.magnitudes(MX_ELEMENTS[rng.integers(len(MX_ELEMENTS))])
        middles = ((table[:-1] + table[1:]) / 2).astype(np.float32)
        picked = rng.choice(middles, width)
        row[:] = np.nextafter(picked, picked + rng.integers(-1, 2, width).astype(np.float32))
        row[0] = table[-1]
    return out * _signs(rng, n, width) * _powers(rng, n, -20, 20)


def half_codes(rng: np.random.Generator, n: int, width: int) -> F64:
    """Halves between integer codes, and their neighbours, under a scale that is a power of two."""
    top = rng.choice(np.array([1.0, -2.0, 7.0, -8.0, 15.0, 127.0, -128.0, 255.0]), (n, 1))
    picked = (np.trunc(rng.uniform(-1, 1, (n, width)) * top) + 0.5).astype(np.float32)
    toward = picked + rng.integers(-1, 2, (n, width)).astype(np.float32)
    out: F64 = np.nextafter(picked, toward).astype(np.float64)
    out[:, :1] = top
    return out * _powers(rng, n, -8, 8)


def powers_of_two(rng: np.random.Generator, n: int, width: int) -> F64:
    """Exact powers of two, a few binades per block."""
    return _signs(rng, n, width) * _powers(rng, n, -6, 6, width)


def below_powers(rng: np.random.Generator, n: int, width: int) -> F64:
    """The float32 just below a power of two, of any exponent that a block of normals allows."""
    exact = _powers(rng, n, -100, 100) * _powers(rng, n, -4, 1, width)
    return _signs(rng, n, width) * np.nextafter(exact.astype(np.float32), np.float32(0))


def float32_subnormals(rng: np.random.Generator, n: int, width: int) -> F64:
    """Numbers below 2**-126, down to 2**-149."""
    bits = rng.integers(0, 1 << 23, (n, width)) >> rng.integers(0, 23, (n, 1))
    return _signs(rng, n, width) * bits * 2.0**-149


def bfloat16_subnormals(rng: np.random.Generator, n: int, width: int) -> F64:
    """Multiples of 2**-133 below 2**-126."""
    return _signs(rng, n, width) * rng.integers(0, 128, (n, width)) * 2.0**-133


def float16_subnormals(rng: np.random.Generator, n: int, width: int) -> F64:
    """Multiples of 2**-24 below 2**-14."""
    return _signs(rng, n, width) * rng.integers(0, 1024, (n, width)) * 2.0**-24


def zeros(rng: np.random.Generator, n: int, width: int) -> F64:
    """All zero."""
    return np.zeros((n, width))


def negative_zeros(rng: np.random.Generator, n: int, width: int) -> F64:
    """Zeros of both signs, in every other block among other values."""
    out = np.copysign(0.0, _signs(rng, n, width))
    mask = rng.random((n, width)) < 0.3
    mask[::2] = False
    return np.where(mask, rng.standard_normal((n, width)), out)


def constants(rng: np.random.Generator, n: int, width: int) -> F64:
    """Every element of a block the same."""
    return np.repeat(rng.standard_normal((n, 1)), width, axis=1)


def huge(rng: np.random.Generator, n: int, width: int) -> F64:
    """Up to the largest float32, which every block holds once."""
    out = rng.uniform(-1, 1, (n, width)) * numbers.FLOAT32_MAX
    out[np.arange(n), rng.integers(0, width, n)] = _signs(rng, n, 1)[:, 0] * numbers.FLOAT32_MAX
    return out


def near_float16_max(rng: np.random.Generator, n: int, width: int) -> F64:
    """Scales close to the largest float16, not beyond it."""
    return rng.uniform(-1, 1, (n, width)) * 65000


def integers(rng: np.random.Generator, n: int, width: int) -> F64:
    """Small integers: many exact fits and equal errors."""
    return rng.integers(-20, 21, (n, width)) * _powers(rng, n, -3, 4)


def few_integers(rng: np.random.Generator, n: int, width: int) -> F64:
    """Integers -3 .. 3: equal errors everywhere."""
    return rng.integers(-3, 4, (n, width)).astype(np.float64)


def sparse(rng: np.random.Generator, n: int, width: int) -> F64:
    """One element that is not zero."""
    out = np.zeros((n, width))
    out[np.arange(n), rng.integers(0, width, n)] = rng.standard_normal(n)
    return out


def tiny(rng: np.random.Generator, n: int, width: int) -> F64:
    """Around 1e-39, 2**-126 and 2**-149, where reciprocals overflow and scales underflow."""
    unit: F64 = rng.choice(np.array([1e-39, 2.0**-126, 2.0**-149]), (n, 1))
    return unit * rng.integers(-4, 5, (n, width))


def near_least_scale(rng: np.random.Generator, n: int, width: int) -> F64:
    """Float16 scales around 2**-24 and 2**-25, stored as subnormals or raised."""
    return rng.uniform(-1, 1, (n, width)) * _powers(rng, n, -27, -15)


def mixed_sizes(rng: np.random.Generator, n: int, width: int) -> F64:
    """Ordinary blocks, some with an outlier, some on one side only."""
    out = rng.standard_normal((n, width))
    out[::3, 0] *= 30
    out[1::3] = np.abs(out[1::3])
    return out


CASES: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        normal,
        laplace,
        student_t5,
        student_t3,
        one_sided,
        wide,
        ties,
        half_codes,
        powers_of_two,
        below_powers,
        float32_subnormals,
        bfloat16_subnormals,
        float16_subnormals,
        zeros,
        negative_zeros,
        constants,
        huge,
        near_float16_max,
        integers,
        few_integers,
        sparse,
        tiny,
        near_least_scale,
        mixed_sizes,
    )
}


def blocks(name: str, n: int, width: int, seed: int = 0) -> F64:
    """`(n, width)` blocks of a case as float64 that are float32 numbers; the same for the same seed."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    return CASES[name](rng, n, width).astype(np.float32).astype(np.float64)


def tensor(
    name: str,
    shape: tuple[int, ...],
    axis: int = -1,
    block_size: int = 32,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
) -> NDArray[Any]:
    """A tensor whose blocks along `axis` are those of a case (the last one cut off where it is partial)."""
    length = shape[axis]
    outer = tuple(np.delete(shape, axis))
    per_row = -(-length // block_size)
    made = blocks(name, math.prod(outer) * per_row, block_size, seed)
    rows = made.reshape(*outer, per_row * block_size)[..., :length]
    return np.ascontiguousarray(np.moveaxis(cast(rows, dtype), -1, axis))


def cast(values: F64, dtype: DTypeLike) -> NDArray[Any]:
    """Cast, clipping to the largest value of the dtype."""
    if np.dtype(dtype) == np.float64:
        return values
    top = {2: 65504.0, 4: numbers.FLOAT32_MAX}[np.dtype(dtype).itemsize]
    if dtype == BFLOAT16:
        top = float(numbers.positive_scales("bfloat16")[-1])
    return np.clip(values, -top, top).astype(np.float32).astype(dtype)

"""`blockscale.linear` and `reblock`: the stated order bit for bit, the stated bounds, and every refusal."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockscale as bs
from blockscale import native, native_linear
from blockscale.errors import BlockAxisError, InputError, NonFiniteError, OverflowingValueError
from blockscale.native import ISAS
from blockscale.schemes import SCHEMES, Scheme, scheme
from blockscale.tensor import BlockTensor

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U = 2.0**-24
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
AFFINE = ("int8", "int4", "int2", "uint8", "uint4", "uint2")
FIXED = ("q8_0", "q4_0", "q4_1")
# Schemes whose codes are no small integers: int8 activations are multiplied in float32.
FLOATING = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2")


def _rows() -> list[Scheme]:
    rows = [
        scheme(name, block_size=size) for name in SCHEMES if name not in FIXED for size in (2, 16, 32, 128)
    ]
    rows += [scheme(name) for name in FIXED]
    rows += [
        scheme(name, scale=scale, symmetric=not zero)
        for name, scale, zero in itertools.product(AFFINE, ("bfloat16", "float32"), (True, False))
    ]
    return rows


def _row_id(row: Scheme) -> str:
    return f"{row.name}-{row.offset}-{row.scale.name}-{row.block_size}"


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


def fused(a: F32, b: F32, c: F32) -> F32:
    """`a * b + c` rounded once: exact in float64 as a product, rounded to odd as a sum, then to float32."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    rest = (product - (total - part)) + (addend - part)  # total + rest is exact; NaN if total is not finite
    inexact_even = (np.abs(rest) > 0) & (total.view(np.int64) % 2 == 0)
    total.view(np.int64)[...] += np.where(inexact_even, np.where((rest > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)


def float_sum(a: F32, values: F32) -> F32:
    """The order of the docstring in plain NumPy: 16 lanes, ascending, then halved."""
    pad = -a.shape[1] % 16
    x, w = np.pad(a, ((0, 0), (0, pad))), np.pad(values, ((0, 0), (0, pad)))
    lanes = np.zeros((len(a), len(values), 16), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for k in range(0, x.shape[1], 16):
            lanes = fused(x[:, None, k : k + 16], w[None, :, k : k + 16], lanes)
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :, :half] + lanes[:, :, half : 2 * half]
    return lanes[:, :, 0]


def round_int8(a: F32) -> tuple[NDArray[np.int64], F32]:
    """Codes `(rows, K)` and scales `(rows, ceil(K / 32))`."""
    pad = -a.shape[1] % 32
    x = np.pad(a, ((0, 0), (0, pad))).reshape(len(a), -1, 32)
    scales = np.abs(x).max(axis=2) / np.float32(127)
    safe = np.where(scales == 0, np.float32(1), scales)[:, :, None]
    codes = np.where(scales[:, :, None] == 0, 0, np.clip(np.rint(x / safe), -127, 127))
    return codes.reshape(len(a), -1)[:, : a.shape[1]].astype(np.int64), scales


def int8_sum(a: F32, w: BlockTensor) -> F32:
    """The order of the docstring for integer dot products, in plain NumPy."""
    row, size = w.scheme, min(32, w.block_size)
    q, a_scales = round_int8(a)
    if row.name in FLOATING:
        return float_sum(np.float32(q) * np.repeat(a_scales, 32, axis=1)[:, : a.shape[1]], w.dequantize())
    fraction = {"float4_e2m1": 1, "float6_e2m3": 3}.get(row.element.name, 0)
    codes = (w.codes().astype(np.float64) * 2**fraction).astype(np.int64)
    step = np.float32(2.0 ** (row.value_exponent - fraction))
    lanes = np.zeros((len(a), w.shape[0], 16), np.float32)
    segments = -(-a.shape[1] // size)
    w_scales = w.row_scales.astype(np.float32) * step
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(segments):
            lane = t % 16
            part, block = slice(t * size, (t + 1) * size), t * size // w.block_size
            total = q[:, part].sum(axis=1)
            exact = q[:, part] @ codes[:, part].T
            if row.offset == "zero_point":
                assert w.row_offsets is not None
                exact -= total[:, None] * w.row_offsets[None, :, block].astype(np.int64)
            sa = a_scales[:, t * size // 32, None]
            scale = sa * w_scales[None, :, block]
            lanes[:, :, lane] = fused(scale, exact.astype(np.float32), lanes[:, :, lane])
            if row.offset == "minimum":
                assert w.row_offsets is not None
                m = w.row_offsets[None, :, block].astype(np.float32)
                lanes[:, :, lane] = fused(sa * m, total[:, None].astype(np.float32), lanes[:, :, lane])
        for half in (8, 4, 2, 1):
            lanes = lanes[:, :, :half] + lanes[:, :, half : 2 * half]
    return lanes[:, :, 0] + np.float32(0)


def on_every_isa(a: F32, w: BlockTensor, activations: str | None) -> list[F32]:
    """Results of the kernels of every instruction set, and with two threads."""
    given = (w.scheme, w.grid, w.packed, w.row_scales, w.row_offsets)
    parts = native_linear.block_weight(*given, long_tiles=False)
    long_tiles = native_linear.block_weight(*given, long_tiles=True)
    rows = np.pad(a, ((0, 0), (0, -a.shape[1] % 16)))
    if activations == "int8" and not parts.is_integer:
        return [bs.linear(a, w, activations="int8")]
    run = native_linear.linear_int8 if activations == "int8" else native_linear.linear_float
    results = []
    for isa, threads in [*((i, 1) for i in range(len(ISAS))), (len(ISAS) - 1, 2)]:
        out = np.full((len(a), w.shape[0]), np.nan, np.float32)
        run(rows, parts, out, threads, isa)
        results.append(out)
        if activations is None and len(a) >= 32:  # many rows are multiplied in either kind of tile
            out = np.full((len(a), w.shape[0]), np.nan, np.float32)
            run(rows, long_tiles, out, threads, isa)
            results.append(out)
    return results


def assert_same(result: F32, expected: F32) -> None:
    """Equal bits; NaN where NaN is expected, whatever its payload."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(result), nan)
    np.testing.assert_array_equal(result.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("row", _rows(), ids=_row_id)
def test_result_is_the_stated_order_on_every_instruction_set(row: Scheme) -> None:
    rng = np.random.default_rng(sum(map(ord, _row_id(row))))
    for n, k, m in ((37, 100, 1), (21, 256, 1), (5, 288, 4), (35, 1056, 14), (3, 7, 2)):
        w, a = bs.quantize(normal(rng, n, k) + np.float32(0.3), row), normal(rng, m, k)
        for result in on_every_isa(a, w, None):
            assert_same(result, float_sum(a, w.dequantize()))
        for result in on_every_isa(a, w, "int8"):
            assert_same(result, int8_sum(a, w))


@pytest.mark.parametrize("name", ["mxfp4", "q4_1", "q8_0", "mxfp6_e3m2"])
@pytest.mark.parametrize("k", [48, 4096, 4112, 9003])
def test_many_rows_in_short_and_long_tiles(name: str, k: int) -> None:
    check_many_rows(bs.quantize(normal(np.random.default_rng(k), 14, k), name))


@pytest.mark.parametrize("size", [128, 512, 1024, 2048, 8192])
@pytest.mark.parametrize("k", [4678, 5200, 12300])
def test_many_rows_where_tiles_end_within_blocks(size: int, k: int) -> None:
    rng = np.random.default_rng(size + k)
    scales = rng.integers(100, 140, (14, -(-k // size))).astype(np.uint8)
    row = scheme("mxfp8_e4m3", block_size=size)
    check_many_rows(BlockTensor.from_parts(row, normal(rng, 14, k).astype(row.element.dtype), scales))


@pytest.mark.parametrize("name", ["int8", "uint4", "mxint8", "mxfp4"])
@pytest.mark.parametrize("k", [5, 100, 511, 513])
def test_rows_that_are_a_small_part_of_a_block(name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    w = bs.quantize(normal(rng, 19, k), scheme(name, block_size=4096))
    for m in (1, 5, 9):
        a = normal(rng, m, k)
        for result in on_every_isa(a, w, "int8"):
            assert_same(result, int8_sum(a, w))


def check_many_rows(w: BlockTensor) -> None:
    a = normal(np.random.default_rng(1), 33, w.shape[1])
    expected = float_sum(a, w.dequantize())
    for result in on_every_isa(a, w, None):
        assert_same(result, expected)


@pytest.mark.parametrize("name", ["mxfp4", "q4_0", "q4_1", "q8_0", "uint4"])
@pytest.mark.parametrize("k", [1056, 11008, 16416, 20480, 33568])
def test_long_reductions(name: str, k: int) -> None:
    """Activations that the first cache holds, and some that are taken in two parts and in four."""
    rng = np.random.default_rng(k)
    row = scheme(name)
    w = bs.quantize(normal(rng, 18, k) + np.float32(0.3), row)
    for m in (1, 3):
        a = normal(rng, m, k)
        for result in on_every_isa(a, w, "int8"):
            assert_same(result, int8_sum(a, w))


def random_bits(row: Scheme, rng: np.random.Generator, n: int, k: int) -> BlockTensor:
    """A tensor of arbitrary codes, scales and zero points, NaN codes and NaN scales among them."""
    element = row.element
    whole = (int(element.min), int(element.max) + 1)
    codes = rng.integers(*(whole if element.is_integer else (0, 1 << element.bits)), (n, k))
    blocks = (n, -(-k // row.block_size))
    if row.is_mx:
        scales: NDArray[Any] = rng.choice([0, 1, 7, 100, 127, 140, 255], blocks).astype(np.uint8)
    else:
        scales = (rng.choice([-1, 1], blocks) * np.exp(rng.normal(-3, 3, blocks))).astype(row.scale.dtype)
    extreme = np.array([-(2**31), 2**31 - 1, 1024, -1024, 1025, 0, 7, 128])
    offsets: dict[str, Any] = {}
    if row.offset == "zero_point":
        offsets["zero_points"] = rng.choice(extreme if rng.random() < 0.5 else extreme[2:4], blocks).astype(
            np.int32
        )
    if row.offset == "minimum":
        offsets["minimums"] = rng.normal(0, 1, blocks).astype(np.float16)
    return BlockTensor.from_parts(row, codes, scales, **offsets)


@pytest.mark.parametrize("name", SCHEMES)
def test_arbitrary_codes_scales_and_zero_points(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for k, m in ((96, 1), (1184, 1), (224, 3), (256, 13), (160, 40)):
        w, a = random_bits(scheme(name), rng, 34, k), normal(rng, m, k)
        for result in on_every_isa(a, w, None):
            assert_same(result, float_sum(a, w.dequantize()))
        for result in on_every_isa(a, w, "int8"):
            assert_same(result, int8_sum(a, w))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e2m3", "mxint8", "mxint4"])
@pytest.mark.parametrize("size", [32, 64, 128, 256, 1024])
def test_exponents_around_those_that_stay_normal(name: str, size: int) -> None:
    """Sixteen rows whose scales times the step are all normal numbers, and sixteen where one may not be."""
    rng = np.random.default_rng(size)
    row, k = scheme(name, block_size=size), 1632
    blocks = -(-k // size)
    codes = random_bits(scheme(name), rng, 32, k).codes()
    for other, high in itertools.product((*range(9), 255), (253, 254)):
        scales = rng.choice([9, 10, 126, high], (32, blocks)).astype(np.uint8)
        scales[rng.integers(16, 32), rng.integers(blocks)] = other
        w = BlockTensor.from_parts(row, codes, scales)
        for scale in (1e-20, 1.0, 1e20):
            a = normal(rng, 1, k) * np.float32(scale)
            for result in on_every_isa(a, w, "int8"):
                assert_same(result, int8_sum(a, w))


@pytest.mark.parametrize("name", SCHEMES)
def test_largest_sums_of_integers(name: str) -> None:
    """Every product of a segment as large as it can be, all of one sign."""
    row = scheme(name)
    ends = (row.element.min, row.element.max) if row.element.is_integer else range(1 << row.element.bits)
    codes = np.repeat(np.array(ends, int)[:, None], 288, axis=1)
    blocks = (len(codes), 288 // row.block_size)
    offsets: dict[str, Any] = {}
    if row.offset != "none":
        offsets[f"{row.offset}s"] = np.ones(blocks, np.int32 if row.offset == "zero_point" else np.float16)
    w = BlockTensor.from_parts(row, codes, np.full(blocks, 127).astype(row.scale.dtype), **offsets)
    a = np.repeat(np.array([[1], [-1], [0.5]], np.float32), 288, axis=1)
    for result in on_every_isa(a, w, "int8"):
        assert_same(result, int8_sum(a, w))


@pytest.mark.parametrize("zero_point", [-(2**31), -(2**31) + 256, 2**31 - 257, 2**31 - 256, 2**31 - 1])
@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "uint8"])
def test_zero_points_at_the_ends_of_their_range(name: str, zero_point: int) -> None:
    row = scheme(name, symmetric=False)
    codes = np.tile(np.array([row.element.min, row.element.max, 0, 1], np.int64), (5, 16))
    w = BlockTensor.from_parts(
        row,
        codes,
        np.ones((5, 2), row.scale.dtype),
        zero_points=np.full((5, 2), zero_point, np.int32),
    )
    a = normal(np.random.default_rng(3), 2, 64)
    for activations, wanted in ((None, float_sum(a, w.dequantize())), ("int8", int8_sum(a, w))):
        for rows in (a, a[:1]):
            for result in on_every_isa(rows, w, activations):
                assert_same(result, wanted[: len(rows)])


def hard_activations(rng: np.random.Generator, m: int, k: int) -> dict[str, F32]:
    """Inputs that show the error of a summation order."""
    big = normal(rng, m, k)
    big[:, ::2] = np.repeat(np.float32(1e6), (k + 1) // 2)
    alternating = np.where(np.arange(k) % 2 == 0, 1.0, -1.0) * (1 + rng.random((m, k)) * 1e-3)
    return {
        "normal": normal(rng, m, k),
        "positive": np.abs(normal(rng, m, k)),
        "wide": (normal(rng, m, k) * np.exp2(rng.integers(-40, 40, (m, k)))).astype(np.float32),
        "cancelling": alternating.astype(np.float32),
        "large among small": big,
        "growing": np.cumsum(np.full((m, k), 1e-3), axis=1).astype(np.float32),
        "one": np.eye(m, k, dtype=np.float32),
        "zero": np.zeros((m, k), np.float32),
        "constant": np.full((m, k), 1 / 3, np.float32),
        "subnormal": (normal(rng, m, k) * np.float32(1e-41)).astype(np.float32),
    }


def test_hard_activations_give_the_stated_bits() -> None:
    rng = np.random.default_rng(13)
    w = bs.quantize(normal(rng, 5, 200) * np.float32(1e-3), scheme("int8", scale="float32"))
    for a in hard_activations(rng, 3, 200).values():
        for result in on_every_isa(a, w, None):
            assert_same(result, float_sum(a, w.dequantize()))


def test_sums_next_to_halfway_are_rounded_once() -> None:
    """1 + ulp +- (half an ulp - 2**-70) is 1 + ulp; rounded to float64 first it would be halfway to even."""
    ulp = 2.0**-23
    scales = np.array([[1, 1 + ulp]], np.float32)
    w = BlockTensor.from_parts(scheme("int8", scale="float32", block_size=16), np.ones((1, 32), int), scales)
    for first, second in itertools.product((1, -1), (1, -1)):
        a = np.zeros((1, 32), np.float32)
        a[0, 0], a[0, 16] = first * (1 + ulp), second * ulp / 2 * (1 - ulp)
        for result in [float_sum(a, w.dequantize()), *on_every_isa(a, w, None)]:
            assert result[0, 0] == np.float32(first * (1 + ulp))


def bound_float(a: F64, w: F64, bias: F64 | None = None) -> F64:
    k = a.shape[1]
    size: F64 = np.abs(a) @ np.abs(w).T + (0 if bias is None else np.abs(bias))
    bound: F64 = gamma(math.ceil(k / 16) + 4 + (bias is not None)) * size + k * 2.0**-149
    return bound


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e4m3", "mxint8", "int4", "uint4", "q4_1"])
@pytest.mark.parametrize("k", [32, 1000, 4096])
def test_float_error_bound(name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    w = bs.quantize(normal(rng, 6, k), name)
    bias = normal(rng, 6)
    exact_w = w.dequantize().astype(np.float64)
    for kind, a in hard_activations(rng, 3, k).items():
        wide = a.astype(np.float64)
        assert (np.abs(bs.linear(a, w) - wide @ exact_w.T) <= bound_float(wide, exact_w)).all(), kind
        with_bias = np.abs(bs.linear(a, w, bias) - (wide @ exact_w.T + bias))
        assert (with_bias <= bound_float(wide, exact_w, bias.astype(np.float64))).all(), kind


def real_values(w: BlockTensor) -> tuple[F64, F64]:
    """The real numbers that codes and scales stand for, and `|s q| + |m|` or their magnitudes."""
    size, k = w.block_size, w.shape[1]

    def spread(rows: NDArray[Any]) -> F64:
        return np.repeat(rows.astype(np.float64), size, axis=1)[:, :k]

    codes = w.codes().astype(np.float64) * 2.0**w.scheme.value_exponent
    shift = 0 if w.row_offsets is None else spread(w.row_offsets)
    if w.scheme.offset == "minimum":
        product = spread(w.row_scales) * codes
        return product + shift, np.abs(product) + np.abs(shift)
    values = spread(w.row_scales) * (codes - shift)
    return values, np.abs(values)


@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "mxfp6_e2m3", "int4", "uint4", "q8_0", "q4_1"])
@pytest.mark.parametrize("k", [32, 1000, 4096])
def test_int8_error_bounds(name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    w = bs.quantize(normal(rng, 6, k), name)
    values, size = real_values(w)
    segments = -(-k // 32)
    n = math.ceil(segments / 16) * (2 if name == "q4_1" else 1) + 6
    for kind, a in hard_activations(rng, 3, k).items():
        q, scales = round_int8(a)
        rounded = q * np.repeat(scales.astype(np.float64), 32, axis=1)[:, :k]
        coarse = np.repeat(scales, 32, axis=1)[:, :k] < 2.0**-126  # subnormal scales are coarse
        moved = np.abs(rounded - a.astype(np.float64))
        assert (moved <= 0.501 * np.repeat(scales.astype(np.float64), 32, axis=1)[:, :k])[~coarse].all(), kind
        error = np.abs(bs.linear(a, w, activations="int8") - rounded @ values.T)
        assert (error <= gamma(n) * (np.abs(rounded) @ size.T) + 8 * segments * 2.0**-149 * 2**20).all(), kind


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["mxfp4", "int8", "uint4", "q4_1", "mxfp8_e5m2", "uint2"]),
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(0, 20),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "int8"]),
)
def test_any_shape(name: str, n: int, k: int, m: int, seed: int, activations: str | None) -> None:
    rng = np.random.default_rng(seed)
    w, a = bs.quantize(normal(rng, n, k), name), normal(rng, m, k)
    expected = int8_sum(a, w) if activations else float_sum(a, w.dequantize())
    for threads in (1, 3):
        assert_same(bs.linear(a, w, activations=activations, threads=threads), expected)


def test_threads_do_not_change_bits() -> None:
    rng = np.random.default_rng(3)
    w, a = bs.quantize(normal(rng, 1000, 1024), "mxfp4"), normal(rng, 9, 1024)
    for activations in (None, "int8"):
        results = {bs.linear(a, w, activations=activations, threads=t).tobytes() for t in (1, 2, 3, 7)}
        assert len(results) == 1


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(4)
    w, a = bs.quantize(normal(rng, 45, 320), "q4_0"), normal(rng, 150, 320)
    for activations in (None, "int8"):
        whole = bs.linear(a, w, activations=activations)
        for i in (0, 7, 149):
            assert_same(bs.linear(a[i], w, activations=activations), whole[i])
        part = bs.linear(a, w[10:29], activations=activations)
        assert_same(part, np.ascontiguousarray(whole[:, 10:29]))


def test_padding_bits_do_not_matter() -> None:
    """Codes past the end of a partial block may be anything, also NaN."""
    rng = np.random.default_rng(5)
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "q8_0", "mxfp4"):
        w, a = bs.quantize(normal(rng, 18, 40), name), normal(rng, 13, 40)
        packed = w.packed.copy()
        packed[:, -(-40 * w.scheme.element.bits // 8) :] = 0xFF
        dirty = BlockTensor(w.grid, w.scheme, packed, w.row_scales, w.row_offsets)
        for activations in (None, "int8"):
            assert_same(
                bs.linear(a, dirty, activations=activations), bs.linear(a, w, activations=activations)
            )


def test_shapes_and_dtypes() -> None:
    rng = np.random.default_rng(6)
    w = bs.quantize(normal(rng, 6, 64), "mxfp4")
    a = normal(rng, 2, 3, 64)
    y = bs.linear(a, w)
    assert y.shape == (2, 3, 6)
    assert y.dtype == np.float32
    assert bs.linear(a[0, 0], w).shape == (6,)
    assert bs.linear(a[:0], w).shape == (0, 3, 6)
    assert_same(bs.linear(a.transpose(1, 0, 2), w), np.ascontiguousarray(y.transpose(1, 0, 2)))
    for dtype in (np.dtype(np.float16), BFLOAT16):
        narrow = a.astype(dtype)
        full = bs.linear(narrow.astype(np.float32), w)
        result = bs.linear(narrow, w)
        assert result.dtype == dtype
        assert result.tobytes() == full.astype(dtype).tobytes()
        out = np.empty((2, 3, 6), np.float32)
        assert bs.linear(narrow, w, out=out) is out
        assert_same(out, full)


def test_out_and_bias() -> None:
    rng = np.random.default_rng(7)
    w, a, bias = bs.quantize(normal(rng, 6, 64), "int4"), normal(rng, 5, 64), normal(rng, 6)
    expected = bs.linear(a, w) + bias
    assert_same(bs.linear(a, w, bias), expected)
    wide = np.zeros((5, 12), np.float32)
    bs.linear(a, w, bias, out=wide[:, ::2])
    assert_same(np.ascontiguousarray(wide[:, ::2]), expected)
    assert not wide[:, 1::2].any()
    narrow = bias.astype(BFLOAT16)
    assert_same(bs.linear(a, w, narrow), bs.linear(a, w) + narrow.astype(np.float32))


@pytest.mark.parametrize("activations", [None, "int8"])
def test_experts(activations: str | None) -> None:
    rng = np.random.default_rng(8)
    w, a = bs.quantize(normal(rng, 4, 6, 96), "mxfp4"), normal(rng, 3, 7, 96)
    experts, bias = rng.integers(0, 4, (3, 7)), normal(rng, 4, 6)
    y = bs.linear(a, w, bias, experts=experts, activations=activations)
    for i, j in np.ndindex(3, 7):
        e = experts[i, j]
        assert_same(y[i, j], bs.linear(a[i, j], w[int(e)], bias[e], activations=activations))
    again = bs.linear(a, w, bias, experts=experts[::-1], activations=activations)  # known now
    for j in range(7):
        one = bs.linear(a[0, j], w[int(experts[2, j])], bias[experts[2, j]], activations=activations)
        np.testing.assert_array_equal(again[0, j], one)
    assert bs.linear(a[:0], w, experts=experts[:0]).shape == (0, 7, 6)


def test_special_values_follow_ieee_in_their_rows_only() -> None:
    rng = np.random.default_rng(9)
    w, a = bs.quantize(np.abs(normal(rng, 5, 64)) + 1, "int8"), np.abs(normal(rng, 4, 64))
    clean = bs.linear(a, w)
    a[1, 3], a[2, 5] = np.nan, np.inf
    y = bs.linear(a, w)
    assert np.isnan(y[1]).all()
    assert np.isposinf(y[2]).all()
    assert_same(y[[0, 3]], clean[[0, 3]])
    with pytest.raises(NonFiniteError) as caught:
        bs.linear(a, w, activations="int8")
    assert "2 of 256" in str(caught.value)
    assert "[1, 3]" in str(caught.value)


@pytest.mark.parametrize("name", ["mxfp4", "uint4", "mxfp8_e4m3"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_is_written_where_activations_are_not_finite(name: str, bad: float) -> None:
    rng = np.random.default_rng(10)
    w = bs.quantize(normal(rng, 40, 96), name)
    for m, threads in ((1, 1), (3, 2), (40, 2)):
        a, out = normal(rng, m, 96), np.full((m, 40), 7, np.float32)
        a[-1, 95] = bad
        with pytest.raises(NonFiniteError, match=rf"\[{m - 1}, 95\]"):
            bs.linear(a, w, activations="int8", out=out, threads=threads)
        assert (out == 7).all()


def test_nan_blocks_make_their_outputs_nan() -> None:
    x = np.ones((3, 64), np.float32)
    x[1, 40] = np.nan
    w = bs.quantize(x, "mxfp4", nonfinite="nan-block")
    for activations in (None, "int8"):
        y = bs.linear(np.ones((2, 64), np.float32), w, activations=activations)
        assert np.isnan(y[:, 1]).all()
        assert np.isfinite(y[:, [0, 2]]).all()


def test_blocks_along_the_wrong_axis_are_refused_with_both_axes_and_the_ways_out() -> None:
    rng = np.random.default_rng(10)
    weight, a = normal(rng, 64, 64), normal(rng, 3, 64)  # square: only the axis tells them apart
    w = bs.quantize(weight, "mxfp4", axis=0)
    with pytest.raises(BlockAxisError) as caught:
        bs.linear(a, w)
    text = str(caught.value)
    for part in ("axis 1", "axis 0", "bs.reblock(w, axis=1)", "on_wrong_axis='dequantize'"):
        assert part in text
    assert caught.value.found == 0
    slow = bs.linear(a, w, on_wrong_axis="dequantize")
    assert_same(slow, float_sum(a, w.dequantize()))
    assert bs.linear(a, w, on_wrong_axis="dequantize", activations="int8").shape == (3, 64)
    # the right axis never decodes, whatever the option says
    right = bs.quantize(weight, "mxfp4", axis=1)
    assert_same(bs.linear(a, right, on_wrong_axis="dequantize"), bs.linear(a, right))


def test_reblock_moves_the_axis_and_tells_the_added_error() -> None:
    rng = np.random.default_rng(11)
    weight, a = normal(rng, 96, 40), normal(rng, 3, 40)
    w = bs.quantize(weight, "mxfp4", axis=0)
    moved, error = bs.reblock(w, axis=-1)
    assert moved.axis == 1
    assert moved.scheme == w.scheme
    assert moved.same_bits(bs.quantize(w.dequantize(), "mxfp4", axis=1))
    assert error.sqnr_db == moved.error(w.dequantize()).sqnr_db
    assert 10 < error.sqnr_db < 40
    assert bs.linear(a, moved).shape == (3, 96)
    same = bs.reblock(w, axis=0, rule="mse")
    assert same.added_error.max_abs == 0  # values of the grid survive
    assert bs.reblock(w, axis=1, scheme="q8_0").tensor.scheme.name == "q8_0"


@pytest.mark.parametrize("axis", [0, 1])
def test_experts_with_blocks_along_another_axis(axis: int) -> None:
    rng = np.random.default_rng(12)
    w, a = bs.quantize(normal(rng, 32, 4, 64), "int8", axis=axis), normal(rng, 5, 64)
    experts = np.arange(5)
    with pytest.raises(BlockAxisError):
        bs.linear(a, w, experts=experts)
    y = bs.linear(a, w, experts=experts, on_wrong_axis="dequantize")
    for i in range(5):
        assert_same(y[i : i + 1], float_sum(a[i : i + 1], w.dequantize()[i]))


def test_a_weight_stored_in_out_is_recognised() -> None:
    w = bs.quantize(np.ones((64, 32), np.float32), "mxfp4")  # GPT-2's Conv1D: (in, out)
    with pytest.raises(InputError, match=r"Conv1D.*quantize weight\.T") as caught:
        bs.linear(np.ones((2, 64), np.float32), w)
    assert "(2, 64)" in str(caught.value)
    assert "(64, 32)" in str(caught.value)


@pytest.mark.parametrize("activations", [None, "int8"])
def test_out_may_be_an_input(activations: str | None) -> None:
    rng = np.random.default_rng(5)
    w = bs.quantize(normal(rng, 64, 64), "mxfp4")
    memory = native.lined_empty((4, 64), np.dtype(np.float32))
    memory[...] = normal(rng, 4, 64)
    bias = normal(rng, 64)
    wanted = bs.linear(memory.copy(), w, bias, activations=activations)
    assert_same(bs.linear(memory, w, bias, activations=activations, out=memory), wanted)
    row = normal(rng, 1, 64)
    wanted = bs.linear(row, w, bias, activations=activations)
    assert_same(bs.linear(row, w, bias, activations=activations, out=bias[None]), wanted)


@pytest.mark.parametrize("name", ["mxfp4", "uint4", "q4_1", "mxfp8_e4m3"])
@pytest.mark.parametrize("activations", [None, "int8"])
def test_a_reduction_over_nothing_is_zero(name: str, activations: str | None) -> None:
    w = bs.quantize(np.zeros((4, 0), np.float32), name)
    bias = np.arange(4, dtype=np.float32)
    assert_same(
        bs.linear(np.zeros((3, 0), np.float32), w, activations=activations), np.zeros((3, 4), np.float32)
    )
    assert_same(
        bs.linear(np.zeros((3, 0), np.float32), w, bias, activations=activations), np.tile(bias, (3, 1))
    )


def _refused() -> list[tuple[str, dict[str, Any], str]]:
    a = np.ones((2, 64), np.float32)
    return [
        ("dtype", {"a": a.astype(np.float64)}, "float64"),
        ("integers", {"a": a.astype(np.int32)}, "int32"),
        ("scalar", {"a": np.float32(1)}, "no axis"),
        ("length", {"a": a[:, :63]}, "63"),
        ("activations", {"activations": "int4"}, "int4"),
        ("option", {"on_wrong_axis": "ignore"}, "ignore"),
        ("array option", {"on_wrong_axis": np.zeros(2)}, "on_wrong_axis"),
        ("array weight", {"w": np.ones((4, 64), np.float32)}, "ndarray"),
        ("experts without experts", {"experts": np.zeros(2, int)}, r"\(E, N, K\)"),
        ("bias shape", {"bias": np.ones(5, np.float32)}, r"\(5,\)"),
        ("bias dtype", {"bias": np.ones(4)}, "float64"),
        ("out shape", {"out": np.empty((2, 5), np.float32)}, r"\(2, 5\)"),
        ("out dtype", {"out": np.empty((2, 4), np.float16)}, "float16"),
    ]


@pytest.mark.parametrize(("name", "change", "text"), _refused(), ids=[r[0] for r in _refused()])
def test_refusals_name_what_was_found(name: str, change: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {
        "a": np.ones((2, 64), np.float32),
        "w": bs.quantize(np.ones((4, 64), np.float32), "mxfp4"),
        **change,
    }
    with pytest.raises(InputError, match=text):
        bs.linear(**arguments)
    if isinstance(arguments["w"], BlockTensor):  # and once the weight was used
        bs.linear(np.ones((2, 64), np.float32), arguments["w"])
        for activations in (arguments.get("activations"), arguments.get("activations", "int8")):
            with pytest.raises(InputError, match=text):
                bs.linear(**{**arguments, "activations": activations})


def test_the_short_cut_for_what_needs_no_checks() -> None:
    rng = np.random.default_rng(12)
    x = normal(rng, 48, 64)
    w, first = bs.quantize(x, "int4"), bs.quantize(x, "int4")
    a = normal(rng, 3, 64)
    wanted = bs.linear(a, first, activations="int8")  # the first call with a weight has no short cut
    strided, column = np.repeat(a, 2, 1)[:, ::2], np.asfortranarray(a)
    out, narrow, turned = (
        np.empty((3, 48), np.float32),
        np.empty((3, 96), np.float32),
        np.empty((48, 3), np.float32),
    )
    bs.linear(a, w)
    for rows in (a, strided, column):
        assert_same(bs.linear(rows, w, activations="int8"), wanted)
        for to in (out, narrow[:, ::2], turned.T, np.empty((4, 48), np.float32)[1:]):
            to[...] = 0
            assert bs.linear(rows, w, activations="int8", out=to, threads=2) is to
            assert_same(np.ascontiguousarray(to), wanted)
    assert bs.linear(a[:0], w, activations="int8").shape == (0, 48)
    closed = np.empty((3, 48), np.float32)
    closed.flags.writeable = False
    for wrong in (closed, np.empty((3, 47), np.float32), out.astype(np.float64), out.tolist()):
        with pytest.raises(InputError, match="out"):
            bs.linear(a, w, activations="int8", out=wrong)  # type: ignore[arg-type]
    square = bs.quantize(normal(rng, 64, 64), "int4")
    both = normal(rng, 3, 64)
    for _ in range(2):
        wanted = bs.linear(both.copy(), square, activations="int8")
        assert_same(bs.linear(both, square, activations="int8", out=both), wanted)


def test_expert_numbers_are_checked() -> None:
    w, a = bs.quantize(np.ones((3, 4, 64), np.float32), "mxfp4"), np.ones((2, 64), np.float32)
    with pytest.raises(InputError, match="experts="):
        bs.linear(a, w)
    for wrong in (np.array([0, 3]), np.array([-1, 0]), np.array([0]), np.array([0.0, 1.0])):
        with pytest.raises(InputError, match="experts"):
            bs.linear(a, w, experts=wrong)


def test_results_beyond_a_narrow_dtype_are_refused() -> None:
    w = bs.quantize(np.full((2, 64), 1000, np.float32), "int8")
    a = np.full((1, 64), 1000, np.float16)
    with pytest.raises(OverflowingValueError, match="2 of 2"):
        bs.linear(a, w)
    assert np.isfinite(bs.linear(a, w, out=np.empty((1, 2), np.float32))).all()
    a[0, 0] = np.inf  # an infinity that was there already passes
    assert np.isinf(bs.linear(a, w)).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_can_multiply() -> None:
    """The threads of the parent do not exist in a child."""
    code = (
        "import os, numpy as np, blockscale as bs, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "w = bs.quantize(np.ones((2048, 2048), np.float32), 'mxfp4'); a = np.ones((2, 2048), np.float32)\n"
        "bs.linear(a, w, threads=2)\n"
        "pid = os.fork()\n"
        "if not pid:\n    bs.linear(a, w, threads=2); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "7"

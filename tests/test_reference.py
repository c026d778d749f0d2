"""The reference against independent implementations: ml_dtypes, gguf, tables made by hand, plain search."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import cases
import reference
import reference_numbers as numbers
from blockscale.schemes import scheme

FLOAT_ELEMENTS = {
    "float4_e2m1": ml_dtypes.float4_e2m1fn,
    "float6_e2m3": ml_dtypes.float6_e2m3fn,
    "float6_e3m2": ml_dtypes.float6_e3m2fn,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
MX_SCHEMES = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mxint4")
AMAXES = (6, 6.5, 6.99, 7, 7.5, 7.75, 7.99, 8)

# bytes for AMAXES, worked by hand from E, m and the thresholds
# fmt: off
BYTES = {
    ("mxfp4",      "floor"): (127, 127, 127, 127, 127, 127, 127, 128),
    ("mxfp4",      "ceil"):  (128, 128, 128, 128, 128, 128, 128, 128),
    ("mxfp4",      "rceil"): (127, 128, 128, 128, 128, 128, 128, 128),
    ("mxfp4",      "even"):  (127, 127, 127, 128, 128, 128, 128, 128),
    ("mxfp6_e2m3", "floor"): (127, 127, 127, 127, 127, 127, 127, 128),
    ("mxfp6_e2m3", "ceil"):  (128, 128, 128, 128, 128, 128, 128, 128),
    ("mxfp6_e2m3", "rceil"): (127, 127, 127, 127, 127, 128, 128, 128),
    ("mxfp6_e2m3", "even"):  (127, 127, 127, 127, 127, 128, 128, 128),
    ("mxfp6_e3m2", "floor"): (125, 125, 125, 125, 125, 125, 125, 126),
    ("mxfp6_e3m2", "ceil"):  (126, 126, 126, 126, 126, 126, 126, 126),
    ("mxfp6_e3m2", "rceil"): (125, 125, 125, 125, 126, 126, 126, 126),
    ("mxfp6_e3m2", "even"):  (125, 125, 125, 125, 126, 126, 126, 126),
    ("mxfp8_e4m3", "floor"): (121, 121, 121, 121, 121, 121, 121, 122),
    ("mxfp8_e4m3", "ceil"):  (122, 122, 122, 122, 122, 122, 122, 122),
    ("mxfp8_e4m3", "rceil"): (121, 121, 121, 121, 122, 122, 122, 122),
    ("mxfp8_e4m3", "even"):  (121, 121, 121, 121, 121, 122, 122, 122),
    ("mxfp8_e5m2", "floor"): (114, 114, 114, 114, 114, 114, 114, 115),
    ("mxfp8_e5m2", "ceil"):  (115, 115, 115, 115, 115, 115, 115, 115),
    ("mxfp8_e5m2", "rceil"): (114, 114, 114, 114, 115, 115, 115, 115),
    ("mxfp8_e5m2", "even"):  (114, 114, 114, 114, 115, 115, 115, 115),
    ("mxint8",     "floor"): (129, 129, 129, 129, 129, 129, 129, 130),
    ("mxint8",     "ceil"):  (130, 130, 130, 130, 130, 130, 130, 130),
    ("mxint8",     "rceil"): (129, 129, 129, 129, 129, 129, 130, 130),
    ("mxint8",     "even"):  (129, 129, 129, 129, 129, 129, 130, 130),
}
# fmt: on


def _bits(dtype: Any, count: int) -> NDArray[Any]:
    return np.asarray(np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32))


# ---------------------------------------------------------------- tables and casts


@pytest.mark.parametrize("name", FLOAT_ELEMENTS)
def test_every_code_has_the_value_ml_dtypes_gives(name: str) -> None:
    bits = sum(numbers.FIELDS[name][:2]) + 1
    ours = numbers.code_values(name, bits).astype(np.float32)
    theirs = _bits(FLOAT_ELEMENTS[name], 1 << bits)
    np.testing.assert_array_equal(ours, theirs)
    finite = np.isfinite(ours)
    np.testing.assert_array_equal(np.signbit(ours[finite]), np.signbit(theirs[finite]))


def test_mx_integers_are_fractions() -> None:
    int8 = np.arange(256, dtype=np.uint8).view(np.int8)
    np.testing.assert_array_equal(numbers.code_values("int8", 8), int8 / 64)
    np.testing.assert_array_equal(numbers.code_values("int4", 4)[[0, 7, 8, 15]], [0, 1.75, -2, -0.25])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_positive_scales_are_all_of_them(name: str) -> None:
    dtype = numbers.SCALE_DTYPES[name]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float64)
    expected = np.sort(every[np.isfinite(every) & (every > 0)])
    np.testing.assert_array_equal(numbers.positive_scales(name), expected)
    assert numbers.smallest_scale(name) == expected[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_round_to_type_is_the_cast(name: str) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 1 << 32, 20000, dtype=np.uint32).view(np.float32)
    values = drawn[np.isfinite(drawn)].astype(np.float64)
    if name != "float32":
        codes = np.sort(numbers.positive_scales(name))
        middles = (codes[:-1] + codes[1:]) / 2
        values = np.concatenate([values, middles, [0.0, -0.0, 65519.99, 65520, -65520]])
    else:
        values = np.concatenate([values * (1 + 2.0**-24), values * (1 + 2.0**-30), [1e300, -1e-300]])
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(numbers.SCALE_DTYPES[name]).astype(np.float64)
    np.testing.assert_array_equal(numbers.round_to_type(values, name), expected)


def test_round_to_bfloat16_rounds_float64_once() -> None:
    """A cast by way of float32 would round twice: 1 + 2**-8 + 2**-40 lies above the middle."""
    above = 1 + 2.0**-8 + 2.0**-40
    np.testing.assert_array_equal(
        numbers.round_to_type(np.array([1 + 2.0**-8, above, -above]), "bfloat16"),
        [1, 1 + 2.0**-7, -1 - 2.0**-7],
    )


@pytest.mark.parametrize("name", FLOAT_ELEMENTS)
def test_codes_are_those_of_ml_dtypes_casts(name: str) -> None:
    table = numbers.magnitudes(name)
    middles = ((table[:-1] + table[1:]) / 2).astype(np.float32)
    rng = np.random.default_rng(2)
    some = (rng.standard_normal(5000) * table[-1] / 2).astype(np.float32)
    values = np.concatenate(
        [table.astype(np.float32), middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9), some]
    )
    values = np.concatenate([values, -values, [1e6, -1e6, 464, 465, 1000]]).astype(np.float32)
    top = np.float32(table[-1])
    bits = sum(numbers.FIELDS[name][:2]) + 1
    expected = np.clip(values, -top, top).astype(FLOAT_ELEMENTS[name]).view(np.uint8)
    for exponent in (-40, 0, 13):
        scaled = np.ldexp(values.astype(np.float64), exponent)[None]
        codes, saturated = reference.mx_codes(scaled, np.array([exponent]), bits, name)
        np.testing.assert_array_equal(codes[0], expected & ((1 << bits) - 1))
        np.testing.assert_array_equal(saturated[0], np.abs(values) > top)


def test_e2m1_midpoints_and_their_neighbours() -> None:
    """The 14 middles go to the even code (M10): 0.25, 1.25, 2.5, 5 down; 0.75, 1.75, 3.5 up."""
    middles = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    even = np.array([0, 2, 2, 4, 4, 6, 6])
    below, above = np.arange(7), np.arange(1, 8)
    for sign, bit in ((1, 0), (-1, 8)):
        for values, codes in (
            (middles, even),
            (np.nextafter(middles, np.float32(0)), below),
            (np.nextafter(middles, np.float32(9)), above),
        ):
            got, _ = reference.mx_codes(
                sign * values.astype(np.float64)[None], np.array([0]), 4, "float4_e2m1"
            )
            np.testing.assert_array_equal(got[0], codes | bit)


def test_mx_integers_round_to_even_and_stay_symmetric() -> None:
    values = np.array([[0.5, 1.5, 2.5, 126.5, 127, 127.4, 128, -128, -0.5, -1.5, -0.0]]) / 64
    codes, saturated = reference.mx_codes(values, np.array([0]), 8, "int8")
    np.testing.assert_array_equal(codes[0].view(np.int8), [0, 2, 2, 126, 127, 127, 127, -127, 0, -2, 0])
    assert saturated[0].tolist() == [False] * 5 + [True] * 3 + [False] * 3


# ---------------------------------------------------------------- exponents


@pytest.mark.parametrize(("name", "rule"), BYTES)
def test_bytes_by_rule_and_element(name: str, rule: str) -> None:
    x = np.zeros((len(AMAXES), 32), np.float32)
    x[:, 5] = AMAXES
    x[1::2] *= -1
    scales = reference.quantize(x, scheme(name), rule=rule).scales
    assert tuple(scales[:, 0].tolist()) == BYTES[name, rule]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponents_next_to_every_power_of_two(dtype: Any) -> None:
    """floor(log2) fails on thousands of these; the bits do not."""
    info = np.finfo(dtype)
    least = int(info.minexp) - int(info.nmant)
    k = np.arange(least, int(info.maxexp))
    powers = np.ldexp(np.ones(len(k), dtype), k)
    exponent, m = numbers.exponent_and_significand(powers.astype(np.float64))
    assert (exponent == k).all()
    assert (m == 1).all()
    below = np.nextafter(powers, dtype(0)).astype(np.float64)[1:]
    exponent, m = numbers.exponent_and_significand(below)
    assert (exponent == k[1:] - 1).all()
    assert ((m >= 1) & (m < 2)).all()
    assert (np.ldexp(m, exponent) == below).all()


def test_floor_bytes_next_to_every_float32_power_of_two() -> None:
    k = np.arange(-125, 128)
    powers = np.ldexp(np.float32(1), k).astype(np.float32)
    for values, exponents in ((powers, k), (np.nextafter(powers, np.float32(0)), k - 1)):
        bytes_ = reference.quantize(values[:, None], scheme("mxfp4"), rule="floor").scales[:, 0]
        np.testing.assert_array_equal(bytes_, np.clip(exponents - 2, -127, 127) + 127)


@pytest.mark.parametrize("name", MX_SCHEMES)
def test_rceil_and_ceil_saturate_nothing(name: str) -> None:
    x = cases.tensor("student_t3", (64, 64))
    for rule in ("rceil", "ceil"):
        assert reference.quantize(x, scheme(name), rule=rule).events["saturated"] == 0


@pytest.mark.parametrize("name", MX_SCHEMES)
def test_mse_is_never_above_another_rule(name: str) -> None:
    row = scheme(name)
    for case in ("normal", "ties", "sparse", "below_powers"):
        x = cases.blocks(case, 64, 32)
        base = reference.wanted_exponent(np.abs(x).max(-1), row.element.name, "floor")
        best = reference.quantize(x, row, rule="mse").scales[:, 0].astype(np.int64) - 127
        least = reference.mx_error(x, best, base, row.element.name)
        for rule in ("floor", "ceil", "rceil", "even"):
            other = reference.quantize(x, row, rule=rule).scales[:, 0].astype(np.int64) - 127
            assert (least <= reference.mx_error(x, other, base, row.element.name)).all()


def test_mse_ties_go_to_the_larger_exponent() -> None:
    """A single 1 is exact under 0.5 * 2, the coarsest scale that can hold it."""
    x = np.zeros(32, np.float32)
    x[3] = 1
    result = reference.quantize(x, scheme("mxfp4"), rule="mse")
    assert result.scales.tolist() == [128]
    assert result.codes[3] == 1
    assert reference.choose_scale_mse(x, 3, 1) == 126
    assert reference.choose_scale_mse(x, 3, 0) == reference.choose_scale(x) == 125


def test_957_saturates_under_floor() -> None:
    """microxcaling issue 4: 957 becomes 896 in E4M3, and is counted."""
    x = np.full(32, 1.0)
    x[7] = 957
    result = reference.quantize(x, scheme("mxfp8_e4m3"), rule="floor")
    assert reference.dequantize(result, scheme("mxfp8_e4m3"))[7] == 896
    assert result.events["saturated"] == result.events["saturated_blocks"] == 1


def test_exponents_are_clamped_and_counted() -> None:
    x = np.array([[2.0**-149, 0], [2.0**-126, 0], [2.0**-125, 0], [0, 0]])
    result = reference.quantize(x, scheme("mxfp4"), rule="floor")
    assert result.scales[:, 0].tolist() == [0, 0, 0, 127]
    assert result.events["scales_clamped"] == 2
    assert result.events["zeroed"] == 1
    hurray = reference.quantize(x, scheme("mxfp4"), rule="floor", min_byte=1)
    assert hurray.scales[:, 0].tolist() == [1, 1, 1, 127]
    assert hurray.events["scales_clamped"] == 3


def test_largest_value_that_fits_float32_takes_the_place_of_max() -> None:
    x = np.full((1, 2), numbers.FLOAT32_MAX)
    result = reference.quantize(x, scheme("mxfp4"), rule="rceil")
    assert result.scales.tolist() == [[126 + 127]]
    assert reference.dequantize(result, scheme("mxfp4")).tolist() == [[3 * 2.0**126] * 2]
    assert result.events["saturated"] == 2


# ---------------------------------------------------------------- decoding and sums


def test_mx_decoding_at_the_ends() -> None:
    """Bytes 0, 1, 2, 253, 254 are powers of two, 255 is NaN whatever the code (M14, M16, M17)."""
    scale_bytes = np.array([0, 1, 2, 134, 253, 254, 255])
    decoded = reference.decode_mx(np.full(7, 0.5), scale_bytes)
    expected = [2.0**-128, 2.0**-127, 2.0**-126, 64, 2.0**125, 2.0**126, np.nan]
    np.testing.assert_array_equal(decoded, np.array(expected, np.float32))


def test_affine_decoding_forms_differences_exactly() -> None:
    row = scheme("uint8", scale="float32")
    result = reference.Result(
        np.array([255, 0], np.uint8), np.array([1], np.float32), np.array([-(2**31)], np.int32), None, {}
    )
    expected = np.array([2**31 + 255, 2**31]).astype(np.float32)
    np.testing.assert_array_equal(reference.dequantize(result, row), expected)


@pytest.mark.parametrize("width", [1, 2, 5, 16, 17, 32, 64])
def test_error_sum_order(width: int) -> None:
    terms = np.random.default_rng(width).random(width) ** 9
    lanes = [0.0] * 16
    for i, term in enumerate(terms):
        lanes[i % 16] += float(term)
    for half in (8, 4, 2, 1):
        for j in range(half):
            lanes[j] += lanes[j + half]
    assert float(numbers.error_sum(terms)) == lanes[0]


# ---------------------------------------------------------------- ggml


def _ggml_bytes(result: reference.Result, name: str) -> NDArray[np.uint8]:
    """Blocks as GGUF stores them: scale, minimum, codes (4-bit: elements j and j + 16 share a byte)."""
    n = result.scales.shape[0]
    parts = [result.scales.astype("<f2").view(np.uint8).reshape(n, 2)]
    if result.minimums is not None:
        parts.append(result.minimums.astype("<f2").view(np.uint8).reshape(n, 2))
    codes: NDArray[Any] = result.codes
    if name != "q8_0":
        if name == "q4_0":
            codes = (codes + 8) & 15
        codes = codes[:, :16] | (codes[:, 16:] << 4)
    return np.concatenate([*parts, codes], axis=1)


def _without_negative_zero(minimums: Any) -> Any:
    """gguf takes whichever zero NumPy's minimum happens to give."""
    return minimums + np.float16(0)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
@pytest.mark.parametrize("case", [name for name in cases.CASES if name != "huge"])
def test_ggml_equals_the_gguf_package(name: str, case: str) -> None:
    gguf = pytest.importorskip("gguf")
    x = cases.blocks(case, 300, 32).astype(np.float32)
    if name == "q4_1":
        x[np.abs(x) > 60000] = 1  # a minimum beyond float16 is refused
    kind = gguf.GGMLQuantizationType[name.upper()]
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(x, kind)
    scales = theirs[:, :2].copy().view(np.float16)[:, 0]
    keep = (scales != 0) & np.isfinite(scales)
    ours = reference.quantize(x[keep], scheme(name))
    if name == "q4_1":
        theirs[:, 2:4] = _without_negative_zero(theirs[:, 2:4].copy().view(np.float16)).view(np.uint8)
        ours.minimums = _without_negative_zero(ours.minimums)
    np.testing.assert_array_equal(_ggml_bytes(ours, name), theirs[keep])
    if keep.any():  # gguf fails on no blocks
        expected = gguf.quants.dequantize(theirs[keep], kind)
        np.testing.assert_array_equal(reference.dequantize(ours, scheme(name)), expected)


def test_q4_0_keeps_the_sign_of_the_first_extreme() -> None:
    """ggml-org/llama.cpp 729: a block with maximum +8 stores d = -1; of equal magnitudes the first counts."""
    for first, d in ((8.0, -1), (-8.0, 1)):
        x = np.zeros(32)
        x[3], x[9] = first, -first
        result = reference.quantize(x, scheme("q4_0"))
        assert result.scales.tolist() == [d]
        assert result.codes[[3, 9]].tolist() == [8, 7]
        assert result.events["saturated"] == 1


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_ggml_scales_of_zero_are_replaced(name: str) -> None:
    x = np.zeros((3, 32))
    x[1] = 1e-9
    x[2, 0], x[2, 1] = -1e-9, 2e-9
    result = reference.quantize(x, scheme(name))
    flat = 1.0 if name == "q4_1" else 2.0**-24
    signed = -(2.0**-24) if name == "q4_0" else 2.0**-24
    scales = result.scales[:, 0].astype(float).tolist()
    assert scales == [1.0, -flat if name == "q4_0" else flat, signed]
    assert (result.events["scales_raised"], result.events["zero_blocks"]) == (2, 1)
    assert not result.codes[0].any()


# ---------------------------------------------------------------- shapes, events, refusals


@pytest.mark.parametrize("name", ["mxfp4", "int4", "uint4", "q4_1"])
def test_shapes_axes_and_partial_blocks(name: str) -> None:
    row = scheme(name)
    x = cases.tensor("normal", (3, 70, 2), axis=1)
    along = reference.quantize(x, row, axis=1)
    assert along.codes.shape == x.shape
    assert along.scales.shape == (3, 3, 2)
    last = reference.quantize(np.moveaxis(x, 1, -1), row)
    np.testing.assert_array_equal(np.moveaxis(along.codes, 1, -1), last.codes)
    alone = reference.quantize(x[:, 64:], row, axis=1)
    np.testing.assert_array_equal(along.codes[:, 64:], alone.codes)
    np.testing.assert_array_equal(along.scales[:, 2:], alone.scales)
    np.testing.assert_array_equal(
        reference.dequantize(along, row, axis=1)[:, 64:], reference.dequantize(alone, row, axis=1)
    )


@pytest.mark.parametrize("shape", [(1,), (0,), (0, 5), (5, 0), (2, 0, 3)])
def test_one_element_and_none(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        result = reference.quantize(np.ones(shape), scheme("int4"), axis=axis)
        assert result.codes.shape == shape
        assert result.scales.shape[axis] == -(-shape[axis] // 32)
        assert reference.dequantize(result, scheme("int4"), axis=axis).shape == shape


@pytest.mark.parametrize("position", [0, 15, 31])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_blocks(position: int, value: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, position] = value
    result = reference.quantize(x, scheme("mxfp4"), nonfinite="nan-block")
    assert result.scales.tolist() == [[125, 125], [255, 125]]
    assert not result.codes[1, :32].any()
    assert result.events["nan_blocks"] == 1
    assert np.isnan(reference.dequantize(result, scheme("mxfp4"))).sum() == 32
    with pytest.raises(reference.NonFinite) as caught:
        reference.quantize(x, scheme("mxfp4"))
    assert (caught.value.count, caught.value.index) == (1, (1, position))


def test_scale_overflow_is_refused() -> None:
    for rule in ("absmax", "optimal"):
        with pytest.raises(reference.ScaleOverflow):
            reference.quantize(np.array([1e7, 1.0]), scheme("int8"), rule=rule)
    with pytest.raises(reference.ScaleOverflow):
        reference.quantize(np.full(32, 1e5), scheme("q4_1"))


def test_negative_zero_keeps_its_sign_in_float_elements() -> None:
    """M22: -0.0 and -0.1 beside 6 have code 8; integers have no negative zero."""
    x = np.array([6.0, -0.0, -0.1, 0.0])
    assert reference.quantize(x, scheme("mxfp4")).codes.tolist() == [7, 8, 8, 0]
    assert reference.quantize(-np.zeros(4), scheme("mxfp4")).codes.tolist() == [8] * 4
    assert reference.quantize(x, scheme("mxint8")).codes.tolist() == [96, 0, 254, 0]


def test_raised_scales() -> None:
    """A scale that would be stored as 0 becomes the smallest one, and codes follow it."""
    x = np.array([[3e-8, -9e-8], [0, 0]])
    result = reference.quantize(x, scheme("int4"))
    assert result.scales[:, 0].astype(float).tolist() == [2.0**-24, 1.0]
    assert result.codes.tolist() == [[1, 14], [0, 0]]
    assert result.events["scales_raised"] == 1
    assert result.events["zero_blocks"] == 1


def test_minmax_with_and_without_zero() -> None:
    """Z7: a block of 3 .. 5 gives other codes with zero in the range than without."""
    x = np.array([3.0, 4.0, 5.0])
    with_zero = reference.quantize(x, scheme("uint4"))
    assert with_zero.zero_points is not None
    assert (math.isclose(with_zero.scales[0], 1 / 3, rel_tol=1e-3), with_zero.zero_points[0]) == (True, 0)
    without = reference.quantize(x, scheme("uint4"), rule="minmax:no-zero")
    assert without.codes[[0, 2]].tolist() == [0, 15]
    assert without.zero_points is not None
    assert without.zero_points[0] == -round(3 / float(without.scales[0]))
    constant = reference.quantize(np.full(4, -2.0), scheme("uint4"), rule="minmax:no-zero")
    np.testing.assert_array_equal(reference.dequantize(constant, scheme("uint4")), np.full(4, -2.0))

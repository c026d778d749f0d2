"""`blockscale.quantize` against tests/reference.py, bit for bit."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockscale as bs
import cases
import reference
import reference_numbers as numbers
from blockscale.errors import (
    InputError,
    NonFiniteError,
    OverflowingValueError,
    ScaleOverflowError,
    SchemeError,
)
from blockscale.schemes import SCHEMES, Scheme, scheme
from reference_optimal import Search

F64 = NDArray[np.float64]
DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
INTEGERS = ("int8", "int4", "int2", "uint8", "uint4", "uint2")
SCALES = ("float16", "bfloat16", "float32")
MX = tuple(name for name, row in SCHEMES.items() if row.is_mx)
MX_RULES = ("floor", "ceil", "rceil", "even", "mse")


def _affine_rows() -> list[tuple[Scheme, str]]:
    """Every affine scheme with each of its rules but `optimal`."""
    rows = [(scheme(name), rule) for name in ("q8_0", "q4_0") for rule in ("ggml", "absmax")]
    rows.append((scheme("q4_1"), "ggml"))
    for name, scale, rule in itertools.product(INTEGERS, SCALES, ("absmax", "minmax", "minmax:no-zero")):
        rows.append((scheme(name, scale=scale, symmetric=rule == "absmax"), rule))
    return rows


def _row_id(value: object) -> str:
    return f"{value.name}-{value.scale.name}" if isinstance(value, Scheme) else str(value)


EVERY_ROW = [(scheme(name), rule) for name in MX for rule in MX_RULES] + _affine_rows()
# One row per arithmetic: float and integer elements, each offset, each rule.
FEW_ROWS = [
    (scheme("mxfp4"), "even"),
    (scheme("mxfp6_e3m2"), "mse"),
    (scheme("mxfp8_e4m3"), "floor"),
    (scheme("mxint8"), "rceil"),
    (scheme("int8"), "absmax"),
    (scheme("int4", scale="bfloat16"), "absmax"),
    (scheme("uint2"), "minmax"),
    (scheme("uint4", scale="float32"), "minmax:no-zero"),
]
GGML_ROWS = [(scheme(name), "ggml") for name in ("q8_0", "q4_0", "q4_1")]


def assert_same(
    x: NDArray[Any],
    row: Scheme,
    rule: str,
    *,
    axis: int = -1,
    importance: F64 | None = None,
    nonfinite: str = "error",
    min_byte: int = 0,
) -> None:
    """Codes, scales, offsets, events and decoded values are those of the reference, or both refuse."""
    mine = functools.partial(bs.quantize, x, row, axis=axis, rule=rule, importance=importance)
    try:
        wanted = reference.quantize(
            x, row, axis=axis, rule=rule, importance=importance, nonfinite=nonfinite, min_byte=min_byte
        )
    except reference.ScaleOverflow:
        with pytest.raises(ScaleOverflowError):
            mine()
        return
    got = mine(nonfinite=nonfinite, min_scale_byte=min_byte)
    codes = got.codes().view(np.uint8) & ((1 << row.element.bits) - 1)
    np.testing.assert_array_equal(codes, wanted.codes)
    _assert_same_bits(got.scales, wanted.scales)
    _assert_same_bits(got.zero_points, wanted.zero_points)
    _assert_same_bits(got.minimums, wanted.minimums)
    assert got.report is not None
    assert {name: getattr(got.report, name) for name in wanted.events} == wanted.events
    _assert_same_bits(got.dequantize(), reference.dequantize(wanted, row, axis))


def _assert_same_bits(got: NDArray[Any] | None, wanted: NDArray[Any] | None) -> None:
    assert (got is None) == (wanted is None)
    if got is None or wanted is None:
        return
    assert got.shape == wanted.shape
    if got.dtype == ml_dtypes.float8_e8m0fnu:
        got = got.view(np.uint8)
    assert got.dtype == wanted.dtype
    if got.dtype.kind not in "iu":  # NaNs too are compared as bits
        unsigned = f"u{got.dtype.itemsize}"
        got, wanted = np.ascontiguousarray(got).view(unsigned), np.ascontiguousarray(wanted).view(unsigned)
    np.testing.assert_array_equal(got, wanted)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(("row", "rule"), EVERY_ROW, ids=_row_id)
def test_every_scheme_and_rule_on_every_case(row: Scheme, rule: str) -> None:
    for name in cases.CASES:
        assert_same(cases.tensor(name, (6, 80)), row, rule)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("row", "rule"), FEW_ROWS + GGML_ROWS, ids=_row_id)
def test_every_input_dtype(row: Scheme, rule: str, dtype: Any) -> None:
    for name in cases.CASES:
        assert_same(cases.tensor(name, (3, 64), dtype=dtype), row, rule)


@pytest.mark.parametrize(("row", "rule"), FEW_ROWS + GGML_ROWS, ids=_row_id)
def test_float64_that_is_not_float32(row: Scheme, rule: str) -> None:
    """53-bit significands, and magnitudes far below the smallest float32."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((40, 32))
    x[::4] *= np.exp2(rng.uniform(-1060, -100, (10, 1)))
    x[1::4] *= np.exp2(rng.uniform(-30, -20, (10, 1)))
    assert_same(x, row, rule)


@pytest.mark.parametrize("name", MX)
def test_lower_bound_of_the_scale_byte(name: str) -> None:
    """Hurray has no byte 0: the clamp is one higher, for every rule."""
    for rule, case in itertools.product(MX_RULES, ("tiny", "float32_subnormals", "zeros", "normal")):
        assert_same(cases.tensor(case, (6, 64)), scheme(name), rule, min_byte=1)


@pytest.mark.parametrize("name", MX)
def test_mse_is_the_least_error_of_all_exponents(name: str) -> None:
    row, element = scheme(name), scheme(name).element.name
    x = np.concatenate([cases.blocks(case, 200, 32) for case in ("normal", "student_t3", "ties")])
    base = reference.wanted_exponent(np.abs(x).max(-1), element, "floor")

    def error(rule: str) -> F64:
        scales = bs.quantize(x, row, rule=rule).scales.view(np.uint8)[:, 0]
        return reference.mx_error(x, scales.astype(np.int64) - 127, base, element)

    least = np.full(len(x), np.inf)
    for byte in range(255):
        least = np.minimum(least, reference.mx_error(x, np.full(len(x), byte - 127), base, element))
    np.testing.assert_array_equal(error("mse"), least)
    for rule in ("floor", "ceil", "rceil", "even"):
        assert (least <= error(rule)).all()


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize(("row", "rule"), FEW_ROWS, ids=_row_id)
@pytest.mark.parametrize("block_size", [2, 4, 8, 16, 32, 64])
def test_block_sizes_and_partial_blocks(row: Scheme, rule: str, block_size: int) -> None:
    sized = scheme(row, block_size=block_size)
    for length in (1, block_size - 1, block_size, block_size + 1, 70):
        x = cases.tensor("mixed_sizes", (3, length), block_size=block_size)
        assert_same(x, sized, rule)


@pytest.mark.parametrize(("row", "rule"), FEW_ROWS + GGML_ROWS, ids=_row_id)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((40,), 0),
        ((1,), 0),
        ((5, 33), 0),
        ((33, 5), 0),
        ((2, 35, 3), 1),
        ((35, 2, 3), 0),
        ((2, 3, 35), 2),
        ((2, 3, 35, 2), -2),
        ((1, 1, 1, 1, 66), 4),
        ((0,), 0),
        ((0, 5), 0),
        ((0, 5), 1),
        ((3, 0, 2), 1),
        ((3, 0, 2), 2),
    ],
)
def test_shapes_and_axes(row: Scheme, rule: str, shape: tuple[int, ...], axis: int) -> None:
    if 0 in shape:
        assert_same(np.zeros(shape, np.float32), row, rule, axis=axis)
    else:
        assert_same(cases.tensor("mixed_sizes", shape, axis), row, rule, axis=axis)


@pytest.mark.parametrize(("row", "rule"), FEW_ROWS, ids=_row_id)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_strides(row: Scheme, rule: str, dtype: Any) -> None:
    x = cases.tensor("normal", (6, 12, 80), dtype=dtype)
    views = {
        "steps": x[::2, ::3, ::2],
        "reversed": x[::-1, :, ::-1],
        "transposed": x.T,
        "fortran": np.asfortranarray(x),
        "broadcast": np.broadcast_to(x[:, :1], (6, 4, 80)),
        "offset": x[1:, 5:, 7:],
    }
    for name, view in views.items():
        for axis in range(3):
            got = bs.quantize(view, row, axis=axis, rule=rule)
            same = bs.quantize(np.ascontiguousarray(view), row, axis=axis, rule=rule)
            assert got.same_bits(same), name
            assert got.report == same.report
    assert_same(views["transposed"], row, rule, axis=0)


@pytest.mark.parametrize(
    ("row", "rule"),
    [*FEW_ROWS, *GGML_ROWS, (scheme("int4"), "optimal"), (scheme("uint4"), "optimal")],
    ids=_row_id,
)
@pytest.mark.parametrize("shape", [(3, 65536), (700, 300), (196608,)])
def test_threads_do_not_change_the_result(row: Scheme, rule: str, shape: tuple[int, ...]) -> None:
    """Few long rows, partial blocks, one row; compared with the product itself on one thread."""
    x = cases.tensor("student_t5", shape)
    if rule == "optimal":
        x = x[..., : shape[-1] // 8]
    one = bs.quantize(x, row, rule=rule, threads=1)
    for threads in (2, 3):
        other = bs.quantize(x, row, rule=rule, threads=threads)
        assert one.same_bits(other)
        assert one.report == other.report
        _assert_same_bits(one.dequantize(threads=1), other.dequantize(threads=threads))


# ---------------------------------------------------------------- decoding


@pytest.mark.parametrize("name", MX)
def test_every_code_under_every_scale_byte(name: str) -> None:
    """Exhaustive: 256 bytes x all codes, in each output type; what float16 cannot hold is refused."""
    row = scheme(name, block_size=256)
    codes = np.tile(np.arange(256, dtype=np.uint8) & ((1 << row.element.bits) - 1), (256, 1))
    scale_bytes = np.arange(256, dtype=np.uint8)[:, None]
    result = reference.Result(codes, scale_bytes, None, None, {})
    wanted = reference.dequantize(result, row)
    signed = numbers.low_bits_to_int(codes, row.element.bits, row.element.kind == "int")
    w = bs.BlockTensor.from_parts(row, signed, scale_bytes)
    np.testing.assert_array_equal(w.dequantize(), wanted)
    for half, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        finite = np.isfinite(wanted)
        rounded = numbers.round_to_type(np.where(finite, wanted, 0).astype(np.float64), half)
        for byte in range(256):
            one = w[byte : byte + 1]
            if np.isinf(rounded[byte]).any():
                with pytest.raises(OverflowingValueError):
                    one.dequantize(dtype)
                continue
            expected = np.where(finite[byte], rounded[byte], wanted[byte])
            np.testing.assert_array_equal(one.dequantize(dtype)[0].astype(np.float64), expected)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_affine_code(name: str, scale: str) -> None:
    """All codes, with zero points to the ends of int32 and scales from all of their range."""
    row = scheme(name, scale=scale, symmetric=False, block_size=256)
    codes = np.tile(np.arange(256, dtype=np.uint8) & ((1 << row.element.bits) - 1), (40, 1))
    stored = numbers.low_bits_to_int(codes, row.element.bits, row.element.kind == "int")
    rng = np.random.default_rng(3)
    spread = np.ldexp(rng.uniform(-1, 1, (40, 1)), rng.integers(-20, 15, (40, 1)))
    scales = numbers.round_to_type(spread, scale).astype(row.scale.dtype)
    zero_points = rng.integers(-(2**31), 2**31, (40, 1)).astype(np.int32)
    zero_points[::2] >>= 24
    zero_points[:2, 0] = -(2**31), 2**31 - 1
    wanted = reference.dequantize(reference.Result(codes, scales, zero_points, None, {}), row)
    w = bs.BlockTensor.from_parts(row, stored, scales, zero_points=zero_points)
    _assert_same_bits(w.dequantize(), wanted)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["mxfp4", "int4", "uint8", "q4_1"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.5e38])
def test_nonfinite_values_are_refused_with_count_and_first_index(name: str, value: float) -> None:
    x = np.ones((2, 3, 40))
    x[1, 0, 7] = x[1, 2, 0] = value
    for axis in range(3):
        with pytest.raises(NonFiniteError, match=r"2 of 240 .* \[1, 0, 7\]") as caught:
            bs.quantize(x, name, axis=axis)
        np.testing.assert_equal(caught.value.found, value)


@pytest.mark.parametrize("position", [0, 15, 31])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("rule", ["floor", "mse"])
def test_nan_blocks(position: int, value: float, rule: str) -> None:
    """Any such element marks its whole block, and only that one (M16, M19)."""
    x = cases.tensor("mixed_sizes", (4, 70), dtype=np.float64).copy()
    x[1, 32 + position] = value
    x[3, 64:] = value
    for name in MX:
        assert_same(x, scheme(name), rule, nonfinite="nan-block")
    w = bs.quantize(x, "mxfp4", rule=rule, nonfinite="nan-block")
    scales = w.scales.view(np.uint8)
    assert np.argwhere(scales == 255).tolist() == [[1, 1], [3, 2]]
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        assert np.isnan(w.dequantize(dtype).astype(np.float32)).sum() == 32 + 6


def test_nan_blocks_are_for_mx_only() -> None:
    with pytest.raises(SchemeError):
        bs.quantize(np.ones(4), "int4", nonfinite="nan-block")


@pytest.mark.parametrize("rule", ["absmax", "optimal"])
def test_float16_scales_that_overflow_are_refused_with_advice(rule: str) -> None:
    x = np.array([[1.0, 2, 3], [1e7, 1, 1]])
    with pytest.raises(ScaleOverflowError, match=r"1 of 2 blocks .* 1e\+07") as caught:
        bs.quantize(x, "int8", rule=rule)
    assert "bfloat16" in str(caught.value.hint)
    for scale in ("bfloat16", "float32"):
        assert_same(x, scheme("int8", scale=scale), rule)


# ---------------------------------------------------------------- drawn bits

LIGHT = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def bit_patterns(draw: st.DrawFn, dtype: Any, width: int = 32) -> NDArray[Any]:
    """Up to three blocks of any bits of a 16- or 32-bit float; often with exponents near each other."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    top = int(np.iinfo(unsigned).max)
    length = draw(st.integers(1, 3 * width))
    common = draw(st.integers(0, top))
    loose = draw(st.sampled_from([top, top >> 1 | 1, top >> 4, 0xFF, 0]))
    bits = draw(st.lists(st.integers(0, top), min_size=length, max_size=length))
    pattern = [(common & ~loose) | (some & loose) for some in bits]
    return np.array(pattern, unsigned).view(dtype)


def _finite(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.isfinite(x.astype(np.float32)), x, np.ones(1, x.dtype))


@LIGHT
@given(data=st.data(), row=st.sampled_from(MX), rule=st.sampled_from(MX_RULES))
def test_drawn_bits_mx(data: st.DataObject, row: str, rule: str) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
    x = data.draw(bit_patterns(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assert_same(x, scheme(row), rule, nonfinite="nan-block")


@LIGHT
@given(data=st.data(), row=st.sampled_from(_affine_rows()))
def test_drawn_bits_affine(data: st.DataObject, row: tuple[Scheme, str]) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
    with np.errstate(invalid="ignore"):
        x = _finite(data.draw(bit_patterns(dtype)))
    assert_same(x, *row)


@LIGHT
@given(
    data=st.data(),
    name=st.sampled_from(INTEGERS),
    scale=st.sampled_from(["float16", "bfloat16"]),
    symmetric=st.booleans(),
)
def test_drawn_bits_optimal(data: st.DataObject, name: str, scale: str, symmetric: bool) -> None:
    symmetric &= name.startswith("int")  # else `_is_flat`
    row = scheme(name, scale=scale, symmetric=symmetric, block_size=8)
    with np.errstate(invalid="ignore"):
        x = _finite(data.draw(bit_patterns(np.float16, 4)))
    importance = None
    if data.draw(st.booleans()):
        weights = st.sampled_from([0.0, 0.25, 1.0, 3.0, 1e-6])
        importance = np.array(data.draw(st.lists(weights, min_size=x.size, max_size=x.size)))
    assert_same(x, row, "optimal", importance=importance)


# ---------------------------------------------------------------- optimal


def _optimal_rows() -> list[tuple[Scheme, str]]:
    """Every scheme that `optimal` serves, with every option that says something."""
    rows = []
    for name, scale, symmetric in itertools.product(INTEGERS, SCALES, (True, False)):
        row = scheme(name, scale=scale, symmetric=symmetric)
        rows.append((row, "optimal"))
        if name.startswith("int"):
            rows.append((row, "optimal:narrow"))
        if symmetric:
            rows.append((row, "optimal:positive"))
    return rows


OPTIMAL_ROWS = _optimal_rows()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "index", range(len(OPTIMAL_ROWS)), ids=lambda i: "-".join(map(_row_id, OPTIMAL_ROWS[i]))
)
def test_optimal_equals_brute_force(index: int, weighted: bool) -> None:
    """Each row on a sixth of the cases, so that together they see each one several times."""
    row, rule = OPTIMAL_ROWS[index]
    slow = row.scale.name == "float32" and row.offset == "zero_point" and row.element.bits == 8
    row = scheme(row, block_size=4 if slow else 32)
    names = list(cases.CASES)[(index + 3 * weighted) % 6 :: 6]
    for name in names:
        if _is_flat(row, rule, name) or (slow and name in ("constants", "huge")):
            continue
        x = cases.tensor(name, (row.block_size,), block_size=row.block_size, seed=index)
        rng = np.random.default_rng(index)
        weights = rng.random(x.size) ** 3 * (rng.random(x.size) > 0.2)
        assert_same(x, row, rule, importance=weights if weighted else None)


def _is_flat(row: Scheme, rule: str, name: str) -> bool:
    """Errors so large that float64 sees no difference between many float32 scales (next test)."""
    one_sided = row.offset == "none" and (row.element.kind == "uint" or "positive" in rule)
    return row.scale.name == "float32" and one_sided and name in ("wide", "one_sided")


def test_optimal_reaches_the_least_error_where_many_scales_share_it() -> None:
    """What cannot be stored outweighs the rest by 2**50: only the error is fixed."""
    row = scheme("uint4", symmetric=True, scale="float32")
    x = cases.blocks("wide", 4, 32)
    got = bs.quantize(x, row, rule="optimal:positive").scales[:, 0].astype(np.float64)
    best = reference.quantize(x, row, rule="optimal:positive").scales[:, 0].astype(np.float64)
    for block, mine, wanted in zip(x, got, best, strict=True):
        search = Search(block, np.ones(32), 0, 15, 0, (1,))
        errors = search.errors(np.array([mine, wanted]), np.zeros(2))
        assert errors[0] == errors[1]


@pytest.mark.parametrize("name", ["uint2", "int2", "uint4", "int4"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_optimal_ties_where_codes_meet_halves(name: str, symmetric: bool) -> None:
    """Under the least scale, halves are as near to a clipped code as to their own: ties decide."""
    row = scheme(name, symmetric=symmetric, block_size=2)
    reach = 3 << row.element.bits
    x = np.random.default_rng(row.element.bits).integers(-reach, reach + 1, (400, 2)) * 2.0**-25
    assert_same(x, row, "optimal")


@pytest.mark.parametrize("steps", [-8, -1, 0, 1, 8])
def test_optimal_where_both_signs_of_a_scale_give_the_same(steps: int) -> None:
    """The largest element at 7.5 scales, or next to it: up to there, and no further, a scale is positive."""
    rng = np.random.default_rng(9)
    x = (rng.integers(-6, 7, (6, 256)) * 0.75).astype(np.float32)
    x[:, 0] = np.float32(7.5 * 0.75) * np.float32(1 + steps * 2.0**-23) * np.array([1, -1, 1, -1, 1, -1])
    x[4:, 1] = -x[4:, 0]
    assert_same(x, scheme("int4", scale="bfloat16", block_size=256), "optimal")


@pytest.mark.parametrize("scale", SCALES)
def test_optimal_moves_equal_elements_together(scale: str) -> None:
    """Two equal smallest elements: codes that only one of them has passed are no choice of any zero point."""
    for block in ([0.5, 4.5, 0.5, 3.5], [-0.5, -4.5, -0.5, -3.5]):
        assert_same(np.array(block), scheme("uint2", scale=scale, block_size=4), "optimal")


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_optimal_weighs_positions_along_the_axis(name: str, axis: int) -> None:
    shape = [2, 2, 2]
    shape[axis] = 40
    x = cases.tensor("normal", tuple(shape), axis)
    weights = np.random.default_rng(axis).random(40)
    weights[32:] = 0  # the partial block counts as unweighted
    assert_same(x, scheme(name), "optimal", axis=axis, importance=weights)


def _block_errors(w: bs.BlockTensor, x: F64) -> F64:
    """`err` of each block of a tensor whose blocks are its rows, as docs/rules.md defines it."""
    row = w.scheme
    codes = numbers.low_bits_to_int(w.codes().view(np.uint8), 8, row.element.kind == "int")
    zero_points = 0 if w.zero_points is None else w.zero_points.astype(np.int64)
    d = x - w.scales.astype(np.float64) * (codes - zero_points)
    return numbers.error_sum(d * d)


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("int8", "", "absmax"),
        ("int4", "", "absmax"),
        ("int4", "narrow,positive", "absmax"),
        ("int2", "positive", "absmax"),
        ("uint8", "", "minmax"),
        ("uint4", "", "minmax"),
        ("uint4", "", "minmax:no-zero"),
        ("uint2", "", "minmax"),
        ("q8_0", "", "ggml"),
        ("q4_0", "", "ggml"),
    ],
)
@pytest.mark.parametrize("case", ["normal", "student_t3", "one_sided", "integers", "near_least_scale"])
def test_optimal_is_never_worse_than_a_plain_rule(name: str, options: str, plain: str, case: str) -> None:
    n = {"uint8": 50, "uint4": 200}.get(name, 500)
    x = cases.blocks(case, n, 32)
    optimal = _block_errors(bs.quantize(x, name, rule=f"optimal:{options}"), x)
    other = _block_errors(bs.quantize(x, name, rule=plain), x)
    assert (optimal <= other).all()


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, 1e101])
def test_importances_that_mean_nothing_are_refused(value: float) -> None:
    weights = np.ones(32)
    weights[5] = value
    with pytest.raises(InputError, match="at position 5"):
        bs.quantize(np.ones((1, 32)), "uint4", rule="optimal", importance=weights)

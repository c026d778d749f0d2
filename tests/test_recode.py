"""Changing the scheme: every lossless step bit for bit, every reason against one, errors that are right."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
from blockscale.blocks import BlockGrid
from blockscale.dialects.ggml import FORMATS
from blockscale.dialects.ggml_minimum import with_zero_points, zero_point_schemes
from blockscale.errors import InputError
from blockscale.packing import pack_codes
from blockscale.recode import NotExact, difference, is_renaming, pick_exact, recode, recode_exactly
from blockscale.schemes import SCHEMES, Scheme
from blockscale.tensor import BlockTensor

Q = {name: row.scheme for name, row in FORMATS.items()}


def tensor(
    row: Scheme,
    shape: tuple[int, ...] = (3, 64),
    *,
    low: int | None = None,
    high: int | None = None,
    zeros: tuple[int, int] = (0, 15),
    seed: int = 0,
) -> BlockTensor:
    """A tensor of random codes, scales of any sign, and zero points or minimums."""
    r = np.random.default_rng(seed)
    grid, element = BlockGrid(shape, len(shape) - 1, row.block_size), row.element
    if element.is_integer:
        low = int(element.min) if low is None else low
        high = int(element.max) if high is None else high
    else:
        low, high = 0, (1 << element.bits) - 1
    codes = r.integers(low, high + 1, (grid.rows, grid.padded_length))
    codes[:, grid.length :] = 0
    packed = pack_codes((codes & ((1 << element.bits) - 1)).astype(np.uint8), element.bits)
    blocks = (grid.rows, grid.blocks_per_row)
    if row.is_mx:
        scales = r.integers(100, 140, blocks, np.uint8).view(row.scale.dtype)
    else:
        scales = (r.uniform(0.01, 2, blocks) * r.choice([1, 1, -1], blocks)).astype(row.scale.dtype)
    offsets = None
    if row.offset == "zero_point":
        offsets = r.integers(zeros[0], zeros[1] + 1, blocks).astype(np.int32)
    if row.offset == "minimum":
        offsets = (-np.abs(scales.astype(np.float32)) * r.uniform(0, 15, blocks)).astype(row.scale.dtype)
    return BlockTensor(grid, row, packed, scales, offsets)


def with_scales(w: BlockTensor, *values: float) -> BlockTensor:
    """Every scale one of a few values."""
    count = w.row_scales.size
    chosen = np.resize(np.array(values, np.float64), count).reshape(w.row_scales.shape)
    return replace(w, row_scales=chosen.astype(w.row_scales.dtype))


def assert_same_values(a: BlockTensor, b: BlockTensor) -> None:
    x, y = a.dequantize(), b.dequantize()
    assert x.tobytes() == y.tobytes(), np.argwhere(x.view(np.uint32) != y.view(np.uint32))[:3]


def uint4(**variant: object) -> Scheme:
    return bs.scheme("uint4", **variant)  # type: ignore[arg-type]


def int_(bits: int, **variant: object) -> Scheme:
    return bs.scheme(f"int{bits}", **variant)  # type: ignore[arg-type]


# what is exact

POWERS = (0.5, 2.0, 0.125)
EXACT: dict[str, tuple[BlockTensor, Scheme]] = {
    "another name": (tensor(Q["Q4_0"]), int_(4)),
    "another name back": (tensor(int_(4)), Q["Q4_0"]),
    "q5_0 is int8": (tensor(Q["Q5_0"], low=-16, high=15), int_(8)),
    "int8 of five bits is q5_0": (tensor(int_(8), low=-16, high=15), Q["Q5_0"]),
    "uint8 minimum of five bits is q5_1": (
        replace(tensor(Q["Q5_1"], low=0, high=31), scheme=replace(Q["Q5_1"], name="other")), Q["Q5_1"]
    ),
    "signed to unsigned": (tensor(int_(4)), uint4()),
    "unsigned to signed": (tensor(uint4(), zeros=(8, 8)), int_(4)),
    "unsigned 8 bit to signed": (tensor(bs.scheme("uint8"), zeros=(128, 128)), int_(8)),
    "signed with zero points to unsigned": (tensor(int_(4, symmetric=False), zeros=(-8, 7)), uint4()),
    "zero points folded": (tensor(uint4()), int_(8)),
    "zero points folded to five bits": (tensor(uint4()), Q["Q5_0"]),
    "zero points folded to four bits": (tensor(uint4(), low=4, high=9, zeros=(6, 7)), int_(4)),
    "wider codes": (tensor(int_(4)), int_(8)),
    "wider unsigned codes": (tensor(uint4()), bs.scheme("uint8")),
    "2 to 8 bits": (tensor(int_(2)), int_(8)),
    "narrower codes": (tensor(int_(8), low=-8, high=7), int_(4)),
    "float32 scales": (tensor(int_(4)), int_(4, scale="float32")),
    "bfloat16 to float32 scales": (tensor(int_(4, scale="bfloat16")), int_(4, scale="float32")),
    "float32 scales that fit": (with_scales(tensor(int_(8, scale="float32")), *POWERS), int_(8)),
    "smaller blocks": (tensor(int_(4, block_size=128), (3, 256)), int_(4)),
    "smaller blocks, zero points": (tensor(uint4(block_size=64), (3, 128)), uint4()),
    "smaller blocks, the last one partial": (tensor(int_(4, block_size=128), (3, 200)), int_(4)),
    "smaller blocks, less padding": (tensor(int_(4, block_size=128), (3, 130)), int_(4)),
    "everything at once": (tensor(uint4(block_size=64), (3, 70)), int_(8, scale="float32")),
    "zero points to minimums": (with_scales(tensor(uint4()), *POWERS), Q["Q4_1"]),
    "float32 zero points to minimums": (with_scales(tensor(uint4(scale="float32")), *POWERS), Q["Q4_1"]),
    "signed to minimums": (with_scales(tensor(int_(4)), *POWERS), Q["Q4_1"]),
    "mxfp4 to int8": (tensor(SCHEMES["mxfp4"]), int_(8, scale="float32")),
    "mxint8 to int8": (tensor(SCHEMES["mxint8"]), int_(8, scale="float32")),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_exact_steps(name: str) -> None:
    w, target = EXACT[name]
    if w.scheme.name == "mxfp4":  # no minus zeros
        w = replace(w, packed=np.where((w.packed & 15 == 8) | (w.packed >> 4 == 8), 0x13, w.packed))
    if target.offset == "minimum":  # zeros of negative scales have a sign
        w = replace(w, row_scales=np.abs(w.row_scales))
    new = recode_exactly(w, target)
    assert new.scheme == target
    assert new.grid == BlockGrid(w.shape, w.axis, target.block_size)
    assert_same_values(w, new)
    assert recode(w, target).exact
    again = recode(new, w.scheme)
    if again.exact:
        assert_same_values(w, again.tensor)


@pytest.mark.parametrize("bits", [4, 8])
def test_unused_codes_stay_zero(bits: int) -> None:
    """What pads the last block of a row is zero in every form."""
    w = tensor(int_(bits, block_size=64), (3, 40))
    for target in (int_(8), bs.scheme("uint8"), int_(8, block_size=32, scale="float32")):
        new = recode_exactly(w, target)
        width = 40 * new.scheme.element.bits // 8
        assert not new.packed[:, width:].any()


def test_axis_and_rank_stay() -> None:
    x = np.random.default_rng(1).standard_normal((2, 64, 5)).astype(np.float32)
    w = bs.quantize(x, "int4", axis=1)
    new = recode_exactly(w, uint4(scale="float32"))
    assert (new.shape, new.axis) == ((2, 64, 5), 1)
    assert_same_values(w, new)


def test_a_negative_scale_keeps_minus_zero() -> None:
    w = with_scales(tensor(int_(4)), -1)
    assert np.signbit(w.dequantize())[w.dequantize() == 0].all()
    assert_same_values(w, recode_exactly(w, uint4()))
    assert_same_values(w, recode_exactly(w, int_(8)))


# reasons against


MINUS_ZERO = replace(tensor(SCHEMES["mxfp4"]), packed=np.full((3, 32), 0x81, np.uint8))
NAN_BLOCK = replace(
    tensor(SCHEMES["mxint8"]), row_scales=np.full((3, 2), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu)
)
REASONS: dict[str, tuple[BlockTensor, Scheme, str]] = {
    "affine to mx": (tensor(int_(4)), SCHEMES["mxfp4"], "are no mxfp4 values"),
    "mx to another mx": (tensor(SCHEMES["mxfp4"]), SCHEMES["mxfp8_e4m3"], "are no mxfp8_e4m3 values"),
    "mxfp8 to int8": (tensor(SCHEMES["mxfp8_e4m3"]), int_(8), "are no int8 values"),
    "minus zero": (MINUS_ZERO, int_(8), "minus zero"),
    "NaN block": (NAN_BLOCK, int_(8, scale="float32"), "NaN block"),
    "scale beyond float16": (tensor(SCHEMES["mxint8"]), int_(8), "scales do not fit float16"),
    "float32 scales": (tensor(int_(4, scale="float32")), int_(4), "6 of 6 scales do not fit float16"),
    "float16 to bfloat16": (tensor(int_(4)), int_(4, scale="bfloat16"), "do not fit bfloat16"),
    "larger blocks": (tensor(int_(4)), int_(4, block_size=64), "more scales"),
    "fewer bits": (tensor(int_(8)), int_(4), "the codes reach beyond"),
    "five bits": (tensor(int_(8)), Q["Q5_0"], "-16 .. 15, the codes reach beyond"),
    "five bits, minimums": (
        with_scales(tensor(bs.scheme("uint8")), 1.0), Q["Q5_1"], "0 .. 31, the codes reach beyond"
    ),
    "zero points too far": (
        tensor(bs.scheme("uint8"), zeros=(0, 255)), int_(8), "less zero points reach from"
    ),
    "no multiple": (tensor(Q["Q4_1"]), uint4(), "no multiple of the scale in 6 of 6 blocks"),
    "minimum that float16 cannot hold": (
        replace(with_scales(tensor(uint4()), 1.0009765625), row_offsets=np.full((3, 2), 11, np.int32)),
        Q["Q4_1"], "does not fit float16 in 6 of 6",
    ),
    "minus zero and minimum": (with_scales(tensor(uint4()), -0.5), Q["Q4_1"], "change their sign"),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    w, target, says = REASONS[name]
    with pytest.raises(NotExact, match=says):
        recode_exactly(w, target)


# zero points that a target does not store


def test_codes_are_raised_with_their_zero_points() -> None:
    w = tensor(uint4(), (30, 64))
    with pytest.raises(NotExact, match=r"reach from 0 to 15, the target stores 1 \.\. 15"):
        recode_exactly(w, uint4(), (1, 15))
    new = recode_exactly(w, bs.scheme("uint8"), (1, 255))
    assert new.row_offsets is not None
    assert new.row_offsets.min() == 1
    assert_same_values(w, new)
    far = tensor(uint4(), zeros=(-40, 300))
    with pytest.raises(NotExact, match="reach from"):
        recode_exactly(far, bs.scheme("uint8"), (0, 255))
    assert_same_values(far, recode_exactly(far, bs.scheme("uint8")))


def test_the_first_exact_candidate_is_picked() -> None:
    w = tensor(uint4())
    rows = dict.fromkeys((Q["MXFP4"], Q["Q4_0"], Q["Q5_0"], Q["Q8_0"]))
    found, reasons = pick_exact(w, rows)
    assert found is not None
    assert found.scheme == Q["Q5_0"]
    assert list(reasons) == [Q["MXFP4"], Q["Q4_0"]]
    assert pick_exact(w, {Q["MXFP4"]: None})[0] is None
    with pytest.raises(InputError, match="no scheme"):
        pick_exact(w, {})


def test_renaming() -> None:
    assert is_renaming(Q["Q5_0"], int_(8))
    assert not is_renaming(int_(8), Q["Q5_0"])
    assert is_renaming(int_(8), Q["Q8_0"])
    assert not is_renaming(int_(8), int_(8, scale="float32"))


# values that change


def test_errors_are_those_of_the_values() -> None:
    for w, target in (
        (tensor(int_(8)), int_(4)),
        (tensor(Q["Q4_1"]), uint4()),
        (tensor(Q["Q4_1"]), bs.scheme("uint8", scale="float32")),
        (tensor(SCHEMES["mxfp8_e4m3"], low=0, high=0), int_(8)),
    ):
        if w.scheme.is_mx:
            codes = np.random.default_rng(3).integers(0, 0x70, w.packed.shape, np.uint8)
            w = replace(w, packed=codes)
        found = recode(w, target)
        x, y = w.dequantize().astype(np.float64), found.tensor.dequantize().astype(np.float64)
        assert not found.exact
        assert found.reason
        assert found.largest_error == np.abs(x - y).max()
        assert found.mean_error == pytest.approx(np.abs(x - y).mean(), rel=1e-12)


def test_zero_points_that_do_not_fit_are_chosen_again() -> None:
    w = replace(tensor(Q["Q4_1"]), row_offsets=np.full((3, 2), -60, np.float16))
    free = recode(w, uint4())
    assert free.tensor.row_offsets is not None
    assert free.tensor.row_offsets.max() > 15
    bound = recode(w, uint4(), zero_points=(0, 15))
    assert bound.tensor.row_offsets is not None
    assert 0 <= bound.tensor.row_offsets.min() <= bound.tensor.row_offsets.max() <= 15
    assert bound.largest_error > 0


def test_equal_values_with_other_signs_are_not_exact() -> None:
    found = recode(MINUS_ZERO, int_(8, scale="float32"))
    assert (found.exact, found.largest_error) == (False, 0.0)
    assert "minus zero" in found.reason


def test_difference_of_special_values() -> None:
    w = tensor(SCHEMES["mxfp4"])
    nan = replace(w, row_scales=np.full((3, 2), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu))
    assert difference(w, w) == (0.0, 0.0)
    assert difference(nan, nan) == (0.0, 0.0)
    assert difference(w, nan)[0] == np.inf
    assert difference(tensor(int_(4), (0, 64)), tensor(int_(4), (0, 64))) == (0.0, 0.0)
    big = tensor(int_(4), (700, 8192))
    other = replace(big, row_scales=(big.row_scales * np.float16(2)).astype(np.float16))
    largest, mean = difference(big, other)
    wanted = np.abs(big.dequantize().astype(np.float64))
    assert largest == wanted.max()
    assert mean == pytest.approx(wanted.mean())


# Q4_1 with minimums that are multiples


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_whole_minimums_become_zero_points_and_back(name: str) -> None:
    w = with_scales(tensor(Q[name], high=15 if name == "Q4_1" else 31), 0.25, 1, 8)
    steps = np.arange(w.row_scales.size).reshape(w.row_scales.shape) * 2
    minimums = (-w.row_scales.astype(np.float32) * steps).astype(np.float16)
    w = replace(w, row_offsets=minimums)
    target = uint4() if name == "Q4_1" else bs.scheme("uint8", scale="float32")
    new = recode_exactly(w, target)
    assert new.row_offsets is not None
    if name == "Q4_1":
        assert np.array_equal(new.row_offsets, steps)
    assert_same_values(w, new)
    back = recode(new, w.scheme)
    if back.exact:
        assert_same_values(w, back.tensor)
    if name == "Q4_1":
        assert back.tensor.packed.tobytes() == w.packed.tobytes()
        assert back.tensor.row_offsets is not None
        assert back.tensor.row_offsets.tobytes() == minimums.tobytes()


def test_minimums_of_partial_blocks_and_other_axes() -> None:
    """Own layouts hold them; they are quantized again, and the reason says so."""
    across = replace(tensor(Q["Q4_1"], (40, 64)), grid=BlockGrid((64, 40), 0, 32))
    for w in (tensor(Q["Q4_1"], (3, 40)), across):
        found = recode(w, uint4())
        assert not found.exact
        assert "whole blocks" in found.reason
        assert found.tensor.shape == w.shape


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_the_quick_look_at_minimums_refuses_nothing_exact(name: str) -> None:
    """Whatever `with_zero_points` makes exact passes the look at the scales."""
    r = np.random.default_rng(8)
    for seed in range(40):
        w = tensor(Q[name], (1, 32), high=15 if name == "Q4_1" else 31, seed=seed)
        if seed % 2:  # a minimum that is a fraction of the scale
            k, steps = int(r.integers(1, 18)), int(r.integers(-40, 40))
            w = replace(w, row_offsets=(w.row_scales.astype(np.float64) * steps / k).astype(np.float16))
        if seed % 5 == 0:  # one value
            w = replace(w, packed=np.full_like(w.packed, 0x33 if name == "Q4_1" else 3))
        for target in zero_point_schemes(w.scheme):
            exact = with_zero_points(w, target).largest_error == 0
            if exact:
                assert_same_values(w, recode_exactly(w, target))

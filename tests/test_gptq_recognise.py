"""GPTQ: what a checkpoint says of itself, what contradicts it, and the config that we write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockscale.dialects import awq, gptq
from blockscale.dialects.base import Options
from blockscale.errors import FormatError, UnsupportedError
from word_files import AWQ_ORDER, Arrays, make_layer, recognise, recognised, words_down

V1 = {"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq"}
V2 = {**V1, "checkpoint_format": "gptq_v2"}
UNLABELLED = {"quant_method": "gptq", "bits": 4, "group_size": 8}
WORDS = {2: ("0x55555555", "0xAAAAAAAA"), 4: ("0x77777777", "0x88888888"), 8: ("0x7F7F7F7F", "0x80808080")}


def symmetric(bits: int, stored_as: str, n_in: int = 64, n_out: int = 16) -> Arrays:
    """A layer with z in the middle everywhere, zero points stored as v1 or v2 does."""
    layer = make_layer(n_in, n_out, 8, bits=bits, zeros=1 << (bits - 1))
    return layer.gptq(1 if stored_as == "v1" else 0)


def z_of(arrays: Arrays, section: Any, **options: Any) -> set[int]:
    weight = recognised(gptq, arrays, section, **options).weights[0]
    zeros = gptq.read(weight, arrays.__getitem__).zero_points
    assert zeros is not None
    return {int(z) for z in np.unique(zeros)}


# --- Z1: the label and the words


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("stored_as", ["v1", "v2"])
@pytest.mark.parametrize("said", [{}, {"sym": True}])
def test_label_against_words(bits: int, label: str, stored_as: str, said: dict[str, bool]) -> None:
    arrays = symmetric(bits, stored_as)
    section = {**V1, "bits": bits, "checkpoint_format": label, **said}
    word = WORDS[bits][0 if stored_as == "v1" else 1]
    middle = 1 << (bits - 1)
    if (label == "gptq") == (stored_as == "v1"):
        found = recognised(gptq, arrays, section)
        assert any(word in line and "symmetric" in line for line in found.evidence)
        assert found.weights[0].settings["equals"] == f"int{bits} symmetric"
        assert z_of(arrays, section) == {middle}
        return
    with pytest.raises(FormatError) as caught:
        recognised(gptq, arrays, section)
    text = str(caught.value)
    assert f"checkpoint_format '{label}'" in text  # one side
    assert word in text  # the other
    assert caught.value.found == word
    assert caught.value.tensor == "layer.qzeros"
    assert "zero_point_bias" in str(caught.value.hint)
    right, wrong = (1, 0) if stored_as == "v1" else (0, 1)
    assert z_of(arrays, section, bias=right) == {middle}
    assert z_of(arrays, section, bias=wrong) == {middle + (1 if stored_as == "v2" else -1)}


@pytest.mark.parametrize("stored_as", ["v1", "v2"])
def test_words_decide_where_no_label_is(stored_as: str) -> None:
    arrays = symmetric(4, stored_as)
    assert z_of(arrays, UNLABELLED) == {8}
    assert z_of(arrays, None) == {8}
    found = recognised(gptq, arrays, UNLABELLED)
    assert any("no checkpoint_format" in line for line in found.evidence)


def test_words_of_two_kinds_in_one_file() -> None:
    arrays = {
        **make_layer(32, 16, 8, zeros=8).gptq(1, "a."),
        **make_layer(32, 16, 8, zeros=8).gptq(0, "b."),
    }
    with pytest.raises(FormatError) as caught:
        recognised(gptq, arrays, {**UNLABELLED, "sym": True})
    assert caught.value.tensor == "b.qzeros"
    weights = recognised(gptq, arrays, None).weights
    assert [w.settings["zero_point_bias"] for w in weights] == [None, None]


def test_asymmetric_files_may_hold_any_constant() -> None:
    arrays = make_layer(32, 16, 8, zeros=9).gptq(1)
    found = recognised(gptq, arrays, {**V1, "sym": False})
    assert z_of(arrays, {**V1, "sym": False}) == {9}
    assert any("z = 9 everywhere" in line and "zero_point_bias=0" in line for line in found.problems)


def test_symmetric_label_on_varying_zero_points() -> None:
    found = recognised(gptq, make_layer(32, 16, 8).gptq(1), {**V1, "sym": True})
    assert any("config says sym" in line for line in found.problems)


def test_an_unlabelled_asymmetric_file_is_v1_and_says_so() -> None:
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(1)
    found = recognised(gptq, arrays, UNLABELLED)
    assert any("no checkpoint_format, which loaders take as 'gptq'" in line for line in found.evidence)
    w = gptq.read(found.weights[0], arrays.__getitem__)
    assert w.dequantize().tobytes() == layer.weight.tobytes()


def test_what_nothing_tells() -> None:
    """A wrong file that is a right file of another layer, byte for byte: docs/safetensors.md lists them."""
    layer = make_layer(32, 16, 8, low=2)
    mistaken = replace(layer, zeros=layer.zeros - 1)  # v1 labelled v2
    arrays = layer.gptq(1)
    assert all(np.array_equal(arrays[k], v) for k, v in mistaken.gptq(0).items())
    found = recognised(gptq, arrays, V2)
    assert not found.problems
    assert np.array_equal(gptq.read(found.weights[0], arrays.__getitem__).dequantize(), mistaken.weight)
    order = np.arange(32).reshape(-1, 8)[:, AWQ_ORDER].reshape(-1)  # AWQ's order of fields in GPTQ's shapes
    arrays = {**layer.gptq(1), "layer.qweight": words_down(layer.codes[order], 4)}
    found = recognised(gptq, arrays, V1)
    assert not found.problems
    mistaken = replace(layer, codes=layer.codes[order])
    assert np.array_equal(gptq.read(found.weights[0], arrays.__getitem__).dequantize(), mistaken.weight)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_all_ones_in_v1(bits: int) -> None:
    top = (1 << bits) - 1
    layer = make_layer(32, 32, 8, bits=bits, low=1, high=top)
    layer.zeros[1, 5] = 0  # wraps to all ones when stored as z - 1
    arrays, section = layer.gptq(1), {**V1, "bits": bits, "sym": False}
    found = recognised(gptq, arrays, section)
    assert any(f"1 of {4 * 32} zero-point fields" in line for line in found.problems)
    for reading, wanted in (("zero", 0), ("power", 1 << bits)):
        weight = recognised(gptq, arrays, section, all_ones=reading).weights[0]
        zeros = gptq.read(weight, arrays.__getitem__).zero_points
        assert zeros is not None
        expected = layer.zeros.T.copy()
        expected[5, 1] = wanted
        assert (zeros == expected).all()
    carry = recognised(gptq, arrays, {**section, "meta": {"quantizer": ["gptqmodel:1.0"]}})
    zeros = gptq.read(carry.weights[0], arrays.__getitem__).zero_points
    assert zeros is not None
    assert zeros[5, 1] == 0
    assert zeros[6, 1] == (layer.zeros[1, 6] + 1) % (1 << bits)  # the carry of field 5
    forced = recognised(gptq, arrays, section, bias=0)
    stored = gptq.read(forced.weights[0], arrays.__getitem__).zero_points
    assert stored is not None
    assert stored[5, 1] == top
    assert not forced.problems


# --- Z13: plain zero points


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "int32", "uint8"])
def test_plain_zero_points(dtype: str) -> None:
    import ml_dtypes

    layer = make_layer(32, 16, 8, low=0)
    arrays = layer.gptq(0)
    arrays["layer.qzeros"] = layer.zeros.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for section in (V1, V2, None):
        found = recognised(gptq, arrays, section)
        assert any("plain zero points" in line for line in found.evidence)
        assert not found.weights[0].settings["packed_zeros"]
        w = gptq.read(found.weights[0], arrays.__getitem__)
        assert w.dequantize().tobytes() == layer.weight.tobytes()


def test_plain_zero_points_may_be_negative() -> None:
    layer = make_layer(32, 16, 8, low=-40, high=900)
    arrays = layer.gptq(0)
    arrays["layer.qzeros"] = layer.zeros.astype(np.float32)
    weight = recognised(gptq, arrays, V2).weights[0]
    assert gptq.read(weight, arrays.__getitem__).dequantize().tobytes() == layer.weight.tobytes()


@pytest.mark.parametrize("value", [7.5, np.nan, np.inf, 3e9])
def test_plain_zero_points_that_are_no_integers(value: float) -> None:
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(0)
    zeros = layer.zeros.astype(np.float32)
    zeros[2, 3] = value
    arrays["layer.qzeros"] = zeros
    weight = recognised(gptq, arrays, V2).weights[0]
    with pytest.raises(FormatError, match=r"1 of 64 plain zero points .* at \[2, 3\]") as caught:
        gptq.read(weight, arrays.__getitem__)
    assert f"up to {0.5 if value == 7.5 else 0:.3g} steps" in str(caught.value)


def test_plain_symmetric_zero_points_stored_minus_one() -> None:
    arrays = make_layer(32, 16, 8, zeros=8).gptq(0)
    arrays["layer.qzeros"] = np.full((4, 16), 7, np.float16)
    with pytest.raises(FormatError, match="every plain zero point is 7"):
        recognised(gptq, arrays, {**V1, "sym": True})
    assert z_of(arrays, {**V1, "sym": True}, bias=1) == {8}
    assert z_of(arrays, {**V1, "sym": True}, bias=0) == {7}


# --- parts, shapes, no config


@pytest.mark.parametrize("role", ["qweight", "qzeros", "scales"])
@pytest.mark.parametrize("section", [V1, None])
def test_a_missing_part_is_named(role: str, section: Any) -> None:
    """S17."""
    arrays = {**make_layer(32, 16, 8).gptq(1, "a."), **make_layer(32, 16, 8).gptq(1, "b.")}
    del arrays[f"b.{role}"]
    with pytest.raises(FormatError, match=rf"b\.{role} is missing") as caught:
        recognised(gptq, arrays, section)
    assert caught.value.tensor == f"b.{role}"
    only = {k: v for k, v in arrays.items() if k.startswith("b.")}
    with pytest.raises(FormatError, match=rf"b\.{role} is missing"):
        recognised(gptq, only, section)


def test_a_stripped_config() -> None:
    """D8: read from shapes, refused where v1 and v2 cannot be told apart."""
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(1)
    found = recognised(gptq, arrays, None)
    assert any("packed 4-bit" in line and "config is missing" in line for line in found.problems)
    weight = found.weights[0]
    assert (weight.shape, weight.scheme.block_size) == ((16, 32), 8)
    assert "force zero_point_bias" in weight.settings["refused"]
    with pytest.raises(FormatError, match="cannot be known") as caught:
        gptq.read(weight, arrays.__getitem__)
    assert "zero_point_bias" in str(caught.value.hint)
    forced = recognised(gptq, arrays, None, bias=1).weights[0]
    assert gptq.read(forced, arrays.__getitem__).dequantize().tobytes() == layer.weight.tobytes()


def test_what_inspect_prints() -> None:
    """P12: the carrier is not the element."""
    weight = recognised(gptq, make_layer(32, 16, 8).gptq(1), V1).weights[0]
    assert weight.shape == (16, 32)
    assert weight.scheme.element.name == "uint4"
    assert weight.settings["bits"] == 4
    assert weight.settings["carrier"] == "int32 words of 8 consecutive inputs"
    assert weight.settings["group_size"] == 8


@pytest.mark.parametrize(
    ("role", "shape", "words"),
    [
        ("qweight", (32, 2), "AWQ's shapes"),
        ("qweight", (16, 4), "rows are outputs|transposed"),
        ("scales", (16, 4), "transposed|do not fit"),
        ("qzeros", (3, 2), "do not fit"),
        ("qzeros", (4, 3), "4 bits"),
        ("qweight", (5, 16), "40 inputs make 5 groups|none that fits|4 bits"),
        ("g_idx", (24,), "4 bits|24 inputs"),
        ("scales", (4, 17), "do not fit"),
        ("qweight", (4,), "do not fit"),
        ("qweight", (1, 4, 16), "do not fit"),
        ("scales", (0, 16), "do not fit"),
        ("qweight", (16, 5), "qweight looks transposed"),
        ("g_idx", (2, 32), r"holds a group per input: integers \[32\]"),
    ],
)
def test_odd_shapes(role: str, shape: tuple[int, ...], words: str) -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    arrays[f"layer.{role}"] = np.ones(shape, arrays[f"layer.{role}"].dtype)
    if role == "scales" and shape[0] == 0:
        arrays["layer.qzeros"] = np.ones((0, 2), np.int32)
    with pytest.raises(FormatError, match=words) as caught:
        recognised(gptq, arrays, V1)
    assert caught.value.tensor is not None
    assert caught.value.tensor.startswith("layer.")
    assert caught.value.rule


def test_a_transposed_square_weight() -> None:
    arrays = make_layer(32, 32, 8).gptq(1)
    arrays["layer.qweight"] = np.ascontiguousarray(arrays["layer.qweight"].T)
    with pytest.raises(FormatError, match="AWQ's shapes") as caught:
        recognised(gptq, arrays, V1)
    assert caught.value.found["qweight"] == (32, 4)  # type: ignore[index]
    everything = {k: np.ascontiguousarray(v.T) for k, v in make_layer(64, 16, 8).gptq(1).items()}
    with pytest.raises(FormatError, match="do not fit"):
        recognised(gptq, everything, V1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 8}, r"config says 8 bits, the shapes say \[4\]"),
        ({"bits": 2}, r"config says 2 bits, the shapes say \[4\]"),
        ({"group_size": 16}, "group_size 16, so 32 inputs make 2 groups, but scales have 4"),
        ({"group_size": -1}, "group_size -1, so 32 inputs make 1 groups"),
        ({"group_size": 0}, "group_size is 0"),
        ({"bits": "4"}, "bits is '4'"),
        ({"checkpoint_format": "gptq_v9"}, "checkpoint_format is 'gptq_v9'"),
        ({"dynamic": {"+:(": {"bits": 8}}}, "no regular expression"),
        ({"dynamic": ["layer"]}, "dynamic is no object"),
        ({"dynamic": {"layer": [8]}}, "settings are an object"),
        ({"extra_config": {"layer": 8}}, "settings are an object"),
    ],
)
def test_config_against_shapes(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        recognised(gptq, make_layer(32, 32, 8).gptq(1), {**V1, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "straddle words"),
        ({"bits": 5}, "bit planes"),
        ({"bits": 16}, "not a width"),
        ({"checkpoint_format": "marlin"}, "Marlin"),
        ({"is_marlin_format": True}, "Marlin"),
        ({"checkpoint_format": "bitblas"}, "BitBLAS"),
        ({"checkpoint_format": "gptq_p"}, "bit planes"),
        ({"checkpoint_format": "gemm"}, "AWQ"),
        ({"pack_dtype": "int16"}, "pack_dtype"),
    ],
)
def test_what_is_refused_with_its_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        recognised(gptq, make_layer(32, 32, 8).gptq(1), {**V1, **change})


def test_three_bit_shapes_without_a_config() -> None:
    arrays = make_layer(32, 32, 8).gptq(1)
    arrays["layer.qweight"] = np.zeros((3, 32), np.int32)
    arrays["layer.qzeros"] = np.zeros((4, 3), np.int32)
    with pytest.raises(UnsupportedError, match="3 bits"):
        recognised(gptq, arrays, None)


def test_groups_that_do_not_divide_without_a_config() -> None:
    arrays = make_layer(40, 16, 16).gptq(1)
    with pytest.raises(FormatError, match="40 inputs do not divide into 3 groups"):
        recognised(gptq, arrays, {"quant_method": "gptq", "bits": 4})


def test_an_order_per_expert_is_refused() -> None:
    index = np.random.default_rng(0).permutation(np.arange(32) // 8)
    arrays = {k: np.stack([v, v]) for k, v in make_layer(32, 16, 8, index=index).gptq(1).items()}
    with pytest.raises(UnsupportedError, match="per expert"):
        recognised(gptq, arrays, V1)


def test_dtypes() -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    for role, dtype, error in (
        ("qweight", np.int16, UnsupportedError),
        ("scales", np.float64, FormatError),
        ("qzeros", np.int16, FormatError),
    ):
        wrong = {**arrays, f"layer.{role}": arrays[f"layer.{role}"].astype(dtype)}
        with pytest.raises(error):
            recognised(gptq, wrong, V1)


def test_a_part_that_changes_after_the_header() -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    weight = recognised(gptq, arrays, V1).weights[0]
    for role in ("qweight", "qzeros", "scales"):
        short = {**arrays, f"layer.{role}": arrays[f"layer.{role}"][:-1]}
        with pytest.raises(FormatError, match="has shape"):
            gptq.read(weight, short.__getitem__)
    other = {**arrays, "layer.scales": arrays["layer.scales"].astype(np.float32)}
    with pytest.raises(FormatError, match="the header said float16"):
        gptq.read(weight, other.__getitem__)
    floats = {**arrays, "layer.qweight": np.zeros((4, 16), np.float16)}
    with pytest.raises(FormatError, match="int32 words"):
        gptq.read(weight, floats.__getitem__)


# --- who speaks


@pytest.mark.parametrize("method", ["awq", "compressed-tensors", "mxfp4", "fp8", "bitsandbytes"])
def test_other_methods_are_not_claimed(method: str) -> None:
    section = {"quant_method": method, "bits": 4, "group_size": 8}
    assert recognise(gptq, make_layer(32, 16, 8).gptq(1), section) is None


def test_plain_checkpoints_are_not_claimed() -> None:
    assert recognise(gptq, {"a.weight": np.zeros((4, 4), np.float32)}, None) is None
    assert recognise(gptq, make_layer(32, 16, 8).awq(), None) is None
    bare: Arrays = {"a.scales": np.zeros((4, 4), np.float16), "a.weight": np.zeros((4, 4), np.uint8)}
    assert recognise(gptq, bare, None) is None


def test_config_without_weights() -> None:
    found = recognised(gptq, {"a.weight": np.zeros((4, 4), np.float32)}, V1)
    assert not found.weights
    assert found.problems


@pytest.mark.parametrize(
    ("section", "bias"),
    [
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, 1),
        ({"quant_method": "intel/auto-round", "packing_format": "auto_round"}, 0),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}, 0),
        ({"quant_method": "gptq_marlin", "checkpoint_format": "gptq"}, 1),
        ({"desc_act": False}, 1),
        ({"quant_method": "gptq", "format": "gptq_v2"}, 0),
    ],
)
def test_ways_to_say_gptq(section: dict[str, Any], bias: int) -> None:
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(bias)
    full = {"bits": 4, "group_size": 8, **section}
    for config in ({"quantization_config": full}, full, {"text_config": {"quantization_config": full}}):
        from word_files import stored_of

        found = gptq.recognise(stored_of(arrays), config, arrays.__getitem__, Options())
        assert found is not None
        w = gptq.read(found.weights[0], arrays.__getitem__)
        assert w.dequantize().tobytes() == layer.weight.tobytes()


def test_auto_round_with_awq_words_belongs_to_awq() -> None:
    section = {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_awq",
        "bits": 4,
        "group_size": 8,
    }
    arrays = make_layer(32, 16, 8).awq()
    assert recognise(gptq, arrays, section) is None
    assert recognised(awq, arrays, section).weights


def test_overrides_per_module() -> None:
    arrays = {
        **make_layer(32, 16, 8).gptq(1, "layers.0.up."),
        **make_layer(64, 16, 16, bits=8).gptq(1, "layers.0.down."),
        **make_layer(64, 16, 32, bits=2, high=3).gptq(1, "layers.1.down."),
    }
    dynamic = {
        "-:lm_head": {},
        r"+:.*\.0\.down": {"bits": 8, "group_size": 16},
        r".*\.down": {"bits": 2, "group_size": 32},
        "+:layers.0.upp": {"bits": 8},
    }
    found = recognised(gptq, arrays, {**V1, "dynamic": dynamic})
    assert {w.name: (w.settings["bits"], w.scheme.block_size) for w in found.weights} == {
        "layers.0.up.weight": (4, 8),
        "layers.0.down.weight": (8, 16),
        "layers.1.down.weight": (2, 32),
    }
    (line,) = [line for line in found.problems if "override" in line]
    assert "'+:layers.0.upp' matches no quantized weight; near names: layers.0.up" in line
    with pytest.raises(FormatError, match="override per module") as caught:
        recognised(gptq, arrays, V1)
    assert caught.value.tensor == "layers.0.down.qweight"


def test_auto_round_overrides() -> None:
    arrays = {
        **make_layer(32, 16, 8).gptq(0, "layers.0.up."),
        **make_layer(32, 16, 8, bits=8).gptq(0, "layers.0.down."),
    }
    section = {
        "quant_method": "auto-round",
        "packing_format": "auto_round",
        "bits": 4,
        "group_size": 8,
        "extra_config": {"layers.0.down": {"bits": 8}, "lm_head": {"bits": 16}},
    }
    found = recognised(gptq, arrays, section)
    assert [w.settings["bits"] for w in found.weights] == [4, 8]
    assert not found.problems


def test_embeddings_are_pointed_out() -> None:
    found = recognised(gptq, make_layer(32, 16, 8).gptq(1, "model.embed_tokens."), V1)
    assert any("transpose of the plain weight" in line for line in found.problems)

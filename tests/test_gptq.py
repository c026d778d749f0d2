"""GPTQ: reading and writing, against files of AutoGPTQ and GPTQModel and against plain loops."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.dialects import carriers, gptq
from blockscale.dialects.base import Options
from blockscale.errors import FormatError, InputError, UnsupportedError
from blockscale.quantize import quantize
from blockscale.schemes import scheme
from blockscale.tensor import BlockTensor
from word_files import Arrays, Layer, golden_cases, load_golden, make_layer, recognised, stored_of

V1 = {"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq"}
V2 = {**V1, "checkpoint_format": "gptq_v2"}
SAME_BYTES = [
    n for n in golden_cases("gptq") if n.startswith(("autogptq_sym", "autogptq_asym", "gptqmodel_v2"))
]


def read_only(arrays: dict[str, Any], section: Any, **options: Any) -> BlockTensor:
    weight = recognised(gptq, arrays, section, **options).weights[0]
    return gptq.read(weight, arrays.__getitem__)


def quantized(shape: tuple[int, ...], name: str = "uint4", **kwargs: Any) -> BlockTensor:
    weight = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    return quantize(weight, scheme(name, **{"block_size": 8, **kwargs}), axis=-1)


def nothing(name: str) -> Any:
    raise KeyError(name)


# --- independent files


@pytest.mark.parametrize("name", golden_cases("gptq"))
def test_golden_values(name: str) -> None:
    arrays, expected, section = load_golden("gptq", name)
    forced = {"all_ones": "power"} if name == "autogptq_zero" else {}
    weight = recognised(gptq, arrays, section, **forced).weights[0]
    assert weight.name == "layer.weight"
    values = gptq.read_dense(weight, arrays.__getitem__)
    assert values.dtype == np.float32
    assert (values == expected["weight"]).all()
    if not weight.settings["act_order"]:
        assert (gptq.read(weight, arrays.__getitem__).dequantize() == expected["weight"]).all()


@pytest.mark.parametrize("name", [*SAME_BYTES, "autogptq_column"])
def test_golden_bytes_come_back(name: str) -> None:
    arrays, _, section = load_golden("gptq", name)
    w = read_only(arrays, section)
    options = Options(settings={"version": section["checkpoint_format"]})
    written = gptq.write("layer.weight", w, options)
    assert set(written) == set(arrays)
    for key, part in written.items():
        assert (part.dtype, part.shape) == (arrays[key].dtype, arrays[key].shape)
        assert part.tobytes() == arrays[key].tobytes()


def test_autogptq_reads_all_ones_in_two_ways() -> None:
    arrays, expected, section = load_golden("gptq", "autogptq_zero")
    found = recognised(gptq, arrays, section)  # our stance: what the writer meant
    values = gptq.read(found.weights[0], arrays.__getitem__).dequantize()
    assert (values == expected["masked"]).all()  # qlinear_cuda_old
    assert (values != expected["weight"]).any()  # qlinear_cuda
    assert any("17 of 128 zero-point fields" in line for line in found.problems)
    assert any("4 zero words hold nothing but ones" in line for line in found.problems)


# --- words and values


def test_worked_word() -> None:
    """P4: inputs 0..7 with codes 0..7."""
    codes = np.repeat(np.arange(8)[:, None], 8, axis=1)
    layer = Layer(codes, np.full((1, 8), 8), np.ones((1, 8), np.float16), np.zeros(8, np.int64), 4)
    arrays = layer.gptq(1)
    assert set(arrays["layer.qweight"].view(np.uint32).ravel()) == {0x76543210}
    w = read_only(arrays, V1)
    assert (w.codes().astype(int) == np.arange(8)).all()
    assert w.packed[0].tobytes() == bytes.fromhex("10325476")


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize(("n_in", "n_out", "group"), [(32, 16, 16), (64, 32, 8), (96, 16, -1), (160, 16, 64)])
def test_plain_loops(bits: int, version: str, n_in: int, n_out: int, group: int) -> None:
    layer = make_layer(n_in, n_out, group, bits=bits, low=1, high=(1 << bits) - 1)
    arrays = layer.gptq(1 if version == "gptq" else 0)
    section = {**V1, "bits": bits, "group_size": group, "checkpoint_format": version}
    w = read_only(arrays, section)
    assert w.shape == (n_out, n_in)
    assert (w.axis, w.scheme.element.name) == (1, f"uint{bits}")
    assert (w.codes().astype(np.int64) == layer.codes.T).all()
    assert w.zero_points is not None
    assert (w.zero_points == layer.zeros.T).all()
    assert (w.scales == layer.scales.T).all()
    assert w.dequantize().tobytes() == layer.weight.tobytes()
    back = gptq.write("layer.weight", w, Options(settings={"version": version}))
    assert all(back[k].tobytes() == arrays[k].tobytes() for k in arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_scale_types_stay(dtype: str) -> None:
    layer = make_layer(32, 16, 8, scale=dtype)
    w = read_only(layer.gptq(0), V2)
    assert w.scheme.scale.name == dtype
    assert w.dequantize().tobytes() == layer.weight.tobytes()
    allowed = Options(settings={"version": "gptq_v2", "float32_scales": True})
    back = gptq.write("layer.weight", w, allowed)
    assert back["layer.scales"].dtype == layer.scales.dtype


def test_a_group_size_that_is_no_power_of_two() -> None:
    layer = make_layer(192, 16, 48)
    w = read_only(layer.gptq(0), {**V2, "group_size": 48})
    assert w.block_size == 16
    assert w.dequantize().tobytes() == layer.weight.tobytes()
    with pytest.raises(UnsupportedError, match="groups of 5"):
        recognised(gptq, make_layer(40, 16, 5).gptq(0), {**V2, "group_size": 5})


def test_inputs_and_outputs_that_fill_no_word() -> None:
    """GPTQModel pads the last word; g_idx counts the inputs."""
    layer = make_layer(36, 12, 8)
    w = read_only(layer.gptq(0), V2)
    assert w.shape == (12, 36)
    assert w.dequantize().tobytes() == layer.weight.tobytes()
    dirty = layer.gptq(0)
    dirty["layer.qweight"][-1] |= -(1 << 16)
    assert read_only(dirty, V2).same_bits(w)


def test_experts() -> None:
    layers = [make_layer(32, 16, 8, seed=e) for e in range(3)]
    arrays = {k: np.stack([x.gptq(1, "w13_")[k] for x in layers]) for k in layers[0].gptq(1, "w13_")}
    w = read_only(arrays, V1)
    assert w.shape == (3, 16, 32)
    assert w.dequantize().tobytes() == np.stack([x.weight for x in layers]).tobytes()
    back = gptq.write("w13_weight", w, Options())
    assert all(back[k].tobytes() == arrays[k].tobytes() for k in arrays)


def test_conversion_from_int4_adds_8() -> None:
    """Z12: int4 and uint4 with z = 8 are the same numbers."""
    w = quantized((16, 64), "int4", block_size=16)
    written = gptq.write("x.weight", w, Options())
    assert set(written["x.qzeros"].view(np.uint32).ravel()) == {0x77777777}
    found = recognised(gptq, written, {**V1, "group_size": 16, "sym": True})
    assert found.weights[0].settings["equals"] == "int4 symmetric"
    read = gptq.read(found.weights[0], written.__getitem__)
    assert read.dequantize().tobytes() == w.dequantize().tobytes()
    assert carriers.as_signed(read).same_bits(w)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 4, 8]),
    words=st.integers(1, 9),
    outs=st.integers(1, 3),
    block=st.sampled_from([2, 8, 32, 64]),
    signed=st.booleans(),
    symmetric=st.booleans(),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    version=st.sampled_from(["gptq", "gptq_v2"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 1 << 16),
)
def test_write_then_read(
    bits: int,
    words: int,
    outs: int,
    block: int,
    signed: bool,
    symmetric: bool,
    dtype: str,
    version: str,
    lead: tuple[int, ...],
    seed: int,
) -> None:
    per, rng = 32 // bits, np.random.default_rng(seed)
    shape = (*lead, outs * per, words * per)
    if symmetric and not signed:
        signed = True  # unsigned codes without zero points have z = 0, which v1 cannot say
    row = scheme(("" if signed else "u") + f"int{bits}", block_size=block, scale=dtype, symmetric=symmetric)
    grid = (*shape[:-1], -(-shape[-1] // block))
    low = -(1 << (bits - 1)) if signed else 0
    w = BlockTensor.from_parts(
        row,
        rng.integers(low, low + (1 << bits), shape),
        (rng.random(grid) + 0.5).astype(row.scale.dtype),
        zero_points=None if symmetric else rng.integers(low + 1, low + (1 << bits), grid).astype(np.int32),
    )
    options = Options(settings={"version": version})
    written = gptq.write("a.b.weight", w, options)
    section = gptq.config({"a.b.weight": w}, [], options)["quantization_config"]
    weight = recognised(gptq, written, section).weights[0]
    read = gptq.read(weight, written.__getitem__)
    assert read.shape == w.shape
    assert read.dequantize().tobytes() == w.dequantize().tobytes()
    again = gptq.write("a.b.weight", read, options)
    assert all(again[k].tobytes() == written[k].tobytes() for k in written)
    specs = gptq.specs("a.b.weight", w.shape, w.axis, w.scheme, options)
    assert specs == stored_of(written)


def test_memory_stays_bounded() -> None:
    rng = np.random.default_rng(0)
    arrays: Arrays = {
        "l.qweight": rng.integers(-(1 << 31), 1 << 31, (512, 2048)).astype(np.int32),
        "l.qzeros": np.full((32, 256), 0x77777777, np.int32),
        "l.scales": np.ones((32, 2048), np.float16),
        "l.g_idx": (np.arange(4096) // 128).astype(np.int32),
    }
    weight = recognised(gptq, arrays, {**V1, "group_size": 128}).weights[0]
    size = arrays["l.qweight"].nbytes
    tracemalloc.start()
    try:
        w = gptq.read(weight, arrays.__getitem__)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
        tracemalloc.reset_peak()
        gptq.write("l.weight", w, Options())
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


# --- activation order


def shuffled(group: int = 8) -> Layer:
    index = np.random.default_rng(4).permutation(np.arange(32) // group)
    return make_layer(32, 16, group, index=index)


def test_activation_order_is_read_by_unpermuting() -> None:
    """X18."""
    layer = shuffled()
    arrays = layer.gptq(1)
    found = recognised(gptq, arrays, {**V1, "desc_act": True})
    weight = found.weights[0]
    assert weight.settings["act_order"]
    assert any("activation order" in line for line in found.evidence)
    with pytest.raises(UnsupportedError, match="read_dense") as caught:
        gptq.read(weight, arrays.__getitem__)
    assert caught.value.tensor == "layer.weight"
    assert gptq.read_dense(weight, arrays.__getitem__).tobytes() == layer.weight.tobytes()
    w, order = gptq.read_sorted(weight, arrays.__getitem__)
    assert (np.sort(order) == np.arange(32)).all()
    dense = np.empty_like(layer.weight)
    dense[:, order] = w.dequantize()
    assert dense.tobytes() == layer.weight.tobytes()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_activation_order_with_a_short_last_group(bits: int) -> None:
    index = np.random.default_rng(5).permutation(np.arange(48) // 32)
    layer = make_layer(48, 16, 32, bits=bits, high=(1 << bits) - 1, index=index)
    arrays = layer.gptq(0)
    weight = recognised(gptq, arrays, {**V2, "bits": bits, "group_size": 32}).weights[0]
    assert gptq.read_dense(weight, arrays.__getitem__).tobytes() == layer.weight.tobytes()
    w, order = gptq.read_sorted(weight, arrays.__getitem__)
    assert w.dequantize().tobytes() == np.ascontiguousarray(layer.weight[:, order]).tobytes()


def test_groups_of_unequal_size() -> None:
    index = np.arange(32) // 8
    index[[0, 9]] = 2, 2
    layer = make_layer(32, 16, 8, index=index)
    arrays = layer.gptq(0)
    weight = recognised(gptq, arrays, V2).weights[0]
    assert gptq.read_dense(weight, arrays.__getitem__).tobytes() == layer.weight.tobytes()
    with pytest.raises(UnsupportedError, match="groups of 7 to 10 columns"):
        gptq.read_sorted(weight, arrays.__getitem__)


@pytest.mark.parametrize("index", ["contiguous", "minus one", "empty", "absent"])
def test_an_index_that_says_nothing(index: str) -> None:
    """X18: consumed, and dropped."""
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(1)
    if index == "minus one":
        arrays["layer.g_idx"] = np.full(32, -1, np.int32)
    elif index == "empty":
        arrays["layer.g_idx"] = np.zeros(0, np.int32)
    elif index == "absent":
        del arrays["layer.g_idx"]
    found = recognised(gptq, arrays, V1)
    weight = found.weights[0]
    assert found.consumed == set(arrays)
    assert "g_idx" not in weight.parts
    assert gptq.read(weight, arrays.__getitem__).dequantize().tobytes() == layer.weight.tobytes()
    w, order = gptq.read_sorted(weight, arrays.__getitem__)
    assert (order == np.arange(32)).all()
    assert (gptq.read_dense(weight, arrays.__getitem__) == w.dequantize()).all()


@pytest.mark.parametrize(("at", "value"), [(3, 4), (0, -1), (31, 1000)])
def test_an_index_outside_the_groups(at: int, value: int) -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    arrays["layer.g_idx"][at] = value
    with pytest.raises(FormatError, match=f"number {at} has {value}") as caught:
        recognised(gptq, arrays, V1)
    assert caught.value.tensor == "layer.g_idx"
    assert caught.value.found == value


def test_an_index_that_was_never_filled_in() -> None:
    layer = make_layer(32, 16, 8)
    arrays = layer.gptq(1)
    arrays["layer.g_idx"] = np.zeros(32, np.int32)
    with pytest.raises(FormatError, match="names 1 of 4 groups"):
        recognised(gptq, arrays, V1)
    w = read_only(arrays, V1, ignore_g_idx=True)
    assert w.dequantize().tobytes() == layer.weight.tobytes()


def test_activation_order_without_its_index_is_refused() -> None:
    """X19."""
    arrays = shuffled().gptq(1)
    del arrays["layer.g_idx"]
    with pytest.raises(FormatError, match="desc_act") as caught:
        recognised(gptq, arrays, {**V1, "desc_act": True})
    assert caught.value.tensor == "layer.g_idx"
    assert recognised(gptq, arrays, {**V1, "desc_act": True, "static_groups": True}).weights


def test_activation_order_that_the_config_denies() -> None:
    found = recognised(gptq, shuffled().gptq(1), {**V1, "desc_act": False})
    assert any("desc_act false" in line for line in found.problems)


@pytest.mark.parametrize("key", ["desc_act", "act_order", "group", "Version"])
def test_unknown_and_retired_settings(key: str) -> None:
    """X19: refused, never ignored; nothing is written in activation order."""
    options = Options(settings={key: True})
    w = quantized((16, 32), "int4")
    for call in (
        lambda: gptq.write("x.weight", w, options),
        lambda: gptq.config({"x.weight": w}, [], options),
        lambda: gptq.specs("x.weight", w.shape, 1, w.scheme, options),
        lambda: gptq.recognise({}, {"quantization_config": V1}, nothing, options),
    ):
        with pytest.raises(InputError, match="has no setting"):
            call()
    with pytest.raises(InputError, match="gptq_v3"):
        gptq.write("x.weight", w, Options(settings={"version": "gptq_v3"}))
    with pytest.raises(InputError, match="zero_point_bias"):
        gptq.recognise({}, {"quantization_config": V1}, nothing, Options(zero_point_bias=2))


# --- writing what does not fit


def test_v1_cannot_say_zero() -> None:
    """Z4."""
    zeros = np.random.default_rng(1).integers(0, 3, (16, 4)).astype(np.int32)
    row = scheme("uint4", block_size=8, symmetric=False)
    codes = np.zeros((16, 32), np.uint8)
    w = BlockTensor.from_parts(row, codes, np.ones((16, 4), np.float16), zero_points=zeros)
    with pytest.raises(UnsupportedError, match=f"{(zeros == 0).sum()} of 64 zero points are 0") as caught:
        gptq.write("x.weight", w, Options())
    assert caught.value.tensor == "x.weight"
    assert "gptq_v2" in str(caught.value.hint)
    options = Options(settings={"version": "gptq_v2"})
    read = read_only(gptq.write("x.weight", w, options), V2)
    assert read.same_bits(w)


def test_zero_points_that_are_all_zero_are_written() -> None:
    """Z15: presence follows the scheme, never the values."""
    row = scheme("uint4", block_size=8, symmetric=False)
    zeros = np.zeros((16, 4), np.int32)
    w = BlockTensor.from_parts(
        row, np.ones((16, 32), np.uint8), np.ones((16, 4), np.float16), zero_points=zeros
    )
    plain = BlockTensor.from_parts(
        scheme("uint4", block_size=8, symmetric=True),
        np.ones((16, 32), np.uint8),
        np.ones((16, 4), np.float16),
    )
    options = Options(settings={"version": "gptq_v2"})
    for tensor in (w, plain):
        written = gptq.write("x.weight", tensor, options)
        assert (written["x.qzeros"] == 0).all()
        assert written["x.qzeros"].shape == (4, 2)
        assert read_only(written, V2).same_bits(w)


@pytest.mark.parametrize("value", [-1, 16, -(1 << 31)])
def test_zero_points_out_of_range(value: int) -> None:
    zeros = np.full((16, 4), 3, np.int32)
    zeros[5, 2] = value
    row = scheme("uint4", block_size=8, symmetric=False)
    w = BlockTensor.from_parts(
        row, np.ones((16, 32), np.uint8), np.ones((16, 4), np.float16), zero_points=zeros
    )
    with pytest.raises(UnsupportedError, match=f"1 of 64 .* first is {value} at group 2, output 5"):
        gptq.write("x.weight", w, Options(settings={"version": "gptq_v2"}))


@pytest.mark.parametrize(
    ("w", "words"),
    [
        (quantized((16, 32), "mxfp4", block_size=32), "integer codes"),
        (quantized((16, 32), "mxint8", block_size=32), "integer codes"),
        (quantized((16, 32), "q4_1", block_size=32), "minimum"),
        (quantized((16, 33), "int4"), r"input has 33 = 4 \* 8 \+ 1"),
        (quantized((15, 32), "int4"), r"output has 15 = 1 \* 8 \+ 7"),
        (quantized((32,), "int4"), r"shape is \[32\]"),
        (quantized((2, 2, 8, 8), "int4"), r"shape is \[2, 2, 8, 8\]"),
        (quantized((16, 32), "int4", scale="float32"), "float32"),
        (quantize(np.ones((16, 32), np.float32), scheme("int4", block_size=8), axis=0), "along axis 0"),
    ],
)
def test_what_does_not_fit(w: BlockTensor, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        gptq.write("x.weight", w, Options())
    assert caught.value.tensor == "x.weight"
    assert caught.value.hint
    assert caught.value.rule
    with pytest.raises(UnsupportedError, match=words):
        gptq.specs("x.weight", w.shape, w.axis, w.scheme, Options())


def test_scales_that_are_not_finite() -> None:
    """S12."""
    scales = np.ones((16, 4), np.float16)
    scales[3, 1] = np.nan
    w = BlockTensor.from_parts(scheme("int4", block_size=8), np.zeros((16, 32), np.int8), scales)
    with pytest.raises(UnsupportedError, match="1 of 64 scales are NaN or infinite, the first at row 3"):
        gptq.write("x.weight", w, Options())
    arrays = make_layer(32, 16, 8).gptq(1)
    arrays["layer.scales"][1, 5] = np.inf
    with pytest.raises(FormatError, match="1 of 64 scales"):
        read_only(arrays, V1)


def test_constant_words_are_a_finding() -> None:
    arrays = make_layer(32, 16, 8).gptq(1)
    arrays["layer.qweight"][:] = -0x77777778
    weight = recognised(gptq, arrays, V1).weights[0]
    assert any("0x88888888" in line for line in gptq.findings(weight, arrays.__getitem__))


@pytest.mark.parametrize("name", ["experts.gate_up_proj", "layer.bias", "layerweight"])
def test_names_that_could_not_come_back(name: str) -> None:
    with pytest.raises(UnsupportedError, match="names its parts"):
        gptq.write(name, quantized((16, 32), "int4"), Options())


def test_the_index_may_be_left_out() -> None:
    w = quantized((16, 32), "int4")
    written = gptq.write("x.weight", w, Options(settings={"g_idx": False}))
    assert set(written) == {"x.qweight", "x.qzeros", "x.scales"}
    assert read_only(written, V1).dequantize().tobytes() == w.dequantize().tobytes()

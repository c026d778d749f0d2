"""compressed-tensors: golden files of the package, and every way in which parts and config can disagree."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockscale as bs
from blockscale.dialects import compressed_tensors as dialect
from blockscale.dialects.base import Options, Recognition, Weight
from blockscale.dialects.compressed_tensors_codes import (
    pack_zero_points,
    rows_from_bytes,
    unpack_zero_points,
    words_of,
)
from blockscale.errors import FormatError, UnsupportedError
from blockscale.tensor import BlockTensor
from dialect_parts import VECTORS, Arrays, assert_values, golden, stored_of, values

NONE = Options()
INT4 = bs.scheme("int4", block_size=32, scale="bfloat16")
SCHEMES = {
    "int4": INT4,
    "int8": bs.scheme("int8", block_size=64, scale="float32"),
    "int2": bs.scheme("int2", block_size=16, scale="float16"),
    "uint4": bs.scheme("uint4", block_size=32, scale="float32"),
    "uint8": bs.scheme("uint8", block_size=32, scale="float16"),
    "int4 with zero points": bs.scheme("int4", block_size=32, symmetric=False),
    "uint4 without": bs.scheme("uint4", block_size=32, symmetric=True),
    "q4_0": bs.scheme("q4_0"),
    "channel": bs.scheme("int8", block_size=1024, scale="float32"),
    "mxfp4": bs.scheme("mxfp4"),
    "mxfp6_e2m3": bs.scheme("mxfp6_e2m3"),
    "mxfp8_e4m3": bs.scheme("mxfp8_e4m3"),
}


def tensor(name: str, shape: tuple[int, ...] = (12, 128), seed: int = 0) -> BlockTensor:
    """A tensor of one of SCHEMES."""
    scheme = SCHEMES[name]
    if scheme.offset == "none" and scheme.element.kind == "uint":
        codes = np.random.default_rng(seed).integers(0, 16, shape)
        return BlockTensor.from_parts(scheme, codes, np.ones((*shape[:-1], shape[-1] // 32), np.float16))
    return bs.quantize(values(shape, seed), scheme)


def config_of(written: dict[str, BlockTensor], *kept: str, **options: Any) -> dict[str, Any]:
    """A config through JSON, as a file would hold it."""
    config = dialect.config(written, kept, Options(settings=options))
    return dict(json.loads(json.dumps(config)))


def recognise(arrays: Arrays, config: dict[str, Any], **settings: Any) -> Recognition:
    found = dialect.recognise(stored_of(arrays), config, arrays.__getitem__, Options(settings=settings))
    assert found is not None
    return found


def one(
    scheme: str = "int4", name: str = "m.q.weight", shape: tuple[int, ...] = (12, 128)
) -> tuple[Arrays, Any]:
    """Arrays and config of a file with one weight."""
    w = tensor(scheme, shape)
    return dialect.write(name, w, NONE), config_of({name: w})


def weights_of(config: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = config["quantization_config"]["config_groups"]["group_0"]
    found: dict[str, Any] = group["weights"]
    return found


def read_golden(config: dict[str, Any]) -> tuple[Arrays, Arrays, Recognition]:
    parts, expected = golden("compressed_tensors", "mixed")
    return parts, expected, recognise(parts, config)


GOLDEN_CONFIG: dict[str, Any] = json.loads((VECTORS / "compressed_tensors" / "mixed.config.json").read_text())


# --- golden files of compressed-tensors


def test_golden_values_are_those_of_the_package() -> None:
    parts, expected, found = read_golden(GOLDEN_CONFIG)
    assert {w.name for w in found.weights} == set(expected)
    assert len(expected) == 14
    for weight in found.weights:
        w = dialect.read(weight, parts.__getitem__)
        assert w.shape == weight.shape
        assert w.scheme == weight.scheme
        assert_values(w, expected[weight.name])
        assert dialect.findings(weight, parts.__getitem__) == ()


def test_golden_parts_are_written_byte_for_byte() -> None:
    parts, _, found = read_golden(GOLDEN_CONFIG)
    compared = 0
    for weight in found.weights:
        if "layers.3" in weight.name or "g96" in weight.name:  # int-quantized; groups of 96 become 32
            continue
        written = dialect.write(weight.name, dialect.read(weight, parts.__getitem__), NONE)
        for name, array in written.items():
            assert array.dtype == parts[name].dtype
            assert array.tobytes() == parts[name].tobytes(), name
            compared += 1
    assert compared == 33


def test_other_formats_of_a_mixed_file_keep_names_and_bytes() -> None:
    parts, _, found = read_golden(GOLDEN_CONFIG)
    left = {"layers.3.fp8.weight", "layers.3.fp8.weight_scale", "embed_tokens.weight"}
    assert set(parts) - found.consumed == left
    told = [p for p in found.problems if "left as stored" in p]
    assert len(told) == 1
    assert "float-quantized" in told[0]
    assert "136 bytes" in told[0]


def test_without_config_the_parts_are_read_and_said_so() -> None:
    parts, expected, found = read_golden({})
    assert "packed 4-bit, config missing: 7 weights read as the parts say" in found.problems
    assert {w.name for w in found.weights} == {
        n for n in expected if "layers.3" not in n and "mxfp8" not in n
    }
    for weight in found.weights:
        assert_values(dialect.read(weight, parts.__getitem__), expected[weight.name])


def test_zero_points_that_are_all_zero_stay() -> None:
    parts, _, found = read_golden(GOLDEN_CONFIG)
    weight = next(w for w in found.weights if "uint4_zero" in w.name)
    w = dialect.read(weight, parts.__getitem__)
    assert w.zero_points is not None
    assert (w.zero_points == 8).all()  # the package's 0, in the unsigned carrier
    assert "layers.1.uint4_zero.weight_zero_point" in dialect.write(weight.name, w, NONE)
    del parts["layers.1.uint4_zero.weight_zero_point"]
    with pytest.raises(FormatError, match="weight_zero_point' is missing"):
        recognise(parts, GOLDEN_CONFIG)


# --- words against a plain loop


def plain_codes(words: NDArray[np.int32], bits: int, length: int) -> NDArray[np.int64]:
    """Element i lies at bit i * bits of its row of words; the stored value is the code plus 2**(bits - 1)."""
    rows = []
    for row in words:
        stream = sum((int(word) & 0xFFFFFFFF) << (32 * k) for k, word in enumerate(row))
        rows.append([(stream >> (i * bits)) & ((1 << bits) - 1) for i in range(length)])
    return np.array(rows, np.int64).reshape(len(words), length)


@settings(max_examples=60)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 70), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_words_equal_a_plain_loop(bits: int, length: int, rows: int, flip: bool, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, length))
    row = bs.scheme(f"uint{bits}", block_size=128, symmetric=True)
    packed = BlockTensor.from_parts(row, codes, np.ones((rows, 1), np.float16)).packed
    words = words_of(packed, bits, length, flip=flip)
    offset = 1 << (bits - 1) if flip else 0
    assert np.array_equal(plain_codes(words, bits, length), codes ^ offset)
    back = rows_from_bytes(words.view(np.uint8), bits, length, packed.shape[1], flip=flip)
    assert np.array_equal(back, packed)


@settings(max_examples=60)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 40), st.integers(1, 4), st.integers(0, 99))
def test_zero_points_equal_a_plain_loop(bits: int, out: int, groups: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << bits, (2 * out, groups)).astype(np.int32)
    words = pack_zero_points(values, bits, (2, out))
    assert words.shape == (2, -(-out * bits // 32), groups)
    for part, expert in zip(words, values.reshape(2, out, groups), strict=True):
        assert np.array_equal(plain_codes(np.ascontiguousarray(part.T), bits, out).T, expert)
    assert np.array_equal(unpack_zero_points(words, bits, out).reshape(-1, groups), values)


def test_a_worked_word() -> None:
    codes = np.arange(8)[None] - 8  # -8 .. -1 are stored as 0 .. 7
    w = BlockTensor.from_parts(bs.scheme("int4", block_size=8), codes, np.ones((1, 1), np.float16))
    words = dialect.write("m.weight", w, NONE)["m.weight_packed"]
    assert words.view(np.uint32).tolist() == [[0x76543210]]


# --- writing, and reading what was written


@pytest.mark.parametrize("name", SCHEMES)
def test_round_trip(name: str) -> None:
    w = tensor(name)
    arrays = dialect.write("m.q.weight", w, NONE)
    found = recognise(arrays, config_of({"m.q.weight": w}))
    assert found.problems == ()
    assert found.consumed == frozenset(arrays)
    back = dialect.read(found.weights[0], arrays.__getitem__)
    assert np.array_equal(back.dequantize(), w.dequantize())
    assert {n: a.tobytes() for n, a in dialect.write("m.q.weight", back, NONE).items()} == {
        n: a.tobytes() for n, a in arrays.items()
    }


@pytest.mark.parametrize("name", SCHEMES)
def test_specs_say_what_will_be_stored(name: str) -> None:
    w = tensor(name)
    specs = dialect.specs("m.q.weight", w.shape, w.axis, w.scheme, NONE)
    assert specs == stored_of(dialect.write("m.q.weight", w, NONE))


@pytest.mark.parametrize("name", [n for n in SCHEMES if n != "uint4 without"])
def test_a_zero_tensor_has_finite_scales(name: str) -> None:
    w = bs.quantize(np.zeros((8, 64), np.float32), SCHEMES[name])
    arrays = dialect.write("m.weight", w, NONE)
    scales = arrays["m.weight_scale"]
    assert np.isfinite(scales.astype(np.float32)).all()
    assert scales.dtype != np.uint8 or (scales < 255).all()
    weight = recognise(arrays, config_of({"m.weight": w})).weights[0]
    assert not dialect.read(weight, arrays.__getitem__).dequantize().any()


def test_uint4_with_zero_point_8_equals_int4() -> None:
    arrays, _ = one("int4")
    config = config_of({"m.q.weight": tensor("uint4")})
    words = np.full((2, 4), 0x88888888, np.uint32).view(np.int32)
    asymmetric = {**arrays, "m.q.weight_zero_point": words}
    w = dialect.read(recognise(asymmetric, config).weights[0], asymmetric.__getitem__)
    assert w.scheme.element.name == "uint4"
    assert np.array_equal(w.dequantize(), tensor("int4").dequantize())


@pytest.mark.parametrize("scheme", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("shape", [(2, 12, 64), (3, 7, 128)])
def test_stacked_experts_are_read_and_written(scheme: str, shape: tuple[int, ...]) -> None:
    w = tensor(scheme, shape)
    arrays = dialect.write("m.experts.weight", w, NONE)
    assert arrays["m.experts.weight_shape"].tolist() == list(shape)
    weight = recognise(arrays, config_of({"m.experts.weight": w})).weights[0]
    assert weight.shape == shape
    assert dialect.read(weight, arrays.__getitem__).same_bits(w)


def test_one_scale_for_the_whole_tensor() -> None:
    arrays, config = one("int8", shape=(4, 24))
    weights_of(config).update(strategy="tensor", group_size=None)
    arrays["m.q.weight_scale"] = np.array([0.5], np.float32)
    w = dialect.read(recognise(arrays, config).weights[0], arrays.__getitem__)
    assert (w.scales == 0.5).all()
    assert w.scales.shape == (4, 1)


def test_plain_zero_points_of_older_writers() -> None:
    arrays, config = one("uint4", shape=(5, 64))
    wanted = tensor("uint4", (5, 64))
    assert wanted.zero_points is not None
    arrays["m.q.weight_zero_point"] = (wanted.zero_points - 8).astype(np.int8)
    w = dialect.read(recognise(arrays, config).weights[0], arrays.__getitem__)
    assert w.same_bits(wanted)


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (bs.quantize(values((4, 32)), "q4_1"), "q4_1 adds a minimum"),
        (bs.quantize(values((4, 32)), "mxint8"), "mxint8 .* has no format"),
        (bs.quantize(values((4, 32)), "mxfp6_e3m2"), "mxfp6_e3m2 .* has no format"),
        (bs.quantize(values((4, 32)), "mxfp4", block_size=16), "blocks of 16.* has no format"),
        (bs.quantize(values((64, 4)), "int4", axis=0), "blocks run along axis 0"),
        (bs.quantize(values((4, 80)), "int4"), r"dimension 1 is 80 = 2 \* 32 \+ 16"),
        (bs.quantize(values((4, 80)), "mxfp4"), r"dimension 1 is 80 = 2 \* 32 \+ 16"),
        (bs.quantize(values((2, 4, 32)), "mxfp4"), r"holds matrices, this is \[2, 4, 32\]"),
        (bs.quantize(values((64,)), "int4"), "blocks run along axis 0"),
    ],
)
def test_what_the_format_cannot_say_is_refused_with_advice(w: BlockTensor, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        dialect.write("m.q.weight", w, NONE)
    assert caught.value.tensor == "m.q.weight"
    assert caught.value.hint
    with pytest.raises(UnsupportedError, match=message):
        dialect.specs("m.q.weight", w.shape, w.axis, w.scheme, NONE)


def test_parameters_of_no_module_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"end in '.weight'"):
        dialect.write("m.experts.gate_up_proj", tensor("int4"), NONE)


def test_zero_points_out_of_range_are_refused() -> None:
    w = tensor("uint4", (2, 32))
    far = BlockTensor.from_parts(w.scheme, w.codes(), w.scales, zero_points=np.array([[16], [3]]))
    with pytest.raises(UnsupportedError, match=r"1 of 2 zero points lie outside of 0 .. 15, the first is 16"):
        dialect.write("m.weight", far, NONE)


# --- config


def test_the_config_lists_exactly_what_was_kept() -> None:
    written = {"m.q.weight": tensor("int4"), "m.k.weight": tensor("int4")}
    section = config_of(written, "m.gate.weight", "embed.weight", "lm_head.weight", "m.q.bias")
    assert section["quantization_config"]["ignore"] == ["m.gate", "embed", "lm_head"]
    assert section["quantization_config"]["format"] == "pack-quantized"
    group = section["quantization_config"]["config_groups"]["group_0"]
    assert group["targets"] == ["Linear"]
    assert group["weights"]["group_size"] == 32


def test_a_tied_head_is_ignored_and_embeddings_are_named() -> None:
    written = {"m.embed_tokens.weight": tensor("int8"), "m.q.weight": tensor("int8")}
    section = config_of(written)["quantization_config"]
    assert section["ignore"] == ["lm_head"]
    assert section["config_groups"]["group_0"]["targets"] == ["Linear", "m.embed_tokens"]


def test_several_schemes_make_a_mixed_config_that_reads_back() -> None:
    written = {f"m.{i}.{name.replace(' ', '_')}.weight": tensor(name) for i, name in enumerate(SCHEMES)}
    arrays: Arrays = {}
    for name, w in written.items():
        arrays |= dialect.write(name, w, NONE)
    config = config_of(written, "norm.weight")
    assert config["quantization_config"]["format"] == "mixed-precision"
    found = recognise({**arrays, "norm.weight": values((8,))}, config)
    assert found.problems == ()
    for weight in found.weights:
        back = dialect.read(weight, arrays.__getitem__)
        assert np.array_equal(back.dequantize(), written[weight.name].dequantize())


def test_targets_by_name_and_more_to_ignore() -> None:
    written = {"m.q.weight": tensor("int4")}
    section = config_of(written, targets="names", ignore=["visual"])["quantization_config"]
    assert section["config_groups"]["group_0"]["targets"] == ["m.q"]
    assert section["ignore"] == ["lm_head", "visual"]


def test_presets_stand_for_their_settings() -> None:
    w = bs.quantize(values((4, 256)), bs.scheme("int4", block_size=128))
    arrays = dialect.write("m.q.weight", w, NONE)
    section = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"W4A16": ["Linear"]},
    }
    found = recognise(arrays, {"quantization_config": section})
    assert dialect.read(found.weights[0], arrays.__getitem__).same_bits(w)
    mx = tensor("mxfp4")
    arrays = dialect.write("m.q.weight", mx, NONE)
    section["config_groups"] = {"MXFP4A16": ["Linear"]}
    assert dialect.read(
        recognise(arrays, {"quantization_config": section}).weights[0], arrays.__getitem__
    ).same_bits(mx)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_the_section_is_found_in_multimodal_and_old_configs(key: str) -> None:
    arrays, config = one()
    section = config["quantization_config"]
    for place in ({key: section}, {"text_config": {key: section}}):
        assert recognise(arrays, place).problems == ()


def test_other_methods_are_not_ours() -> None:
    plain = {"m.q.weight": values((4, 32))}
    assert dialect.recognise(stored_of(plain), {}, plain.__getitem__, NONE) is None
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert dialect.recognise(stored_of(plain), gptq, plain.__getitem__, NONE) is None
    arrays, _ = one()
    assert "the config says quant_method 'gptq'" in recognise(arrays, gptq).problems[0]


def test_a_config_without_any_packed_weight_is_reported() -> None:
    _, config = one()
    found = recognise({"m.embed.weight": values((4, 32))}, config)
    assert found.weights == ()
    assert "none is in this file" in found.problems[0]


def test_scales_of_mxfp4_by_old_versions_are_corrected() -> None:
    w = tensor("mxfp4")
    arrays = dialect.write("m.q.weight", w, NONE)
    config = config_of({"m.q.weight": w})
    arrays["m.q.weight_scale"] = arrays["m.q.weight_scale"] - np.uint8(2)  # as 0.13.0 stored them
    for version, shift, told in [
        ("0.13.0", 2, "read corrected"),
        ("0.14.0", 0, ""),
        ("0.13.1.a20260112", 0, "may be"),
    ]:
        config["quantization_config"]["version"] = version
        found = recognise(arrays, config)
        assert told in "".join(found.problems)
        back = dialect.read(found.weights[0], arrays.__getitem__)
        assert np.array_equal(back.dequantize() * (1 if shift else 4), w.dequantize())
    forced = recognise(arrays, config, scale_shift=2)
    assert dialect.read(forced.weights[0], arrays.__getitem__).same_bits(w)
    arrays["m.q.weight_scale"] = np.full_like(arrays["m.q.weight_scale"], 254)
    with pytest.raises(FormatError, match="254 plus 2"):
        dialect.read(forced.weights[0], arrays.__getitem__)


def test_what_else_the_config_says_is_reported() -> None:
    arrays, config = one()
    config["quantization_config"] |= {
        "sparsity_config": {"format": "sparse-24-bitmask"},
        "transform_config": {"config_groups": {"a": {}}},
        "kv_cache_scheme": {"num_bits": 8},
    }
    told = " ".join(recognise(arrays, config).problems)
    assert "sparse-24-bitmask" in told
    assert "transform_config" in told
    assert "kv_cache_scheme" in told


# --- contradictions: each message quotes both sides


def broken(change: str, arrays: Arrays, config: dict[str, Any]) -> None:
    """Break one thing."""
    weights = weights_of(config)
    section = config["quantization_config"]
    module = "m.q.weight"
    if change == "bits":
        weights["num_bits"] = 8
    elif change == "group":
        weights["group_size"] = 64
    elif change == "channel":
        weights.update(strategy="channel", group_size=None)
    elif change == "asymmetric":
        weights["symmetric"] = False
    elif change == "symmetric":
        arrays[f"{module}_zero_point"] = np.full((2, 4), 0x98888888, np.uint32).view(np.int32)
    elif change == "format":
        section["config_groups"]["group_0"]["format"] = "mxfp4-pack-quantized"
        weights["type"] = "float"
    elif change == "shape":
        arrays[f"{module}_shape"] = np.array([13, 128])
    elif change == "ignored":
        section["ignore"] = ["re:.*q$"]
    elif change == "untargeted":
        section["config_groups"]["group_0"]["targets"] = ["m.k"]
    elif change == "twice":
        arrays[module] = values((12, 128))
    elif change == "scale dtype":
        arrays[f"{module}_scale"] = np.zeros((12, 4), np.uint8)
    elif change == "transposed scales":
        arrays[f"{module}_scale"] = np.ascontiguousarray(arrays[f"{module}_scale"].T)
    elif change == "zero point shape":
        weights["symmetric"] = False
        arrays[f"{module}_zero_point"] = np.zeros((3, 4), np.int32)
    elif change == "g_idx":
        arrays[f"{module}_g_idx"] = np.zeros(64, np.int32)
    elif change == "index lost":
        weights["actorder"] = "group"


@pytest.mark.parametrize(
    ("change", "said", "found"),
    [
        ("bits", "config says 8 bits, so 128 columns take 32 words", r"\[12, 16\], which is 4 bits"),
        ("group", "groups of 64.*takes scales \\[12, 2\\]", r"\[12, 4\], which is groups of 32"),
        ("channel", "one scale per channel.*takes scales \\[12, 1\\]", r"is \[12, 4\]"),
        ("asymmetric", "weight_zero_point' is missing", "found .*weight_packed"),
        ("symmetric", "config says symmetric", "4 of 48 zero points"),
        ("format", "mxfp4-pack-quantized, so weight_packed is U8", "is I32"),
        ("shape", r"weight_shape' says \[13, 128\]", r"is \[12, 16\]"),
        ("ignored", "config ignores it \\('re:.*q\\$'\\)", "weight_packed' is stored packed"),
        ("untargeted", "no target of the config names the module 'm.q'", "targets are m.k"),
        ("twice", "both 'm.q.weight'", "'m.q.weight_packed' are stored"),
        ("scale dtype", "weight_scale is F16 or BF16 or F32", "is U8"),
        ("transposed scales", r"takes scales \[12, 4\]", r"is \[4, 12\]"),
        ("zero point shape", r"is I32 \[3, 4\]", r"need words \[2, 4\]"),
        ("g_idx", r"is \[64\]", "for 128 columns"),
        ("index lost", "weight_g_idx' is missing", "found"),
    ],
)
def test_contradictions_quote_both_sides(change: str, said: str, found: str) -> None:
    arrays, config = one()
    broken(change, arrays, config)
    with pytest.raises(FormatError, match=f"(?s){said}.*{found}|{found}.*{said}") as caught:
        recognise(arrays, config)
    assert caught.value.tensor == "m.q.weight"


@pytest.mark.parametrize("scheme", ["int4", "uint4", "mxfp4", "mxfp8_e4m3"])
def test_every_missing_part_is_named(scheme: str) -> None:
    arrays, config = one(scheme)
    for name in arrays:
        rest = {n: a for n, a in arrays.items() if n != name}
        if name == "m.q.weight":  # the plain name: nothing but scales is left
            name = "m.q.weight_packed"
        with pytest.raises(FormatError, match=f"'{name}' is missing"):
            recognise(rest, config)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config_groups",), [1]),
        (("config_groups", "group_0"), 3),
        (("config_groups", "group_0", "targets"), "Linear"),
        (("config_groups", "group_0", "targets"), ["re:("]),
        (("config_groups", "group_0", "weights"), "int4"),
        (("config_groups", "group_0", "weights", "num_bits"), "4"),
        (("config_groups", "group_0", "weights", "group_size"), 0),
        (("config_groups", "group_0", "weights", "group_size"), None),
        (("ignore",), {"a": 1}),
    ],
)
def test_malformed_configs_name_the_field(path: tuple[str, ...], value: Any) -> None:
    arrays, config = one()
    place = config["quantization_config"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(FormatError) as caught:
        recognise(arrays, config)
    assert caught.value.field == ".".join(("quantization_config", *path))


# --- names: targets and the ignore list


def test_a_misspelt_target_lists_near_names() -> None:
    arrays, config = one(name="model.layers.0.q_proj.weight")
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = copy.deepcopy(groups["group_0"]) | {"targets": ["model.layers.0.q_porj"]}
    with pytest.raises(FormatError, match=r"'model\.layers\.0\.q_porj' names no module") as caught:
        recognise(arrays, config)
    assert "model.layers.0.q_proj" in (caught.value.hint or "")


def test_patterns_that_match_nothing_are_reported() -> None:
    arrays, config = one(name="model.layers.0.q_proj.weight")
    section = config["quantization_config"]
    section["config_groups"]["group_0"]["targets"] = ["re:.*q_proj", "re:.*qkv$", "Linear"]
    section["ignore"] = ["lm_head", "re:.*visual.*", "model.gate"]
    told = "\n".join(recognise(arrays, config).problems)
    assert "'re:.*qkv$' of group_0 matches no module" in told
    assert "entry 're:.*visual.*' of the ignore list matches no module" in told
    assert "entry 'model.gate' of the ignore list" in told
    assert "lm_head" not in told  # tied heads are not stored


@pytest.mark.parametrize(
    ("ignored", "stored"),
    [("a.qkv_proj", "a.q_proj"), ("a.gate_proj", "a.gate_up_proj"), ("re:.*qkv_proj", "a.k_proj")],
)
def test_fused_and_split_names_both_count(ignored: str, stored: str) -> None:
    arrays, config = one()
    config["quantization_config"]["ignore"] = [ignored]
    found = recognise({**arrays, f"{stored}.weight": values((4, 32))}, config)
    assert found.problems == ()


def test_a_fused_target_reaches_its_parts() -> None:
    arrays, config = one(name="a.k_proj.weight")
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["a.qkv_proj"]
    assert recognise(arrays, config).problems == ()
    config["quantization_config"]["ignore"] = ["a.qkv_proj"]
    assert "ignores 'a.qkv_proj', but 'a.k_proj'" in recognise(arrays, config).problems[0]


def test_a_plain_weight_that_a_target_names_is_reported() -> None:
    arrays, config = one()
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["m.q", "m.k"]
    found = recognise({**arrays, "m.k.weight": values((4, 32))}, config)
    assert "names 'm.k', but its weight is stored plain" in found.problems[0]


def test_an_exact_target_wins_over_a_class() -> None:
    written = {
        "m.q.weight": tensor("int4"),
        "m.k.weight": tensor("int4", seed=1),
        "m.v.weight": tensor("int8"),
    }
    arrays: Arrays = {}
    for name, w in written.items():
        arrays |= dialect.write(name, w, NONE)
    found = recognise(arrays, config_of(written))
    kinds = {w.name: w.scheme.element.name for w in found.weights}
    assert kinds == {"m.q.weight": "int4", "m.k.weight": "int4", "m.v.weight": "int8"}
    assert any("weight_packed is I32, 8 codes of 4 bits each" in line for line in found.evidence)


# --- data that cannot be trusted


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scales_that_are_not_finite_are_refused(value: float) -> None:
    arrays, config = one()
    scales = arrays["m.q.weight_scale"].copy()
    scales[3, 1] = value
    arrays["m.q.weight_scale"] = scales
    weight = recognise(arrays, config).weights[0]
    with pytest.raises(FormatError, match=r"1 of 48 scales .* the first is .* at \[3, 1\]") as caught:
        dialect.read(weight, arrays.__getitem__)
    assert caught.value.tensor == "m.q.weight"
    assert "NaN or infinite" in dialect.findings(weight, arrays.__getitem__)[0]
    w = tensor("int4")
    bad = BlockTensor.from_parts(w.scheme, w.codes(), scales)
    with pytest.raises(FormatError, match="scales"):
        dialect.write("m.q.weight", bad, NONE)


def test_nan_blocks_are_refused_since_the_package_makes_them_infinite() -> None:
    x = values((4, 64))
    x[1, 40] = np.nan
    w = bs.quantize(x, "mxfp4", nonfinite="nan-block")
    with pytest.raises(FormatError, match="byte 255"):
        dialect.write("m.weight", w, NONE)


def test_constant_words_are_found() -> None:
    arrays, config = one()
    arrays["m.q.weight_packed"] = np.full((12, 16), 0x88888888, np.uint32).view(np.int32)
    weight = recognise(arrays, config).weights[0]
    found = dialect.findings(weight, arrays.__getitem__)
    assert len(found) == 1
    assert "0x88888888" in found[0]
    arrays["m.q.weight_scale"] = np.zeros_like(arrays["m.q.weight_scale"])
    assert "48 of 48 scales are zero" in dialect.findings(weight, arrays.__getitem__)[1]


@pytest.mark.parametrize("kind", ["in order", "none", "shuffled"])
def test_indices_of_activation_order(kind: str) -> None:
    arrays, config = one()
    order = np.arange(128, dtype=np.int32) // 32
    arrays["m.q.weight_g_idx"] = {
        "in order": order,
        "none": np.full(128, -1, np.int32),
        "shuffled": order[::-1],
    }[kind]
    found = recognise(arrays, config)
    assert "m.q.weight_g_idx" in found.consumed
    if kind != "shuffled":
        assert dialect.read(found.weights[0], arrays.__getitem__).same_bits(tensor("int4"))
        return
    assert "activation order" in found.problems[0]
    with pytest.raises(UnsupportedError, match="128 of 128 columns"):
        dialect.read(found.weights[0], arrays.__getitem__)


def test_swizzled_scales_are_refused_with_the_reason() -> None:
    w = bs.quantize(values((128, 96)), "mxfp4")
    arrays = dialect.write("m.weight", w, NONE)
    arrays["m.weight_scale"] = np.zeros((128, 4), np.uint8)
    found = recognise(arrays, config_of({"m.weight": w}))
    assert "padded to tiles of 128 x 4" in found.problems[0]
    with pytest.raises(UnsupportedError, match="swizzled"):
        dialect.read(found.weights[0], arrays.__getitem__)


def test_widths_and_strategies_that_are_not_read_are_named() -> None:
    arrays, config = one()
    for change, told in (({"num_bits": 3}, "3 bits are not read"), ({"strategy": "block"}, "per block")):
        changed = copy.deepcopy(config)
        weights_of(changed).update(change)
        found = recognise(arrays, changed)
        assert found.weights == ()
        assert told in found.problems[0]
        assert found.consumed == frozenset()


def test_surplus_zero_points_of_a_symmetric_weight_are_harmless_if_zero() -> None:
    for scheme, shape in itertools.product(["int4", "int8"], [(12, 128), (3, 64)]):
        arrays, config = one(scheme, shape=shape)
        groups = arrays["m.q.weight_scale"].shape[1]
        bits = 4 if scheme == "int4" else 8
        neutral = np.full((shape[0], groups), 1 << (bits - 1), np.int32)
        arrays["m.q.weight_zero_point"] = pack_zero_points(neutral, bits, shape[:1])
        found = recognise(arrays, config)
        assert "m.q.weight_zero_point" in found.consumed
        assert dialect.read(found.weights[0], arrays.__getitem__).same_bits(tensor(scheme, shape))


def test_empty_weights() -> None:
    for shape in ((0, 64), (4, 0)):
        w = BlockTensor.from_parts(
            INT4, np.zeros(shape, np.int8), np.zeros((shape[0], shape[1] // 32), INT4.scale.dtype)
        )
        arrays = dialect.write("m.weight", w, NONE)
        assert arrays["m.weight_shape"].tolist() == list(shape)


def test_weight_is_a_value_with_its_logical_shape() -> None:
    arrays, config = one(shape=(12, 128))
    weight: Weight = recognise(arrays, config).weights[0]
    assert weight.shape == (12, 128)  # not the [12, 16] of the words
    assert weight.axis == 1
    assert weight.scheme.bits_per_element == 4.5

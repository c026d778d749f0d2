"""Plain MX pairs as toolchains store them, scales laid out otherwise, and blockscale's own layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockscale as bs
from blockscale.containers.safetensors import SafetensorsFile, write_safetensors
from blockscale.dialects import own_layout
from blockscale.dialects import plain_mx as dialect
from blockscale.dialects.base import Options, Recognition
from blockscale.errors import FormatError, UnsupportedError
from blockscale.packing import unpack_codes
from blockscale.schemes import SCHEMES
from blockscale.tensor import BlockTensor
from dialect_parts import Arrays, stored_of, values

NONE = Options()
E8M0 = ml_dtypes.float8_e8m0fnu
CONFIG = {"quantization_config": {"quant_method": "quark"}}


def recognise(arrays: Arrays, config: dict[str, Any] | None = None, **settings: Any) -> Recognition | None:
    options = Options(settings=settings)
    return dialect.recognise(
        stored_of(arrays), CONFIG if config is None else config, arrays.__getitem__, options
    )


def found_in(arrays: Arrays, config: dict[str, Any] | None = None, **settings: Any) -> Recognition:
    found = recognise(arrays, config, **settings)
    assert found is not None
    return found


def read_one(arrays: Arrays, **settings: Any) -> BlockTensor:
    return dialect.read(found_in(arrays, **settings).weights[0], arrays.__getitem__)


def codes_of(w: BlockTensor) -> NDArray[np.uint8]:
    """Codes packed along the last axis."""
    return w.packed.reshape(*w.shape[:-1], w.packed.shape[1])


def scales_of(w: BlockTensor) -> NDArray[np.uint8]:
    return np.asarray(w.scales.view(np.uint8))


# --- pairs by dtype and layout


@pytest.mark.parametrize(
    ("scheme", "codes", "name", "scale_dtype"),
    [
        ("mxfp4", np.uint8, "m.weight_scale", np.uint8),  # AMD Quark
        ("mxfp4", np.int8, "m.scale", E8M0),  # DeepSeek-V4
        ("mxfp4", "<u4", "m.scales", np.uint8),  # MLX
        ("mxfp8_e4m3", "<u4", "m.scales", np.uint8),  # MLX
        ("mxfp8_e4m3", ml_dtypes.float8_e4m3fn, "m.weight_scale", np.uint8),  # ModelOpt
        ("mxfp8_e4m3", ml_dtypes.float8_e4m3fn, "m.weight_scale_inv", np.uint8),  # SGLang
        ("mxfp8_e5m2", ml_dtypes.float8_e5m2, "m.weight_scale", E8M0),
    ],
)
def test_pairs_of_toolchains(scheme: str, codes: Any, name: str, scale_dtype: Any) -> None:
    for shape in ((6, 96), (2, 3, 64)):
        w = bs.quantize(values(shape), scheme)
        arrays: Arrays = {"m.weight": codes_of(w).view(codes), name: scales_of(w).view(scale_dtype)}
        found = found_in(arrays)
        assert found.problems == ()
        assert found.consumed == frozenset(arrays)
        assert found.weights[0].shape == shape
        assert dialect.read(found.weights[0], arrays.__getitem__).same_bits(w)


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6_e2m3", "mxfp6_e3m2"])
def test_small_dtypes_of_safetensors(scheme: str) -> None:
    w = bs.quantize(values((6, 96)), scheme)
    arrays: Arrays = {"m.weight": w.codes(), "m.weight_scale": w.scales}
    assert stored_of(arrays)["m.weight"].dtype[:2] in ("F4", "F6")
    assert read_one(arrays).same_bits(w)


def test_u8_scales_beside_fp8_are_exponents_whatever_they_are_called() -> None:
    w = bs.quantize(values((4, 64)), "mxfp8_e4m3")
    for name in ("m.weight_scale", "m.weight_scale_inv", "m.weight_scales"):
        arrays: Arrays = {"m.weight": codes_of(w).view(ml_dtypes.float8_e4m3fn), name: scales_of(w)}
        read = read_one(arrays).dequantize()
        assert np.array_equal(read, w.dequantize())
        assert np.abs(read).max() < 10  # not some 120 times as large


def test_the_name_alone_decides_nothing() -> None:
    w = bs.quantize(values((128, 128)), "mxfp8_e4m3")
    fp8 = codes_of(w).view(ml_dtypes.float8_e4m3fn)
    for scales in (np.ones((1, 1), np.float32), np.ones((128, 4), np.float32), np.ones(1, np.float32)):
        assert recognise({"m.weight": fp8, "m.weight_scale": scales}) is None
    plain: Arrays = {"m.weight": values((4, 64)), "m.weight_scale": np.zeros((4, 2), np.uint8)}
    assert recognise(plain) is None
    assert (
        recognise({"m.weight": codes_of(w), "m.scale": scales_of(w)}) is None
    )  # `.scale` needs the dtype F8_E8M0
    assert recognise({"m.weight": codes_of(w).view(np.int8), "m.weight_scale": scales_of(w)}) is None


def test_untouched_fp8_beside_mxfp4_keeps_names_and_bytes() -> None:
    w = bs.quantize(values((4, 64)), "mxfp4")
    fp8: Arrays = {
        "n.weight": np.ones((4, 64), ml_dtypes.float8_e4m3fn),
        "n.weight_scale_inv": np.ones((1, 1), np.float32),
        "norm.weight": np.ones(4, ml_dtypes.bfloat16),
    }
    found = found_in({"m.weight": codes_of(w), "m.weight_scale": scales_of(w), **fp8})
    assert found.consumed.isdisjoint(fp8)
    assert found.problems == ()


@pytest.mark.parametrize(
    ("codes", "scales", "told"),
    [
        ((ml_dtypes.float8_e4m3fn, (256, 128)), (E8M0, (2, 1)), "one E8M0 scale per 128 x 128 tile"),
        ((np.uint8, (4, 64)), (ml_dtypes.float8_e4m3fn, (4, 8)), "NVFP4"),
        (
            (np.uint8, (4, 720)),
            (ml_dtypes.float8_e4m3fn, (128, 92)),
            "NVFP4 .*; .* 90 blocks: padded",
        ),
        ((np.uint8, (4, 160)), (np.uint8, (4, 20)), "one scale per 16, as NVFP4"),
        ((np.uint8, (4, 64)), (np.uint8, (4, 2)), "nothing says which element type"),
        ((ml_dtypes.float8_e5m2, (4, 64)), (np.uint8, (4, 7)), "fits no blocks of 32"),
        (("<u4", (4, 8)), (np.uint8, (4, 4)), "NVFP4 of MLX"),
    ],
)
def test_pairs_that_are_no_mx_are_left_and_named(codes: Any, scales: Any, told: str) -> None:
    arrays: Arrays = {
        "m.weight": np.zeros(codes[1], codes[0]),
        "m.weight_scale": np.zeros(scales[1], scales[0]),
    }
    if codes[0] == "<u4":
        arrays["m.scales"] = arrays.pop("m.weight_scale")
    found = found_in(arrays)
    assert found.weights == ()
    assert found.consumed == frozenset()
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(found.problems[0])
    assert "'m.weight'" in found.problems[0]


def test_without_config_it_is_said() -> None:
    w = bs.quantize(values((4, 64)), "mxfp4")
    found = found_in({"m.weight": codes_of(w), "m.weight_scale": scales_of(w)}, {})
    assert found.problems == ("packed 4-bit, config missing: read by dtype and layout",)


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "awq", "mxfp4"])
def test_methods_with_a_dialect_of_their_own_are_left_to_it(method: str) -> None:
    w = bs.quantize(values((4, 64)), "mxfp8_e4m3")
    arrays: Arrays = {"m.weight": codes_of(w).view(ml_dtypes.float8_e4m3fn), "m.weight_scale": scales_of(w)}
    assert recognise(arrays, {"quantization_config": {"quant_method": method}}) is None


def test_every_scale_byte_is_read() -> None:
    arrays: Arrays = {
        "m.weight": np.full((256, 16), 0x22, np.uint8),
        "m.weight_scale": np.arange(256, dtype=np.uint8).reshape(256, 1),
    }
    found = read_one(arrays).dequantize()[:, 0]
    assert np.array_equal(found[:255], np.ldexp(np.float32(1), np.arange(255) - 127).astype(np.float32))
    assert np.isnan(found[255])
    weight = found_in(arrays).weights[0]
    told = dialect.findings(weight, arrays.__getitem__)
    assert "every item of 'm.weight' is 0x22" in told[0]
    assert "1 of 256 scale bytes are 255" in told[1]


@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv"])
def test_a_lost_part_is_named(scale: str) -> None:
    w = bs.quantize(values((4, 64)), "mxfp4")
    pair: Arrays = {f"a.{scale}": scales_of(w), "a.weight": codes_of(w)}
    with pytest.raises(FormatError, match=r"'b\.weight_scale' is missing"):
        recognise({**pair, "b.weight": codes_of(w)})
    with pytest.raises(FormatError, match=r"'b\.weight' is missing"):
        recognise({**pair, f"b.{scale}": scales_of(w)})
    mlx: Arrays = {"a.weight": codes_of(w).view("<u4"), "a.scales": scales_of(w)}
    with pytest.raises(FormatError, match=r"'b\.scales' is missing"):
        recognise({**mlx, "b.weight": codes_of(w).view("<u4")})


# --- scales in another order


def tiled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Tiles of 128 x 4 by a plain loop: within a tile (r, c) lies at (r % 32) * 16 + (r // 32) * 4 + c."""
    rows, columns = scales.shape
    down, across = -(-rows // 128), -(-columns // 4)
    flat = np.zeros(down * across * 512, np.uint8)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * across + c // 4
            flat[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4] = scales[r, c]
    return flat


@pytest.mark.parametrize("rows", [128, 130])
def test_swizzled_scales_are_refused_and_undone_on_request(rows: int) -> None:
    w = bs.quantize(values((rows, 90 * 32)), "mxfp4")
    down = -(-rows // 128) * 128
    for shape in ((down, 92), (down * 92,)):
        arrays: Arrays = {"m.weight": codes_of(w), "m.weight_scale": tiled(scales_of(w)).reshape(shape)}
        found = found_in(arrays)
        assert found.consumed == frozenset(arrays)
        assert f"of 90 blocks: padded to tiles of 128 x 4 [{down}, 92]" in found.problems[0]
        with pytest.raises(UnsupportedError, match="swizzled") as caught:
            dialect.read(found.weights[0], arrays.__getitem__)
        assert caught.value.tensor == "m.weight"
        assert read_one(arrays, scale_layout="128x4").same_bits(w)


def test_padded_scales_are_refused_and_cropped_on_request() -> None:
    w = bs.quantize(values((6, 90 * 32)), "mxfp8_e4m3")
    for rows in (6, 128):
        padded = np.zeros((rows, 92), np.uint8)
        padded[:6, :90] = scales_of(w)
        arrays: Arrays = {"m.weight": codes_of(w).view(ml_dtypes.float8_e4m3fn), "m.weight_scale": padded}
        with pytest.raises(UnsupportedError, match="padded"):
            read_one(arrays)
        assert read_one(arrays, scale_layout="padded").same_bits(w)
    with pytest.raises(UnsupportedError, match="scale layout 'zigzag'"):
        found_in(arrays, scale_layout="zigzag")


@pytest.mark.parametrize(
    ("shape", "told"), [((3, 6), "transposed"), ((18,), "order is unknown"), ((2, 9), "order")]
)
def test_other_shapes_of_the_right_size_are_refused(shape: tuple[int, ...], told: str) -> None:
    arrays: Arrays = {"m.weight": np.zeros((6, 48), np.uint8), "m.weight_scale": np.zeros(shape, np.uint8)}
    for layout in (None, "128x4", "padded"):
        with pytest.raises(UnsupportedError, match=told):
            read_one(arrays, scale_layout=layout)


def test_marked_modules_have_swizzled_scales_within_the_plain_shape() -> None:
    w = bs.quantize(values((128, 128)), "mxfp8_e4m3")
    arrays: Arrays = {
        "m.weight": codes_of(w).view(ml_dtypes.float8_e4m3fn),
        "m.weight_scale": tiled(scales_of(w)).reshape(128, 4),
        "m.comfy_quant": np.frombuffer(b'{"format": "mxfp8"}', np.uint8),
    }
    with pytest.raises(UnsupportedError, match=r"comfy_quant says 'mxfp8'.*swizzled"):
        read_one(arrays)
    assert read_one(arrays, scale_layout="128x4").same_bits(w)
    arrays["m.comfy_quant"] = np.frombuffer(b"{", np.uint8)
    with pytest.raises(FormatError, match="not JSON"):
        found_in(arrays)


def test_stacked_experts_are_untiled_one_by_one() -> None:
    w = bs.quantize(values((2, 3, 64)), "mxfp4")
    tiles = np.concatenate([tiled(part) for part in scales_of(w)])
    arrays: Arrays = {"m.weight": codes_of(w), "m.weight_scale": tiles.reshape(2, 128, 4)}
    assert read_one(arrays, scale_layout="128x4").same_bits(w)


# --- blockscale's own layout


def own(w: BlockTensor, name: str = "m.weight", **settings: Any) -> tuple[Arrays, dict[str, Any]]:
    arrays = dialect.write(name, w, Options(settings=settings))
    return arrays, dialect.from_metadata(dialect.metadata({name: w}, [], NONE))


def variants() -> dict[str, bs.Scheme]:
    found = {**SCHEMES}
    for scale in ("bfloat16", "float32"):
        found[f"int4 {scale}"] = bs.scheme("int4", scale=scale, block_size=64)
    found["int8 zero points"] = bs.scheme("int8", symmetric=False, block_size=16)
    found["uint2 without"] = bs.scheme("uint2", symmetric=True)
    found["mxfp4 g16"] = bs.scheme("mxfp4", block_size=16)
    return found


def random_tensor(scheme: bs.Scheme, shape: tuple[int, ...], axis: int, seed: int) -> BlockTensor:
    """Any codes and scales, through canonical parts."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << scheme.element.bits, shape)
    if scheme.element.kind == "int":
        codes -= 1 << (scheme.element.bits - 1)
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // scheme.block_size)
    scales: NDArray[Any] = rng.integers(1, 255, blocks).astype(np.uint8)
    if not scheme.is_mx:
        scales = rng.uniform(0.5, 2, blocks).astype(scheme.scale.dtype)
    zero_points = rng.integers(-(2**31), 2**31, blocks) if scheme.offset == "zero_point" else None
    minimums = rng.standard_normal(blocks).astype(np.float16) if scheme.offset == "minimum" else None
    return BlockTensor.from_parts(
        scheme, codes, scales, zero_points=zero_points, minimums=minimums, axis=axis
    )


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(variants())),
    st.lists(st.integers(1, 5), min_size=0, max_size=2),
    st.integers(1, 80),
    st.integers(0, 2),
    st.sampled_from(["bytes", "typed"]),
    st.integers(0, 999),
)
def test_own_layout_round_trip(
    name: str, others: list[int], length: int, place: int, dtypes: str, seed: int
) -> None:
    axis = min(place, len(others))
    shape = (*others[:axis], length, *others[axis:])
    w = random_tensor(variants()[name], shape, axis, seed)
    arrays, config = own(w, dtypes=dtypes)
    options = Options(settings={"dtypes": dtypes})
    assert dialect.specs("m.weight", w.shape, w.axis, w.scheme, options) == stored_of(arrays)
    found = found_in(arrays, config)
    assert found.consumed == frozenset(arrays)
    assert dialect.read(found.weights[0], arrays.__getitem__).same_bits(w)


def test_own_layout_stores_codes_in_the_order_of_the_tensor() -> None:
    w = random_tensor(bs.scheme("int4"), (3, 40, 5), 1, 0)
    arrays, _ = own(w)
    assert arrays["m.weight"].shape == (3, 40, 3)  # five codes in three bytes
    assert arrays["m.weight_scale"].shape == (3, 2, 5)  # the shape of the tensor, its axis divided
    codes = unpack_codes(arrays["m.weight"], 4, 5).astype(np.int8)
    assert np.array_equal(np.where(codes > 7, codes - 16, codes), w.codes().astype(np.int8))


def test_own_layout_of_mx_is_a_plain_pair_without_its_metadata() -> None:
    for scheme in ("mxfp4", "mxfp8_e4m3", "mxfp8_e5m2"):
        w = bs.quantize(values((4, 64)), scheme)
        arrays, _ = own(w)
        assert read_one(arrays).same_bits(w)
    typed, _ = own(bs.quantize(values((4, 64)), "mxfp4"), dtypes="typed")
    assert [p.dtype for p in stored_of(typed).values()] == ["F4", "F8_E8M0"]


@pytest.mark.parametrize("scheme", ["mxfp4", "int4", "q4_1", "uint4", "mxfp6_e2m3", "mxint8"])
@pytest.mark.parametrize("dtypes", ["bytes", "typed"])
def test_own_layout_through_a_file(tmp_path: Path, scheme: str, dtypes: str) -> None:
    w = bs.quantize(values((6, 70)), scheme)
    arrays, _ = own(w, dtypes=dtypes)
    strings = dialect.metadata({"m.weight": w}, ["norm.weight"], NONE)
    path = tmp_path / "own.safetensors"
    write_safetensors(path, {**arrays, "norm.weight": values((6,))}, strings)
    file = SafetensorsFile(path)
    stored = stored_of({name: file.array(name) for name in file.entries})
    found = dialect.recognise(stored, dialect.from_metadata(file.metadata), file.array, NONE)
    assert found is not None
    assert dialect.read(found.weights[0], file.array).same_bits(w)
    assert set(file.entries) - found.consumed == {"norm.weight"}
    entry = json.loads(strings["blockscale"])["tensors"]["m.weight"]
    assert entry["rule"] == w.report.rule
    assert (entry["axis"], entry["shape"], entry["block_size"]) == (1, [6, 70], 32)


def test_own_layout_in_config_json() -> None:
    w = bs.quantize(values((4, 64)), "int4")
    arrays, _ = own(w)
    config = json.loads(json.dumps(dialect.config({"m.weight": w}, [], NONE)))
    assert config["quantization_config"]["quant_method"] == "blockscale"
    assert dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__).same_bits(w)
    assert dialect.from_metadata({"format": "pt"}) == {}


def test_own_tensors_beside_foreign_pairs() -> None:
    w, mx = bs.quantize(values((4, 64)), "int4"), bs.quantize(values((4, 64)), "mxfp4")
    arrays, config = own(w)
    arrays |= {"n.weight": codes_of(mx), "n.weight_scale": scales_of(mx)}
    found = found_in(arrays, config)
    assert [weight.name for weight in found.weights] == ["m.weight", "n.weight"]
    assert dialect.read(found.weights[1], arrays.__getitem__).same_bits(mx)


def test_zero_points_stay_even_if_all_are_zero() -> None:
    w = bs.quantize(np.abs(values((4, 64))), bs.scheme("int8", symmetric=False))
    zero = BlockTensor.from_parts(w.scheme, w.codes(), w.scales, zero_points=np.zeros((4, 2), np.int32))
    arrays, config = own(zero)
    assert not arrays["m.weight_zero_point"].any()
    assert dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__).same_bits(zero)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_zero_tensors_have_finite_scales(scheme: str) -> None:
    w = bs.quantize(np.zeros((4, 64), np.float32), scheme)
    arrays, config = own(w)
    assert np.isfinite(w.scales.astype(np.float32)).all()
    assert not dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__).dequantize().any()


def test_nan_blocks_are_kept_and_affine_scales_must_be_finite() -> None:
    x = values((4, 64))
    x[1, 40] = np.nan
    w = bs.quantize(x, "mxfp4", nonfinite="nan-block")
    arrays, config = own(w)
    assert dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__).same_bits(w)
    w = bs.quantize(values((4, 64)), "int4")
    arrays, config = own(w)
    arrays["m.weight_scale"] = np.full((4, 2), np.nan, np.float16)
    weight = found_in(arrays, config).weights[0]
    with pytest.raises(FormatError, match="8 of 8 scales"):
        dialect.read(weight, arrays.__getitem__)
    bad = BlockTensor.from_parts(w.scheme, w.codes(), arrays["m.weight_scale"])
    with pytest.raises(FormatError, match="8 of 8 scales"):
        dialect.write("m.weight", bad, NONE)


@pytest.mark.parametrize("part", ["m.weight", "m.weight_scale", "m.weight_zero_point"])
def test_missing_parts_are_named(part: str) -> None:
    arrays, config = own(bs.quantize(values((4, 64)), "uint4"))
    del arrays[part]
    with pytest.raises(FormatError, match=f"'{part}' is missing"):
        recognise(arrays, config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scheme", "int5"),
        ("scheme", 7),
        ("element", "uint4"),
        ("offset", "zero_point"),
        ("scale", "float64"),
        ("scale", "bfloat16"),
        ("block_size", 33),
        ("block_size", "32"),
        ("block_size", None),
        ("axis", 2),
        ("axis", "1"),
        ("axis", 0),
        ("shape", [4, 65]),
        ("shape", [4, -64]),
        ("shape", "4x64"),
        ("shape", []),
        ("value_exponent", -6),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(key: str, value: Any) -> None:
    arrays, config = own(bs.quantize(values((4, 64)), "int4"))
    config["blockscale"]["tensors"]["m.weight"][key] = value
    with pytest.raises(FormatError) as caught:
        recognise(arrays, config)
    assert caught.value.tensor == "m.weight"


@pytest.mark.parametrize("described", [[], {}, {"version": 1}, {"version": 1, "tensors": {"m.weight": None}}])
def test_malformed_descriptions_are_refused(described: Any) -> None:
    arrays, _ = own(bs.quantize(values((4, 64)), "int4"))
    with pytest.raises(FormatError):
        recognise(arrays, {"blockscale": described})


def test_unknown_versions_and_broken_json() -> None:
    arrays, config = own(bs.quantize(values((4, 64)), "int4"))
    config["blockscale"]["version"] = 2
    with pytest.raises(UnsupportedError, match="version 2 of the layout"):
        recognise(arrays, config)
    with pytest.raises(FormatError, match="not JSON"):
        dialect.from_metadata({"blockscale": "{"})


def test_bits_behind_the_codes_are_cleared() -> None:
    w = random_tensor(bs.scheme("int4"), (3, 33), 1, 0)
    arrays, config = own(w)
    dirty = arrays["m.weight"].copy()
    dirty[:, -1] |= 0xF0
    arrays["m.weight"] = dirty
    assert dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__).same_bits(w)


def test_schemes_outside_the_table_are_refused() -> None:
    from dataclasses import replace

    w = bs.quantize(values((4, 64)), "int4")
    odd = BlockTensor(w.grid, replace(w.scheme, name="mine"), w.packed, w.row_scales)
    with pytest.raises(UnsupportedError, match="no variant of the scheme 'mine'"):
        own_layout.write("m.weight", odd, NONE)


def test_reading_the_common_case_copies_nothing() -> None:
    arrays, config = own(bs.quantize(values((4, 64)), "int4"))
    w = dialect.read(found_in(arrays, config).weights[0], arrays.__getitem__)
    assert np.shares_memory(w.packed, arrays["m.weight"])

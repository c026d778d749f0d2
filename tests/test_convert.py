"""Conversions: every readable form to every writable one; what is said to be exact is, bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
import convert_files as toys
import gguf_files
from blockscale.checkpoint import open_checkpoint, save_checkpoint
from blockscale.containers.gguf import GgufFile
from blockscale.dialects import ggml
from blockscale.dialects.base import Options
from blockscale.elements import ELEMENTS
from blockscale.errors import BlockscaleError, ContainerError, FormatError, InputError, OutputError
from blockscale.hurray import BufferHandle, HurrayTensor, PerChannelAffine, TensorDescriptor
from blockscale.manifest import manifest_bytes
from blockscale.outputs import MANIFEST
from blockscale.pipeline import run_plan
from blockscale.plan import plan_quantize
from blockscale.sources import HrrySource
from blockscale.targets import KINDS, target_for
from blockscale.verify import verify_file
from convert_files import READABLE, WRITABLE, contents, convert, plan_for, same_bits, values
from safetensors_files import names_in
from word_files import make_layer

# What a form has no place for in a target, and why; everything else goes over.
REFUSED = {
    ("gguf q8_0", "awq"): "codes have 8 bits",
    ("gguf q5_0", "awq"): "codes have 8 bits",
    ("gptq 8 bit", "awq"): "codes have 8 bits",
    ("gguf q5_1", "awq"): "minimums",
    ("gguf mxfp4", "awq"): "float4_e2m1",
    ("plain mx", "awq"): "float8_e4m3",
    ("gpt-oss", "compressed-tensors"): "end in '.weight'",
    ("gpt-oss", "gptq"): "...weight",
    ("gpt-oss", "awq"): "...weight",
} | {
    (name, "gpt-oss"): "is not MXFP4"
    for name in READABLE
    if name not in ("plain shards", "gguf mxfp4", "gpt-oss")
}
# What changes values, and the reason that is given.
REENCODED = {
    **{("gguf q4_1", k): "no multiple of the scale" for k in ("hrry", "compressed-tensors", "gptq", "awq")},
    **{
        ("gguf q5_1", k): "no multiple of the scale"
        for k in ("hrry", "plain-mx", "compressed-tensors", "gptq")
    },
    ("gptq 8 bit", "gguf"): "less zero points reach",
    ("plain mx", "gguf"): "are no q8_0 values",
    ("plain mx", "gptq"): "are no int8 values",
}
PAIRS = [(s, t) for s in READABLE for t in WRITABLE]


def test_the_tables_name_every_target() -> None:
    assert set(WRITABLE) == set(KINDS)
    assert set(REFUSED) | set(REENCODED) <= set(PAIRS)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda x: x.replace(" ", "-"))
def test_every_form_into_every_target(tmp_path: Path, source: str, target: str) -> None:
    made = READABLE[source](tmp_path)
    before, out = contents(made), tmp_path / WRITABLE[target]
    if (source, target) in REFUSED:
        with pytest.raises(BlockscaleError) as caught:
            convert(made, out, target)
        assert REFUSED[source, target] in str(caught.value)
        assert not out.exists()
        return
    results = convert(made, out, target)
    assert contents(made) == before
    with open_checkpoint(made) as old, open_checkpoint(out) as new:
        assert set(old) == set(new)
        for r in results:
            x, y = values(old, r.item.name), values(new, r.item.name)
            assert r.exact == (r.item.action != "recode")
            if r.exact:
                assert same_bits(x, y), r.item.name
                assert (r.largest_error, r.mean_error, r.item.reason) == (0, 0, "")
            else:
                error = np.abs(x.astype(np.float64) - y.astype(np.float64))
                assert REENCODED[source, target] in r.item.reason
                assert r.largest_error == error.max()
                assert r.mean_error == pytest.approx(error.mean(), rel=1e-12)
    assert any(not r.exact for r in results) == ((source, target) in REENCODED)


@pytest.mark.parametrize(("source", "target"), list(REENCODED), ids=lambda x: x.replace(" ", "-"))
def test_exact_refuses_what_would_change(tmp_path: Path, source: str, target: str) -> None:
    made, out = READABLE[source](tmp_path), tmp_path / WRITABLE[target]
    with pytest.raises(InputError) as caught:
        convert(made, out, target, exact=True)
    assert REENCODED[source, target] in str(caught.value)
    assert "--exact" in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("gptq v1", "gptq"),
        ("gptq sym", "gptq"),
        ("gptq 8 bit", "gptq"),
        ("awq", "awq"),
        ("compressed-tensors", "compressed-tensors"),
        ("compressed-tensors asym", "compressed-tensors"),
        ("gpt-oss", "gpt-oss"),
    ],
)
@pytest.mark.parametrize("way", ["straight", "hrry", "own layout"])
def test_there_and_back_gives_the_same_parts(tmp_path: Path, source: str, kind: str, way: str) -> None:
    made, out = READABLE[source](tmp_path), tmp_path / "out"
    if way != "straight":
        middle = tmp_path / ("middle.hrry" if way == "hrry" else "middle.safetensors")
        convert(made, middle, None if way == "hrry" else "plain-mx")
        convert(middle, out, kind)
    else:
        convert(made, out)
    old, new = (open_checkpoint(p / "model.safetensors", dialect="none") for p in (made, out))
    with old, new:
        assert set(old) == set(new)
        for name in old:
            assert np.asarray(old[name]).tobytes() == np.asarray(new[name]).tobytes(), name
            assert old.infos[name].dtype == new.infos[name].dtype
            assert old.infos[name].shape == new.infos[name].shape


def test_gptq_versions_are_translated(tmp_path: Path) -> None:
    layer = make_layer(64, 32, 32)
    section = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
    made = toys.folder(tmp_path / "v1", layer.gptq(1, "q."), section | {"checkpoint_format": "gptq"})
    convert(made, tmp_path / "v2", "gptq", version="gptq_v2")
    config = json.loads((tmp_path / "v2/config.json").read_text())["quantization_config"]
    assert config["checkpoint_format"] == "gptq_v2"
    with open_checkpoint(tmp_path / "v2/model.safetensors", dialect="none") as ckpt:
        for name, array in layer.gptq(0, "q.").items():
            assert np.array_equal(np.asarray(ckpt[name]), array), name


# GGUF


def kquant_blob() -> bytes:
    """A GGUF with a type that a BlockTensor cannot hold, an odd alignment and no padding at the end."""
    r = np.random.default_rng(2)
    metadata = [gguf_files.u32("general.alignment", 64), gguf_files.u32("general.file_type", 15)]
    q4k = r.integers(0, 256, 2 * 144, np.uint8).tobytes()
    halves = r.standard_normal(6).astype(np.float16).tobytes()
    infos = [gguf_files.info("k", (256, 2), 12), gguf_files.info("h", (3, 2), 1, 320)]
    data = q4k.ljust(320, b"\0") + halves
    return gguf_files.blob(metadata, infos, data, alignment=64, version=2)


@pytest.mark.parametrize("kind", ["golden", "all types", "k-quant"])
def test_gguf_to_gguf_is_the_same_file(tmp_path: Path, kind: str) -> None:
    blob = {
        "golden": (gguf_files.GOLDEN / "golden.gguf").read_bytes,
        "all types": lambda: toys.gguf_blob(toys.gguf_tensors(list(ggml.FORMATS))),
        "k-quant": kquant_blob,
    }[kind]()
    made = gguf_files.write(tmp_path, blob)
    results = convert(made, tmp_path / "out.gguf")
    assert all(r.exact for r in results)
    assert (tmp_path / "out.gguf").read_bytes() == blob


def test_gguf_through_hrry_keeps_every_key_and_exact_tensors(tmp_path: Path) -> None:
    tensors = toys.gguf_tensors(["Q8_0", "Q4_0", "Q4_1", "Q5_0", "MXFP4", "Q5_1"])
    tensors["whole.weight"] = ("Q4_1", (8, 64), toys.exact_q4_1(16))
    made = gguf_files.write(tmp_path, toys.gguf_blob(tensors))
    there = {r.item.name: r for r in convert(made, tmp_path / "middle.hrry")}
    back = {r.item.name: r for r in convert(tmp_path / "middle.hrry", tmp_path / "back.gguf")}
    kept = [n for n in there if there[n].exact and back[n].exact]
    assert not there["blk.2.w.weight"].exact
    assert there["whole.weight"].exact
    with GgufFile(made) as old, GgufFile(tmp_path / "back.gguf") as new:
        assert list(old.metadata) == list(new.metadata)
        for key, value in old.metadata.items():
            if key != "general.file_type":  # Q4_1 and Q5_1 became Q8_0
                assert (new.metadata[key].type, new.metadata[key].raw) == (value.type, value.raw)
        assert list(old.entries) == list(new.entries)
        for name, entry in old.entries.items():
            if name in kept:
                assert new.entries[name].type == entry.type, name
                assert new.raw(name).tobytes() == old.raw(name).tobytes(), name
    assert len(kept) == 6


def test_the_file_type_follows_the_weights(tmp_path: Path) -> None:
    made = gguf_files.write(tmp_path, toys.gguf_blob(toys.gguf_tensors(["Q8_0", "Q8_0"])))
    with open_checkpoint(made) as ckpt:
        target = target_for(tmp_path / "out.gguf", None, None, Options(), None)
        run_plan(ckpt, plan_quantize(ckpt, bs.scheme("q4_0"), target=target, requantize=True))
    with GgufFile(tmp_path / "out.gguf") as new:
        assert new.metadata["general.file_type"].value == 2
        assert new.metadata["a.i64"].type == "int64"


def test_a_split_gguf_becomes_one_file(tmp_path: Path) -> None:
    for i in range(2):
        infos = [gguf_files.info(f"t{i}", (32,), 0)]
        keys = [gguf_files.kv("split.no", 2, bytes([i, 0])), gguf_files.kv("split.count", 2, b"\x02\0")]
        keys.append(gguf_files.kv("split.tensors.count", 5, (2).to_bytes(4, "little")))
        data = np.arange(32, dtype=np.float32).tobytes()
        gguf_files.write(tmp_path, gguf_files.blob(keys, infos, data), f"m-{i + 1:05}-of-00002.gguf")
    convert(tmp_path / "m-00002-of-00002.gguf", tmp_path / "one.gguf")
    with GgufFile(tmp_path / "one.gguf") as new:
        assert list(new.entries) == ["t0", "t1"]
        assert not new.metadata


# what travels along


def test_companions_config_and_index_travel(tmp_path: Path) -> None:
    made = READABLE["compressed-tensors shards"](tmp_path)
    (made / "quantize_config.json").write_text('{"bits": 4}')
    (made / "tokenizer.model").write_bytes(b"\x00model")
    out = tmp_path / "out"
    results = convert(made, out, "gptq", shard_bytes=3000)
    files = contents(out)
    assert files["tokenizer.json"] == (made / "tokenizer.json").read_bytes()
    assert files["tokenizer.model"] == b"\x00model"
    assert files["generation_config.json"] == (made / "generation_config.json").read_bytes()
    assert "quantize_config.json" not in files
    config = json.loads(files["config.json"])
    assert {k: config[k] for k in toys.LLAMA} == toys.LLAMA
    assert config["quantization_config"]["quant_method"] == "gptq"
    index = json.loads(files["model.safetensors.index.json"])
    shards = [n for n in files if n.endswith(".safetensors")]
    assert len(shards) > 1
    assert set(index["weight_map"].values()) == set(shards)
    total = 0
    for shard in shards:
        with open_checkpoint(out / shard, dialect="none") as ckpt:
            total += sum(info.nbytes for info in ckpt.infos.values())
            assert {n for n, s in index["weight_map"].items() if s == shard} == set(ckpt)
            assert ckpt.metadata["format"] == "pt"
            assert ckpt.nbytes <= 3000 or len({n.split(".")[0] for n in ckpt}) == 1
    assert index["metadata"]["total_size"] == total
    assert {r.item.name for r in results} == set(open_checkpoint(out))


def test_a_single_shard_has_no_index(tmp_path: Path) -> None:
    made = READABLE["plain shards"](tmp_path)
    convert(made, tmp_path / "out")
    assert "model.safetensors.index.json" not in names_in(tmp_path / "out")
    assert "model.safetensors" in names_in(tmp_path / "out")


def test_metadata_of_safetensors_travel(tmp_path: Path) -> None:
    made = tmp_path / "m.safetensors"
    toys.write_safetensors(made, toys.plain(), author="me")
    convert(made, tmp_path / "out.safetensors")
    with open_checkpoint(tmp_path / "out.safetensors") as ckpt:
        assert ckpt.metadata["author"] == "me"
        assert ckpt.metadata["format"] == "pt"


def test_the_own_description_does_not_travel_into_another_dialect(tmp_path: Path) -> None:
    made = READABLE["compressed-tensors"](tmp_path)
    own = tmp_path / "own.safetensors"
    convert(made, own, "plain-mx")
    for kind in ("compressed-tensors", "gptq", "hrry"):
        out = tmp_path / ("o.hrry" if kind == "hrry" else f"out-{kind}")
        convert(own, out, kind)
        with open_checkpoint(out) as ckpt:
            assert "blockscale" not in ckpt.metadata
            assert ckpt.infos["model.q.weight"].scheme is not None


@pytest.mark.parametrize("target", WRITABLE)
def test_tied_tensors_are_seen_once(tmp_path: Path, target: str) -> None:
    """The tie is in the config; one name is stored, one is written, and none is invented."""
    made = toys.folder(tmp_path / "src", toys.plain())
    config = toys.LLAMA | {"tie_word_embeddings": True}
    (made / "config.json").write_text(json.dumps(config))
    out = tmp_path / WRITABLE[target]
    convert(made, out, target)
    with open_checkpoint(out) as ckpt:
        assert sorted(ckpt) == ["embed.weight", "norm.weight"]
        assert len({id(name) for name in ckpt}) == len(ckpt)
    if out.is_dir():
        assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("F4", (np.arange(24, dtype=np.uint8).reshape(3, 8) % 16).view(ml_dtypes.float4_e2m1fn)),
        ("F8_E4M3", np.arange(24, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)),
        ("F8_E5M2", np.arange(24, dtype=np.uint8).view(ml_dtypes.float8_e5m2)),
        ("F8_E8M0", np.arange(1, 25, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)),
        ("F6", (np.arange(24, dtype=np.uint8) % 64).view(ml_dtypes.float6_e2m3fn)),
        ("BOOL", np.array([True, False, True])),
        ("scalar", np.float32(3.5).reshape(())),
        ("empty", np.zeros((0, 4), np.float16)),
        ("I64", np.array([-(2**63), 2**63 - 1])),
    ],
)
@pytest.mark.parametrize("target", ["hrry", "plain-mx"])
def test_plain_tensors_of_every_dtype(tmp_path: Path, name: str, array: np.ndarray, target: str) -> None:
    made = tmp_path / "m.safetensors"
    save_checkpoint(made, {"x": array, "y": np.ones(2, np.float32)})
    out = tmp_path / ("out.hrry" if target == "hrry" else "out.safetensors")
    convert(made, out, target)
    with open_checkpoint(made) as old, open_checkpoint(out) as new:
        x, y = np.asarray(old["x"]), np.asarray(new["x"])
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.tobytes() == y.tobytes()


def test_e8m0_bytes_that_hrry_does_not_have(tmp_path: Path) -> None:
    made = tmp_path / "m.safetensors"
    save_checkpoint(made, {"x": np.array([0, 5, 255], np.uint8).view(ml_dtypes.float8_e8m0fnu)})
    with pytest.raises(InputError, match="2 of 3 E8M0 bytes are 0 or 255"):
        convert(made, tmp_path / "out.hrry")
    convert(made, tmp_path / "out.safetensors")


def test_scale_bytes_that_hrry_does_not_have(tmp_path: Path) -> None:
    """E8M0 0x00: the block is coded again under 0x01, and the error says by how much."""
    parts = toys.gpt_oss_parts("e.down_proj")
    parts["e.down_proj_scales"][0, 0] = 0
    made = toys.folder(tmp_path / "src", parts)
    (result,) = convert(made, tmp_path / "out.hrry")
    assert not result.exact
    assert re.match(r"2 of \d+ scale bytes are below 1,", result.item.reason)
    assert 0 < result.largest_error < 2.0**-126
    with pytest.raises(InputError, match="below 1"):
        convert(made, tmp_path / "exact.hrry", exact=True)


# the manifest


def test_folders_say_what_they_were_made_of(tmp_path: Path) -> None:
    made, out = READABLE["gptq v1"](tmp_path), tmp_path / "out"
    with open_checkpoint(made) as ckpt:
        plan = plan_for(ckpt, out, "compressed-tensors")
        results = run_plan(ckpt, plan)
        wanted = manifest_bytes(ckpt, plan, results)
    assert (out / MANIFEST).read_bytes() == wanted
    found = json.loads(wanted)
    assert found["blockscale"] == bs.__version__
    assert found["source"]["dialects"] == ["gptq"]
    stat = (made / "model.safetensors").stat()
    assert found["source"]["files"] == [
        {"name": "model.safetensors", "nbytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    ]
    assert found["settings"]["verb"] == "convert"
    assert found["output"]["files"] == [
        {"name": "model.safetensors", "nbytes": (out / "model.safetensors").stat().st_size}
    ]
    by_name = {t["name"]: t for t in found["tensors"]}
    assert by_name["model.q.weight"]["to"] == "uint4 g32"
    assert by_name["model.q.weight"]["exact"] is True
    convert(out, tmp_path / "again", "gptq")  # it is no companion of the model
    assert json.loads((tmp_path / "again" / MANIFEST).read_text())["source"]["dialects"] == [
        "compressed-tensors"
    ]


def test_a_manifest_counts_events_and_errors(tmp_path: Path) -> None:
    made = READABLE["gguf q4_1"](tmp_path)
    with open_checkpoint(made) as ckpt:
        plan = plan_for(ckpt, tmp_path / "out.hrry", None)
        found = json.loads(manifest_bytes(ckpt, plan, run_plan(ckpt, plan)))
    first = found["tensors"][0]
    assert (first["action"], first["exact"], first["events"]) == ("recode", False, None)
    assert 0 < first["mean_error"] < first["largest_error"]
    assert "no multiple" in first["reason"]
    assert first["file"] == "out.hrry"


# sources that cannot be trusted


def test_missing_shards_are_named(tmp_path: Path) -> None:
    made = READABLE["plain shards"](tmp_path)
    (made / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ContainerError, match="1 of 3 shards are missing: model-00002-of-00003"):
        open_checkpoint(made)


def test_an_index_that_lists_what_is_not_there(tmp_path: Path) -> None:
    made = READABLE["plain shards"](tmp_path)
    path = made / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["ghost.weight"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ContainerError, match=r"not in their shards, the first 'ghost\.weight'"):
        open_checkpoint(made)
    for broken in ("[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": "../x.safetensors"}}'):
        path.write_text(broken)
        with pytest.raises(ContainerError):
            open_checkpoint(made)


def test_configs_that_contradict_each_other(tmp_path: Path) -> None:
    made = READABLE["gptq v1"](tmp_path)
    (made / "quantize_config.json").write_text('{"bits": 8, "group_size": 32}')
    with pytest.raises(FormatError, match=r"bits is 8 here and 4 in config\.json"):
        open_checkpoint(made)


@pytest.mark.parametrize(
    ("source", "change", "says"),
    [
        ("gptq v1", {"bits": 8}, ("8", "4")),
        ("gptq v1", {"group_size": 64}, ("64", "32")),
        ("awq", {"group_size": 64}, ("64", "32")),
        ("compressed-tensors", {"ignore": ["model.q"]}, ("ignore", "weight_packed")),
    ],
)
def test_config_and_parts_that_contradict_each_other(
    tmp_path: Path, source: str, change: dict[str, Any], says: tuple[str, ...]
) -> None:
    made = READABLE[source](tmp_path)
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"] |= change
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError) as caught:
        open_checkpoint(made)
    for word in says:
        assert word in str(caught.value)
    assert "--dialect" in str(caught.value) or caught.value.hint
    assert set(open_checkpoint(made, dialect="none"))


def test_forced_readings(tmp_path: Path) -> None:
    made = READABLE["gptq v1"](tmp_path)
    with open_checkpoint(made, dialect="none") as ckpt:
        assert "model.q.qweight" in ckpt
    with open_checkpoint(made) as a, open_checkpoint(made, zero_point_bias=0) as b:
        x, y = a["model.q.weight"], b["model.q.weight"]
        assert isinstance(x, bs.BlockTensor)
        assert isinstance(y, bs.BlockTensor)
        assert x.row_offsets is not None
        assert y.row_offsets is not None
        assert np.array_equal(x.row_offsets, y.row_offsets + 1)
    with pytest.raises(FormatError, match="no weight of the dialect 'gpt-oss'"):
        open_checkpoint(made, dialect="gpt-oss")
    with pytest.raises(InputError, match="unknown dialect"):
        open_checkpoint(made, dialect="nonsense")


def test_the_output_is_not_the_source(tmp_path: Path) -> None:
    made = READABLE["plain shards"](tmp_path)
    before = contents(made)
    for size in (20_000, None):
        with pytest.raises((InputError, OutputError)):
            convert(made, made, shard_bytes=size)
    assert contents(made) == before


# quantizing into each target


@pytest.mark.parametrize(
    ("target", "row", "settings"),
    [
        ("hrry", bs.scheme("mxfp4"), {}),
        ("hrry", bs.scheme("uint4", block_size=16), {}),
        ("gguf", bs.scheme("q8_0"), {}),
        ("gguf", bs.scheme("q4_0"), {}),
        ("gguf", bs.scheme("mxfp4"), {}),
        ("plain-mx", bs.scheme("mxfp8_e4m3"), {}),
        ("plain-mx", bs.scheme("mxfp4"), {"dtypes": "typed"}),
        ("plain-mx", bs.scheme("int4", block_size=16), {}),
        ("compressed-tensors", bs.scheme("int4"), {}),
        ("compressed-tensors", bs.scheme("uint4", scale="bfloat16"), {}),
        ("compressed-tensors", bs.scheme("mxfp4"), {}),
        ("gptq", bs.scheme("int4"), {}),
        ("gptq", bs.scheme("uint4"), {"version": "gptq_v2"}),
        ("awq", bs.scheme("uint4"), {}),
        ("gpt-oss", bs.scheme("mxfp4"), {}),
    ],
    ids=lambda x: x.name if isinstance(x, bs.Scheme) else str(x),
)
def test_quantizing_into_each_target(
    tmp_path: Path, target: str, row: bs.Scheme, settings: dict[str, Any]
) -> None:
    weights = {
        "l.up.weight": np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32),
        "l.down.weight": np.random.default_rng(2).standard_normal((32, 64)).astype(ml_dtypes.bfloat16),
    }
    made = toys.folder(tmp_path / "src", weights | {"l.norm.weight": np.ones(64, np.float32)})
    out = tmp_path / WRITABLE[target]
    with open_checkpoint(made) as ckpt:
        place = target_for(out, target, None, Options(None, settings), None)
        results = run_plan(ckpt, plan_quantize(ckpt, row, target=place))
    assert sum(r.item.action == "quantize" for r in results) == 2
    with open_checkpoint(out) as ckpt:
        for name, x in weights.items():
            w, found = bs.quantize(x, row), ckpt[name]
            assert isinstance(found, bs.BlockTensor)
            assert same_bits(found.dequantize(), w.dequantize()), name
            assert found.block_size == row.block_size
        assert np.array_equal(np.asarray(ckpt["l.norm.weight"]), np.ones(64))


def test_more_than_one_dialect_lives_in_a_checkpoint(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 0x7E, (16, 64), np.uint8)
    parts = toys.plain() | toys.gpt_oss_parts("mlp.experts.down_proj")
    parts["q.weight"] = codes.view(ml_dtypes.float8_e4m3fn)
    parts["q.weight_scale"] = np.full((16, 2), 120, np.uint8)
    made = toys.folder(tmp_path / "src", parts)
    results = convert(made, tmp_path / "out.hrry")
    assert all(r.exact for r in results)
    with open_checkpoint(tmp_path / "out.hrry") as ckpt:
        names = {n: i.scheme.name for n, i in ckpt.infos.items() if i.scheme}
        assert names == {"mlp.experts.down_proj": "mxfp4", "q.weight": "mxfp8_e4m3"}


def _asymmetric(folder: Path) -> Path:
    """A folder with uint4 weights, the zero point of one block 0, and their original."""
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    x[0, :32] = np.abs(x[0, :32])
    bs.save(
        folder / "s.hrry", {"l.up.weight": bs.quantize(x, "uint4"), "l.norm.weight": np.ones(64, np.float32)}
    )
    bs.save(folder / "plain.hrry", {"l.up.weight": x, "l.norm.weight": np.ones(64, np.float32)})
    return folder


def test_zero_points_of_0_make_gptq_v2(tmp_path: Path) -> None:
    """v1 cannot say z = 0: known before anything is written, for conversions and for quantizing."""
    made = _asymmetric(tmp_path)
    (weight, _) = convert(made / "s.hrry", tmp_path / "out", "gptq")
    assert weight.exact
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["checkpoint_format"] == "gptq_v2"
    (weight, _) = convert(made / "s.hrry", tmp_path / "v1", "gptq", version="gptq")
    assert weight.exact
    assert weight.item.out.scheme is not None
    assert weight.item.out.scheme.element.bits == 8  # twice as large
    with open_checkpoint(made / "plain.hrry") as ckpt:
        target = target_for(tmp_path / "new", "gptq", None, Options(), None)
        plan = plan_quantize(ckpt, bs.scheme("uint4"), target=target)
        assert "gptq_v2" in plan.notes[0]
        run_plan(ckpt, plan)
        asked = target_for(tmp_path / "old", "gptq", None, Options(None, {"version": "gptq"}), None)
        with pytest.raises(BlockscaleError, match="--setting version=gptq_v2"):
            plan_quantize(ckpt, bs.scheme("uint4"), target=asked)
        assert not plan_quantize(ckpt, bs.scheme("int4"), target=asked).notes
    with open_checkpoint(tmp_path / "new") as ckpt:
        tensor = ckpt["l.up.weight"]
        assert isinstance(tensor, bs.BlockTensor)
        assert tensor.zero_points is not None
        assert tensor.zero_points.min() == 0


def _per_channel() -> HurrayTensor:
    """A tensor of a scheme that has no BlockTensor: its bytes go from file to file as they are."""
    parts = (np.zeros(12, np.uint8), np.ones(4, np.float32).view(np.uint8))
    handles = tuple(BufferHandle(part.size, 64) for part in parts)
    scheme = PerChannelAffine(1, 1)
    return HurrayTensor(TensorDescriptor(ELEMENTS["int8"].tag, (3, 4), handles, quantization=scheme), parts)


@pytest.mark.parametrize("suffix", ["hrry", "gguf"])
@pytest.mark.parametrize("scheme", ["q8_0", "mxfp4", "per channel"])
def test_broken_values_are_not_passed_on(tmp_path: Path, scheme: str, suffix: str) -> None:
    """A .hrry source whose scales no rule allows: refused before anything is written, the tensor named."""
    source, out = tmp_path / "s.hrry", tmp_path / f"o.{suffix}"
    if scheme == "per channel":
        value: Any = _per_channel()
    else:
        value = bs.quantize(np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32), scheme)
    bs.save(source, {"fine.weight": np.ones((2, 32), np.float32), "bad.weight": value})
    with open_checkpoint(source) as ckpt:
        assert isinstance(ckpt._source, HrrySource)
        at = ckpt._source.file.entries["bad.weight"].buffer_offsets[1]
    data = bytearray(source.read_bytes())
    data[at : at + 4] = bytes(4)  # scales of zero; E8M0 bytes of zero
    source.write_bytes(data)
    assert verify_file(source).violations
    with pytest.raises(BlockscaleError, match=r"bad\.weight.*(zero|0x00)"):
        convert(source, out)
    assert not list(tmp_path.glob("o.*"))

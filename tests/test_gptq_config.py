"""GPTQ: the config that is written, as transformers, vLLM and GPTQModel load it."""

from __future__ import annotations

import numpy as np

from blockscale.dialects import gptq
from blockscale.dialects.base import Options
from blockscale.quantize import quantize
from blockscale.schemes import scheme
from blockscale.tensor import BlockTensor
from word_files import Arrays, recognised


def tensor(n_out: int, n_in: int, name: str = "int4", block: int = 32) -> BlockTensor:
    weight = np.random.default_rng(0).standard_normal((n_out, n_in)).astype(np.float32)
    return quantize(weight, scheme(name, block_size=block), axis=-1)


def test_config() -> None:
    written = {f"model.layers.{i}.self_attn.{p}_proj.weight": tensor(16, 64) for i in (0, 1) for p in "qkvo"}
    section = gptq.config(written, [], Options())["quantization_config"]
    assert section["quant_method"] == "gptq"
    assert (section["bits"], section["group_size"], section["sym"], section["desc_act"]) == (
        4,
        32,
        True,
        False,
    )
    assert section["checkpoint_format"] == "gptq"
    assert section["lm_head"] is False
    assert "dynamic" not in section
    assert "modules_in_block_to_quantize" not in section


def test_config_lists_what_was_left() -> None:
    """U8."""
    written = {f"model.layers.{i}.mlp.down_proj.weight": tensor(16, 64) for i in (0, 1)}
    kept = [f"model.layers.{i}.mlp.{p}_proj.weight" for i in (0, 1) for p in ("gate", "up")]
    section = gptq.config(written, [*kept, "lm_head.weight"], Options())["quantization_config"]
    negative = [k for k in section["dynamic"] if k.startswith("-:")]
    assert r"-:^model\.layers\.0\.mlp\.gate_proj$" in negative
    assert r"-:^model\.layers\.1\.mlp\.gate_up_proj$" in negative  # vLLM's fused name
    assert "-:^lm_head$" in negative
    assert section["modules_in_block_to_quantize"] == [["mlp.down_proj"]]
    some = gptq.config(written, ["model.layers.2.mlp.down_proj.weight"], Options())["quantization_config"]
    assert "modules_in_block_to_quantize" not in some  # blocks differ: only the patterns say it
    assert r"-:^model\.layers\.2\.mlp\.down_proj$" in some["dynamic"]


def test_config_of_mixed_weights_reads_back() -> None:
    written = {
        "model.layers.0.a.weight": tensor(16, 64),
        "model.layers.0.b.weight": tensor(16, 64),
        "model.layers.0.c.weight": tensor(16, 64, "int8", 16),
        "model.layers.0.d.weight": tensor(16, 32, "uint4", 16),
        "model.layers.0.e.weight": tensor(16, 96, "int4", 128),
        "lm_head.weight": tensor(16, 16),
    }
    options = Options(settings={"version": "gptq_v2"})
    section = gptq.config(written, ["model.layers.0.norm.weight"], options)["quantization_config"]
    assert (section["bits"], section["group_size"], section["sym"]) == (4, 32, False)
    assert section["lm_head"] is True
    arrays: Arrays = {}
    for name, w in written.items():
        arrays |= gptq.write(name, w, options)
    found = recognised(gptq, arrays, section)
    assert not found.problems
    assert {w.name for w in found.weights} == set(written)
    for weight in found.weights:
        read = gptq.read(weight, arrays.__getitem__)
        assert read.dequantize().tobytes() == written[weight.name].dequantize().tobytes()


def test_config_of_whole_columns() -> None:
    w = tensor(16, 96, "int4", 128)
    section = gptq.config({"a.weight": w}, [], Options())["quantization_config"]
    assert section["group_size"] == -1
    arrays = gptq.write("a.weight", w, Options())
    assert recognised(gptq, arrays, section).weights[0].settings["group_size"] == -1


def test_config_of_nothing() -> None:
    section = gptq.config({}, ["a.weight"], Options())["quantization_config"]
    assert section["bits"] == 4
    assert section["dynamic"] == {"-:^a$": {}}

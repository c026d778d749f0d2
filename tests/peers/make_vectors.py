"""Make the golden files of tests/vectors/compressed_tensors and tests/vectors/gpt_oss (needs torch).

    python tests/peers/make_vectors.py

Everything in the files comes from the packages named in the manifests: compressed-tensors computes scales and
zero points, packs and unpacks; transformers' gpt-oss loader unpacks blocks and scales. No blockscale.
"""

from __future__ import annotations

import json
import platform
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")  # none of these is installed where the sources are checked
package: Any = import_module("compressed_tensors")
compressors: Any = import_module("compressed_tensors.compressors")
quantization: Any = import_module("compressed_tensors.quantization")
calculate_qparams: Any = import_module("compressed_tensors.quantization.utils").calculate_qparams
transformers: Any = import_module("transformers")
unpack_gpt_oss: Any = import_module("transformers.integrations.mxfp4").convert_moe_packed_tensors
save_file: Any = import_module("safetensors.torch").save_file

VECTORS = Path(__file__).parents[1] / "vectors"
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}

INT = "pack-quantized"
CHANNEL = {"strategy": "channel"}
ASYM = {"symmetric": False}

# module: shape, dtype of the weight and so of the scales, format, arguments
CASES: dict[str, tuple[tuple[int, int], Any, str, dict[str, Any]]] = {
    "layers.0.int4_g32": ((8, 64), BF16, INT, {"num_bits": 4, "group_size": 32}),
    "layers.0.int4_g128": ((4, 256), F16, INT, {"num_bits": 4, "group_size": 128}),
    "layers.0.int4_g96": ((3, 192), F16, INT, {"num_bits": 4, "group_size": 96}),
    "layers.0.int4_channel": ((5, 44), F32, INT, {"num_bits": 4, **CHANNEL}),
    "layers.0.int8_g32": ((6, 64), F32, INT, {"num_bits": 8, "group_size": 32}),
    "layers.0.int2_g16": ((7, 48), F16, INT, {"num_bits": 2, "group_size": 16}),
    "layers.1.uint4_g32": ((12, 64), BF16, INT, {"num_bits": 4, "group_size": 32, **ASYM}),
    "layers.1.uint4_zero": ((9, 32), F32, INT, {"num_bits": 4, "group_size": 16, **ASYM}),
    "layers.1.uint8_channel": ((3, 40), F16, INT, {"num_bits": 8, **CHANNEL, **ASYM}),
    "layers.2.mxfp4": ((4, 64), BF16, "mxfp4-pack-quantized", {"num_bits": 4, **MX}),
    "layers.2.mxfp6": ((3, 64), BF16, "mxfp6-pack-quantized", {"num_bits": 6, **MX}),
    "layers.2.mxfp8": ((3, 96), BF16, "mxfp8-quantized", {"num_bits": 8, **MX}),
    "layers.3.w8_channel": ((4, 24), F16, "int-quantized", {"num_bits": 8, **CHANNEL}),
    "layers.3.w8_asym": ((4, 32), F32, "int-quantized", {"num_bits": 8, **CHANNEL, **ASYM}),
    "layers.3.fp8": ((4, 32), F16, "float-quantized", {"num_bits": 8, "type": "float", **CHANNEL}),
}


def group_extremes(weight: Any, args: Any) -> tuple[Any, Any]:
    size = args.group_size if args.strategy == "group" else weight.shape[1]
    groups = weight.reshape(weight.shape[0], -1, size)
    return groups.amin(-1), groups.amax(-1)


def compressed_tensors_files() -> None:
    tensors: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    groups = {}
    for i, (module, (shape, dtype, fmt, given)) in enumerate(CASES.items()):
        strategy = given.get("strategy", "group")
        args = quantization.QuantizationArgs(**{**given, "strategy": strategy, "dynamic": False})
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype)
        scale, zero = calculate_qparams(*group_extremes(weight, args), args)
        scale = scale.to(dtype)
        if fmt.startswith("mx"):  # calculate_qparams gives exponents for MX
            scale = (2.0 ** (scale.float() - 127)).to(dtype)
        if module.endswith("uint4_zero"):
            zero = torch.zeros_like(zero)
        scheme = quantization.QuantizationScheme(targets=[module], weights=args, format=fmt)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
        compressor = compressors.BaseCompressor.get_value_from_registry(fmt)
        packed = compressor.compress(state, scheme)
        back = compressor.decompress(packed, scheme)["weight"]
        tensors |= {f"{module}.{k}": v.detach().contiguous() for k, v in packed.items()}
        if fmt != "float-quantized":
            expected[f"{module}.weight"] = back.detach().contiguous()
        groups[f"group_{i}"] = scheme
    tensors["embed_tokens.weight"] = torch.randn(6, 32, generator=torch.Generator().manual_seed(99)).to(BF16)
    config = quantization.QuantizationConfig(
        config_groups=groups, format="mixed-precision", quantization_status="compressed", ignore=["lm_head"]
    )
    section = {**config.model_dump(mode="json"), "version": package.__version__}
    folder = VECTORS / "compressed_tensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "mixed.safetensors", {"format": "pt"})
    save_file(expected, folder / "mixed.expected.safetensors")
    (folder / "mixed.config.json").write_text(json.dumps({"quantization_config": section}, indent=1) + "\n")
    manifest(folder, f"compressed-tensors {package.__version__}", "BaseCompressor.compress and decompress")


def gpt_oss_files() -> None:
    rng = torch.Generator().manual_seed(5)
    tensors: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, shape in {"gate_up_proj": (2, 6, 2), "down_proj": (2, 3, 1)}.items():
        blocks = torch.randint(0, 256, (*shape, 16), generator=rng).to(torch.uint8)
        scales = torch.randint(0, 250, shape, generator=rng).to(torch.uint8)
        base = f"model.layers.0.mlp.experts.{name}"
        tensors |= {f"{base}_blocks": blocks, f"{base}_scales": scales}
        expected[base] = unpack_gpt_oss(blocks, scales, dtype=F32)  # [experts, in, out]
    tensors["model.layers.0.mlp.router.weight"] = torch.randn(2, 32, generator=rng).to(BF16)
    folder = VECTORS / "gpt_oss"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "toy.safetensors", {"format": "pt"})
    save_file(expected, folder / "toy.expected.safetensors")
    manifest(
        folder,
        f"transformers {transformers.__version__}",
        "integrations.mxfp4.convert_moe_packed_tensors of random bytes, in float32",
    )


def manifest(folder: Path, producer: str, what: str) -> None:
    entry = {
        "producer": producer,
        "how": what,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": "python tests/peers/make_vectors.py",
        "files": sorted(p.name for p in folder.iterdir() if p.name != "manifest.json"),
    }
    (folder / "manifest.json").write_text(json.dumps(entry, indent=1) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compressed_tensors_files()
    gpt_oss_files()

"""Golden files of GPTQ and AWQ, packed and decoded by AutoGPTQ, GPTQModel and AutoAWQ on a CPU.

Not run by the tests. In an environment of its own:

    pip install torch==2.13.0 transformers accelerate safetensors
    pip install --no-deps pypcre logbar device-smi tokenicer threadpoolctl defuser dill packaging
    pip download --no-deps -d dl auto-gptq==0.7.1 autoawq==0.2.9 gptqmodel==7.7.0   # unpack into src/
    python tests/vectors/gptq/make_word_vectors.py src

Packages are imported past their `__init__` (which wants CUDA extensions), so that only the layer classes
run: `auto_gptq ... qlinear_cuda.QuantLinear`, `gptqmodel ... TorchLinear`, `awq ... WQLinear_GEMM`. Expected
values come from their own decoding, with the scales widened to float32 so that nothing is rounded:
AutoGPTQ's forward on the identity, GPTQModel's `dequantize_weight`, AutoAWQ's `dequantize_gemm`.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN201

import hashlib
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
SRC = Path(sys.argv[1])
rng = np.random.default_rng(20)


def skeleton(package, folder):
    """A package whose modules can be imported without running its `__init__`."""
    module = types.ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module


def import_producers():
    for name in ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
        skeleton(name, SRC / name.replace(".", "/"))
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        skeleton(name, SRC / "autoawq-0.2.9" / name.replace(".", "/"))
    sys.path.insert(0, str(SRC / "gptqmodel-7.7.0"))


def parts(bits, n_in, n_out, group, zeros):
    """Float weight [out, in], scales and zeros [out, groups] of a layer whose codes use the whole range."""
    groups = -(-n_in // group)
    scales = torch.tensor(rng.integers(1, 2048, (n_out, groups)) * 2.0**-14, dtype=torch.float16)
    z = torch.tensor(zeros(groups, n_out).T.copy(), dtype=torch.float32)
    codes = torch.tensor(rng.integers(0, 1 << bits, (n_out, n_in)), dtype=torch.float32)
    index = torch.arange(n_in) // group
    weight = (codes - z[:, index]) * scales.float()[:, index]
    return weight, scales, z, index


def linear(weight, dtype):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=dtype)
    layer.weight.data = weight.to(dtype)
    return layer


def autogptq(bits, n_in, n_out, group, zeros, shuffle=False):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    weight, scales, z, index = parts(bits, n_in, n_out, group, zeros)
    if shuffle:
        order = torch.tensor(rng.permutation(n_in))
        weight, index = weight[:, order], index[order]
    layer = QuantLinear(bits, group, n_in, n_out, bias=False, weight_dtype=torch.float16)
    # float32 weight: the packed codes are then exactly those chosen; the file gets float16 scales
    layer.pack(linear(weight, torch.float32), scales.float(), z.clone(), index.to(torch.int32))
    layer.bias = None
    with torch.no_grad():
        expected = layer.forward(torch.eye(n_in)).T.contiguous()
    layer.scales = layer.scales.half()
    return {r: getattr(layer, r) for r in ("qweight", "qzeros", "scales", "g_idx")}, expected


def autogptq_old(stored, bits, n_in, n_out, group):
    """Decode with AutoGPTQ's qlinear_cuda_old, which masks after adding 1 (qlinear_cuda masks before)."""
    from auto_gptq.nn_modules.qlinear.qlinear_cuda_old import QuantLinear

    layer = QuantLinear(bits, group, n_in, n_out, bias=False)
    layer.qweight, layer.qzeros, layer.scales = stored["qweight"], stored["qzeros"], stored["scales"].float()
    with torch.no_grad():
        return layer.forward(torch.eye(n_in)).T.contiguous()


def gptqmodel(bits, n_in, n_out, group, zeros, *, shuffle=False, version="gptq_v2"):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization.config import FORMAT, QuantizeConfig
    from gptqmodel.utils.model import (
        convert_gptq_v1_to_v2_format_module,
        convert_gptq_v2_to_v1_format_module,
    )

    weight, scales, z, index = parts(bits, n_in, n_out, group, zeros)
    if shuffle:
        order = torch.tensor(rng.permutation(n_in))
        weight, index = weight[:, order], index[order]
    layer = TorchLinear(
        bits=bits, group_size=group, sym=False, desc_act=shuffle, in_features=n_in, out_features=n_out,
        bias=False, format=FORMAT.GPTQ_V2,
    )  # fmt: skip
    layer.pack_original(linear(weight, torch.float32), scales.float(), z, index.to(torch.int32))
    if version == "gptq":
        layer.qzero_format(format=2)
        convert_gptq_v2_to_v1_format_module(layer, QuantizeConfig(bits=bits))
    stored = {r: getattr(layer, r).clone() for r in ("qweight", "qzeros", "scales", "g_idx")}
    if version == "gptq":
        convert_gptq_v1_to_v2_format_module(layer, bits, torch.int32)
    layer.scales = layer.scales.float()
    layer.eval()
    expected = layer._dequantize_weight_cached_248().T.contiguous()
    return stored, expected


def autoawq(n_in, n_out, group, zeros):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm, unpack_reorder_pack

    weight, scales, z, _ = parts(4, n_in, n_out, group, zeros)
    layer = WQLinear_GEMM.from_linear(
        linear(weight, torch.float32), 4, group, scales=scales.float().T.contiguous(), zeros=z.T.contiguous()
    )
    stored = {r: getattr(layer, r) for r in ("qweight", "qzeros", "scales")}
    expected = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group).T.contiguous()
    gptq_words = unpack_reorder_pack(layer.qweight, layer.qzeros, 4)
    return stored, expected, gptq_words


def middle(bits):
    return lambda groups, n_out: np.full((groups, n_out), 1 << (bits - 1))


def anything(low, high):
    return lambda groups, n_out: rng.integers(low, high + 1, (groups, n_out))


def save(folder, name, stored, expected, config, more=None):
    tensors = {f"layer.{role}": t.contiguous() for role, t in stored.items()}
    save_file(tensors, folder / f"{name}.safetensors")
    arrays = {k: v.numpy() for k, v in {"weight": expected.float(), **(more or {})}.items()}
    np.savez_compressed(folder / f"{name}.expected.npz", **arrays)
    files = [f"{name}.safetensors", f"{name}.expected.npz"]
    for file in files:
        (folder / file).chmod(0o644)
    sums = {f: hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in files}
    return {"config": {"quantization_config": config}, "sha256": sums}


def gptq_config(bits, group, version, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version, **more}


def main():
    import_producers()
    folder, cases = HERE, {}
    for bits in (2, 4, 8):
        sym = autogptq(bits, 32, 32, 16, middle(bits))
        config = gptq_config(bits, 16, "gptq", sym=True, desc_act=False)
        cases[f"autogptq_sym_{bits}"] = save(folder, f"autogptq_sym_{bits}", *sym, config)
        asym = gptqmodel(bits, 32, 32, 16, anything(0, (1 << bits) - 1))
        config = gptq_config(bits, 16, "gptq_v2", sym=False, desc_act=False)
        cases[f"gptqmodel_v2_{bits}"] = save(folder, f"gptqmodel_v2_{bits}", *asym, config)
        carry = gptqmodel(bits, 32, 32, 16, anything(0, (1 << bits) - 1), version="gptq")
        meta = {"quantizer": ["gptqmodel:7.7.0"]}
        config = gptq_config(bits, 16, "gptq", sym=False, desc_act=False, meta=meta)
        cases[f"gptqmodel_v1_{bits}"] = save(folder, f"gptqmodel_v1_{bits}", *carry, config)
    config = gptq_config(4, 8, "gptq", sym=False, desc_act=False)
    cases["autogptq_asym"] = save(folder, "autogptq_asym", *autogptq(4, 32, 32, 8, anything(1, 15)), config)
    stored, expected = autogptq(4, 32, 32, 8, anything(0, 15))
    masked = {"masked": autogptq_old(stored, 4, 32, 32, 8)}
    cases["autogptq_zero"] = save(folder, "autogptq_zero", stored, expected, config, masked)
    config = gptq_config(4, -1, "gptq", sym=False, desc_act=False)
    cases["autogptq_column"] = save(
        folder, "autogptq_column", *autogptq(4, 96, 32, 96, anything(1, 15)), config
    )
    config = gptq_config(4, 8, "gptq", sym=False, desc_act=True)
    cases["autogptq_act"] = save(
        folder, "autogptq_act", *autogptq(4, 32, 32, 8, anything(1, 15), True), config
    )
    config = gptq_config(8, 16, "gptq_v2", sym=False, desc_act=True)
    act = gptqmodel(8, 32, 32, 16, anything(0, 255), shuffle=True)
    cases["gptqmodel_act"] = save(folder, "gptqmodel_act", *act, config)
    producers = "auto-gptq 0.7.1 (autogptq_*), gptqmodel 7.7.0 (gptqmodel_*)"
    write_manifest(folder, producers, cases)

    folder, cases = HERE.parent / "awq", {}
    for name, group, zeros in (("gemm_asym", 8, anything(0, 15)), ("gemm_sym", 32, middle(4))):
        stored, expected, (words, zero_words) = autoawq(32, 32, group, zeros)
        config = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
        }
        more = {"gptq_qweight": words, "gptq_qzeros": zero_words}
        cases[name] = save(folder, name, stored, expected, config, more)
    write_manifest(folder, "autoawq 0.2.9; gptq_* by its unpack_reorder_pack", cases)


def write_manifest(folder, producers, cases):
    manifest = {
        "producer": f"{producers}, torch {torch.__version__}, numpy {np.__version__}",
        "command": "python tests/vectors/gptq/make_word_vectors.py src",
        "cases": cases,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()

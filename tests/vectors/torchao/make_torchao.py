"""Scale bytes and codes of torchao's MX cast, for every element and rule that it has.

Run with torch 2.13.0 (CPU) and torchao 0.18.0: `python make_torchao.py`; it writes `mx.npz` and
`manifest.json` beside itself.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torchao
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

HERE = Path(__file__).parent
ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
}


def inputs() -> np.ndarray:
    """float32 (blocks, 32): normal, heavy-tailed, near powers of two, wide range of exponents."""
    rng = np.random.default_rng(20261130)
    powers = np.ldexp(np.float32(1), np.arange(-100, 100, 7)).astype(np.float32)
    near = np.concatenate([powers, np.nextafter(powers, np.float32(0)), powers * 1.5, powers * 1.75])
    special = rng.standard_normal((len(near), 32)).astype(np.float32)
    special *= (near / np.abs(special).max(axis=1) * 0.9)[:, None]
    special[:, 0] = near
    normal = rng.standard_normal((64, 32))
    heavy = rng.standard_t(3, (64, 32)) * np.ldexp(1.0, rng.integers(-60, 60, (64, 1)))
    return np.concatenate([special, normal, heavy]).astype(np.float32)


def main() -> None:
    x = inputs()
    arrays = {"x": x}
    for name, element in ELEMENTS.items():
        for rule in ("floor", "ceil", "rceil", "even"):
            scale, data = to_mx(torch.from_numpy(x), element, 32, ScaleCalculationMode(rule))
            arrays[f"{name}.{rule}.scale"] = scale.view(torch.uint8).numpy().reshape(-1)
            arrays[f"{name}.{rule}.data"] = data.view(torch.uint8).numpy().reshape(len(x), -1)
    np.savez_compressed(HERE / "mx.npz", allow_pickle=False, **arrays)
    manifest = {
        "producer": "torchao.prototype.mx_formats.mx_tensor.to_mx",
        "versions": {"torchao": torchao.__version__, "torch": torch.__version__},
        "command": "python make_torchao.py",
        "arrays": sorted(arrays),
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()

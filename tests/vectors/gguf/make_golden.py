"""Makes `golden.gguf` and `manifest.json` with the gguf package; needs nothing of blockscale.

Run: python tests/vectors/gguf/make_golden.py
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HERE = Path(__file__).parent
PLAIN = {"f32": "<f4", "f16": "<f2", "f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}
BLOCKS = {
    "q8_0": (3, 64),
    "q4_0": (2, 2, 96),
    "q4_1": (4, 32),
    "q5_0": (3, 64),
    "q5_1": (3, 64),
    "mxfp4": (3, 64),
}
DENSE = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "NVFP4", "IQ4_NL", "IQ4_XS"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
)


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Weights with rows of zeros, equal numbers, large and tiny magnitudes among them."""
    x = rng.standard_normal(shape).astype(np.float32)
    flat = x.reshape(-1, shape[-1])
    flat[0] *= 100
    flat[-1, :32] = 0
    flat[1, :32] = -0.25
    flat[1, -1] *= 1e-3
    return x


def add_metadata(out: gguf.GGUFWriter) -> None:
    """One key of every type that the writer knows."""
    out.add_name("golden")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        bits = int(name.strip("uint"))
        getattr(out, f"add_{name}")(
            f"test.{name}", (1 << (bits - 1)) - 1 if name[0] == "i" else (1 << bits) - 1
        )
    out.add_float32("test.float32", 0.1)
    out.add_float64("test.float64", 0.1)
    out.add_bool("test.true", True)
    out.add_bool("test.false", False)
    out.add_string("test.string", "Gewicht \u00e4\u00f6\u00fc \U0001f642")
    out.add_array("test.strings", ["a", "", "bc \u00e9"])
    out.add_array("test.ints", [1, -2, 3])
    out.add_array("test.floats", [0.5, 1e-3])
    out.add_array("test.bools", [True, False, True])
    out.add_array("test.bytes", b"\x00\x01\xff")
    out.add_array("test.nested", [[1, 2], [3]])


def main() -> None:
    """Write both files."""
    logging.disable()
    rng = np.random.default_rng(20)
    path = HERE / "golden.gguf"
    out = gguf.GGUFWriter(path, "test")
    add_metadata(out)
    tensors: dict[str, Any] = {}

    def note(name: str, kind: str, shape: tuple[int, ...], decoded: Any) -> None:
        digest = hashlib.sha256(np.ascontiguousarray(decoded).tobytes()).hexdigest()
        tensors[name] = {"type": kind, "shape": list(shape), "values_sha256": digest}

    for name, dtype in PLAIN.items():
        x = (rng.standard_normal((2, 3, 5)) * 50).astype(dtype)
        out.add_tensor(name, x)
        note(name, name.upper(), x.shape, x)
    one = np.array(2.5, np.float32)
    out.add_tensor("scalar", one)
    note("scalar", "F32", (), one)
    for name, shape in {"bf16": (4, 4), **BLOCKS}.items():
        kind = gguf.GGMLQuantizationType[name.upper()]
        data = gguf.quants.quantize(
            values(rng, (4, 32))[:, :4] if name == "bf16" else values(rng, shape), kind
        )
        out.add_tensor(name, data, raw_dtype=kind)
        note(name, kind.name, shape, gguf.quants.dequantize(data, kind))
    for upper in DENSE:
        kind = gguf.GGMLQuantizationType[upper]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 0x40, (2, 256 // block * size), np.uint8)  # small enough for no NaN scale
        out.add_tensor(upper.lower(), data, raw_dtype=kind)
        with np.errstate(all="ignore"):
            note(upper.lower(), upper, (2, 256), gguf.quants.dequantize(data, kind))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    manifest = {
        "producer": f"gguf {version('gguf')}, numpy {version('numpy')}",
        "command": "python tests/vectors/gguf/make_golden.py",
        "file": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()},
        "version": struct.unpack("<I", path.read_bytes()[4:8])[0],
        "tensors": tensors,
    }
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()

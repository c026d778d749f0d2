"""Toy checkpoints in every readable form, laid out by hand, and runs of the pipeline over them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import gguf_files
from blockscale.checkpoint import Checkpoint, open_checkpoint
from blockscale.containers.safetensors import stored_name
from blockscale.dialects.base import Options
from blockscale.pipeline import run_plan
from blockscale.plan import Plan, plan_convert
from blockscale.results import TensorResult
from blockscale.targets import target_for
from safetensors_files import blob as safetensors_blob
from word_files import make_layer

Arrays = dict[str, NDArray[Any]]
LLAMA = {"model_type": "llama", "hidden_size": 64}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def plain(seed: int = 0) -> Arrays:
    """The tensors of a toy model that are not quantized."""
    return {
        "embed.weight": rng(seed).standard_normal((40, 64)).astype(ml_dtypes.bfloat16),
        "norm.weight": rng(seed + 1).standard_normal(64).astype(np.float32),
    }


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]], **metadata: str) -> None:
    """A file by the documented layout: header, then the arrays one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    at, data = 0, b""
    for name, a in arrays.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[name] = {
            "dtype": stored_name(a.dtype),
            "shape": list(a.shape),
            "data_offsets": [at, at + len(raw)],
        }
        data, at = data + raw, at + len(raw)
    text = json.dumps(header)
    path.write_bytes(safetensors_blob(text + " " * (-len(text) % 8), data))


def folder(path: Path, arrays: Arrays, section: Mapping[str, Any] | None = None, shards: int = 1) -> Path:
    """A model folder: config, tokenizer, and the weights in one file or shards with an index."""
    path.mkdir()
    config = LLAMA | ({} if section is None else {"quantization_config": section})
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text('{"tokens": ["a", "\u00e9"]}')
    (path / "generation_config.json").write_text('{"top_k": 3}')
    names = list(arrays)
    if shards == 1:
        write_safetensors(path / "model.safetensors", arrays)
        return path
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {n: arrays[n] for n in names[i::shards]}
        write_safetensors(path / file, part)
        weight_map |= dict.fromkeys(part, file)
    total = sum(a.nbytes for a in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


# ---- GGUF


def blocks(kind: str, n: int, seed: int = 0) -> bytes:
    """Random blocks of 32 elements of a ggml type; scales are ordinary numbers."""
    r = rng(seed)
    halves = [struct.pack("<e", x) for x in r.uniform(0.01, 1, n).astype(np.float16)]
    codes = {"Q8_0": 32, "Q4_0": 16, "Q4_1": 16, "Q5_0": 20, "Q5_1": 20, "MXFP4": 16}[kind]
    out = b""
    for i in range(n):
        body = r.integers(0, 256, codes, np.uint8).tobytes()
        if kind == "MXFP4":
            body = bytes(b if b & 15 != 8 and b >> 4 != 8 else 0x11 for b in body)  # ggml has no minus zero
            out += bytes([int(r.integers(110, 130))]) + body
            continue
        minimum = struct.pack("<e", -float(r.uniform(0, 2))) if kind in ("Q4_1", "Q5_1") else b""
        out += halves[i] + minimum + body
    return out


def exact_q4_1(n: int, seed: int = 0) -> bytes:
    """Q4_1 blocks whose minimum is a whole multiple of their scale."""
    r = rng(seed)
    out = b""
    for _ in range(n):
        scale, steps = 2.0 ** int(r.integers(-6, 2)), int(r.integers(1, 15))
        out += struct.pack("<ee", scale, -scale * steps) + r.integers(0, 256, 16, np.uint8).tobytes()
    return out


TYPE_IDS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "MXFP4": 39,
    "BF16": 30,
}


def gguf_blob(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], file_type: int = 7) -> bytes:
    """A GGUF file with metadata of many types."""
    kv, text = gguf_files.kv, gguf_files.text
    metadata = [
        kv("general.architecture", 8, text("llama")),
        gguf_files.u32("general.file_type", file_type),
        kv("a.u8", 0, b"\x07"),
        kv("a.i64", 11, struct.pack("<q", -5)),
        kv("a.f64", 12, struct.pack("<d", 0.1)),
        kv("a.flag", 7, b"\x00"),
        gguf_files.array("tokenizer.ggml.tokens", 8, 3, text("a") + text("\u00e9") + text("")),
        gguf_files.array("tokenizer.ggml.scores", 6, 2, struct.pack("<ff", 0.25, -1)),
        gguf_files.array("deep", 9, 1, struct.pack("<IQ", 0, 2) + b"\x01\x02"),
    ]
    infos, data = [], b""
    for name, (kind, shape, raw) in tensors.items():
        infos.append(gguf_files.info(name, tuple(reversed(shape)), TYPE_IDS[kind], len(data)))
        data += raw + bytes(-len(raw) % 32)
    return gguf_files.blob(metadata, infos, data)


def gguf_tensors(kinds: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """One `[8, 64]` weight per type, and a plain norm."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {
        f"blk.{i}.w.weight": (kind, (8, 64), blocks(kind, 16, i)) for i, kind in enumerate(kinds)
    }
    norm = rng(9).standard_normal(64).astype(np.float32).tobytes()
    return found | {"norm.weight": ("F32", (64,), norm)}


# ---- readable forms: name to a function that makes one


def _gguf(kinds: Sequence[str]) -> Callable[[Path], Path]:
    return lambda folder: gguf_files.write(folder, gguf_blob(gguf_tensors(kinds)))


def _gptq(version: str, **layer: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        bits = layer.get("bits", 4)
        parts = make_layer(64, 32, 32, **layer).gptq(1 if version == "gptq" else 0, "model.q.")
        symmetric = layer.get("zeros") is not None
        section = {
            "quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, "sym": symmetric,
            "checkpoint_format": version,
        }  # fmt: skip
        return folder(path / "src", plain() | parts, section)

    return make


def _awq(path: Path) -> Path:
    section = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    return folder(path / "src", plain() | make_layer(64, 32, 32, seed=3).awq("model.q."), section)


def compressed_parts(module: str, *, symmetric: bool = True, seed: int = 5) -> Arrays:
    """int4 groups of 32, `[16, 64]`, as compressed-tensors packs them, field by field."""
    r = rng(seed)
    codes = r.integers(0, 16, (16, 64)).astype(np.uint64)
    words = sum(codes[:, i::8] << np.uint64(4 * i) for i in range(8))
    parts: Arrays = {
        f"{module}.weight_packed": np.asarray(words).astype(np.uint32).view(np.int32),
        f"{module}.weight_scale": r.uniform(0.01, 1, (16, 2)).astype(np.float16),
        f"{module}.weight_shape": np.array([16, 64], np.int64),
    }
    if not symmetric:
        zeros = r.integers(0, 16, (16, 2)).astype(np.uint64)
        down = sum(zeros[i::8] << np.uint64(4 * i) for i in range(8))
        parts[f"{module}.weight_zero_point"] = np.asarray(down).astype(np.uint32).view(np.int32)
    return parts


def compressed_section(*, symmetric: bool = True) -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32,
        "dynamic": False,
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "format": "pack-quantized"}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": group}, "quantization_status": "compressed", "version": "0.13.0",
    }  # fmt: skip


def _compressed(*, symmetric: bool, shards: int = 1) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        parts = plain() | compressed_parts("model.q", symmetric=symmetric)
        if shards > 1:
            parts |= compressed_parts("model.k", symmetric=symmetric, seed=6)
        return folder(path / "src", parts, compressed_section(symmetric=symmetric), shards)

    return make


def gpt_oss_parts(base: str, seed: int = 7) -> Arrays:
    """Two experts `[32, 64]` of MXFP4."""
    r = rng(seed)
    return {
        f"{base}_blocks": r.integers(0, 256, (2, 32, 2, 16), np.uint8),
        f"{base}_scales": r.integers(110, 130, (2, 32, 2), np.uint8),
    }


def _gpt_oss(path: Path) -> Path:
    parts = gpt_oss_parts("model.mlp.experts.down_proj") | gpt_oss_parts("model.mlp.experts.gate_up_proj", 8)
    return folder(path / "src", plain() | parts, {"quant_method": "mxfp4", "modules_to_not_convert": []})


def _plain_mx(path: Path) -> Path:
    r = rng(11)
    arrays = plain() | {
        "q.weight": r.integers(0, 0x7E, (16, 64), np.uint8).view(ml_dtypes.float8_e4m3fn),
        "q.weight_scale": r.integers(110, 130, (16, 2), np.uint8),
    }
    return folder(path / "src", arrays)


def _plain_shards(path: Path) -> Path:
    arrays = plain() | {
        f"l.{i}.weight": rng(i).standard_normal((64, 64)).astype(np.float16) for i in range(6)
    }
    return folder(path / "src", arrays, shards=3)


READABLE: dict[str, Callable[[Path], Path]] = {
    "plain shards": _plain_shards,
    "gguf q8_0": _gguf(["Q8_0"]),
    "gguf q4_0": _gguf(["Q4_0"]),
    "gguf q4_1": _gguf(["Q4_1"]),
    "gguf q5_0": _gguf(["Q5_0"]),
    "gguf q5_1": _gguf(["Q5_1"]),
    "gguf mxfp4": _gguf(["MXFP4"]),
    "gptq v1": _gptq("gptq"),
    "gptq v2": _gptq("gptq_v2", low=0),
    "gptq sym": _gptq("gptq", zeros=8),
    "gptq 8 bit": _gptq("gptq", bits=8),
    "awq": _awq,
    "compressed-tensors": _compressed(symmetric=True),
    "compressed-tensors asym": _compressed(symmetric=False),
    "compressed-tensors shards": _compressed(symmetric=True, shards=2),
    "gpt-oss": _gpt_oss,
    "plain mx": _plain_mx,
}

WRITABLE = {
    "hrry": "out.hrry",
    "gguf": "out.gguf",
    "plain-mx": "out",
    "compressed-tensors": "out",
    "gptq": "out",
    "awq": "out",
    "gpt-oss": "out",
}


# ---- runs


def plan_for(ckpt: Checkpoint, out: Path, kind: str | None, **options: Any) -> Plan:
    shard = options.pop("shard_bytes", None)
    exact = options.pop("exact", False)
    own = ckpt.reading.dialects[0] if ckpt.reading.dialects else None
    return plan_convert(ckpt, target_for(out, kind, own, Options(None, options), shard), exact=exact)


def convert(source: Path, out: Path, kind: str | None = None, **options: Any) -> list[TensorResult]:
    """Convert as the command does."""
    with open_checkpoint(source) as ckpt:
        return run_plan(ckpt, plan_for(ckpt, out, kind, **options))


def values(ckpt: Checkpoint, name: str) -> NDArray[Any]:
    """The decoded values of a tensor."""
    x = ckpt[name]
    return x if isinstance(x, np.ndarray) else x.dequantize()


def bits_of(x: NDArray[Any]) -> NDArray[np.float64]:
    """Values as float64, which every type here fits; compare with `same_bits`."""
    return x.astype(np.float64)


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Equal values, signs of zeros and NaN included."""
    return a.shape == b.shape and bits_of(a).tobytes() == bits_of(b).tobytes()


def contents(path: Path) -> dict[str, bytes]:
    """Every file of an output."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {p.name: p.read_bytes() for p in sorted(path.iterdir())}

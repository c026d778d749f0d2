"""GPTQ and AWQ parts laid out by plain loops from the documented layout, and what they stand for.

Nothing here uses blockscale's packing: words are Python integers built field by field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from blockscale.dialects.base import Options, Recognition, Stored

Arrays = dict[str, NDArray[Any]]
VECTORS = Path(__file__).parent / "vectors"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
DTYPES = {
    "int32": "I32",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "uint8": "U8",
    "int8": "I8",
}
SCALES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def words_down(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """GPTQ's qweight: words of consecutive rows (inputs), `(in, out)` to `(ceil(in * bits / 32), out)`."""
    per, (n_in, n_out) = 32 // bits, codes.shape
    out = np.zeros((-(-n_in // per), n_out), np.int32)
    for r in range(out.shape[0]):
        for c in range(n_out):
            word = 0
            for p in range(min(per, n_in - r * per)):
                word |= int(codes[r * per + p, c]) << (p * bits)
            out[r, c] = _signed(word)
    return out


def words_across(codes: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """Words of consecutive columns (outputs), `(rows, out)` to `(rows, ceil(out * bits / 32))`."""
    per, (rows, n_out) = 32 // bits, codes.shape
    order = order or tuple(range(per))
    out = np.zeros((rows, -(-n_out // per)), np.int32)
    for r in range(rows):
        for c in range(out.shape[1]):
            word = 0
            for p in range(per):
                if c * per + order[p] < n_out:
                    word |= int(codes[r, c * per + order[p]]) << (p * bits)
            out[r, c] = _signed(word)
    return out


@dataclass(frozen=True)
class Layer:
    """Codes `(in, out)`, zero points and scales `(groups, out)`, group of each input `(in,)`."""

    codes: NDArray[np.int64]
    zeros: NDArray[np.int64]
    scales: NDArray[Any]
    index: NDArray[np.int64]
    bits: int

    @property
    def weight(self) -> NDArray[np.float32]:
        """The values, float32 `(out, in)`."""
        steps = self.codes - self.zeros[self.index]
        values = steps.astype(np.float32) * self.scales.astype(np.float32)[self.index]
        return np.ascontiguousarray(values.T)

    def gptq(self, bias: int, prefix: str = "layer.") -> Arrays:
        """GPTQ's parts; stored zero points are `z - bias` modulo 2**bits."""
        fields = (self.zeros - bias) % (1 << self.bits)
        return {
            f"{prefix}qweight": words_down(self.codes, self.bits),
            f"{prefix}qzeros": words_across(fields, self.bits),
            f"{prefix}scales": self.scales,
            f"{prefix}g_idx": self.index.astype(np.int32),
        }

    def awq(self, prefix: str = "layer.") -> Arrays:
        """AWQ's parts, 4 bits."""
        return {
            f"{prefix}qweight": words_across(self.codes, 4, AWQ_ORDER),
            f"{prefix}qzeros": words_across(self.zeros, 4, AWQ_ORDER),
            f"{prefix}scales": self.scales,
        }


def make_layer(
    n_in: int,
    n_out: int,
    group: int,
    *,
    bits: int = 4,
    seed: int = 0,
    scale: str = "float16",
    low: int = 1,
    high: int | None = None,
    zeros: int | None = None,
    index: NDArray[Any] | None = None,
) -> Layer:
    """A random layer; zero points in `low .. high`, or all `zeros`."""
    rng = np.random.default_rng(seed)
    size = n_in if group == -1 else group
    groups = -(-n_in // size)
    top = (1 << bits) - 1 if high is None else high
    z = rng.integers(low, top + 1, (groups, n_out)) if zeros is None else np.full((groups, n_out), zeros)
    return Layer(
        rng.integers(0, 1 << bits, (n_in, n_out)),
        z,
        (rng.standard_normal((groups, n_out)) + 3).astype(SCALES[scale]),
        np.arange(n_in) // size if index is None else index.astype(np.int64),
        bits,
    )


def stored_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Stored]:
    """What a container would say of these arrays."""
    return {k: Stored(k, DTYPES[v.dtype.name], v.shape) for k, v in arrays.items()}


def recognise(
    dialect: Any,
    arrays: Mapping[str, NDArray[Any]],
    section: Mapping[str, Any] | None,
    *,
    bias: int | None = None,
    **settings: Any,
) -> Recognition | None:
    """Ask a dialect about arrays and a quantization_config (None: no config)."""
    config = {} if section is None else {"model_type": "toy", "quantization_config": section}
    for array in arrays.values():
        array.flags.writeable = False  # as from a file: whoever writes into its input fails
    found = dialect.recognise(stored_of(arrays), config, arrays.__getitem__, Options(bias, settings))
    assert found is None or isinstance(found, Recognition)
    return found


def recognised(dialect: Any, arrays: Mapping[str, NDArray[Any]], section: Any, **options: Any) -> Recognition:
    """As `recognise`, but the dialect must claim the arrays."""
    found = recognise(dialect, arrays, section, **options)
    assert found is not None
    return found


def golden_cases(dialect: str) -> dict[str, Mapping[str, Any]]:
    """Name to config, from the manifest; a listed file that is missing or changed fails when it is loaded."""
    manifest = json.loads((VECTORS / dialect / "manifest.json").read_text())
    return dict(manifest["cases"])


def load_golden(dialect: str, name: str) -> tuple[Arrays, Arrays, dict[str, Any]]:
    """Stored arrays, expected arrays and quantization_config of a golden case, checked against its sums."""
    case = golden_cases(dialect)[name]
    folder = VECTORS / dialect
    for file, wanted in case["sha256"].items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == wanted, file
    with np.load(folder / f"{name}.expected.npz") as expected:
        return (
            load_file(folder / f"{name}.safetensors"),
            dict(expected),
            case["config"]["quantization_config"],
        )

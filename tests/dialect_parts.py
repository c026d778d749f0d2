"""Stored parts in memory, as dialects see a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockscale.containers.safetensors import SafetensorsFile, stored_name
from blockscale.dialects.base import Stored
from blockscale.tensor import BlockTensor

VECTORS = Path(__file__).parent / "vectors"
Arrays = dict[str, NDArray[Any]]


def stored_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Stored]:
    """What a safetensors file of these arrays would list."""
    return {name: Stored(name, stored_name(a.dtype), a.shape) for name, a in arrays.items()}


def golden(folder: str, stem: str) -> tuple[Arrays, Arrays]:
    """Parts and expected values of a golden file; a missing one fails."""
    manifest = json.loads((VECTORS / folder / "manifest.json").read_text())
    assert f"{stem}.safetensors" in manifest["files"]
    parts, expected = (
        SafetensorsFile(VECTORS / folder / f"{stem}{end}")
        for end in (".safetensors", ".expected.safetensors")
    )
    return {n: parts.array(n) for n in parts.entries}, {n: expected.array(n) for n in expected.entries}


def assert_values(w: BlockTensor, wanted: NDArray[Any]) -> None:
    """The decoded values, rounded to the type of the expected ones, are equal bit for bit."""
    found = w.dequantize().astype(wanted.dtype)
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


def values(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed weights."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

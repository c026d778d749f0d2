"""Small safetensors files for the tests."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockscale.containers.safetensors import DTYPES


def blob(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file from a header (JSON value, text or bytes) and data."""
    if not isinstance(header, str | bytes):
        header = json.dumps(header)
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    """The header of a file with one tensor `x`."""
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "t.safetensors"
    path.write_bytes(content)
    return path


def random_array(dtype_name: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Random bit patterns of a dtype (NaN and infinities among them)."""
    stored = DTYPES[dtype_name]
    top = 2 if dtype_name == "BOOL" else 1 << min(stored.bits, 8)
    count = int(np.prod(shape)) * stored.dtype.itemsize
    codes = np.random.default_rng(seed).integers(0, top, count, np.uint8)
    return codes.view(stored.dtype).reshape(shape)


def assert_same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


def small_file() -> bytes:
    """A valid file with metadata, a two-byte and a packed dtype."""
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F4", "shape": [2, 2], "data_offsets": [4, 6]},
    }
    return blob(header, b"\x80\x3f\x00\xc0\x21\x43")


def names_in(folder: Path) -> list[str]:
    """Names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def python_output(code: str, *args: object) -> str:
    """What a Python process prints that imports blockscale."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout

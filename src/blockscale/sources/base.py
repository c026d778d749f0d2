"""What a checkpoint needs of a container: named tensors, told and read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..hurray import BoxReader, Tensor
from ..schemes import Scheme
from ..tensor import BlockTensor

PLAIN_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint says of a tensor without reading its data.

    Attributes:
        name: its name.
        shape: logical shape, in elements.
        dtype: element type as the container names it.
        nbytes: stored bytes, parameters included.
        scheme: the scheme of a block-scaled tensor, else None.
        axis: the blocked axis of a block-scaled tensor, else None.
        quantization: one line on how it is quantized, empty for plain tensors.
        is_float: whether the values are plain floating-point numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    scheme: Scheme | None
    axis: int | None
    quantization: str
    is_float: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bits_per_element(self) -> float:
        """Stored bits per element; 0 for an empty tensor."""
        return 8 * self.nbytes / self.size if self.size else 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source was understood.

    Attributes:
        dialects: the dialects that were recognised.
        evidence: what decided that, for people.
        problems: what is odd but readable.
        config: the model's `config.json`, or {}.
        companions: other files of the folder that travel along (tokenizer, generation config ...).
        form: how a GGUF file is laid out (version, padding), for an output of the same kind.
    """

    dialects: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    companions: tuple[Path, ...] = ()
    form: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """What a container must offer to be opened as a checkpoint."""

    @property
    def kind(self) -> str:
        """Name of the container."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files that hold tensors."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its own key-value metadata."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Name to TensorInfo, in the file's order."""

    @property
    def reading(self) -> Reading:
        """How it was understood."""

    def tensor(self, name: str) -> Tensor:
        """The tensor, lazily where the container can."""

    def rows(self, name: str, start: int, stop: int) -> BlockTensor | None:
        """Canonical rows of a block-scaled tensor as a matrix, into new memory; None: only `tensor` can."""

    def boxes(self, name: str) -> BoxReader | None:
        """A function that reads boxes of a block-scaled tensor that begin between blocks, into new memory.

        None: only `tensor` can.
        """

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Stored bytes of a plain tensor's values, into new memory."""

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of a plain tensor that lies row-major and whole-byte, else None."""

    def packed_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of the unpacked elements of a plain tensor whose elements share bytes, else None."""

    def findings(self, name: str) -> tuple[str, ...]:
        """What is legal in a quantized weight, but hardly meant; reads all of it."""

    @property
    def parts(self) -> frozenset[str]:
        """Stored tensors that are parts of quantized weights."""

    def forget(self) -> None:
        """Give back the physical memory of what was read through maps."""

    def close(self) -> None:
        """Close the files."""


def box_runs(shape: Sequence[int], box: Sequence[slice]) -> tuple[list[int], int]:
    """A box as runs of elements that follow each other: where each begins, and how long all are."""
    split = len(shape)  # dimensions from here on are taken whole
    while split and box[split - 1] == slice(0, shape[split - 1]):
        split -= 1
    split = max(split - 1, 0)
    if not shape:
        return [0], 1
    starts = np.zeros((1,), np.int64)
    for i, n in enumerate(shape):
        inner = np.arange(box[i].start, box[i].stop) if i < split else np.array([box[i].start])
        starts = (starts[:, None] * n + inner).reshape(-1)
    return [int(at) for at in starts], math.prod(part.stop - part.start for part in box[split:])


@cache
def is_float(dtype: np.dtype[Any] | None) -> bool:
    """Plain numbers that can be quantized: float64, float32, float16, bfloat16."""
    return dtype is not None and dtype.name in PLAIN_FLOATS

"""What every dialect offers: recognise its weights, read one, write one, describe them in a config.

A dialect is a module with the functions of `Dialect`; it knows names, shapes and packings, but no files: it
gets the stored tensors' names, dtypes and shapes, the parsed config, and a function that loads a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from ..schemes import Scheme
from ..tensor import BlockTensor

Load = Callable[[str], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored tensor, without data.

    Attributes:
        name: its name in the file.
        dtype: its dtype as safetensors names it (`"I32"`, `"BF16"`, `"U8"` ...).
        shape: its shape as stored, in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One quantized weight of a checkpoint, before its data are read.

    Attributes:
        name: logical name, as the plain weight would be called.
        shape: logical shape, in the orientation of the plain weight.
        scheme: what its numbers mean.
        axis: the blocked axis of `shape`.
        parts: role to stored name, e.g. `{"qweight": "model.q.qweight", "scales": ...}`.
        settings: what `read` needs besides (bits, zero-point bias ...).
    """

    name: str
    shape: tuple[int, ...]
    scheme: Scheme
    axis: int
    parts: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recognition:
    """What a dialect found in a checkpoint.

    Attributes:
        dialect: its name.
        weights: the weights it can read.
        evidence: lines for people: what decided the reading (config keys, names, shapes, words).
        problems: lines for people: odd but readable.
        consumed: stored names that belong to weights (also parts that carry no information, such as a trivial
            `g_idx`), so that they are not shown as tensors of their own.
    """

    dialect: str
    weights: tuple[Weight, ...]
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    consumed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may force.

    Attributes:
        zero_point_bias: 1 if stored zero points are `z - 1` (GPTQ v1), 0 if they are `z`; None: as the config
            says.
        settings: dialect-specific choices for writing (`{"version": "gptq_v2"}` ...).
    """

    zero_point_bias: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Dialect(Protocol):
    """A module that knows one dialect."""

    NAME: str

    def recognise(
        self, stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
    ) -> Recognition | None:
        """The weights of this dialect, or None if the checkpoint speaks another.

        `load` may be used for small tensors only (zero words, g_idx). Contradictions between config, names,
        shapes and contents raise FormatError that quotes both sides.
        """

    def read(self, weight: Weight, load: Load) -> BlockTensor:
        """One weight; exact: the dequantized values equal what the toolchain computes in float32."""

    def write(self, name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
        """Stored tensors of one weight (name to array); UnsupportedError with advice where w does not fit."""

    def specs(
        self, name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options
    ) -> dict[str, Stored]:
        """What `write` will store, before there are data; refuses as `write` does, as far as these tell."""

    def findings(self, weight: Weight, load: Load) -> tuple[str, ...]:
        """Lines for people on what is legal in a weight's parts, but hardly meant; reads all its data."""

    def config(
        self, written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options
    ) -> dict[str, Any]:
        """What `config.json` needs so that consumers load the result: `{"quantization_config": {...}}`.

        `kept` are the names of weights that were left unquantized.
        """

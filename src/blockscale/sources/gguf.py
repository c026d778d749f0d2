"""A GGUF file as a source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..containers.gguf import GgufFile
from ..containers.gguf_types import GgufEntry
from ..dialects import ggml
from ..hurray import BoxReader, Tensor
from ..tensor import BlockTensor
from .base import Reading, TensorInfo, box_runs, is_float


class GgufSource:
    """A GGUF file, or the parts of a split one."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self.paths = list(self.file.parts)
        self.metadata: Mapping[str, Any] = self.file.metadata
        self.infos: Mapping[str, TensorInfo] = {e.name: _gguf_info(e) for e in self.file.entries.values()}
        self.reading = Reading(
            problems=tuple(self.file.problems),
            form={"version": self.file.version, "pad_end": self.file.pads_end},
        )

    def tensor(self, name: str) -> Tensor:
        """See Source."""
        entry = self.file.entries[name]
        if entry.type.is_plain:
            return self.file.array(name)
        if ggml.scheme_for(entry.type) is None:
            return ggml.dequantize(self.file.raw(name), entry.type, entry.shape)
        return ggml.unpack_blocks(self.file.raw(name), entry.type, entry.shape).tensor

    def rows(self, name: str, start: int, stop: int) -> BlockTensor | None:
        """See Source."""
        entry = self.file.entries[name]
        if ggml.scheme_for(entry.type) is None:
            return None
        data = self.file.read_bytes(name, start * entry.row_bytes, stop * entry.row_bytes)
        shape = (stop - start, entry.shape[-1])
        return ggml.unpack_blocks(data, entry.type, shape, first_row=start).tensor

    def boxes(self, name: str) -> BoxReader | None:
        """See Source."""
        entry = self.file.entries[name]
        if ggml.scheme_for(entry.type) is None:
            return None

        return partial(self._read_box, entry)

    def _read_box(self, entry: GgufEntry, box: tuple[slice, ...]) -> BlockTensor:
        size, width = entry.type.block_size, entry.type.block_bytes
        starts, run = box_runs(entry.shape, box)
        pieces = [
            self.file.read_bytes(entry.name, at // size * width, (at + run) // size * width) for at in starts
        ]
        data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        shape = tuple(part.stop - part.start for part in box)
        return ggml.unpack_blocks(data, entry.type, shape, first_row=starts[0] // entry.shape[-1]).tensor

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See Source."""
        return self.file.read_bytes(name, start, stop)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        kind = self.file.entries[name].type
        return kind.dtype if kind.is_plain else None

    def packed_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        return None

    def findings(self, name: str) -> tuple[str, ...]:
        """See Source."""
        return ()

    @property
    def parts(self) -> frozenset[str]:
        """See Source."""
        return frozenset()

    def forget(self) -> None:
        """See Source."""
        self.file.forget()

    def close(self) -> None:
        """See Source."""
        self.file.close()


def _gguf_info(e: GgufEntry) -> TensorInfo:
    scheme = ggml.scheme_for(e.type)
    text = ""
    if not e.type.is_plain:
        text = scheme.describe() if scheme is not None else f"{e.type.name}: {e.type.note}"
    axis = len(e.shape) - 1 if scheme is not None else None
    plain = e.type.dtype if e.type.is_plain else None
    return TensorInfo(e.name, e.shape, e.type.name, e.nbytes, scheme, axis, text, is_float(plain))

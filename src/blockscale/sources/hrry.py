"""A `.hrry` file as a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..containers.hrry import HrryFile
from ..hurray import BoxReader, Tensor, TensorDescriptor, UnknownQuantization, scheme_of
from ..schemes import Scheme
from ..tensor import BlockTensor
from .base import Reading, TensorInfo, is_float


class HrrySource:
    """A `.hrry` file."""

    kind = "hrry"

    def __init__(self, path: Path, *, permissive: bool) -> None:
        self.file = HrryFile(path, permissive=permissive)
        self.paths = [path]
        self.metadata: Mapping[str, Any] = self.file.metadata
        self.infos: Mapping[str, TensorInfo] = {name: self._info(name) for name in self.file.entries}
        self.reading = Reading(problems=tuple(str(p) for p in self.file.problems))

    def _info(self, name: str) -> TensorInfo:
        d = self.file.descriptor(name)
        scheme, axis = scheme_of(d) or (None, None)
        return TensorInfo(
            name,
            tuple(d.shape),
            d.type.name if d.type is not None else f"type 0x{d.type_tag:02X}",
            sum(b.byte_size for b in d.buffers),
            scheme,
            axis,
            _describe(d, scheme),
            is_float(self.plain_dtype(name)),
        )

    def tensor(self, name: str) -> Tensor:
        """See Source."""
        return self.file.tensor(name)

    def rows(self, name: str, start: int, stop: int) -> BlockTensor | None:
        """See Source."""
        return None

    def boxes(self, name: str) -> BoxReader | None:
        """See Source."""
        return self.file.boxes(name)

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See Source."""
        return self.file.read_bytes(name, 0, start, stop)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        return self.file.plain_dtype(name)

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """Buffer index, offset and bytes of a tensor as it is stored."""
        for index, handle in enumerate(self.file.descriptor(name).buffers):
            for start in range(0, handle.byte_size, limit):
                stop = min(start + limit, handle.byte_size)
                yield index, start, self.file.read_bytes(name, index, start, stop)

    def packed_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        kind = self.file.descriptor(name).type
        return kind.dtype if kind is not None else None

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


def _describe(d: TensorDescriptor, scheme: Scheme | None) -> str:
    """One line on the quantization of a tensor in a .hrry file."""
    if d.quantization is None:
        return ""
    if scheme is not None:
        return scheme.describe()
    if isinstance(d.quantization, UnknownQuantization):
        return f"unknown scheme 0x{d.quantization.tag:02X}"
    words = {"PerTensorAffine": "per-tensor affine", "PerChannelAffine": "per-channel affine", "NF4": "NF4"}
    name = type(d.quantization).__name__
    return words.get(name, name)

"""Safetensors files as a source: plain tensors, and quantized weights as their dialect reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..containers.safetensors import ArrayEntry, SafetensorsFile
from ..dialects import NAMES, dialect, options_of
from ..dialects.base import Options, Recognition, Stored, Weight
from ..dialects.own_layout import METADATA_KEY, from_metadata
from ..errors import ContainerError, FormatError
from ..hurray import BoxReader, Tensor
from ..tensor import BlockTensor
from .base import Reading, TensorInfo, is_float


class SafetensorsSource:
    """One or more safetensors files, with the model's config if there is one."""

    def __init__(
        self,
        files: Sequence[SafetensorsFile],
        config: Mapping[str, Any],
        companions: Sequence[Path],
        options: Options,
        forced: str | None,
    ) -> None:
        self.kind = "safetensors" if len(files) == 1 else f"safetensors in {len(files)} shards"
        self.paths = [f.path for f in files]
        self._files = list(files)
        self.metadata: Mapping[str, Any] = _joined_metadata(files)
        self._where = _union(files)
        own = from_metadata({k: str(v) for k, v in self.metadata.items()})
        found = self._recognise({**config, **own}, options, forced)
        self._weights: dict[str, tuple[str, Weight]] = {
            w.name: (r.dialect, w) for r in found for w in r.weights
        }
        consumed = frozenset().union(*(r.consumed for r in found)) if found else frozenset()
        self.infos: Mapping[str, TensorInfo] = self._infos(consumed)
        self.reading = Reading(
            tuple(r.dialect for r in found),
            tuple(line for r in found for line in r.evidence),
            (*(p for f in files for p in f.problems), *(p for r in found for p in r.problems)),
            config,
            tuple(companions),
        )

    def _recognise(
        self, config: Mapping[str, Any], options: Options, forced: str | None
    ) -> list[Recognition]:
        stored = {name: Stored(name, e.dtype_name, e.shape) for name, (_, e) in self._where.items()}
        if forced == "none":
            return []
        found: list[Recognition] = []
        for name in (forced,) if forced else NAMES:
            try:
                one = dialect(name).recognise(stored, config, self._load, options_of(name, options))
            except FormatError as error:
                error.hint = (
                    error.hint or "--dialect forces another reading; --dialect none reads plain tensors"
                )
                raise
            if one is not None and (one.weights or one.problems):
                _check_disjoint(found, one)
                found.append(one)
        if forced and not any(r.weights for r in found):
            raise FormatError(
                f"no weight of the dialect {forced!r} is there", found=forced, hint="leave --dialect out"
            )
        return found

    def _infos(self, consumed: frozenset[str]) -> dict[str, TensorInfo]:
        """In the order of the files; a weight stands where its first part does."""
        first = {}
        for name, (kind, weight) in self._weights.items():
            first[min(weight.parts.values(), key=list(self._where).index)] = (name, kind, weight)
        infos: dict[str, TensorInfo] = {}
        for stored, (_, e) in self._where.items():
            if stored in first:
                name, kind, weight = first[stored]
                infos[name] = self._weight_info(kind, weight)
            elif stored not in consumed:
                infos[stored] = TensorInfo(
                    stored, e.shape, e.dtype_name, e.nbytes, None, None, "", is_float(e.dtype)
                )
        return infos

    def _weight_info(self, kind: str, weight: Weight) -> TensorInfo:
        nbytes = sum(self._where[part][1].nbytes for part in weight.parts.values())
        if weight.settings.get("act_order"):
            text = f"{weight.scheme.describe()}, activation order ({kind})"
            return TensorInfo(
                weight.name, weight.shape, weight.scheme.element.name, nbytes, None, None, text, False
            )
        text = f"{weight.scheme.describe()} ({kind})"
        return TensorInfo(
            weight.name,
            weight.shape,
            weight.scheme.element.name,
            nbytes,
            weight.scheme,
            weight.axis,
            text,
            False,
        )

    def tensor(self, name: str) -> Tensor:
        """See Source."""
        if name not in self._weights:
            return self._load(name)
        kind, weight = self._weights[name]
        module = dialect(kind)
        if weight.settings.get("act_order") and hasattr(module, "read_dense"):
            dense: NDArray[Any] = module.read_dense(weight, self._load)
            return dense
        return module.read(weight, self._load)

    def rows(self, name: str, start: int, stop: int) -> BlockTensor | None:
        """See Source."""
        return None

    def boxes(self, name: str) -> BoxReader | None:
        """See Source."""
        return None

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See Source."""
        return self._where[name][0].read_bytes(name, start, stop)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        if name in self._weights:
            return None
        entry = self._where[name][1]
        return None if entry.is_packed else entry.dtype

    def packed_dtype(self, name: str) -> np.dtype[Any] | None:
        """See Source."""
        return self._where[name][1].dtype

    def findings(self, name: str) -> tuple[str, ...]:
        """See Source."""
        if name not in self._weights:
            return ()
        kind, weight = self._weights[name]
        return tuple(dialect(kind).findings(weight, self._load))

    @property
    def parts(self) -> frozenset[str]:
        """See Source."""
        return frozenset(part for _, weight in self._weights.values() for part in weight.parts.values())

    def forget(self) -> None:
        """See Source."""
        for f in self._files:
            f.forget()

    def close(self) -> None:
        """See Source."""
        for f in self._files:
            f.close()

    def _load(self, name: str) -> NDArray[Any]:
        return self._where[name][0].array(name)


def _joined_metadata(files: Sequence[SafetensorsFile]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for f in files:
        for key, value in f.metadata.items():
            if key == METADATA_KEY and key in joined:
                old, new = json.loads(joined[key]), json.loads(value)
                old["tensors"] = {**old.get("tensors", {}), **new.get("tensors", {})}
                value = json.dumps(old, separators=(",", ":"))
            joined[key] = value
    return joined


def _union(files: Sequence[SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, ArrayEntry]]:
    where: dict[str, tuple[SafetensorsFile, ArrayEntry]] = {}
    for f in files:
        for name, entry in f.entries.items():
            if name in where:
                raise ContainerError(
                    f"the tensor is also in {where[name][0].path.name}", file=str(f.path), tensor=name
                )
            where[name] = (f, entry)
    return where


def _check_disjoint(found: Sequence[Recognition], one: Recognition) -> None:
    for other in found:
        both = other.consumed & one.consumed
        if both:
            raise FormatError(
                f"the dialects {other.dialect} and {one.dialect} both claim {sorted(both)[0]!r}",
                found=sorted(both)[:3],
                hint="--dialect names the one to believe",
            )

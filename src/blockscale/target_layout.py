"""Laying an output out before any data: headers, places, shards, config and index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid, block_grid
from .containers import gguf_layout, safetensors_layout
from .containers.hrry_writer import plan_hrry
from .containers.safetensors_table import DTYPES
from .dialects import dialect
from .dialects.base import Stored
from .dialects.own_layout import metadata as own_metadata
from .outputs import OutputLayout, PlannedFile, Region
from .report import QuantizeReport
from .schemes import Scheme
from .sources import Reading
from .targets import OutputTensor, Target, block_type, descriptor_of, stored_parts
from .tensor import BlockTensor

_NOT_CARRIED = ("config.json", "quantize_config.json", "quant_config.json", "blockscale.json")


@dataclass(frozen=True, slots=True)
class _Described:
    """What a dialect's config needs of a tensor that is yet to be made."""

    grid: BlockGrid
    scheme: Scheme
    report: QuantizeReport
    is_symmetric: bool

    @property
    def row_offsets(self) -> NDArray[np.int32] | None:
        """One zero point that stands for all: the middle code, or another."""
        if self.scheme.offset == "none":
            return None
        middle = 1 << (self.scheme.element.bits - 1)
        return np.array([[middle if self.is_symmetric else 0]], np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.shape

    @property
    def axis(self) -> int:
        return self.grid.axis

    @property
    def block_size(self) -> int:
        return self.grid.block_size


def plan_output(
    target: Target,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, Any],
    reading: Reading,
    rule: str = "",
) -> OutputLayout:
    """Everything about the output before its data.

    Args:
        target: where it goes.
        tensors: what it holds, in order.
        metadata: key-value metadata of the container.
        reading: of the source: config and companions for folders, version and padding for GGUF.
        rule: the rule that chose the scales, for layouts that say it.
    """
    if target.kind == "hrry":
        return _plan_hrry(tensors, metadata)
    if target.kind == "gguf":
        return _plan_gguf(tensors, metadata, reading.form)
    return _plan_safetensors(target, tensors, metadata, reading, rule)


def _plan_hrry(tensors: Sequence[OutputTensor], metadata: Mapping[str, Any]) -> OutputLayout:
    layout = plan_hrry([(t.name, descriptor_of(t)) for t in tensors], metadata)
    regions = {
        name: {str(i): Region(0, *place) for i, place in enumerate(places)}
        for name, places in layout.buffers.items()
    }
    return OutputLayout((PlannedFile("", layout.size, layout.frame),), regions, {}, False)


def _plan_gguf(
    tensors: Sequence[OutputTensor], metadata: Mapping[str, Any], form: Mapping[str, Any]
) -> OutputLayout:
    specs = [(t.name, block_type(t), t.shape) for t in tensors]
    layout = gguf_layout.plan_layout(specs, metadata, **form)
    regions = {name: {"0": Region(0, e.offset, e.nbytes)} for name, e in layout.entries.items()}
    gaps = _padding([(e.offset, e.nbytes) for e in layout.entries.values()], len(layout.prefix), layout.size)
    frame = ((0, layout.prefix), *gaps)
    return OutputLayout((PlannedFile("", layout.size, frame),), regions, {}, False)


def _padding(places: list[tuple[int, int]], start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The zero bytes between tensors, so that an old partial file cannot shine through."""
    at = start
    for offset, nbytes in [*sorted(places), (size, 0)]:
        if offset > at:
            yield at, bytes(offset - at)
        at = max(at, offset + nbytes)


def _plan_safetensors(
    target: Target,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, Any],
    reading: Reading,
    rule: str,
) -> OutputLayout:
    stored = {t.name: stored_parts(target, t) for t in tensors}
    shards = _split_shards(target, stored)
    names = _shard_names(len(shards)) if target.is_folder else [""]
    by_name = {t.name: t for t in tensors}
    files, regions, weight_map, total = [], {}, {}, 0
    for number, (file_name, shard) in enumerate(zip(names, shards, strict=True)):
        specs = [(s.name, s.dtype, s.shape) for name in shard for s in stored[name].values()]
        strings = {k: v for k, v in metadata.items() if isinstance(v, str)} | {"format": "pt"}
        if target.kind == "plain-mx":
            written = _written((by_name[n] for n in shard), rule)
            strings |= own_metadata(written, (), target.options) if written else {}
        layout = safetensors_layout.plan_layout(specs, strings)
        files.append(PlannedFile(file_name, layout.size, ((0, layout.prefix),)))
        for name in shard:
            entries = {part: layout.entries[s.name] for part, s in stored[name].items()}
            regions[name] = {p: Region(number, e.offset, e.nbytes) for p, e in entries.items()}
            for e in entries.values():
                weight_map[e.name] = file_name
                total += e.nbytes
    extras = _extras(target, tensors, reading.config, reading.companions) if target.is_folder else {}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        extras["model.safetensors.index.json"] = _json(index)
    return OutputLayout(tuple(files), regions, extras, target.is_folder)


def _split_shards(target: Target, stored: Mapping[str, Mapping[str, Stored]]) -> list[list[str]]:
    if not target.is_folder:
        return [list(stored)]
    shards: list[list[str]] = [[]]
    room = target.shard_bytes
    for name, parts in stored.items():
        size = sum(math.prod(s.shape) * DTYPES[s.dtype].bits // 8 for s in parts.values())
        if size > room and shards[-1]:
            shards.append([])
            room = target.shard_bytes
        shards[-1].append(name)
        room -= size
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def _written(tensors: Iterable[OutputTensor], rule: str) -> dict[str, BlockTensor]:
    """Stand-ins that have what configs are made of: shape, axis, scheme, rule."""
    described = {
        t.name: _Described(
            block_grid(t.shape, t.axis or 0, t.scheme.block_size),
            t.scheme,
            QuantizeReport(rule),
            t.is_symmetric,
        )
        for t in tensors
        if t.scheme is not None
    }
    return cast("dict[str, BlockTensor]", described)


def _extras(
    target: Target,
    tensors: Sequence[OutputTensor],
    config: Mapping[str, Any],
    companions: Sequence[Path],
) -> dict[str, bytes]:
    """config.json with what the dialect says, and the model's other small files."""
    extras = {p.name: p.read_bytes() for p in companions if p.name not in _NOT_CARRIED}
    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "compression_config")}
    written = _written(tensors, "")
    kept = [t.name for t in tensors if t.scheme is None and len(t.shape) >= 2]
    said = dialect(target.kind).config(written, kept, target.options) if written else {}
    if plain or said:
        extras["config.json"] = _json({**plain, **said})
    return extras


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()

"""Targets: what an output can hold, how it is laid out, and the bytes of a tensor in it.

A target is a `.hrry` file, a GGUF file, or safetensors (one file, or a folder of shards) in a dialect.
Everything about the output is known before any data: sizes, places, headers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid, block_grid
from .containers import gguf_layout, safetensors_layout
from .containers.gguf_types import ggml_type, plain_type
from .containers.hrry_writer import plan_hrry
from .containers.safetensors_table import DTYPES, stored_name
from .dialects import NAMES, dialect, ggml
from .dialects.base import Options, Stored
from .dialects.own_layout import metadata as own_metadata
from .errors import BlockscaleError, InputError, UnsupportedError, error_context
from .hurray import TensorDescriptor, encode_tensor, plan_array, plan_tensor
from .outputs import OutputLayout, PlannedFile, Region
from .schemes import Scheme, scheme
from .tensor import BlockTensor, QuantizeReport

KINDS = ("hrry", "gguf", *NAMES)
SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Target:
    """Where tensors go.

    Attributes:
        kind: `hrry`, `gguf`, or a dialect of safetensors.
        path: the file or folder.
        is_folder: whether it is a model folder.
        options: choices of the dialect.
        shard_bytes: largest size of a shard in a folder.
    """

    kind: str
    path: Path
    is_folder: bool = False
    options: Options = field(default_factory=Options)
    shard_bytes: int = SHARD_BYTES


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor as it will be stored: block-scaled if there is a scheme, else plain.

    Attributes:
        name: its name.
        shape: logical shape.
        dtype: dtype of a plain tensor.
        scheme: scheme of a block-scaled one.
        axis: its blocked axis.
        descriptor: its Hurray descriptor, where it is carried from one `.hrry` file to another as it is.
        is_symmetric: whether all zero points are known to be the middle code.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None = None
    scheme: Scheme | None = None
    axis: int | None = None
    descriptor: TensorDescriptor | None = None
    is_symmetric: bool = False


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


def target_for(
    path: Path, kind: str | None, source_dialect: str | None, options: Options, shard_bytes: int | None
) -> Target:
    """The target that an output's name and the user's wish mean.

    Args:
        path: the output; a name without a suffix is a folder.
        kind: a row of `KINDS`, or None: by suffix; safetensors keep the source's dialect.
        source_dialect: dialect of the source, if it has one.
        options: choices of the dialect.
        shard_bytes: largest size of a shard, or None for the default.

    Raises:
        InputError: a suffix that no target has, or one that contradicts `kind`.
    """
    suffixes = {".hrry": "hrry", ".gguf": "gguf", ".safetensors": None, "": None}
    suffix = "" if path.is_dir() else path.suffix
    if suffix not in suffixes:
        suffix = "" if kind in NAMES and "." in path.name else suffix
    if suffix not in suffixes:
        raise InputError(
            f"unknown kind of output {suffix!r}", file=str(path), found=suffix,
            hint=".hrry, .gguf, .safetensors, or a folder",
        )  # fmt: skip
    implied = suffixes[suffix] or (kind if kind in NAMES else None) or source_dialect or "plain-mx"
    chosen = kind or implied
    if chosen not in KINDS:
        raise InputError(f"unknown target {kind!r}", found=kind, hint=f"one of {', '.join(KINDS)}")
    if chosen != implied:
        raise InputError(
            f"--to {chosen} does not write {suffix or 'folders'}", file=str(path), found=chosen,
            hint="leave --to out, or choose another suffix",
        )  # fmt: skip
    return Target(chosen, path, suffix == "", options, shard_bytes or SHARD_BYTES)


def reason_against(target: Target, t: OutputTensor) -> str | None:
    """Why the target cannot hold a tensor, or None."""
    try:
        _parts(target, t)
    except BlockscaleError as error:
        return error.message
    return None


def candidates(target: Target, w: Scheme, shape: tuple[int, ...], axis: int) -> tuple[Scheme, ...]:
    """Schemes of the target that might hold a tensor of scheme `w`, the most compact first."""
    rows: list[Scheme] = []
    if target.kind == "gguf":
        rows = [f.scheme for f in ggml.FORMATS.values()]
        same = ggml.spec_for(w)
        rows.sort(key=lambda s: (same is None or s != ggml.FORMATS[same].scheme, s.bits_per_element))
    else:
        rows = [w, *_affine_forms(w)]
    held = [s for s in rows if reason_against(target, OutputTensor("x.weight", shape, None, s, axis)) is None]
    return tuple(dict.fromkeys(held))


def _affine_forms(w: Scheme) -> Iterator[Scheme]:
    """Schemes near an affine one: signed, unsigned, wider codes, wider scales; blocks kept or smaller."""
    if w.is_mx:
        return
    scales = list(dict.fromkeys((w.scale.name, "float32")))
    bits = [b for b in (2, 4, 8) if b >= w.element.bits]
    sizes = [k for k in (w.block_size, 128, 64, 32) if k <= w.block_size]
    for size in dict.fromkeys(sizes):
        for width in bits:
            for scale in scales:
                if w.offset != "minimum":
                    yield scheme(f"int{width}", block_size=size, scale=scale, symmetric=True)
                yield scheme(f"uint{width}", block_size=size, scale=scale, symmetric=False)


def check_tensor(target: Target, t: OutputTensor) -> OutputTensor:
    """The tensor itself, if the target can hold it.

    Raises:
        BlockscaleError: it cannot; the error says why and what would do.
    """
    _parts(target, t)
    return t


def stored_bytes(target: Target, t: OutputTensor) -> int:
    """Bytes that a tensor takes in the target, without alignment."""
    parts = _parts(target, t)
    if isinstance(parts, TensorDescriptor):
        return sum(buffer.byte_size for buffer in parts.buffers)
    if isinstance(parts, str):
        kind = ggml_type(parts)
        return math.prod(t.shape) // kind.block_size * kind.block_bytes
    return sum(math.prod(s.shape) * DTYPES[s.dtype].bits // 8 for s in parts.values())


# ---- parts: what a tensor consists of in the target


def _parts(target: Target, t: OutputTensor) -> Any:
    with error_context(tensor=t.name):
        if target.kind == "hrry":
            return _descriptor(t)
        if target.kind == "gguf":
            return _ggml_type(t)
        return _stored(target, t)


def _descriptor(t: OutputTensor) -> TensorDescriptor:
    if t.descriptor is not None:
        return t.descriptor
    if t.scheme is not None and t.axis is not None:
        return plan_tensor(t.shape, t.axis, t.scheme)
    return plan_array(t.shape, cast("np.dtype[Any]", t.dtype))


def _ggml_type(t: OutputTensor) -> str:
    if not t.shape:
        raise InputError("GGUF has no scalars", found=t.shape)
    if t.scheme is not None and t.axis is not None:
        reason = ggml.can_hold(t.scheme, t.shape, t.axis)
        if reason is not None:
            raise UnsupportedError(reason, found=t.scheme.name)
        return str(ggml.spec_for(t.scheme))
    return plain_type(cast("np.dtype[Any]", t.dtype)).name


def _stored(target: Target, t: OutputTensor) -> dict[str, Stored]:
    if t.scheme is not None and t.axis is not None:
        return dict(dialect(target.kind).specs(t.name, t.shape, t.axis, t.scheme, target.options))
    return {t.name: Stored(t.name, stored_name(cast("np.dtype[Any]", t.dtype)), t.shape)}


# ---- layout


def plan_output(
    target: Target,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    companions: Sequence[Path],
    rule: str = "",
) -> OutputLayout:
    """Everything about the output before its data.

    Args:
        target: where it goes.
        tensors: what it holds, in order.
        metadata: key-value metadata of the container.
        config: the model's config, for folders.
        companions: files to carry along, for folders.
        rule: the rule that chose the scales, for layouts that say it.
    """
    if target.kind == "hrry":
        return _plan_hrry(tensors, metadata)
    if target.kind == "gguf":
        return _plan_gguf(tensors, metadata)
    return _plan_safetensors(target, tensors, metadata, config, companions, rule)


def _plan_hrry(tensors: Sequence[OutputTensor], metadata: Mapping[str, Any]) -> OutputLayout:
    layout = plan_hrry([(t.name, _descriptor(t)) for t in tensors], metadata)
    regions = {
        name: {str(i): Region(0, *place) for i, place in enumerate(places)}
        for name, places in layout.buffers.items()
    }
    return OutputLayout((PlannedFile("", layout.size, layout.frame),), regions, {}, False)


def _plan_gguf(tensors: Sequence[OutputTensor], metadata: Mapping[str, Any]) -> OutputLayout:
    specs = [(t.name, _ggml_type(t), t.shape) for t in tensors]
    layout = gguf_layout.plan_layout(specs, metadata)
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
    config: Mapping[str, Any],
    companions: Sequence[Path],
    rule: str,
) -> OutputLayout:
    stored = {t.name: _stored(target, t) for t in tensors}
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
    extras = _extras(target, tensors, config, companions) if target.is_folder else {}
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


_NOT_CARRIED = ("config.json", "quantize_config.json", "quant_config.json")


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# ---- bytes


def encode_rows(
    target: Target, t: OutputTensor, w: BlockTensor, first_row: int, *, fresh: bool
) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
    """Part, offset and bytes of some canonical rows, blocks along the last axis of a `.hrry` or GGUF tensor.

    Args:
        target: where they go.
        t: the whole tensor.
        w: the rows, as a matrix.
        first_row: number of the first.
        fresh: whether they were quantized just now (zero blocks then look as ggml writes them).
    """
    if target.kind == "gguf":
        data = ggml.pack_blocks(w, ggml.spec_for(w.scheme), zero_scale="ggml" if fresh else "sign")
        yield "0", first_row * data.shape[1], data.reshape(-1)
        return
    blocks = w.grid.blocks_per_row
    sizes = (w.grid.row_bytes(w.scheme.element.bits), blocks * w.scheme.scale.bits // 8, blocks * 4)
    for i, (data, size) in enumerate(zip(encode_tensor(w)[1], sizes, strict=False)):
        yield str(i), first_row * size, data


def encode_whole(
    target: Target, t: OutputTensor, value: BlockTensor | NDArray[Any], *, fresh: bool
) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
    """Part, offset and bytes of a whole tensor."""
    if target.kind == "hrry":
        for i, data in enumerate(encode_tensor(value)[1]):
            yield str(i), 0, data
    elif isinstance(value, BlockTensor):
        if target.kind == "gguf":
            flat = replace(value, grid=BlockGrid((value.grid.rows, value.grid.length), 1, value.block_size))
            yield from encode_rows(target, t, flat, 0, fresh=fresh)
            return
        module = dialect(target.kind)
        by_name = {s.name: part for part, s in _stored(target, t).items()}
        for name, array in module.write(t.name, value, target.options).items():
            yield by_name[name], 0, _bytes(array)
    else:
        yield ("0" if target.kind == "gguf" else t.name), 0, _bytes(value)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

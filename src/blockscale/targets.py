"""Targets: what an output can hold, and what a tensor consists of in it.

A target is a `.hrry` file, a GGUF file, or safetensors (one file, or a folder of shards) in a dialect.
What it holds is decided here, how it is laid out in `target_layout`, its bytes in `target_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from .containers.gguf_types import ggml_type, plain_type
from .containers.safetensors_table import DTYPES, stored_name
from .dialects import NAMES, check_settings, dialect, ggml, options_of
from .dialects.base import Options, Stored
from .errors import BlockscaleError, InputError, UnsupportedError, error_context
from .hurray import TensorDescriptor, plan_array, plan_tensor
from .schemes import Scheme, scheme

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
        ggml_type: its type, where its bytes are carried from one GGUF file to another.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None = None
    scheme: Scheme | None = None
    axis: int | None = None
    descriptor: TensorDescriptor | None = None
    is_symmetric: bool = False
    ggml_type: str = ""

    @property
    def is_carried(self) -> bool:
        """Whether its stored bytes go over as they are."""
        return self.descriptor is not None or bool(self.ggml_type)


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
    check_settings(options.settings)
    return Target(chosen, path, suffix == "", options_of(chosen, options), shard_bytes or SHARD_BYTES)


def reason_against(target: Target, t: OutputTensor) -> str | None:
    """Why the target cannot hold a tensor, or None."""
    try:
        tensor_parts(target, t)
    except BlockscaleError as error:
        return error.message
    return None


def candidates(target: Target, w: Scheme, shape: tuple[int, ...], axis: int) -> tuple[Scheme, ...]:
    """Schemes of the target that might hold a tensor of scheme `w`, the most compact first."""
    rows: list[Scheme] = []
    if target.kind == "gguf":
        same = ggml.spec_for(w)
        formats = sorted(ggml.FORMATS.values(), key=lambda f: (f.type.name != same, f.type.block_bytes))
        rows = [f.scheme for f in formats]
    else:
        rows = [w, *_affine_forms(w)]
    held = [s for s in rows if reason_against(target, OutputTensor("x.weight", shape, None, s, axis)) is None]
    return tuple(dict.fromkeys(held))


def zero_points(target: Target, row: Scheme) -> tuple[int, int] | None:
    """Smallest and largest zero point that a target stores for codes of a scheme; None: any."""
    if target.kind not in ("compressed-tensors", "gptq", "awq") or row.offset != "zero_point":
        return None
    bits = row.element.bits
    down = 0 if row.element.kind == "uint" else 1 << (bits - 1)
    version = target.options.settings.get("version", "gptq")
    low = 1 if target.kind == "gptq" and version == "gptq" else 0  # v1 stores z - 1
    return low - down, (1 << bits) - 1 - down


def _affine_forms(w: Scheme) -> Iterator[Scheme]:
    """Schemes near one: signed, unsigned, wider codes, other scales; blocks kept or smaller."""
    if w.is_mx:
        for scale in ("float16", "bfloat16", "float32"):
            yield scheme("int8", block_size=w.block_size, scale=scale)
        return
    scales = list(dict.fromkeys((w.scale.name, "float16", "bfloat16", "float32")))
    bits = [b for b in (2, 4, 8) if b >= w.element.bits]
    sizes = [k for k in (w.block_size, 128, 64, 32) if k <= w.block_size]
    for size in dict.fromkeys(sizes):
        for width in bits:
            for scale in scales:
                yield scheme(f"int{width}", block_size=size, scale=scale, symmetric=True)
                yield scheme(f"uint{width}", block_size=size, scale=scale, symmetric=False)


def check_tensor(target: Target, t: OutputTensor) -> OutputTensor:
    """The tensor itself, if the target can hold it.

    Raises:
        BlockscaleError: it cannot; the error says why and what would do.
    """
    tensor_parts(target, t)
    return t


def stored_bytes(target: Target, t: OutputTensor) -> int:
    """Bytes that a tensor takes in the target, without alignment."""
    parts = tensor_parts(target, t)
    if isinstance(parts, TensorDescriptor):
        return sum(buffer.byte_size for buffer in parts.buffers)
    if isinstance(parts, str):
        kind = ggml_type(parts)
        return math.prod(t.shape) // kind.block_size * kind.block_bytes
    return sum(math.prod(s.shape) * DTYPES[s.dtype].bits // 8 for s in parts.values())


# ---- parts: what a tensor consists of in the target


def tensor_parts(target: Target, t: OutputTensor) -> Any:
    """What a tensor is in a target: a descriptor, the name of a ggml type, or stored tensors."""
    with error_context(tensor=t.name):
        if target.kind == "hrry":
            return descriptor_of(t)
        if target.kind == "gguf":
            return block_type(t)
        return stored_parts(target, t)


def descriptor_of(t: OutputTensor) -> TensorDescriptor:
    """Its Hurray descriptor."""
    if t.descriptor is not None:
        return t.descriptor
    if t.scheme is not None and t.axis is not None:
        return plan_tensor(t.shape, t.axis, t.scheme)
    return plan_array(t.shape, cast("np.dtype[Any]", t.dtype))


def block_type(t: OutputTensor) -> str:
    """Its type in a GGUF file.

    Raises:
        BlockscaleError: GGUF cannot hold it.
    """
    if t.ggml_type:
        return t.ggml_type
    if not t.shape:
        raise InputError("GGUF has no scalars", found=t.shape)
    if t.scheme is not None and t.axis is not None:
        reason = ggml.can_hold(t.scheme, t.shape, t.axis)
        if reason is not None:
            raise UnsupportedError(reason, found=t.scheme.name)
        return str(ggml.spec_for(t.scheme))
    return plain_type(cast("np.dtype[Any]", t.dtype)).name


def stored_parts(target: Target, t: OutputTensor) -> dict[str, Stored]:
    """Part to stored tensor in safetensors."""
    if t.scheme is not None and t.axis is not None:
        return dict(dialect(target.kind).specs(t.name, t.shape, t.axis, t.scheme, target.options))
    return {t.name: Stored(t.name, stored_name(cast("np.dtype[Any]", t.dtype)), t.shape)}

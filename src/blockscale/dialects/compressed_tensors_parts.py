"""The parts of a compressed-tensors weight: what must be there, and what they say without a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..errors import FormatError
from .base import Load, Stored
from .compressed_tensors_codes import unpack_zero_points
from .compressed_tensors_config import Group
from .stored_parts import missing_part

Parts = Mapping[str, Stored]

ROLES = (
    "weight_packed",
    "weight",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
)
WIDTHS = (4, 8, 2)
"""Widths of packed integers that are read; the order is that of likelihood."""
SCALE_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def infer_group(name: str, parts: Parts, load: Load) -> Group | None:
    """What packed parts say of themselves where no config does; None for a layout that is not known.

    Raises:
        FormatError: parts are missing, or fit no width or group size.
    """
    packed = parts["weight_packed"]
    scales = need(name, parts, "weight_scale", (*SCALE_DTYPES, "U8", "F8_E8M0", "F8_E4M3"), None)
    blank = Group("found", (), "", 0, "float", True, "group", 32)
    if packed.dtype == "U8" and scales.shape:
        if scales.dtype == "F8_E4M3":
            return replace(blank, format="nvfp4-pack-quantized", bits=4, group_size=16)
        for bits in (4, 6):
            if packed.shape == (*scales.shape[:-1], scales.shape[-1] * 4 * bits):
                return replace(blank, format=f"mxfp{bits}-pack-quantized", bits=bits)
    if packed.dtype != "I32" or scales.dtype not in SCALE_DTYPES:
        return None
    shape = stored_shape(name, parts, packed, load)
    bits = next((b for b in WIDTHS if packed.shape[-1] == -(-shape[-1] * b // 32)), 0)
    groups = scales.shape[-1] if scales.shape else 1
    if not bits or not groups or shape[-1] % groups:
        raise FormatError(
            f"no config, and {packed.name!r} {list(packed.shape)} with {scales.name!r} {list(scales.shape)} "
            f"fit no width and group size of a weight {list(shape)}",
            tensor=name,
            hint="put the model's config.json beside the file",
        )
    found = replace(blank, format="pack-quantized", bits=bits, kind="int")
    strategy = "group" if groups > 1 else "channel"
    symmetric = "weight_zero_point" not in parts
    return replace(found, symmetric=symmetric, strategy=strategy, group_size=shape[-1] // groups)


def need(name: str, parts: Parts, role: str, dtypes: tuple[str, ...], group: Group | None) -> Stored:
    """A part that must be there, of one of these dtypes."""
    if role not in parts:
        raise missing_part(
            name, role, f"{name.removesuffix('weight')}{role}", [p.name for p in parts.values()]
        )
    part = parts[role]
    if part.dtype not in dtypes:
        says = f"config says {group.describe()}, so" if group is not None else "the parts need"
        raise FormatError(
            f"{says} {role} is {' or '.join(dtypes)}; {part.name!r} is {part.dtype} {list(part.shape)}",
            tensor=name,
            field=role,
            found=part.dtype,
        )
    return part


def check_matrix(name: str, codes: Stored) -> None:
    """FormatError unless codes have at least two dimensions."""
    if len(codes.shape) < 2:
        what = f"{codes.name!r} is {list(codes.shape)}, no matrix"
        raise FormatError(what, tensor=name, found=codes.shape)


def stored_shape(name: str, parts: Parts, packed: Stored, load: Load) -> tuple[int, ...]:
    """The weight's shape out of `weight_shape`, checked against the packed words."""
    part = need(name, parts, "weight_shape", ("I64", "I32"), None)
    rank = len(packed.shape)
    shape = tuple(int(n) for n in load(part.name).reshape(-1)) if part.shape == (rank,) else ()
    if rank < 2 or len(shape) != rank or min(shape) < 0 or shape[:-1] != packed.shape[:-1]:
        raise FormatError(
            f"{part.name!r} says {list(shape or part.shape)}, {packed.name!r} is {list(packed.shape)}",
            tensor=name,
            field="weight_shape",
            found=shape,
            rule="weight_shape is the weight's shape; only its last dimension is packed",
        )
    return shape


def zero_point_form(name: str, parts: Parts, group: Group, shape: tuple[int, ...]) -> str:
    """How zero points are stored: `packed` words or `plain` integers like the scales (older writers)."""
    like = need(name, parts, "weight_scale", tuple(SCALE_DTYPES), group).shape
    part = need(name, parts, "weight_zero_point", ("I32", "I8"), group)
    words = (*shape[:-2], -(-shape[-2] * group.bits // 32), like[-1] if like else 1)
    if part.dtype == "I32" and part.shape == words and group.format == "pack-quantized":
        return "packed"
    if part.shape == like:
        return "plain"
    raise FormatError(
        f"{part.name!r} is {part.dtype} {list(part.shape)}; need words {list(words)}, or integers like the "
        f"scales {list(like)}",
        tensor=name,
        field="weight_zero_point",
        found=part.shape,
        rule="zero points are packed along out, or plain",
    )


def check_symmetric(name: str, parts: Parts, group: Group, shape: tuple[int, ...], load: Load) -> None:
    """Zero points of a weight that the config calls symmetric are harmless only if all of them are zero.

    Raises:
        FormatError: some are not.
    """
    if "weight_zero_point" not in parts:
        return
    form = zero_point_form(name, parts, group, shape)
    stored = load(parts["weight_zero_point"].name)
    neutral = 1 << (group.bits - 1) if form == "packed" else 0
    values = unpack_zero_points(stored, group.bits, shape[-2]) if form == "packed" else np.asarray(stored)
    wrong = int((values != neutral).sum())
    if wrong:
        raise FormatError(
            f"config says symmetric, but {wrong} of {values.size} zero points in "
            f"{parts['weight_zero_point'].name!r} are not 0",
            tensor=name,
            field="weight_zero_point",
            found=wrong,
            rule="a symmetric weight has no zero points",
        )


def index_fault(name: str, parts: Parts, group: Group, shape: tuple[int, ...], load: Load) -> str | None:
    """Why groups are not contiguous, or None; an index of all -1 means none, i // group changes nothing."""
    part = parts.get("weight_g_idx")
    if part is None:
        if group.reordered:
            raise missing_part(name, "weight_g_idx", f"{name}_g_idx", [p.name for p in parts.values()])
        return None
    index = np.asarray(load(part.name)).reshape(-1)
    size = group.group_size or shape[-1]
    if part.shape != (shape[-1],):
        raise FormatError(
            f"{part.name!r} is {list(part.shape)} for {shape[-1]} columns", tensor=name, found=part.shape
        )
    if (index == -1).all() or np.array_equal(index, np.arange(shape[-1]) // size):
        return None
    moved = int((index != np.arange(shape[-1]) // size).sum())
    return (
        f"{moved} of {shape[-1]} columns lie in another group than their place says ({part.name!r}, "
        "activation order): a block along the axis cannot hold that"
    )

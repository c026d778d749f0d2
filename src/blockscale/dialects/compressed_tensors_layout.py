"""What the parts of one compressed-tensors weight must look like, checked against what the config says.

| format | codes | scales | besides |
|---|---|---|---|
| `pack-quantized` | `weight_packed` I32 `[..., out, ceil(in * bits / 32)]` | `weight_scale` float `[..., out, groups]` | `weight_shape`; `weight_zero_point` I32 `[..., ceil(out * bits / 32), groups]` if asymmetric |
| `int-quantized` | `weight` I8 `[..., out, in]` | the same | `weight_zero_point` I8 like the scales if asymmetric |
| `mxfp4-pack-quantized` | `weight_packed` U8 `[..., out, in / 2]` | `weight_scale` U8 (E8M0) `[..., out, in / 32]` | |
| `mxfp6-pack-quantized` | `weight_packed` U8 `[..., out, in * 3 / 4]`, E2M3 | the same | |
| `mxfp8-quantized` | `weight` F8_E4M3 `[..., out, in]` | the same | |

Codes run along `in`, low bits first; integers are stored plus `2**(bits - 1)`, zero points too.
Source: compressed-tensors 0.20, `compressors/` (read, not copied).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import FormatError
from ..schemes import Scheme, scheme
from .base import Load, Stored, Weight
from .compressed_tensors_config import Group
from .compressed_tensors_parts import (
    SCALE_DTYPES,
    WIDTHS,
    Parts,
    check_matrix,
    check_symmetric,
    index_fault,
    need,
    stored_shape,
    zero_point_form,
)
from .stored_parts import odd_layout

MX_FORMATS = {
    # format: role of the codes, their dtype, scheme, stored columns * numerator / denominator = in
    "mxfp4-pack-quantized": ("weight_packed", "U8", "mxfp4", 2, 1),
    "mxfp6-pack-quantized": ("weight_packed", "U8", "mxfp6_e2m3", 4, 3),
    "mxfp8-quantized": ("weight", "F8_E4M3", "mxfp8_e4m3", 1, 1),
}


def describe_weight(name: str, parts: Parts, group: Group, load: Load) -> Weight | str:
    """A weight from its parts, or the reason for which blockscale leaves it as it is.

    Args:
        name: logical name.
        parts: role (`"weight_packed"` ...) to stored tensor.
        group: how the config says it is quantized, or how its parts say.
        load: loads the small parts.

    Raises:
        FormatError: a part is missing or contradicts the config.
    """
    build = _BUILDERS.get(group.format)
    if build is None or group.kind == "unknown" or (group.format in _INTEGERS and group.kind != "int"):
        return f"{group.describe()}: a scheme blockscale does not read"
    return build(name, parts, group, load)


def _packed_integers(name: str, parts: Parts, group: Group, load: Load) -> Weight | str:
    packed = need(name, parts, "weight_packed", ("I32",), group)
    shape = stored_shape(name, parts, packed, load)
    if group.bits not in WIDTHS:
        return f"{group.describe()}: codes of {group.bits} bits are not read (2, 4 and 8 are)"
    words = -(-shape[-1] * group.bits // 32)
    if packed.shape != (*shape[:-1], words):
        seen = [b for b in WIDTHS if packed.shape[-1] == -(-shape[-1] * b // 32)]
        raise FormatError(
            f"config says {group.bits} bits, so {shape[-1]} columns take {words} words; "
            f"{packed.name!r} is {list(packed.shape)}"
            + (f", which is {seen[0]} bits" if seen and packed.shape[:-1] == shape[:-1] else ""),
            tensor=name,
            found=packed.shape,
            rule="weight_packed is [out, ceil(in * bits / 32)]",
        )
    if group.symmetric:
        check_symmetric(name, parts, group, shape, load)
        row, zeros = f"int{group.bits}", "none"
    else:
        row, zeros = f"uint{group.bits}", zero_point_form(name, parts, group, shape)
    return _integer_weight(name, shape, parts, group, "weight_packed", row, zeros, load)


def _plain_integers(name: str, parts: Parts, group: Group, load: Load) -> Weight | str:
    codes = need(name, parts, "weight", ("I8",), group)
    check_matrix(name, codes)
    if group.symmetric:
        check_symmetric(name, parts, group, codes.shape, load)
    zeros = "none" if group.symmetric else zero_point_form(name, parts, group, codes.shape)
    return _integer_weight(name, codes.shape, parts, group, "weight", "int8", zeros, load)


def _integer_weight(
    name: str,
    shape: tuple[int, ...],
    parts: Parts,
    group: Group,
    codes: str,
    row: str,
    zeros: str,
    load: Load,
) -> Weight | str:
    """Scales, block size and group index of an integer weight whose codes have been checked."""
    scales = need(name, parts, "weight_scale", tuple(SCALE_DTYPES), group)
    if group.strategy not in ("group", "channel", "tensor"):
        return f"{group.describe()}: this strategy is no block along the last axis"
    block, repeat = _block_size(name, shape, scales, group)
    if block < 2:
        return f"{group.describe()}: groups of {group.group_size} are no power of two, nor some of them"
    meaning = scheme(row, block_size=block, scale=SCALE_DTYPES[scales.dtype], symmetric=zeros == "none")
    refused = index_fault(name, parts, group, shape, load)
    roles = [codes, "weight_scale", *(["weight_zero_point"] if zeros != "none" else [])]
    settings: dict[str, Any] = {"codes": codes, "zero_points": zeros, "repeat": repeat, "refused": refused}
    return Weight(name, shape, meaning, len(shape) - 1, {r: parts[r].name for r in roles}, settings)


def _block_size(name: str, shape: tuple[int, ...], scales: Stored, group: Group) -> tuple[int, int]:
    """Block size, and how often each stored scale is repeated; raises unless the scales' shape fits.

    One scale per row or tensor is one (partial) block of the next power of two; groups whose size is no power
    of two are cut into blocks of the largest that divides it.
    """
    columns = shape[-1]
    whole = 1 << max(1, (columns - 1).bit_length())
    if group.strategy == "tensor":
        fits, wanted = scales.shape in ((), (1,), (1, 1)), [1]
        block, repeat = whole, 1
    elif group.strategy == "channel":
        wanted = [*shape[:-1], 1]
        fits = scales.shape in (tuple(wanted), shape[:-1])
        block, repeat = whole, 1
    else:
        size = int(group.group_size or 0)
        wanted = [*shape[:-1], -(-columns // size)]
        fits = scales.shape == tuple(wanted)
        block = size & -size
        repeat = size // block
        if repeat > 1 and columns % size:
            block = 0
    if not fits:
        count = scales.shape[-1] if scales.shape else 0
        seen = f", which is groups of {columns // count}" if count > 1 and columns % count == 0 else ""
        raise FormatError(
            f"config says {group.describe()}, so {list(shape)} takes scales {wanted}; "
            f"{scales.name!r} is {list(scales.shape)}{seen}",
            tensor=name,
            found=scales.shape,
            rule="weight_scale is [out, groups]",
        )
    return block, repeat


def _microscaled(name: str, parts: Parts, group: Group, load: Load) -> Weight | str:
    role, dtype, row, up, down = MX_FORMATS[group.format]
    codes = need(name, parts, role, (dtype,), group)
    scales = need(name, parts, "weight_scale", ("U8", "F8_E8M0"), group)
    meaning: Scheme = scheme(row)
    check_matrix(name, codes)
    shape = (*codes.shape[:-1], codes.shape[-1] * up // down)
    if group.group_size != meaning.block_size or group.bits != meaning.element.bits:
        raise FormatError(
            f"config says {group.describe()}, but {group.format} has {meaning.element.bits}-bit codes in "
            f"groups of {meaning.block_size}",
            tensor=name,
            found=group.group_size,
        )
    groups = shape[-1] // meaning.block_size
    whole = shape[-1] % meaning.block_size == 0
    refused = odd_layout(scales.shape, shape[:-1], groups) if whole else None
    if refused is None and not (whole and scales.shape == (*shape[:-1], groups)):
        raise FormatError(
            f"{codes.name!r} is {list(codes.shape)}, so {list(shape)} takes E8M0 scales "
            f"{[*shape[:-1], groups]}; {scales.name!r} is {list(scales.shape)}",
            tensor=name,
            found=scales.shape,
            rule="weight_scale is [out, in / 32], in whole blocks",
        )
    settings = {"codes": role, "zero_points": "none", "shift": group.scale_shift, "refused": refused}
    names = {role: codes.name, "weight_scale": scales.name}
    return Weight(name, shape, meaning, len(shape) - 1, names, settings)


_INTEGERS = ("pack-quantized", "int-quantized", "naive-quantized")
_BUILDERS: dict[str, Callable[[str, Parts, Group, Load], Weight | str]] = {
    "pack-quantized": _packed_integers,
    "int-quantized": _plain_integers,
    "naive-quantized": _plain_integers,
    **dict.fromkeys(MX_FORMATS, _microscaled),
}

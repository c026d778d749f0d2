"""What dialects share: turning stored parts into a BlockTensor, and telling parts that cannot be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import first_index
from ..blocks import block_grid
from ..errors import FormatError, UnsupportedError
from ..schemes import Scheme
from ..tensor import BlockTensor
from .base import Load, Weight

TILE = (128, 4)
"""Rows and columns of the tiles in which some engines keep scales (NVIDIA's block-scaled matmul)."""
_PIECE = 1 << 22  # bytes compared at once


def mx_tensor(
    scheme: Scheme, shape: Sequence[int], axis: int, packed: NDArray[Any], scales: NDArray[Any]
) -> BlockTensor:
    """An MX tensor from parts whose rows lie in canonical order; nothing is copied if they are contiguous.

    Args:
        scheme: an MX scheme.
        shape: logical shape.
        axis: the blocked axis.
        packed: packed codes of any one-byte dtype, all of them in canonical order.
        scales: E8M0 bytes of any one-byte dtype, one per block.
    """
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    rows = (grid.rows, grid.row_bytes(scheme.element.bits))
    return BlockTensor(
        grid,
        scheme,
        np.ascontiguousarray(packed).view(np.uint8).reshape(rows),
        np.ascontiguousarray(scales).view(scheme.scale.dtype).reshape(grid.rows, grid.blocks_per_row),
    )


def plural(count: int) -> str:
    """`1 weight`, `2 weights`."""
    return f"{count} weight{'s' * (count != 1)}"


def refuse_unreadable(weight: Weight) -> None:
    """Raise the reason for which a recognised weight cannot be read, if there is one.

    Raises:
        UnsupportedError: `weight.settings["refused"]` is set.
    """
    reason = weight.settings.get("refused")
    if reason:
        raise UnsupportedError(
            str(reason), tensor=weight.name, rule=f"its scheme is {weight.scheme.name} {list(weight.shape)}"
        )


def missing_part(weight: str, role: str, name: str, have: Sequence[str]) -> FormatError:
    """The error for a weight that lacks a part."""
    return FormatError(
        f"the part {name!r} is missing; found {', '.join(sorted(have)) or 'none'}",
        tensor=weight,
        field=role,
        rule="every part of a quantized weight is stored",
        hint="open the index of all shards; or the file was saved incompletely",
    )


def check_finite(scales: NDArray[Any], weight: str, name: str) -> None:
    """FormatError if a scale is NaN or infinite; names the count and the first.

    Args:
        scales: float16, bfloat16 or float32 of any shape.
        weight: the weight's name.
        name: the stored name of the scales.
    """
    finite = np.isfinite(scales)
    if finite.all():
        return
    first = first_index(~finite)
    raise FormatError(
        f"{int((~finite).sum())} of {finite.size} scales in {name!r} are NaN or infinite, "
        f"the first is {scales[first]} at {list(first)}",
        tensor=weight,
        field="scales",
        found=float(scales[first]),
        rule="scales are finite",
        hint="the file was saved before its scales were computed; quantize again",
    )


def check_not_nan(scales: NDArray[Any], weight: str, name: str) -> None:
    """FormatError if an E8M0 byte is 255: OCP reads it as NaN, toolchains as infinity.

    Args:
        scales: E8M0 bytes of any shape and one-byte dtype.
        weight: the weight's name.
        name: the stored name of the scales.
    """
    bad = np.ascontiguousarray(scales).view(np.uint8) == 255
    if bad.any():
        raise FormatError(
            f"{int(bad.sum())} of {bad.size} scales in {name!r} are the byte 255, "
            f"the first at {list(first_index(bad))}",
            tensor=weight,
            field="scales",
            found=255,
            rule="scales are finite: OCP MX reads 255 as NaN, the toolchains of this format as infinity",
            hint="mend the source and quantize again; .hrry keeps NaN blocks as NaN",
        )


def shifted_scales(scales: NDArray[Any], shift: int, weight: str) -> NDArray[Any]:
    """E8M0 bytes plus a small number; FormatError where the sum is no byte of a finite scale."""
    if not shift:
        return scales
    stored = np.ascontiguousarray(scales).view(np.uint8)
    if stored.size and int(stored.max()) + shift > 254:
        raise FormatError(
            f"the scale byte {int(stored.max())} plus {shift} is beyond 254",
            tensor=weight,
            field="scales",
            found=int(stored.max()),
            hint="settings scale_shift=0 reads the bytes as they are",
        )
    return stored + np.uint8(shift)


def is_constant(array: NDArray[Any]) -> bool:
    """True if all items are bit for bit the same; reads little when they are not."""
    raw = np.ascontiguousarray(array).reshape(-1)
    raw = raw.view(f"u{raw.dtype.itemsize}")
    if raw.size < 2:
        return False
    step = max(1, _PIECE // raw.itemsize)
    return all(bool((raw[i : i + step] == raw[0]).all()) for i in range(0, raw.size, step))


def part_findings(weight: Weight, load: Load, codes: str, scales: str) -> tuple[str, ...]:
    """What is odd in the data of a weight, one sentence each (reads all of them).

    Args:
        weight: the weight.
        load: loads a stored tensor.
        codes: stored name of the codes.
        scales: stored name of the scales.
    """
    found = []
    words, values = load(codes), load(scales)
    if is_constant(words):
        word = np.ascontiguousarray(words).reshape(-1)[:1].tobytes()[::-1].hex()
        found.append(
            f"{weight.name}: every item of {codes!r} is 0x{word}: an all-equal weight, or one never written"
        )
    if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
        bad, zeros = int((~np.isfinite(values)).sum()), int((values == 0).sum())
        found += [f"{weight.name}: {bad} of {values.size} scales are NaN or infinite"] * bool(bad)
        found += [f"{weight.name}: {zeros} of {values.size} scales are zero"] * bool(zeros)
    else:
        nan = int((np.ascontiguousarray(values).view(np.uint8) == 255).sum())
        found += [f"{weight.name}: {nan} of {values.size} scale bytes are 255 (NaN)"] * bool(nan)
    return tuple(found)


def odd_layout(scales: tuple[int, ...], rows: tuple[int, ...], groups: int) -> str | None:
    """Why scales of this shape are not one per block in row order; None if they are, or are no scales at all.

    Args:
        scales: shape of the stored scales.
        rows: shape of the weight without its last axis.
        groups: blocks along that axis.
    """
    if scales == (*rows, groups) or not math.prod(scales) or not math.prod((*rows, groups)):
        return None
    tiles = (*rows[:-1], *(-(-n // t) * t for n, t in zip((rows[-1], groups), TILE, strict=True)))
    what = f"the scales are {list(scales)} for {list(rows)} rows of {groups} blocks"
    if math.prod(scales) == math.prod(tiles):
        return (
            f"{what}: padded to tiles of {TILE[0]} x {TILE[1]} {list(tiles[-2:])}, and most likely swizzled; "
            "their order is not stored (force it by scale_layout='128x4' or 'padded')"
        )
    if scales == (*rows, tiles[-1]):
        return f"{what}: padded to {tiles[-1]} columns, order unknown (force it by scale_layout='padded')"
    if scales == (*rows[:-1], groups, rows[-1]):
        return f"{what}: transposed"
    if math.prod(scales) == math.prod((*rows, groups)):
        return f"{what}: the count fits, the shape does not, so their order is unknown"
    return None


def ordered_scales(
    scales: NDArray[np.uint8], rows: tuple[int, ...], groups: int, layout: str | None
) -> NDArray[np.uint8]:
    """Scale bytes in row order, `(*rows, groups)`.

    Args:
        scales: as stored.
        rows: shape of the weight without its last axis.
        groups: blocks along that axis.
        layout: None (as they are), `"padded"` (crop) or `"128x4"` (undo the tiles: within a tile, the scale
            of row r and column c lies at `(r % 32) * 16 + (r // 32) * 4 + c`).

    Source: NVIDIA cuBLAS documentation, "1D block scaling factors layout".
    """
    if layout is None:
        return scales.reshape(*rows, groups)
    down, across = (-(-n // t) for n, t in zip((rows[-1], groups), TILE, strict=True))
    if layout == "128x4":
        tiles = scales.reshape(*rows[:-1], down, across, 32, 4, 4)
        scales = np.ascontiguousarray(np.swapaxes(tiles, -4, -2))
        scales = scales.reshape(*rows[:-1], down * TILE[0], across * TILE[1])
    return np.ascontiguousarray(scales[..., : rows[-1], :groups])

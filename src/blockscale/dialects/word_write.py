"""What a BlockTensor needs to be written as GPTQ or AWQ words: checks with advice, unsigned codes, parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..arguments import first_index
from ..blocks import BlockGrid
from ..errors import UnsupportedError
from ..schemes import Scheme
from ..tensor import BlockTensor
from .base import Stored
from .words import ONES, U32, WORD, fields_per_word

_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Ready:
    """A weight ready to be laid out.

    Attributes:
        lead: number of matrices (experts), 1 for a plain weight.
        lead_shape: their dimensions, `()` for a plain weight.
        n_in: inputs.
        n_out: outputs.
        bits: width of a code.
        rows: uint32 `(lead, n_out, words)`, canonical rows seen as words.
        flip: what turns a stored word of signed codes into one of unsigned codes, by exclusive or.
        zeros: int64 `(*lead_shape, groups, n_out)`, zero points of the unsigned codes.
        scales: `(*lead_shape, groups, n_out)`, as they are.
    """

    lead: int
    lead_shape: tuple[int, ...]
    n_in: int
    n_out: int
    bits: int
    rows: U32
    flip: np.uint32
    zeros: NDArray[np.int64]
    scales: NDArray[Any]


def prefix_of(name: str, dialect: str) -> str:
    """What the parts' names start with.

    Raises:
        UnsupportedError: a name that reading could not give back.
    """
    prefix = name.removesuffix("weight")
    if not name.endswith("weight") or (prefix and prefix[-1] not in "._"):
        raise UnsupportedError(
            f"{dialect} names its parts after a weight called ...weight, and this one is {name!r}",
            found=name,
            rule="x.weight becomes x.qweight, x.qzeros, x.scales",
            hint="rename it, or split fused experts into modules of their own",
        )
    return prefix


def check_fit(
    grid: BlockGrid, scheme: Scheme, dialect: str, widths: tuple[int, ...], settings: Mapping[str, Any]
) -> None:
    """Check that a weight fits, before there are data.

    Args:
        grid: shape, axis and block size; fits if `[out, in]` or `[experts, out, in]`, blocks along the last.
        scheme: what its numbers mean.
        dialect: for messages.
        widths: widths of codes that the dialect has.
        settings: `float32_scales` allows float32 scales.

    Raises:
        UnsupportedError: what does not fit, with advice.
    """
    _check_scheme(scheme, dialect, widths)
    if grid.axis != len(grid.shape) - 1 or len(grid.shape) not in (2, 3):
        _refuse(
            f"its shape is {list(grid.shape)} with blocks along axis {grid.axis}",
            f"{dialect} weights are [out, in] (or [experts, out, in]), groups along the input, the last axis",
            "quantize the weight again with axis=-1",
        )
    per_word = fields_per_word(scheme.element.bits)
    for what, n in (("output", grid.shape[-2]), ("input", grid.shape[-1])):
        if n % per_word or not n:
            _refuse(
                f"its {what} has {n} = {n // per_word} * {per_word} + {n % per_word} elements",
                f"a word holds {per_word} codes of {scheme.element.bits} bits; only whole words are written",
                "keep this weight unquantized, or pad it",
            )
    if scheme.scale.name == "float32" and not settings.get("float32_scales", False):
        _refuse(
            "its scales are float32",
            f"loaders of {dialect} take float16 or bfloat16 scales, and would round these silently",
            "quantize with float16 or bfloat16 scales, or set float32_scales=True to write them as they are",
        )


def prepare(w: BlockTensor) -> Ready:
    """The parts of a weight that fits, in the dialect's orientation.

    Raises:
        UnsupportedError: scales that are not finite.
    """
    _check_finite(w)
    *lead_shape, n_out, n_in = w.shape
    bits = w.scheme.element.bits
    lead, groups = math.prod(lead_shape), w.grid.blocks_per_row
    half = 1 << (bits - 1) if w.scheme.element.kind == "int" else 0
    offsets = np.zeros((w.grid.rows, groups), np.int64) if w.row_offsets is None else w.row_offsets
    return Ready(
        lead,
        tuple(lead_shape),
        n_in,
        n_out,
        bits,
        w.packed.view(WORD).reshape(lead, n_out, -1),
        np.uint32(half * ONES[bits]),
        _by_group(offsets.astype(np.int64) + half, lead_shape, n_out),
        _by_group(w.row_scales, lead_shape, n_out),
    )


def _by_group(rows: NDArray[Any], lead_shape: list[int], n_out: int) -> NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(rows.reshape(*lead_shape, n_out, -1), -1, -2))


def _check_scheme(row: Scheme, dialect: str, widths: tuple[int, ...]) -> None:
    if not row.element.is_integer or row.is_mx:
        _refuse(
            f"its scheme is {row.describe()}",
            f"{dialect} holds integer codes with affine scales",
            "quantize from the original weights to uint4 or int4",
        )
    if row.offset == "minimum":
        _refuse(
            f"its scheme is {row.describe()}",
            f"{dialect} has integer zero points, and a minimum is one only if -m / d is an integer",
            "convert to uint4 with zero points first, which says what is exact",
        )
    if row.element.bits not in widths:
        _refuse(
            f"its codes have {row.element.bits} bits",
            f"{dialect} has codes of {', '.join(map(str, widths))} bits",
            "quantize from the original weights to one of these",
        )


def _check_finite(w: BlockTensor) -> None:
    bad = ~np.isfinite(w.row_scales.astype(np.float32))
    if bad.any():
        first = list(first_index(bad))
        _refuse(
            f"{int(bad.sum())} of {bad.size} scales are NaN or infinite, the first at row {first[0]}, "
            f"block {first[1]}",
            "scales are finite",
            "quantize this weight again",
        )


def check_range(zeros: NDArray[np.int64], low: int, high: int, dialect: str, hint: str) -> None:
    """UnsupportedError with the count and the first of the zero points outside `low .. high`."""
    bad = (zeros < low) | (zeros > high)
    if bad.any():
        first = first_index(bad)
        _refuse(
            f"{int(bad.sum())} of {bad.size} zero points lie outside {low} .. {high}, the first is "
            f"{int(zeros[first])} at group {first[-2]}, output {first[-1]}",
            f"{dialect} stores zero points of {low} .. {high}",
            hint,
        )


def _refuse(found: str, rule: str, hint: str) -> NoReturn:
    raise UnsupportedError(found, rule=rule, hint=hint)


def stored_specs(grid: BlockGrid, scheme: Scheme, prefix: str, words_along: str) -> dict[str, Stored]:
    """Name, dtype and shape of `qweight`, `qzeros` and `scales`, before there are data.

    Args:
        grid: of a weight that fits.
        scheme: what its numbers mean.
        prefix: what the names start with.
        words_along: `"in"` (GPTQ) or `"out"` (AWQ).
    """
    *lead, n_out, n_in = grid.shape
    bits, groups = scheme.element.bits, grid.blocks_per_row
    matrix = (n_in * bits // 32, n_out) if words_along == "in" else (n_in, n_out * bits // 32)
    rows = (
        ("qweight", "I32", matrix),
        ("qzeros", "I32", (groups, n_out * bits // 32)),
        ("scales", _DTYPES[scheme.scale.name], (groups, n_out)),
    )
    return {prefix + role: Stored(prefix + role, dtype, (*lead, *shape)) for role, dtype, shape in rows}


def is_symmetric(w: BlockTensor) -> bool:
    """True if every zero point is the middle of the codes: 0 of signed, 2**(bits - 1) of unsigned ones."""
    element = w.scheme.element
    if w.scheme.offset == "none":
        return element.kind == "int"
    middle = 1 << (element.bits - 1) if element.kind == "uint" else 0
    return w.row_offsets is not None and bool((w.row_offsets == middle).all())

"""What `blockscale inspect` prints: metadata, tables of tensors, scales and codes, notes and problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, TensorInfo
from ..containers.gguf_values import GgufValue
from ..summary import TensorSummary
from ..values import CodeStatistics, ScaleStatistics
from .names import NameGroup, collapse_names, group_rows
from .output import Column, plain, print_table, say
from .schemes import describe_scheme
from .text import (
    printable,
    show_bits,
    show_bytes,
    show_count,
    show_number,
    show_range,
    show_shape,
    show_share,
)

_LONGEST_VALUE = 200
_FIRST_ITEMS = 8


def print_checkpoint(ckpt: Checkpoint, found: Sequence[TensorSummary], *, show_all: bool) -> None:
    """Print everything."""
    _print_head(ckpt, found)
    kinds = [_kind(s.info) for s in found]
    groups = group_rows([s.info.name for s in found], kinds, show_all=show_all)
    _print_tensors(groups, found)
    _print_scales(groups, found)
    _print_codes(groups, found)
    _print_lines("notes", [(s.info.name, s.notes) for s in found], show_all=show_all)
    _print_lines("problems", [(s.info.name, s.problems) for s in found], show_all=show_all)


def _metadata_text(value: Any) -> Any:
    if not isinstance(value, GgufValue):
        return value
    if value.item_type is None:
        return value.value
    first = ", ".join(repr(item) for item in _first_items(value))
    more = ", ..." if len(value) > _FIRST_ITEMS else ""
    return f"{len(value):,} of {value.item_type}: {first}{more}"


def _metadata_document(value: Any) -> Any:
    if not isinstance(value, GgufValue):
        return value
    if value.item_type is None:
        return value.value
    return {"type": value.item_type, "count": len(value), "first": _first_items(value)}


def _first_items(value: GgufValue) -> list[Any]:
    first: list[Any] = plain(_cut(value.value))
    return first


def _cut(item: Any) -> Any:
    return [_cut(inner) for inner in item[:_FIRST_ITEMS]] if isinstance(item, list | np.ndarray) else item


def _print_head(ckpt: Checkpoint, found: Sequence[TensorSummary]) -> None:
    size = ckpt.nbytes
    elements = sum(s.info.size for s in found)
    shown = "" if len(found) == len(ckpt.infos) else f", {len(found):,} of them shown"
    tensors = show_count(len(ckpt.infos), "tensor")
    say(f"{printable(ckpt.path)}: {ckpt.kind}, {tensors}{shown}, {show_bytes(size)}")
    for key, value in ckpt.metadata.items():
        text = printable(_metadata_text(value))
        cut = text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + f"... ({len(text)} characters)"
        say(f"  {printable(key)}: {cut}")
    if len(ckpt.paths) > 1:
        for path in ckpt.paths:
            say(f"  {printable(path.name)}: {show_bytes(path.stat().st_size)}")
    for line in ckpt.reading.evidence:
        say(f"read as {printable(line)}")
    for line in ckpt.reading.problems:
        say(f"note: {printable(line)}")
    stored = sum(s.info.nbytes for s in found)
    bits = f", {8 * stored / elements:.4g} bits each" if elements else ""
    say(f"{elements:,} elements{bits}")
    for scheme, infos in _by_scheme(s.info for s in found).items():
        count = sum(info.size for info in infos)
        each = 8 * sum(info.nbytes for info in infos) / count if count else 0.0
        say(f"  {show_count(len(infos), 'tensor')}, {show_bits(each)} bits: {scheme}")
    say()


def _by_scheme(infos: Iterable[TensorInfo]) -> dict[str, list[TensorInfo]]:
    found: dict[str, list[TensorInfo]] = {}
    for info in infos:
        if info.quantization:
            text = f"{info.scheme.name} ({info.scheme.describe()})" if info.scheme else info.quantization
            found.setdefault(text, []).append(info)
    return found


def _kind(info: TensorInfo) -> tuple[Any, ...]:
    return (info.shape, info.dtype, info.scheme, info.axis, info.quantization)


def _print_tensors(groups: Sequence[NameGroup], found: Sequence[TensorSummary]) -> None:
    columns = (
        Column("tensor", fold=True),
        Column("count", is_number=True),
        Column("shape"),
        Column("type"),
        Column("stored", rank=4),
        Column("scheme"),
        Column("axis", is_number=True, rank=1),
        Column("block", is_number=True, rank=1),
        Column("bits", is_number=True),
        Column("bytes", is_number=True, rank=3),
    )
    print_table(columns, [_tensor_row(g, found) for g in groups])


def _tensor_row(group: NameGroup, found: Sequence[TensorSummary]) -> list[str]:
    first = found[group.members[0]]
    info, count = first.info, len(group.members)
    size = sum(found[i].info.nbytes for i in group.members)
    return [
        group.label,
        str(count) if count > 1 else "",
        show_shape(info.shape),
        info.dtype,
        first.carrier,
        info.scheme.name if info.scheme else ("other" if info.quantization else ""),
        "" if info.axis is None else str(info.axis),
        str(info.scheme.block_size) if info.scheme else "",
        show_bits(info.bits_per_element),
        show_bytes(size),
    ]


def _print_scales(groups: Sequence[NameGroup], found: Sequence[TensorSummary]) -> None:
    rows = []
    for group in groups:
        members = [found[i] for i in group.members]
        scales = [s.scales for s in members if s.scales is not None]
        zeros = [s.zero_points for s in members if s.zero_points is not None]
        if scales:
            rows.append([group.label, *_scale_cells(scales), *_zero_cells(zeros)])
    if not rows:
        return
    columns = (
        Column("scales of", fold=True),
        Column("count", is_number=True),
        Column("min", is_number=True),
        Column("median", is_number=True),
        Column("max", is_number=True),
        Column("bytes", is_number=True),
        Column("negative", is_number=True),
        Column("zero", is_number=True),
        Column("NaN/inf", is_number=True),
        Column("zero points", is_number=True),
    )
    say()
    print_table(columns, rows)


def _scale_cells(scales: Sequence[ScaleStatistics]) -> list[str]:
    stored = [s.bytes for s in scales if s.bytes is not None]
    return [
        f"{sum(s.count for s in scales):,}",
        show_number(min(s.minimum for s in scales), 3),
        show_range((s.median for s in scales), lambda x: show_number(x, 3)),
        show_number(max(s.maximum for s in scales), 3),
        f"{min(b[0] for b in stored)}..{max(b[1] for b in stored)}" if stored else "",
        *(_total(getattr(s, name) for s in scales) for name in ("negative", "zero", "nonfinite")),
    ]


def _total(counts: Iterable[int]) -> str:
    n = sum(counts)
    return f"{n:,}" if n else ""


def _zero_cells(zeros: Sequence[tuple[int, int]]) -> list[str]:
    if not zeros:
        return [""]
    low, high = min(z[0] for z in zeros), max(z[1] for z in zeros)
    return [str(low) if low == high else f"{low}..{high}"]


def _print_codes(groups: Sequence[NameGroup], found: Sequence[TensorSummary]) -> None:
    rows = []
    for group in groups:
        codes = [s.codes for s in (found[i] for i in group.members) if s.codes is not None]
        if codes:
            rows.append([group.label, *_code_cells(codes)])
    if not rows:
        return
    columns = (
        Column("codes of", fold=True),
        Column("used", is_number=True, rank=2),
        Column("smallest", is_number=True),
        Column("largest", is_number=True),
        Column("at low", is_number=True),
        Column("at high", is_number=True),
        Column("zero", is_number=True, rank=1),
    )
    say()
    print_table(columns, rows)


def _code_cells(codes: Sequence[CodeStatistics]) -> list[str]:
    used = show_range((float(c.used) for c in codes), lambda x: f"{x:.0f}")
    return [
        f"{used} of {codes[0].possible}",
        show_number(min(c.lowest for c in codes)),
        show_number(max(c.highest for c in codes)),
        show_range((c.at_low for c in codes), show_share),
        show_range((c.at_high for c in codes), show_share),
        show_range((c.zero for c in codes), show_share),
    ]


def _print_lines(title: str, lines: Sequence[tuple[str, Sequence[str]]], *, show_all: bool) -> None:
    """Print notes or problems; names with the same ones share a line."""
    by_text: dict[str, list[str]] = {}
    for name, texts in lines:
        for text in texts:
            by_text.setdefault(text, []).append(name)
    if not by_text:
        return
    say(f"\n{title}")
    for text, names in by_text.items():
        labels = names if show_all else [g.label for g in collapse_names(names, [0] * len(names))]
        more = "" if show_all or len(labels) <= 4 else f" and {len(labels) - 4} more"
        where = ", ".join(printable(label) for label in (labels if show_all else labels[:4]))
        say(f"  {where}{more}: {printable(text)}")


def document(ckpt: Checkpoint, found: Sequence[TensorSummary]) -> dict[str, Any]:
    """The JSON document of the verb; docs/cli.md names the keys."""
    return {
        "path": str(ckpt.path),
        "kind": ckpt.kind,
        "nbytes": ckpt.nbytes,
        "metadata": {key: _metadata_document(value) for key, value in ckpt.metadata.items()},
        "files": [{"name": p.name, "nbytes": p.stat().st_size} for p in ckpt.paths],
        "dialects": list(ckpt.reading.dialects),
        "evidence": list(ckpt.reading.evidence),
        "problems": list(ckpt.reading.problems),
        "tensors": [_tensor_document(s) for s in found],
    }


def _tensor_document(s: TensorSummary) -> dict[str, Any]:
    info = s.info
    return {
        "name": info.name,
        "shape": list(info.shape),
        "dtype": info.dtype,
        "carrier": s.carrier,
        "nbytes": info.nbytes,
        "bits_per_element": info.bits_per_element,
        "quantization": info.quantization,
        "scheme": describe_scheme(info.scheme) if info.scheme else None,
        "axis": info.axis,
        "scales": None if s.scales is None else asdict(s.scales) | {"constant": s.scales.is_constant},
        "zero_points": None if s.zero_points is None else {"min": s.zero_points[0], "max": s.zero_points[1]},
        "codes": None if s.codes is None else asdict(s.codes),
        "notes": list(s.notes),
        "problems": list(s.problems),
    }

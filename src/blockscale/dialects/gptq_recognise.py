"""Recognising GPTQ: parts, shapes, config and zero points, each checked against the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, error_context
from .base import Load, Options, Recognition, Stored, Weight
from .gptq_config import Label, claims, config_of, overrides, read_label, unmatched_overrides
from .gptq_shapes import ACT_ORDER, classify_order, measure, settings_of
from .gptq_zero_points import Found, all_ones_problems, all_ones_reading, settle_bias
from .word_parts import (
    Parts,
    check_options,
    find_parts,
    fits_awq,
    fits_gptq,
    make_scheme,
    quantization_section,
    read_int,
)
from .words import constant_field, count_all_ones

NAME = "gptq"
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)$")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "version": ("gptq", "gptq_v2"),
    "g_idx": (True, False),
    "float32_scales": (True, False),
    "all_ones": ("zero", "power", "carry"),
    "ignore_g_idx": (True, False),
}


def recognise(
    stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
) -> Recognition | None:
    """The GPTQ weights of a checkpoint; see `base.Dialect.recognise` and `gptq`."""
    section = quantization_section(config)
    claim = claims(section)
    found = find_parts(stored)
    if claim is False or (claim is None and not _looks_mine(found)):
        return None
    check_options(options, OPTIONS, "GPTQ")
    label = read_label(section)
    if not found:
        return Recognition(
            NAME, (), problems=(f"config says GPTQ ({label.text}), but no tensor is a qweight",)
        )
    special = overrides(section)
    used: set[str] = set()
    weights = []
    for parts in found:
        own, key = config_of(parts.module, section, special)
        used |= {key} if key else set()
        with error_context(tensor=parts.name):
            weights.append(_examine(parts, own, load, options))
    bias, evidence, problems = settle_bias(label, weights, options)
    problems += unmatched_overrides(section, used, [p.module for p in found])
    ones = all_ones_reading(section, options)
    evidence = [_summary(section, label), *_orders(weights), *evidence]
    problems += all_ones_problems(weights, bias, ones) + _declared(section, weights)
    return Recognition(
        NAME,
        tuple(_weight(f, bias, ones, options) for f in weights),
        tuple(evidence),
        tuple(problems),
        frozenset(part.name for f in weights for part in f.parts.roles.values()),
    )


def _looks_mine(found: Sequence[Parts]) -> bool:
    """Without a declaration: GPTQ's shapes, or parts that fit no other dialect and so need an error."""
    whole = [p for p in found if p.complete]
    if whole:
        return any(fits_gptq(p) for p in whole) or not any(fits_awq(p) for p in whole)
    return any("qzeros" in p.roles or {"qweight", "scales"} <= set(p.roles) for p in found)


def _examine(parts: Parts, section: Mapping[str, Any], load: Load, options: Options) -> Found:
    parts.check_complete()
    geometry = measure(parts, read_int(section, "bits", "w_bit"), read_int(section, "group_size"))
    index = parts.roles.get("g_idx")
    ignore = options.settings.get("ignore_g_idx", False)
    values = None if index is None or ignore else np.asarray(load(index.name))
    order = classify_order(values, geometry, f"{parts.prefix}g_idx")
    if order == "none" and section.get("desc_act") and not ignore and geometry.groups > 1:
        _check_order_known(parts, section)
    symmetric = section.get("sym")
    zeros = np.asarray(load(parts.roles["qzeros"].name))
    constant, ones = None, (0, 0)
    if geometry.packed_zeros:
        constant = constant_field(zeros, geometry.bits, geometry.n_out)
        ones = count_all_ones(zeros, geometry.bits, geometry.n_out)
    elif zeros.size and (zeros == zeros.flat[0]).all():
        first = float(zeros.flat[0])
        constant = int(first) if first.is_integer() else None
    return Found(parts, geometry, order, None if symmetric is None else bool(symmetric), constant, ones)


def _check_order_known(parts: Parts, section: Mapping[str, Any]) -> None:
    if section.get("static_groups"):
        return
    raise FormatError(
        "the config says desc_act, but g_idx is missing or empty",
        rule="a weight quantized in activation order is unreadable without its g_idx",
        found=sorted(parts.roles),
        hint="add the shard that holds it; settings ignore_g_idx=True if groups are contiguous after all",
        tensor=f"{parts.prefix}g_idx",
    )


def _summary(section: Mapping[str, Any], label: Label) -> str:
    said = [
        f"{k} {section[k]!r}"
        for k in ("quant_method", "bits", "group_size", "sym", "desc_act")
        if k in section
    ]
    return "config: " + ", ".join([*said, label.text]) if section else "no config: read from names and shapes"


def _orders(weights: Sequence[Found]) -> list[str]:
    lines = [
        f"{len(weights)} weights in int32 words along the input; logical shape [out, in], blocks along in"
    ]
    plain = sum(not f.geometry.packed_zeros for f in weights)
    if plain:
        lines.append(f"{plain} weights have plain zero points, one number per scale: z itself")
    act = [f for f in weights if f.order == "act_order"]
    if act:
        lines.append(
            f"{len(act)} weights in activation order (g_idx), such as {act[0].parts.name}: no BlockTensor in "
            "this order of columns; read as values, or as sorted columns with their permutation"
        )
    return lines


def _declared(section: Mapping[str, Any], weights: Sequence[Found]) -> list[str]:
    lines = []
    odd = [f for f in weights if f.symmetric and f.implied_bias is None]
    if odd:
        lines.append(
            f"config says sym, but zero points of {len(odd)} weights differ or lie off the middle, such as "
            f"{odd[0].parts.prefix}qzeros; they are read as stored"
        )
    tables = [f.parts.name for f in weights if _EMBEDDING.search(f.parts.module)]
    if tables:
        lines.append(
            f"{tables[0]} looks like an embedding: read as [features, tokens], the transpose of the plain "
            "weight"
        )
    act = [f for f in weights if f.order == "act_order"]
    if act and section.get("desc_act") is False:
        lines.append(
            f"config says desc_act false, but {act[0].parts.prefix}g_idx permutes groups: loaders that "
            "ignore g_idx compute other weights"
        )
    return lines


def _weight(f: Found, bias: int | None, all_ones: str, options: Options) -> Weight:
    row, repeat = make_scheme(f.geometry, f.parts.roles["scales"], f.parts.name)
    own = bias if f.geometry.packed_zeros else (options.zero_point_bias or 0)
    middle = 1 << (f.geometry.bits - 1)
    same = f.constant is not None and own is not None and f.constant + own == middle
    unknown = None if own is not None else "stored zero points may be z or z - 1: force zero_point_bias"
    extra = {
        "refused": ACT_ORDER if f.order == "act_order" else unknown,
        "zero_point_bias": own,
        "all_ones": all_ones,
        "blocks_per_group": repeat,
        "equals": f"int{f.geometry.bits} symmetric" if same else "",
    }
    roles = ["qweight", "qzeros", "scales"] + (["g_idx"] if f.order == "act_order" else [])
    return Weight(
        f.parts.name,
        f.geometry.shape,
        row,
        len(f.geometry.shape) - 1,
        {role: f.parts.roles[role].name for role in roles},
        settings_of(f.geometry, f.order, extra),
    )

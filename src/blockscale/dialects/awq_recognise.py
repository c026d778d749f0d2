"""Recognising AWQ: parts, shapes, config and zero points, each checked against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import FormatError, UnsupportedError, error_context
from .base import Load, Options, Recognition, Stored, Weight
from .gptq_shapes import classify_order
from .word_parts import (
    Geometry,
    Parts,
    check_dtypes,
    check_options,
    find_parts,
    fits_awq,
    fits_gptq,
    make_scheme,
    quant_method,
    quantization_section,
    read_int,
)
from .words import ONES, constant_field

NAME = "awq"
OPTIONS: dict[str, tuple[Any, ...]] = {"version": ("gemm",), "float32_scales": (True, False)}
RULE = "AWQ gemm: qweight int32 [in, out / 8], qzeros int32 [groups, out / 8], scales [groups, out]"
# fmt: off
_REFUSED = {
    "gemv":      "gemv packs words along the input, [out, in / 8], with padded zero points",
    "gemv_fast": "gemv_fast packs int16 words, interleaved for one GPU kernel",
    "llm-awq":   "llm-awq packs int16 words, interleaved for one GPU kernel",
    "marlin":    "Marlin files hold codes permuted for one GPU kernel",
    "bitblas":   "BitBLAS files hold codes permuted for one GPU kernel",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Found:
    """One weight, examined: its parts, sizes, and the number in all zero-point fields (None: they differ)."""

    parts: Parts
    geometry: Geometry
    constant: int | None


def claims(section: Mapping[str, Any]) -> bool | None:
    """Whether the config says AWQ: True, False (something else), or None (it does not say)."""
    method = quant_method(section)
    if method in ("awq", "awq-marlin"):
        return True
    if method in ("auto-round", "intel/auto-round"):
        return str(section.get("packing_format", "")).lower().replace("_", "-") == "auto-round:auto-awq"
    if method:
        return False
    if {"w_bit", "q_group_size", "zero_point"} & set(section):
        return True  # AWQ's own quant_config.json
    return False if {"desc_act", "checkpoint_format", "is_marlin_format"} & set(section) else None


def recognise(
    stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
) -> Recognition | None:
    """The AWQ weights of a checkpoint; see `base.Dialect.recognise` and `awq`."""
    section = quantization_section(config)
    claim = claims(section)
    found = find_parts(stored)
    if claim is False or (claim is None and not any(fits_awq(p) for p in found)):
        return None
    check_options(options, OPTIONS, "AWQ")
    _check_version(section)
    if not found:
        return Recognition(NAME, (), problems=("config says AWQ, but no tensor is a qweight",))
    weights = []
    for parts in found:
        with error_context(tensor=parts.name):
            weights.append(_examine(parts, section, load))
    problems = _check_zero_points(section, weights, options)
    if not section:
        problems.append("packed 4-bit AWQ weights, but the config is missing: read from names and shapes")
    bias = options.zero_point_bias or 0
    return Recognition(
        NAME,
        tuple(_weight(f, bias) for f in weights),
        tuple(_evidence(section, weights, options)),
        tuple(problems),
        frozenset(part.name for f in weights for part in f.parts.roles.values()),
    )


def _check_version(section: Mapping[str, Any]) -> None:
    for key in ("version", "checkpoint_format", "format"):
        value = str(section.get(key) or "").lower()
        if value in _REFUSED:
            raise UnsupportedError(
                f"this is a checkpoint in AWQ's version {value!r}: {_REFUSED[value]}",
                found=value,
                rule="blockscale reads the version 'gemm'",
                hint="export the model again as gemm",
            )
        if value and value != "gemm":
            raise FormatError(
                f"config: {key} is {section[key]!r}", found=section[key], rule=f"{key} is 'gemm'"
            )
    bits = read_int(section, "bits", "w_bit")
    if bits not in (None, 4):
        raise UnsupportedError(f"AWQ codes of {bits} bits", found=bits, rule="AWQ gemm has 4-bit codes")


def _examine(parts: Parts, section: Mapping[str, Any], load: Load) -> Found:
    parts.check_complete()
    geometry = measure(parts, read_int(section, "group_size", "q_group_size"))
    index = parts.roles.get("g_idx")
    if (
        index is not None
        and classify_order(np.asarray(load(index.name)), geometry, index.name) == "act_order"
    ):
        raise UnsupportedError("AWQ words with groups permuted by a g_idx", tensor=index.name)
    zeros = np.asarray(load(parts.roles["qzeros"].name))
    constant = None
    if geometry.packed_zeros:
        constant = constant_field(zeros, 4, geometry.n_out)
    elif zeros.size and (zeros == zeros.flat[0]).all() and float(zeros.flat[0]).is_integer():
        constant = int(zeros.flat[0])
    return Found(parts, geometry, constant)


def measure(parts: Parts, group_size: int | None) -> Geometry:
    """The geometry of a weight from the shapes of its parts, checked against the config.

    Raises:
        FormatError: shapes that do not fit together or contradict the config; quotes both.
    """
    packed = check_dtypes(parts)
    words, scales, zeros = parts.shape("qweight"), parts.shape("scales"), parts.shape("qzeros")
    if not (len(words) in (2, 3) and fits_awq(parts) and words[:-2] == scales[:-2] == zeros[:-2]):
        _shape_error(parts)
    n_in, n_out, groups = words[-2], scales[-1], scales[-2]
    if 0 in (n_in, n_out, groups) or (packed and zeros[-1] * 8 != n_out):
        _shape_error(parts)
    if group_size is not None and (group_size == 0 or group_size < -1):
        raise FormatError(
            f"config: group_size is {group_size}", rule="group_size is -1 or positive", found=group_size
        )
    size = n_in // groups if group_size is None else n_in if group_size == -1 else group_size
    if n_in != size * groups:
        raise FormatError(
            f"{n_in} inputs are no {groups} groups of {size}"
            f"{'' if group_size is None else f' (config: group_size {group_size})'}: {_quote(parts)}",
            rule="AWQ's groups are full: in = groups * group_size",
            found=groups,
            hint="this may be another model's config",
            tensor=f"{parts.prefix}scales",
        )
    return Geometry(words[:-2], n_in, n_out, 4, groups, size, packed)


def _shape_error(parts: Parts) -> None:
    raise FormatError(
        f"shapes that do not fit together: {_quote(parts)}",
        rule=RULE,
        found={role: part.shape for role, part in parts.roles.items()},
        hint=_explain(parts),
        tensor=f"{parts.prefix}qweight",
    )


def _explain(parts: Parts) -> str | None:
    words, scales = parts.shape("qweight"), parts.shape("scales")
    if fits_gptq(parts):
        return "these are GPTQ's shapes, words along the input: the config should say quant_method gptq"
    if min(len(words), len(scales)) < 2:
        return None
    if words[0] == scales[0]:
        return "rows are outputs: AWQ's gemv version, or a tensor that was transposed"
    if words[-2] * 8 == scales[-1]:
        return "qweight looks transposed"
    return "scales look transposed" if words[-1] * 8 == scales[-2] else None


def _quote(parts: Parts) -> str:
    return ", ".join(f"{role} {list(part.shape)}" for role, part in parts.roles.items())


def _check_zero_points(section: Mapping[str, Any], weights: Sequence[Found], options: Options) -> list[str]:
    """Zero words of 0x77777777 are what GPTQ v1 writes for symmetric weights: AWQ stores z itself."""
    odd = [f for f in weights if f.constant == 7]
    if not odd or options.zero_point_bias is not None:
        return []
    name = f"{odd[0].parts.prefix}qzeros"
    if section.get("zero_point") is False or section.get("sym") is True:
        raise FormatError(
            f"the config says symmetric, but every zero word of {len(odd)} weights is "
            f"0x{7 * ONES[4]:08X} (z = 7)",
            rule="AWQ stores z itself, and symmetric 4-bit codes have z = 8",
            found=f"0x{7 * ONES[4]:08X}",
            hint="force zero_point_bias=1 if they hold z - 1, 0 to read them as they are",
            tensor=name,
        )
    return [
        f"{name}: every zero point is 7; force zero_point_bias=1 if the tool stored z - 1, as GPTQ v1 does"
    ]


def _evidence(section: Mapping[str, Any], weights: Sequence[Found], options: Options) -> list[str]:
    keys = ("quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version")
    said = ", ".join(f"{k} {section[k]!r}" for k in keys if k in section)
    lines = [
        f"config: {said}" if section else "no config: read from names and shapes",
        f"{len(weights)} weights in int32 words along the output, order 0 2 4 6 1 3 5 7; logical shape "
        "[out, in], blocks along the input; stored zero points are z",
    ]
    symmetric = sum(f.constant == 8 for f in weights)
    if symmetric:
        lines.append(f"{symmetric} of {len(weights)} weights have z = 8 everywhere: symmetric")
    if options.zero_point_bias is not None:
        lines.append(f"zero_point_bias {options.zero_point_bias} was asked for")
    return lines


def _weight(f: Found, bias: int) -> Weight:
    row, repeat = make_scheme(f.geometry, f.parts.roles["scales"], f.parts.name)
    settings = {
        "bits": 4,
        "carrier": "int32 words of 8 outputs in the order 0 2 4 6 1 3 5 7",
        "group_size": f.geometry.stored_group_size,
        "act_order": False,
        "refused": None,
        "packed_zeros": f.geometry.packed_zeros,
        "zero_point_bias": bias,
        "blocks_per_group": repeat,
        "equals": "int4 symmetric" if f.constant is not None and f.constant + bias == 8 else "",
    }
    names = {role: f.parts.roles[role].name for role in ("qweight", "qzeros", "scales")}
    return Weight(f.parts.name, f.geometry.shape, row, len(f.geometry.shape) - 1, names, settings)

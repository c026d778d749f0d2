"""Plain MX: codes and a companion of E8M0 scales, as many toolchains store them; and blockscale's own layout.

A pair is recognised by dtype and layout, never by the name alone. `W` stands for the weight's stored name:

| codes `W` | logical columns K | scales |
|---|---|---|
| U8 or I8 `[..., rows, K / 2]` | two E2M1 per byte, low nibble first | U8 or F8_E8M0 `[..., rows, K / 32]` |
| F4 `[..., rows, K]` | E2M1 | the same |
| F8_E4M3, F8_E5M2, F6_E2M3, F6_E3M2 `[..., rows, K]` | | the same |
| U32 `[..., rows, K / 8]` | E2M1, eight per word, low bits first (MLX) | U8, called `scales` |
| U32 `[..., rows, K / 4]` | E4M3, four per word (MLX) | U8, called `scales` |

Scales are called `W_scale`, `W_scale_inv`, `W_scales`, or, with the dtype F8_E8M0 only, `scale` instead of
`weight`. U8 beside such codes is E8M0, a biased exponent and not a number; I8 codes need F8_E8M0 scales. (AMD
Quark, ModelOpt, SGLang, DeepSeek-V4 and MLX store so.)

Recognised and refused, with the reason: scales padded to tiles of 128 x 4 or to multiples of 4 columns, flat
or transposed scales, and modules with a `comfy_quant` marker, whose scales are swizzled within the plain
shape. `settings["scale_layout"]` reads them all the same: `"128x4"` undoes the tiles, `"padded"` crops. Left
as stored and reported: FP8 with one E8M0 scale per 128 x 128 tile, NVFP4, 8-bit codes of unknown type.

What cannot be told: swizzled scales of a weight whose rows divide by 128 and groups by 4 have the plain
shape. A file that says nothing of it (no marker) is read as plain.

blockscale's own layout, which holds every scheme, is in `own_layout`; `write` writes it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..schemes import scheme
from ..tensor import BlockTensor
from . import own_layout
from .base import Load, Options, Recognition, Stored, Weight
from .compressed_tensors_config import find_section
from .own_layout import METADATA_KEY, config, from_metadata, metadata, specs, write
from .own_layout_codes import packed_rows
from .stored_parts import (
    missing_part,
    mx_tensor,
    odd_layout,
    ordered_scales,
    part_findings,
    plural,
    refuse_unreadable,
)

__all__ = [
    "METADATA_KEY",
    "NAME",
    "config",
    "findings",
    "from_metadata",
    "metadata",
    "read",
    "recognise",
    "specs",
    "write",
]

NAME = "plain-mx"

_CODES: dict[str, tuple[tuple[str, int], ...]] = {  # dtype: schemes, logical columns per stored one
    "U8": (("mxfp4", 2),),
    "I8": (("mxfp4", 2),),
    "U32": (("mxfp4", 8), ("mxfp8_e4m3", 4)),
    "F4": (("mxfp4", 1),),
    "F6_E2M3": (("mxfp6_e2m3", 1),),
    "F6_E3M2": (("mxfp6_e3m2", 1),),
    "F8_E4M3": (("mxfp8_e4m3", 1),),
    "F8_E5M2": (("mxfp8_e5m2", 1),),
}
_ENDINGS = ("_scale", "_scale_inv", "_scales")
_SCALES = ("U8", "F8_E8M0")
_OTHERS = ("compressed-tensors", "gptq", "awq", "bitsandbytes", "mxfp4")  # they read their own parts
_MARKER = "comfy_quant"


def recognise(
    stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
) -> Recognition | None:
    """The weights of this dialect; see `base.Dialect.recognise`.

    Args:
        stored: the stored tensors.
        config: `config.json`; `from_metadata` of the file's metadata merged in for blockscale's own layout.
        load: loads a stored tensor; used for `comfy_quant` markers only.
        options: `settings["scale_layout"]`: None, `"128x4"` or `"padded"`.

    Raises:
        FormatError: blockscale's own layout contradicts its parts.
    """
    own = own_layout.recognise(stored, config)
    section = find_section(config)
    if own is None and section is not None and section.get("quant_method") in _OTHERS:
        return None
    layout = options.settings.get("scale_layout")
    if layout not in (None, "128x4", "padded"):
        raise UnsupportedError(f"unknown scale layout {layout!r}", found=layout, hint="'128x4' or 'padded'")
    done = own.consumed if own is not None else frozenset()
    weights: list[Weight] = []
    left: dict[str, list[str]] = defaultdict(list)
    for part in stored.values():
        candidate = part.dtype in _CODES and len(part.shape) >= 2 and part.name not in done
        scales = _companion(part, stored) if candidate else None
        if scales is None:
            continue
        found = _pair(part, scales, _marker(part.name, stored, load), layout)
        if isinstance(found, str):
            left[found].append(part.name)
        else:
            weights.append(found)
    _check_partners(weights, stored, done)
    return _joined(own, _recognition(weights, left, has_config=section is not None or own is not None))


def read(weight: Weight, load: Load) -> BlockTensor:
    """One weight, exact; see `base.Dialect.read`. The byte 255 is NaN, as OCP has it.

    Raises:
        UnsupportedError: the scales are swizzled or padded, and nothing says how.
    """
    if "own" in weight.settings:
        return own_layout.read(weight, load)
    refuse_unreadable(weight)
    codes = load(weight.parts["codes"])
    if codes.dtype.name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):  # one code per byte in memory
        codes = packed_rows(codes, weight.scheme.element.bits)
    scales = np.ascontiguousarray(load(weight.parts["scales"])).view(np.uint8)
    groups = weight.shape[-1] // weight.scheme.block_size
    ordered = ordered_scales(scales, weight.shape[:-1], groups, weight.settings["scale_layout"])
    return mx_tensor(weight.scheme, weight.shape, weight.axis, codes, ordered)


def findings(weight: Weight, load: Load) -> tuple[str, ...]:
    """What is odd in the data of a weight: constant bytes, NaN scales (reads them all)."""
    return part_findings(weight, load, weight.parts["codes"], weight.parts["scales"])


def _companion(part: Stored, stored: Mapping[str, Stored]) -> Stored | None:
    """The scales beside some codes, if there are any."""
    module, _, leaf = part.name.rpartition(".")
    if part.dtype == "U32":  # MLX; its affine weights have float scales, and biases
        scales = stored.get(f"{module}.scales") if leaf == "weight" else None
        return scales if scales is not None and scales.dtype == "U8" else None
    found = [stored[part.name + end] for end in _ENDINGS if part.name + end in stored]
    if leaf == "weight" and f"{module}.scale" in stored and stored[f"{module}.scale"].dtype == "F8_E8M0":
        found.append(stored[f"{module}.scale"])
    return found[0] if found and (part.dtype != "I8" or found[0].dtype == "F8_E8M0") else None


def _pair(part: Stored, scales: Stored, marker: str | None, layout: str | None) -> Weight | str:
    """A weight, or the reason for which its parts are left as stored (`""`: they are no MX)."""
    rows = part.shape[:-1]
    if scales.dtype not in _SCALES:
        return _nvfp4(part, scales)
    for row, per in _CODES[part.dtype]:
        meaning, columns = scheme(row), part.shape[-1] * per
        groups = columns // meaning.block_size
        whole = columns % meaning.block_size == 0
        fits = whole and scales.shape == (*rows, groups)
        odd = odd_layout(scales.shape, rows, groups) if whole and part.dtype != "U32" else None
        if fits or odd is not None:
            if fits and marker is not None:
                odd = (
                    f"{_MARKER} says {marker!r}: the scales are swizzled in 128 x 4 tiles in the plain shape"
                )
            forced = layout if _can_force(scales, rows, groups, layout, fits=fits) else None
            settings = {"refused": None if forced else odd, "scale_layout": forced}
            names = {"codes": part.name, "scales": scales.name}
            return Weight(part.name, (*rows, columns), meaning, len(part.shape) - 1, names, settings)
    return _misfit(part, scales)


def _nvfp4(part: Stored, scales: Stored) -> str:
    """What FP4 codes with other scales are."""
    if scales.dtype != "F8_E4M3" or part.dtype not in ("U8", "F4"):
        return ""
    groups = part.shape[-1] * (2 if part.dtype == "U8" else 1) // 16
    odd = odd_layout(scales.shape, part.shape[:-1], groups)
    return "NVFP4 (F8_E4M3 scales), which is not MX" + (f"; {odd}" if odd else "")


def _check_partners(weights: list[Weight], stored: Mapping[str, Stored], done: frozenset[str]) -> None:
    """Beside recognised pairs, packed codes without scales and scales without codes are losses.

    Raises:
        FormatError: a part has no partner; names it.
    """
    packed = {stored[w.parts["codes"]].dtype for w in weights} & {"U8", "I8", "U32", "F4"}
    known = done.union(*(w.parts.values() for w in weights))
    for name, part in stored.items():
        if not weights or name in known:
            continue
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and part.dtype in packed and len(part.shape) >= 2:
            usual = f"{module}.scales" if part.dtype == "U32" else f"{name}_scale"
            if not {usual, f"{module}.scale", *(name + end for end in _ENDINGS)} & stored.keys():
                raise missing_part(name, "scales", usual, [name])
        codes = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(f".weight{end}")), name)
        if codes not in stored and part.dtype in _SCALES:
            raise missing_part(codes, "codes", codes, [name])


def _can_force(scales: Stored, rows: tuple[int, ...], groups: int, layout: str | None, *, fits: bool) -> bool:
    """Whether a layout that the user names is possible for these shapes, and changes anything."""
    padded = (*rows[:-1], -(-rows[-1] // 128) * 128, -(-groups // 4) * 4)
    if layout == "128x4":
        return int(np.prod(scales.shape, dtype=object)) == int(np.prod(padded, dtype=object))
    cropped = scales.shape[:-1] in (rows, padded[:-1]) and scales.shape[-1] == padded[-1]
    return layout == "padded" and cropped and not fits


def _misfit(part: Stored, scales: Stored) -> str:
    """What a pair is whose scales are not one per 32 columns."""
    rows, columns = part.shape[:-1], part.shape[-1]
    if part.dtype == "U32":
        nvfp4 = scales.shape == (*rows, columns // 2)
        return "NVFP4 of MLX (one scale per 16 columns), which is not MX" if nvfp4 else ""
    if part.dtype in ("U8", "I8"):
        if scales.shape == (*rows, columns // 32):
            return "8-bit codes with one E8M0 scale per 32 of them: nothing says which element type they are"
        per_16 = scales.shape == (*rows, columns // 8)
        return "4-bit codes with one scale per 16, as NVFP4 has them, which is not MX" if per_16 else ""
    tiles = (*rows[:-1], -(-rows[-1] // 128), -(-columns // 128))
    if scales.shape == tiles:
        return f"{part.dtype} with one E8M0 scale per 128 x 128 tile, which is not MX"
    return f"{part.dtype} with {scales.dtype} scales whose shape fits no blocks of 32"


def _marker(name: str, stored: Mapping[str, Stored], load: Load) -> str | None:
    """The format that a `comfy_quant` marker beside the weight names."""
    marker = stored.get(f"{name.rpartition('.')[0]}.{_MARKER}")
    if marker is None or marker.dtype != "U8" or len(marker.shape) != 1 or marker.shape[0] > 4096:
        return None
    try:
        found = json.loads(load(marker.name).tobytes())
    except ValueError:
        raise FormatError("the marker is not JSON", tensor=marker.name) from None
    return str(found.get("format")) if isinstance(found, dict) else None


def _recognition(
    weights: list[Weight], left: Mapping[str, list[str]], *, has_config: bool
) -> Recognition | None:
    problems = []
    if weights and not has_config:
        widths = sorted({w.scheme.element.bits for w in weights})
        said = "- and ".join(map(str, widths))
        problems.append(f"packed {said}-bit, config missing: read by dtype and layout")
    refused = (w for w in weights if w.settings["refused"])
    problems += [f"{w.name}: cannot be read: {w.settings['refused']}" for w in refused]
    for reason, names in left.items():
        if reason:
            problems.append(f"{plural(len(names))} ({names[0]!r} ...) left as stored: {reason}")
    if not weights and not problems:
        return None
    kinds = Counter(w.scheme.name for w in weights)
    evidence = [f"{plural(n)}: {kind}, one E8M0 scale per 32 columns" for kind, n in kinds.items()]
    consumed = frozenset(name for w in weights for name in w.parts.values())
    return Recognition(NAME, tuple(weights), tuple(evidence), tuple(problems), consumed)


def _joined(own: Recognition | None, other: Recognition | None) -> Recognition | None:
    """Both recognitions as one."""
    if own is None or other is None:
        return own or other
    return Recognition(
        NAME,
        own.weights + other.weights,
        own.evidence + other.evidence,
        own.problems + other.problems,
        own.consumed | other.consumed,
    )

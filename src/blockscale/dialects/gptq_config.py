"""GPTQ's config: which format a file claims to be, overrides per module, and the config that we write.

Facts from the sources of AutoGPTQ 0.7.1, GPTQModel 7.7, vLLM, transformers and auto-round (read, not copied):
`checkpoint_format` "gptq" (also its absence) means stored zero points `z - 1`, "gptq_v2" means `z`; `dynamic`
maps a regular expression, matched at the start of a module's name, to overrides, `-:` marks modules that are
not quantized, the first match wins; auto-round says the same with `packing_format` and `extra_config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError, UnsupportedError
from ..tensor import BlockTensor
from ..version import __version__
from .base import Options
from .word_parts import near_names, quant_method

BIAS = {"gptq": 1, "gptq_v2": 0}
_AUTO_ROUND = {"": 1, "auto-round:auto-gptq": 1, "auto-round": 0, "auto-round:gptqmodel": 0}
# fmt: off
_REFUSED = {
    "marlin":  "Marlin files hold codes permuted for one GPU kernel",
    "bitblas": "BitBLAS files hold codes permuted for one GPU kernel",
    "gptq_p":  "gptq_p stores codes as bit planes",
    "qqq":     "QQQ files have other parts and 8-bit activations",
    "gemm":    "gemm is AWQ's layout: the config should say quant_method awq",
}
# fmt: on
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


@dataclass(frozen=True, slots=True)
class Label:
    """What a config says of the stored zero points.

    Attributes:
        bias: 1 if they are `z - 1`, 0 if `z`, None if there is no config.
        text: the words of the config, for messages.
        explicit: True if the config names the format, False if its absence means v1.
    """

    bias: int | None
    text: str
    explicit: bool


def claims(section: Mapping[str, Any]) -> bool | None:
    """Whether the config says GPTQ: True, False (something else), or None (it does not say)."""
    method = quant_method(section)
    if method in ("gptq", "gptq-marlin"):
        return True
    if method in ("auto-round", "intel/auto-round"):
        return _packing(section) in _AUTO_ROUND
    if method:
        return False
    if {"w_bit", "q_group_size", "zero_point"} & set(section):
        return False  # AWQ's own quant_config.json
    return True if {"desc_act", "checkpoint_format", "is_marlin_format"} & set(section) else None


def _packing(section: Mapping[str, Any]) -> str:
    return str(section.get("packing_format", "")).lower().replace("_", "-")


def read_label(section: Mapping[str, Any]) -> Label:
    """What the config says of zero points.

    Raises:
        UnsupportedError: a format that is not GPTQ's plain layout, with the reason.
        FormatError: a format that nobody knows.
    """
    if not section:
        return Label(None, "no quantization_config", False)
    if section.get("is_marlin_format"):
        _refuse("marlin")
    pack = str(section.get("pack_dtype", "int32"))
    if pack.removeprefix("torch.") != "int32":
        raise UnsupportedError(f"pack_dtype is {pack!r}", found=pack, rule="GPTQ files use int32 words")
    if "packing_format" in section:
        packing = _packing(section)
        return Label(_AUTO_ROUND[packing], f"packing_format {section['packing_format']!r}", True)
    for key in ("checkpoint_format", "format"):
        value = str(section.get(key) or "").lower()
        if not value:
            continue
        if value in _REFUSED:
            _refuse(value)
        if value not in BIAS:
            raise FormatError(
                f"config: {key} is {section[key]!r}",
                found=section[key],
                rule=f"{key} is {' or '.join(BIAS)}",
            )
        return Label(BIAS[value], f"{key} {value!r}", True)
    return Label(1, "no checkpoint_format, which loaders take as 'gptq'", False)


def _refuse(name: str) -> None:
    raise UnsupportedError(
        f"this is a checkpoint in the format {name!r}: {_REFUSED[name]}",
        found=name,
        rule=f"blockscale reads {' and '.join(BIAS)}",
        hint="export the model again in one of these, or convert it with the tool that wrote it",
    )


def overrides(section: Mapping[str, Any]) -> list[tuple[re.Pattern[str], Mapping[str, Any] | None, str]]:
    """Overrides per module, in order: pattern, settings (None: not quantized), and how the config spells it.

    Raises:
        FormatError: a pattern that is no regular expression; settings that are no object.
    """
    found: list[tuple[re.Pattern[str], Mapping[str, Any] | None, str]] = []
    for key, value in _overrides(section, "dynamic"):
        pattern = key[2:] if key[:2] in ("+:", "-:") else key
        found.append((_compile(pattern, key), None if key.startswith("-:") else value, key))
    for key, value in _overrides(section, "extra_config"):
        bits = value.get("bits", 0)
        plain = isinstance(bits, int) and bits >= 16
        found.append((_compile(f"(?:{key})$", key), None if plain else value, key))
    return found


def _overrides(section: Mapping[str, Any], field: str) -> list[tuple[str, Mapping[str, Any]]]:
    entries = section.get(field) or {}
    if not isinstance(entries, Mapping):
        raise FormatError(
            f"config: {field} is no object", found=entries, rule=f"{field} maps names to settings"
        )
    for key, value in entries.items():
        if not isinstance(value or {}, Mapping):
            raise FormatError(
                f"config: {field}[{key!r}] is {value!r}", found=value, rule="settings are an object"
            )
    return [(str(key), value or {}) for key, value in entries.items()]


def _compile(pattern: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise FormatError(
            f"config: the override {key!r} is no regular expression ({error})", found=key
        ) from None


def config_of(
    module: str,
    section: Mapping[str, Any],
    found: Iterable[tuple[re.Pattern[str], Mapping[str, Any] | None, str]],
) -> tuple[Mapping[str, Any], str | None]:
    """The config of one module, and the key of the override that made it so (None: none)."""
    for pattern, settings, key in found:
        if pattern.match(module):
            return {**section, **(settings or {})}, key
    return section, None


def unmatched_overrides(section: Mapping[str, Any], used: set[str], modules: Sequence[str]) -> list[str]:
    """A line for each override that no quantized module matched, with near names."""
    return [
        f"config: the override {key!r} matches no quantized weight; {near_names(key.lstrip('+:'), modules)}"
        for _, settings, key in overrides(section)
        if settings is not None and key not in used
    ]


def write_config(
    written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options, *, symmetric: bool
) -> dict[str, Any]:
    """`{"quantization_config": {...}}` for `config.json`; its content alone is `quantize_config.json`.

    What most weights have stands at the top, other widths and group sizes in `dynamic`, as the modules that
    were left alone (`-:` patterns, also under the fused names of vLLM).

    Args:
        written: name to weight.
        kept: names of weights that were left unquantized.
        options: `settings["version"]` is the checkpoint format.
        symmetric: True if every zero point is the middle code.
    """
    bits = _most([w.scheme.element.bits for w in written.values()], 4)
    common = [w for w in written.values() if w.scheme.element.bits == bits]
    sizes = [w.block_size for w in common if w.grid.blocks_per_row > 1]
    group = _most(sizes, -1)
    dynamic: dict[str, dict[str, int]] = {}
    for name, w in written.items():
        own = {"bits": w.scheme.element.bits, "group_size": _group_for(w, group)}
        if own != {"bits": bits, "group_size": group}:
            dynamic[f"+:{_exactly(_module(name))}"] = own
    modules = [_module(name) for name in kept]
    dynamic.update({f"-:{_exactly(m)}": {} for m in [*modules, *_fused(modules)]})
    section: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": False,
        "sym": symmetric,
        "checkpoint_format": options.settings.get("version", "gptq"),
        "pack_dtype": "int32",
        "lm_head": any(_module(name).split(".")[-1] == "lm_head" for name in written),
        "meta": {"quantizer": [f"blockscale:{__version__}"]},
    }
    if dynamic:
        section["dynamic"] = dynamic
    inside = _modules_in_block([_module(n) for n in written], modules)
    if inside is not None:
        section["modules_in_block_to_quantize"] = inside
    return {"quantization_config": section}


def _most(values: Sequence[int], default: int) -> int:
    return max(sorted(set(values)), key=values.count) if values else default


def _group_for(w: BlockTensor, group: int) -> int:
    """The group size that describes a weight; the common one where that fits too."""
    if w.grid.blocks_per_row > 1:
        return w.block_size
    return group if group == -1 or w.grid.length <= group else -1


def _module(name: str) -> str:
    return name.removesuffix("weight").rstrip("._") if name.endswith("weight") else name


def _exactly(module: str) -> str:
    return f"^{re.escape(module)}$"


def _fused(modules: Sequence[str]) -> list[str]:
    """Fused names of which all parts are listed."""
    listed = set(modules)
    stems = dict.fromkeys(m.rpartition(".")[0] for m in modules)
    return [
        f"{stem}.{fused}"
        for stem in stems
        for fused, parts in _FUSED.items()
        if all(f"{stem}.{part}" in listed for part in parts)
    ]


def _modules_in_block(written: Sequence[str], kept: Sequence[str]) -> list[list[str]] | None:
    """Names inside a block that are quantized, for transformers; None where all are, or blocks differ."""
    inside = {m: re.sub(r"^.*?\.\d+\.", "", m) for m in (*written, *kept)}
    quantized = {inside[m] for m in written}
    left = {inside[m] for m in kept if inside[m] != m}
    if not left or quantized & left:
        return None
    return [sorted(quantized)]

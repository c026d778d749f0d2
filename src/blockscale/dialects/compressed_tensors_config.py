"""The `quantization_config` of compressed-tensors: groups, formats, what is left alone.

Source: compressed-tensors 0.20, `quant_config.py`, `quant_scheme.py`, `quant_args.py` (read, not copied).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import FormatError

METHOD = "compressed-tensors"
_SECTIONS = ("quantization_config", "compression_config")
_MXFP4 = "mxfp4-pack-quantized"


@dataclass(frozen=True, slots=True)
class Group:
    """How one group of modules is quantized, as a config declares it or as the parts show it.

    Attributes:
        name: key in `config_groups`; `"found"` if read off the parts.
        targets: the modules it speaks of.
        format: how the weights are stored (`"pack-quantized"` ...).
        bits: width of a code.
        kind: `"int"` or `"float"`.
        symmetric: no zero points.
        strategy: `"group"`, `"channel"`, `"tensor"` ...
        group_size: elements per group, for the strategy `group`.
        reordered: groups are not contiguous (activation order `group`); `weight_g_idx` says how.
        scale_shift: what to add to stored E8M0 bytes; up to 0.13.0 those of MXFP4 were stored 2 too small.
    """

    name: str
    targets: tuple[str, ...]
    format: str
    bits: int
    kind: str
    symmetric: bool
    strategy: str
    group_size: int | None
    reordered: bool = False
    scale_shift: int = 0

    def describe(self) -> str:
        """One line: element, grouping, symmetry, format."""
        size = (
            f"groups of {self.group_size}" if self.strategy == "group" else f"one scale per {self.strategy}"
        )
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        return f"{self.kind}{self.bits}, {size}, {symmetry}, {self.format}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a config declares.

    Attributes:
        format: the format of the whole model.
        groups: its groups, in the config's order.
        ignore: modules left alone, as written.
        notes: lines for people on what else matters to the values (sparsity, transforms, cache).
    """

    format: str
    groups: tuple[Group, ...]
    ignore: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_declaration(config: Mapping[str, Any]) -> Declaration | None:
    """The declaration in a `config.json`, or None if it has none of compressed-tensors.

    Raises:
        FormatError: a key that is missing, of the wrong type or of unknown meaning; names its path.
    """
    section = find_section(config)
    if section is None or section.get("quant_method", METHOD) != METHOD:
        return None
    if "quant_method" not in section and "config_groups" not in section:
        return None
    groups = section.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise _fault("config_groups", groups, "an object of groups")
    overall = str(section.get("format", "dense"))
    read = (_read_group(str(name), value, overall) for name, value in groups.items())
    known = tuple(g for g in read if g is not None)
    notes = list(_notes(section))
    if any(g.format == _MXFP4 for g in known):
        shift, note = _old_scales(str(section.get("version", "")))
        known = tuple(replace(g, scale_shift=shift) if g.format == _MXFP4 else g for g in known)
        notes += [note] if note else []
    return Declaration(overall, known, _strings("ignore", section.get("ignore") or ()), tuple(notes))


def _old_scales(version: str) -> tuple[int, str]:
    """What to add to the scale bytes of MXFP4 by the writer's version, and what to say of it.

    Source: compressed-tensors pull requests 538 and 541, fixed in 0.14.0; nightlies of 0.13.1 hold either.
    """
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if not numbers or numbers > (0, 13, 1):
        return 0, ""
    who = f"version: written by compressed-tensors {version}"
    if numbers == (0, 13, 1):
        return 0, (
            f"{who}, whose MXFP4 scales may be stored 4 times too small; read as they are "
            "(settings scale_shift=2 corrects them)"
        )
    return 2, (
        f"{who}, which stored MXFP4 scales 4 times too small; read corrected, as vLLM did then "
        "(settings scale_shift=0 reads them as they are)"
    )


def find_section(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantization section of a `config.json` (that of the text model in a multimodal one), or None."""
    for place in (config, config.get("text_config"), config.get("llm_config")):
        for key in _SECTIONS if isinstance(place, Mapping) else ():
            section = place.get(key) if isinstance(place, Mapping) else None
            if isinstance(section, Mapping) and section:
                return section
    return None


def _read_group(name: str, value: Any, overall: str) -> Group | None:
    """One group; None if it does not quantize weights."""
    where = f"config_groups.{name}"
    if isinstance(value, list):  # a preset's name, and its targets
        return _preset(name, _strings(where, value), overall)
    if not isinstance(value, Mapping):
        raise _fault(where, value, "an object, or a list of targets for a preset")
    weights = value.get("weights")
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise _fault(f"{where}.weights", weights, "an object")
    size = weights.get("group_size")
    group = Group(
        name,
        _strings(f"{where}.targets", value.get("targets") or ()),
        "",
        _whole(f"{where}.weights.num_bits", weights.get("num_bits", 8)),
        str(weights.get("type", "int")).lower(),
        bool(weights.get("symmetric", True)),
        _strategy(weights),
        None if size in (None, -1) else _whole(f"{where}.weights.group_size", size),
        str(weights.get("actorder")).lower() in ("group", "dynamic", "true"),
    )
    if group.strategy == "group" and group.group_size is None:
        raise _fault(f"{where}.weights.group_size", size, "a positive number for the strategy 'group'")
    own = value.get("format") or (overall if overall != "mixed-precision" else None)
    return replace(group, format=str(own or _inferred_format(group, weights, value)))


def _strategy(weights: Mapping[str, Any]) -> str:
    """The strategy; where it is not said, the group size tells."""
    given = weights.get("strategy")
    if given is not None:
        return str(given).lower()
    size = weights.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _inferred_format(group: Group, weights: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """The format of a group in a mixed model that does not say it."""
    if group.kind == "int":
        return "int-quantized" if value.get("input_activations") else "pack-quantized"
    if group.group_size == 32 and group.bits in (4, 6):
        return f"mxfp{group.bits}-pack-quantized"
    if group.group_size == 32 and group.bits == 8 and "uint8" in str(weights.get("scale_dtype")):
        return "mxfp8-quantized"
    return "nvfp4-pack-quantized" if group.bits == 4 else "float-quantized"


def _preset(name: str, targets: tuple[str, ...], overall: str) -> Group:
    """A group that only names a preset."""
    key = name.upper()
    mx = re.fullmatch(r"MXFP([468])(A16|A8|XFP8)?", key)
    if mx:
        bits = int(mx[1])
        stored = "mxfp8-quantized" if bits == 8 else f"mxfp{bits}-pack-quantized"
        return Group(name, targets, stored, bits, "float", True, "group", 32)
    if key in ("W8A8", "INT8"):
        return Group(name, targets, "int-quantized", 8, "int", True, "channel", None)
    numbers = re.fullmatch(r"W([2-8])A(?:4|8|16|FP8)(_ASYM)?", key)
    if numbers is None:
        return Group(name, targets, overall, 0, "unknown", True, "preset", None)
    return Group(name, targets, "pack-quantized", int(numbers[1]), "int", not numbers[2], "group", 128)


def _notes(section: Mapping[str, Any]) -> Iterable[str]:
    sparsity = section.get("sparsity_config")
    kind = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) and sparsity else "dense"
    if kind != "dense":
        yield f"sparsity_config: weights are stored as {kind!r} besides, which blockscale does not undo"
    if section.get("transform_config"):
        yield "transform_config: the model rotates weights or activations at run time; values are as stored"
    if section.get("kv_cache_scheme"):
        yield "kv_cache_scheme: the cache is quantized too; its scales are kept as stored"


def _strings(where: str, value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(s, str) for s in value)
    ):
        raise _fault(where, value, "a list of strings")
    for text in value:
        if text.startswith("re:"):
            try:
                re.compile(text.removeprefix("re:"))
            except re.error as error:
                raise _fault(where, text, f"a regular expression ({error})") from None
    return tuple(value)


def _whole(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _fault(where, value, "a positive whole number")
    return value


def _fault(where: str, found: Any, wanted: str) -> FormatError:
    return FormatError(f"found {found!r}, need {wanted}", field=f"quantization_config.{where}", found=found)

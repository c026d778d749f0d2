"""compressed-tensors: what llm-compressor writes and vLLM and transformers load.

Read are `pack-quantized` (int4, int8, int2; groups, channels, whole tensors; symmetric or not),
`int-quantized`, `mxfp4-pack-quantized`, `mxfp6-pack-quantized` and `mxfp8-quantized`; written are the same
but `int-quantized`. Other formats in the same checkpoint (FP8 with float scales, NVFP4, sparse ones) are left
as they are stored and listed as problems. The logical weight is `[out, in]`, blocks along `in`.

A symmetric weight becomes `int4`/`int8`, an asymmetric one `uint4`/`uint8` with zero points, both bit for
bit. One scale per channel becomes one block per row, of the next power of two. The package itself multiplies
in the scale's type (MX: in bfloat16), so its result is ours rounded to that type; transformers casts scales
to the model's dtype first, so scales of the model's own dtype lose nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..containers.safetensors_table import DTYPES
from ..errors import FormatError
from ..tensor import BlockTensor
from .base import Load, Options, Recognition, Stored, Weight
from .compressed_tensors_codes import rows_from_bytes, unpack_zero_points
from .compressed_tensors_config import Declaration, Group, find_section, read_declaration
from .compressed_tensors_layout import describe_weight
from .compressed_tensors_match import Groups, Targets, other_forms, read_targets, unmatched, with_other_forms
from .compressed_tensors_parts import ROLES, Parts, infer_group
from .compressed_tensors_writer import config, specs, write
from .stored_parts import (
    check_finite,
    check_not_nan,
    missing_part,
    mx_tensor,
    part_findings,
    plural,
    refuse_unreadable,
    shifted_scales,
)

__all__ = ["NAME", "config", "findings", "read", "recognise", "specs", "write"]

NAME = "compressed-tensors"


def recognise(
    stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
) -> Recognition | None:
    """The weights of this dialect; see `base.Dialect.recognise`.

    Args:
        stored: the stored tensors.
        config: `config.json`.
        load: loads a stored tensor; used for shapes, indices and surplus zero points.
        options: `settings["scale_shift"]` (0 or 2): what to add to E8M0 bytes, instead of what the writer's
            version says.

    Raises:
        FormatError: parts are missing, or names, dtypes and shapes contradict the config; quotes both.
    """
    declared = read_declaration(config)
    modules = _modules(stored)
    if declared is None and not any("weight_packed" in parts for parts in modules.values()):
        return None
    found = _Findings()
    shift = options.settings.get("scale_shift")
    if declared is not None and shift is not None:
        declared = replace(
            declared, groups=tuple(replace(g, scale_shift=int(shift)) for g in declared.groups)
        )
    if declared is None:
        _read_undeclared(modules, load, found)
        found.note_missing_config(config)
    else:
        _read_declared(declared, modules, stored, load, found)
    return found.recognition()


def read(weight: Weight, load: Load) -> BlockTensor:
    """One weight, exact; see `base.Dialect.read`.

    Raises:
        UnsupportedError: columns are in activation order, or scales are swizzled.
        FormatError: a scale is NaN or infinite.
    """
    refuse_unreadable(weight)
    stored = np.ascontiguousarray(load(weight.parts[weight.settings["codes"]]))
    scales, scale_name = load(weight.parts["weight_scale"]), weight.parts["weight_scale"]
    if weight.scheme.is_mx:
        scales = shifted_scales(scales, int(weight.settings["shift"]), weight.name)
        check_not_nan(scales, weight.name, scale_name)
        return mx_tensor(weight.scheme, weight.shape, weight.axis, stored, scales)
    check_finite(scales, weight.name, scale_name)
    grid = block_grid(weight.shape, weight.axis, weight.scheme.block_size)
    bits, element = weight.scheme.element.bits, weight.scheme.element
    flip = element.kind == "int" and weight.settings["codes"] == "weight_packed"
    raw = stored.view(np.uint8).reshape(grid.rows, stored.shape[-1] * stored.itemsize)
    packed = rows_from_bytes(raw, bits, grid.length, grid.row_bytes(bits), flip=flip)
    return BlockTensor(
        grid, weight.scheme, packed, _scales(weight, grid, scales), _zero_points(weight, grid, load)
    )


def findings(weight: Weight, load: Load) -> tuple[str, ...]:
    """What is odd in the data of a weight: constant words, scales not finite or zero (reads them all)."""
    return part_findings(weight, load, weight.parts[weight.settings["codes"]], weight.parts["weight_scale"])


def _scales(weight: Weight, grid: BlockGrid, stored: NDArray[Any]) -> NDArray[Any]:
    """One scale per block, `(rows, blocks_per_row)`."""
    if stored.size == 1:
        return np.full((grid.rows, grid.blocks_per_row), stored.reshape(-1)[0], stored.dtype)
    repeat = int(weight.settings["repeat"])
    rows = np.ascontiguousarray(stored).reshape(grid.rows, grid.blocks_per_row // repeat)
    return np.repeat(rows, repeat, axis=1) if repeat > 1 else rows


def _zero_points(weight: Weight, grid: BlockGrid, load: Load) -> NDArray[np.int32] | None:
    """Zero points as the value subtracted from the code, int32 `(rows, blocks_per_row)`, or None."""
    form = weight.settings["zero_points"]
    if form == "none":
        return None
    stored, element = load(weight.parts["weight_zero_point"]), weight.scheme.element
    if form == "packed":
        values = unpack_zero_points(stored, element.bits, weight.shape[-2])
    else:
        values = np.asarray(stored, dtype=np.int32)
        if element.kind == "uint":  # plain zero points go with signed codes
            values = values + np.int32(1 << (element.bits - 1))
    return np.ascontiguousarray(_scales(weight, grid, values), dtype=np.int32)


def _modules(stored: Mapping[str, Stored]) -> dict[str, dict[str, Stored]]:
    """Module to role to part, for every module that has one of the roles."""
    modules: dict[str, dict[str, Stored]] = defaultdict(dict)
    for name, part in stored.items():
        module, _, role = name.rpartition(".")
        if role in ROLES:
            modules[module][role] = part
    return dict(modules)


class _Findings:
    """What recognising has found so far."""

    def __init__(self) -> None:
        self.weights: list[Weight] = []
        self.problems: list[str] = []
        self.evidence: list[str] = []
        self.consumed: set[str] = set()
        self._schemes: Counter[str] = Counter()
        self._left: dict[str, list[Stored]] = defaultdict(list)

    def add(self, module: str, parts: Parts, group: Group, load: Load) -> None:
        """Describe one module's weight and file it under the weights or what is left."""
        name = f"{module}.weight" if module else "weight"
        if "weight" in parts and "weight_packed" in parts:
            raise FormatError(
                f"both {parts['weight'].name!r} and {parts['weight_packed'].name!r} are stored",
                tensor=name,
                rule="a weight is stored once",
            )
        weight = describe_weight(name, parts, group, load)
        if isinstance(weight, str):
            self._left[weight] += parts.values()
            return
        self.weights.append(weight)
        self.consumed |= {part.name for part in parts.values()}
        self._schemes[f"{group.name}: {group.describe()}; {_carrier(weight, parts)}"] += 1
        if weight.settings["refused"]:
            self.problems.append(f"{name}: cannot be read: {weight.settings['refused']}")

    def note_missing_config(self, config: Mapping[str, Any]) -> None:
        """Say that no config declares the packed weights."""
        section = find_section(config)
        method = section.get("quant_method") if section is not None else None
        lack = "config missing" if method is None else f"the config says quant_method {method!r}"
        bits = sorted({w.scheme.element.bits for w in self.weights})
        for width in bits or [4]:
            count = sum(w.scheme.element.bits == width for w in self.weights)
            self.problems.insert(0, f"packed {width}-bit, {lack}: {plural(count)} read as the parts say")

    def recognition(self) -> Recognition:
        """The result."""
        for reason, parts in self._left.items():
            size = sum(_nbytes(p) for p in parts)
            count = len({p.name.rpartition(".")[0] for p in parts})
            self.problems.append(
                f"{plural(count)} ({size:,} bytes, {parts[0].name!r} ...) left as stored: {reason}"
            )
        self.evidence += [f"{plural(count)} of {what}" for what, count in self._schemes.items()]
        return Recognition(
            NAME, tuple(self.weights), tuple(self.evidence), tuple(self.problems), frozenset(self.consumed)
        )


def _read_undeclared(modules: Mapping[str, Parts], load: Load, found: _Findings) -> None:
    """Weights whose packed parts are plainly there though no config speaks of them."""
    for module, parts in modules.items():
        if "weight_packed" in parts:
            group = infer_group(f"{module}.weight", parts, load)
            if group is not None:
                found.add(module, parts, group, load)


def _read_declared(
    declared: Declaration,
    modules: Mapping[str, Parts],
    stored: Mapping[str, Stored],
    load: Load,
    found: _Findings,
) -> None:
    """Weights that the config declares, each checked against its parts."""
    names = frozenset(".".join(p[:i]) for p in (n.split(".") for n in stored) for i in range(1, len(p)))
    groups, ignore = Groups(declared.groups), read_targets(declared.ignore)
    found.evidence.append(f"quantization_config: quant_method {NAME!r}, format {declared.format!r}")
    found.problems += declared.notes
    for module, parts in modules.items():
        if _is_quantized(module, parts, ignore, found):
            group = groups.of(module)
            if group is None and "weight_packed" not in parts:
                continue  # not packed, not targeted: as it is
            if group is None:
                raise FormatError(
                    f"packed parts are stored, but no target of the config names the module {module!r}; "
                    f"targets are {', '.join(t for g in declared.groups for t in g.targets) or 'none'}",
                    tensor=f"{module}.weight",
                    found=next(iter(parts.values())).name,
                )
            found.add(module, parts, group, load)
    if not found.weights and not any("weight_packed" in p for p in modules.values()):
        found.problems.append("the config declares quantized weights, but none is in this file")
    else:
        found.problems += groups.check(names)
    found.problems += _list_faults(declared, ignore, groups, modules, names)


def _is_quantized(module: str, parts: Parts, ignore: Targets, found: _Findings) -> bool:
    """Whether a module's parts are those of a quantized weight that the config does not ignore."""
    named = ignore.match(module)
    if "weight_packed" not in parts:
        if "weight" in parts or named is not None:
            quantized = "weight" in parts and parts["weight"].dtype in ("I8", "F8_E4M3", "F8_E5M2")
            return quantized and named is None
        have = [p.name for p in parts.values()]
        raise missing_part(f"{module}.weight", "weight_packed", f"{module}.weight_packed", have)
    if named is not None:
        raise FormatError(
            f"the config ignores it ({named!r}), but {parts['weight_packed'].name!r} is stored packed",
            tensor=f"{module}.weight",
            field="quantization_config.ignore",
            found=named,
            rule="an ignored module keeps its plain weight",
        )
    for form in other_forms(module):
        if ignore.match(form):
            found.problems.append(f"config: ignores {form!r}, but {module!r}, a part of it, is packed")
    return True


def _list_faults(
    declared: Declaration,
    ignore: Targets,
    groups: Groups,
    modules: Mapping[str, Parts],
    names: frozenset[str],
) -> list[str]:
    """Entries of the ignore list that match nothing, and plain weights that a target names."""
    heads = ("lm_head", "re:.*lm_head", "re:.*lm_head$", "re:.*lm_head.*")  # absent where it is tied
    lost = [i for i in unmatched(ignore, with_other_forms(names)) if i not in heads]
    notes = [f"config: the entry {i!r} of the ignore list matches no module" for i in lost]
    for module, parts in modules.items():
        plain = "weight" in parts and parts["weight"].dtype in ("F16", "BF16", "F32", "F64")
        if plain and "weight_packed" not in parts and ignore.match(module) is None and groups.names(module):
            notes.append(f"config: a target names {module!r}, but its weight is stored plain")
    return notes


def _carrier(weight: Weight, parts: Parts) -> str:
    """How codes lie in the stored words."""
    role, bits = weight.settings["codes"], weight.scheme.element.bits
    dtype = parts[role].dtype
    return f"{role} is {dtype}, {DTYPES[dtype].bits / bits:g} codes of {bits} bits each"


def _nbytes(part: Stored) -> int:
    bits = DTYPES[part.dtype].bits if part.dtype in DTYPES else 0
    return int(np.prod(part.shape, dtype=object)) * bits // 8

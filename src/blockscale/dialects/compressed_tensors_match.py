"""Which modules a compressed-tensors config speaks of.

A target names modules in one of three ways, tried in this order: an exact name, a regular expression after
`re:` that matches from the start, or a class (`Linear`), which a file does not tell. Engines that fuse layers
know modules under other names (`qkv_proj` for `q_proj`, `k_proj`, `v_proj`), so lists may name either form.
Source: compressed-tensors 0.20, `utils/match.py` (read, not copied).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import FormatError
from .compressed_tensors_config import Group

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "query_key_value": ("query", "key", "value"),
    "wqkv": ("wq", "wk", "wv"),
    "w13": ("w1", "w3"),
}
_FUSED_BY_PART = {part: fused for fused, parts in _FUSED.items() for part in parts}
_EMBEDDING = re.compile(r"(?:^|\.)(?:\w*embed\w*|wte|wpe)$")


def is_class(target: str) -> bool:
    """True if a target names a class of modules (`Linear`) and not a module."""
    return "." not in target and ":" not in target and target[:1].isupper()


def looks_like_embedding(module: str) -> bool:
    """True if a module's name is that of an embedding (its class is not stored)."""
    return _EMBEDDING.search(module) is not None


def other_forms(module: str) -> tuple[str, ...]:
    """Names under which engines know a module: fused with its neighbours, or split into them."""
    parent, dot, leaf = module.rpartition(".")
    forms = _FUSED.get(leaf, ())
    if leaf in _FUSED_BY_PART:
        forms = (*forms, _FUSED_BY_PART[leaf])
    return tuple(parent + dot + form for form in forms)


@dataclass(frozen=True, slots=True)
class Targets:
    """A list of targets, sorted by how they name modules.

    Attributes:
        exact: exact names.
        patterns: what stands after `re:`, compiled, by the target.
        classes: class names.
    """

    exact: frozenset[str]
    patterns: dict[str, re.Pattern[str]]
    classes: frozenset[str]

    def match(self, module: str) -> str | None:
        """The target that names this module (exactly, then by pattern), or None."""
        if module in self.exact:
            return module
        return next((t for t, p in self.patterns.items() if p.match(module)), None)


def read_targets(targets: Iterable[str]) -> Targets:
    """Sort a list of targets; its patterns have been checked when the config was read."""
    patterns = {t: re.compile(t.removeprefix("re:")) for t in targets if t.startswith("re:")}
    classes = frozenset(t for t in targets if is_class(t))
    return Targets(frozenset(targets) - patterns.keys() - classes, patterns, classes)


class Groups:
    """The groups of a config, to look modules up in."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = [(group, read_targets(group.targets)) for group in groups]

    def of(self, module: str) -> Group | None:
        """The group of a module: by exact name, pattern, class, then by its fused or split names."""
        found = self._named(module)
        if found is not None:
            return found
        wanted = "Embedding" if looks_like_embedding(module) else "Linear"
        by_class = [group for group, targets in self._groups if targets.classes]
        for group in sorted(by_class, key=lambda g: wanted not in g.targets):
            return group
        return next(filter(None, map(self._named, other_forms(module))), None)

    def names(self, module: str) -> bool:
        """Whether a target names this module itself, and not just its class."""
        return self._named(module) is not None

    def _named(self, module: str) -> Group | None:
        for group, targets in self._groups:
            if module in targets.exact:
                return group
        return next((group for group, targets in self._groups if targets.match(module)), None)

    def check(self, modules: Iterable[str]) -> list[str]:
        """Report patterns that match no module; raise for names that match none.

        Args:
            modules: the modules of the file.

        Raises:
            FormatError: an exact name, or all targets of a group, match nothing; lists near names.
        """
        known = with_other_forms(modules)
        notes = []
        for group, targets in self._groups:
            lost = unmatched(targets, known)
            for target in lost:
                if target in targets.exact or len(lost) == len(group.targets):
                    raise _lost_target(group, target, known)
                notes.append(f"config: the target {target!r} of {group.name} matches no module")
        return notes


def with_other_forms(modules: Iterable[str]) -> frozenset[str]:
    """Modules under all their names."""
    names = frozenset(modules)
    return names.union(*(other_forms(m) for m in names)) if names else names


def unmatched(targets: Targets, known: frozenset[str]) -> list[str]:
    """Exact names and patterns that name none of the known modules."""
    lost = sorted(targets.exact - known)
    return lost + [t for t, pattern in targets.patterns.items() if not any(map(pattern.match, known))]


def _lost_target(group: Group, target: str, known: frozenset[str]) -> FormatError:
    near = difflib.get_close_matches(target.removeprefix("re:"), known, n=3)
    return FormatError(
        f"the target {target!r} names no module of the file",
        field=f"quantization_config.config_groups.{group.name}.targets",
        rule="every override matches at least one module",
        found=target,
        hint=f"near names: {', '.join(near)}" if near else "open the whole model, not one shard of it",
    )

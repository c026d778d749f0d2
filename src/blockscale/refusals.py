"""Refusals of a plan: every tensor that does not fit is named at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from .checkpoint import Checkpoint
from .errors import BlockscaleError, InputError
from .targets import Target


def unfit(faults: Sequence[BlockscaleError], names: Sequence[str]) -> InputError:
    """Tensors that cannot carry the scheme, among those of these names."""
    shown = "; ".join(f"{e.tensor}: {e.message}" for e in faults[:8])
    more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
    exclude = " ".join(
        f"--exclude '{pattern}'" for pattern in _patterns([str(e.tensor) for e in faults], names)
    )
    keep = f"--leave-unfit keeps them as they are; {f'or {exclude}; ' if exclude else ''}"
    return InputError(
        f"{len(faults)} of {len(names)} tensors cannot carry the scheme: {shown}{more}",
        found=[e.tensor for e in faults],
        rule=faults[0].rule,
        hint=f"{keep}or another scheme, --block-size or --axis",
    )


def _patterns(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """At most three patterns that match these names and no others; none if there are no such."""
    if len(wanted) <= 3:
        return list(wanted)
    found = list(dict.fromkeys(re.sub(r"\d+", "*", name) for name in wanted))
    others = set(names) - set(wanted)
    if len(found) > 3 or any(fnmatchcase(name, pattern) for pattern in found for name in others):
        return []
    return found


def check_included(
    ckpt: Checkpoint, left: Mapping[str, str], include: Sequence[str], exclude: Sequence[str]
) -> None:
    """InputError for a pattern of `include` none of whose tensors is quantized; `exclude` has the last word.

    Args:
        ckpt: the source.
        left: the tensors that are not quantized, and why.
        include: the patterns.
        exclude: patterns that win over them.
    """
    for pattern in include:
        names = [name for name in ckpt if fnmatchcase(name, pattern)]
        asked = [name for name in names if not any(fnmatchcase(name, p) for p in exclude)]
        if not asked or not all(name in left for name in names):
            continue
        again = all(ckpt.info(name).quantization for name in asked)
        more = f" (and {len(asked) - 1:,} more)" if len(asked) > 1 else ""
        raise InputError(
            f"the pattern {pattern!r} names nothing to quantize: {asked[0]}{more}: {left[asked[0]]}",
            file=str(ckpt.path),
            found=pattern,
            field="--include",
            rule="what was asked for and cannot be done stops the run",
            hint="--requantize quantizes it again" if again else "--leave-unfit keeps it as it is",
        )


def unconvertible(faults: Sequence[BlockscaleError], total: int, target: Target) -> InputError:
    """Tensors that do not go into the target."""
    shown = "; ".join(f"{e.tensor}: {e.message}" for e in faults[:8])
    more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
    return InputError(
        f"{len(faults)} of {total} tensors do not go into {target.kind}: {shown}{more}",
        found=[e.tensor for e in faults],
        rule=faults[0].rule,
        hint=faults[0].hint,
    )


def check_patterns(ckpt: Checkpoint, patterns: Sequence[str], option: str) -> None:
    """InputError for a pattern that matches nothing."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in ckpt):
            near = difflib.get_close_matches(pattern, list(ckpt), n=3, cutoff=0.4)
            raise InputError(
                f"the pattern {pattern!r} matches no tensor",
                file=str(ckpt.path),
                found=pattern,
                field=f"--{option}",
                rule="a pattern that matches nothing stops the run",
                hint="near names: " + ", ".join(near) if near else "`blockscale inspect` lists the names",
            )

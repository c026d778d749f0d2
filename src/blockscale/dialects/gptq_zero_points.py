"""Whether GPTQ's zero points are stored as z or z - 1: what the config says against what the words say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError
from .base import Options
from .gptq_config import Label
from .gptq_shapes import Order
from .word_parts import Geometry, Parts
from .words import ONES


@dataclass(frozen=True, slots=True)
class Found:
    """One weight, examined.

    Attributes:
        parts: its stored tensors.
        geometry: its sizes.
        order: how its inputs go to groups.
        symmetric: what the config says of it, None if nothing.
        constant: the number in all zero-point fields, None if they differ.
        all_ones: zero-point fields with all bits set, and words with nothing else from one such field up
            (words only).
    """

    parts: Parts
    geometry: Geometry
    order: Order
    symmetric: bool | None
    constant: int | None
    all_ones: tuple[int, int]

    @property
    def implied_bias(self) -> int | None:
        """1 if all fields are what v1 writes for symmetric weights, 0 for v2, None: neither."""
        middle = 1 << (self.geometry.bits - 1)
        return {middle: 0, middle - 1: 1}.get(self.constant) if self.constant is not None else None


def settle_bias(
    label: Label, weights: Sequence[Found], options: Options
) -> tuple[int | None, list[str], list[str]]:
    """The bias of zero points in words, with evidence and problems; plain zero points have none."""
    in_words = [f for f in weights if f.geometry.packed_zeros]
    votes = [f for f in in_words if f.implied_bias is not None]
    evidence = [_vote_line(votes, len(weights), v) for v in (1, 0) if any(f.implied_bias == v for f in votes)]
    forced = options.zero_point_bias
    if forced is not None:
        evidence.append(f"zero_point_bias {forced} was asked for; the config has {label.text}")
        return forced, evidence, []
    _check_plain(weights)
    expected = label.bias if label.bias is not None else 1
    against = [f for f in votes if f.implied_bias != expected]
    strict = [f for f in against if f.symmetric is not False]
    if label.explicit or (label.bias is not None and len(against) < len(votes)):
        if strict:
            _contradiction(strict[0], label, expected)
        problems = [_odd_line(f, expected) for f in against[:1]]
        return expected, evidence, problems
    if votes and (strict or label.bias is None) and len({f.implied_bias for f in votes}) == 1:
        evidence.append(f"zero points are read as these words say; {label.text}")
        return votes[0].implied_bias, evidence, []
    if label.bias is None:
        return None, evidence, [_unknown_line(in_words)] if in_words else []
    return expected, evidence, [_odd_line(f, expected) for f in against[:1]]


def _check_plain(weights: Sequence[Found]) -> None:
    for f in weights:
        if not f.geometry.packed_zeros and f.symmetric and f.implied_bias == 1:
            raise FormatError(
                f"the config says sym, but every plain zero point is {f.constant}",
                rule=f"plain zero points are z itself; symmetric {f.geometry.bits}-bit codes have z = "
                f"{1 << (f.geometry.bits - 1)}",
                found=f.constant,
                hint="force zero_point_bias=1 if they hold z - 1, 0 to read them as they are",
                tensor=f"{f.parts.prefix}qzeros",
            )


def _contradiction(f: Found, label: Label, expected: int) -> None:
    value = f.constant or 0
    raise FormatError(
        f"the config has {label.text} (stored {'z - 1' if expected else 'z'}), but every zero word is "
        f"{_word(f)}, what {'gptq_v2' if expected else 'gptq (v1)'} writes for symmetric "
        f"{f.geometry.bits}-bit weights; read as the config says, z would be {value + expected}",
        rule=f"symmetric {f.geometry.bits}-bit codes have z = {1 << (f.geometry.bits - 1)}",
        found=_word(f),
        hint="force zero_point_bias=0 to read stored zero points as z, 1 to read them as z - 1",
        tensor=f"{f.parts.prefix}qzeros",
    )


def _word(f: Found) -> str:
    return f"0x{(f.constant or 0) * ONES[f.geometry.bits]:08X}"


def _vote_line(votes: Sequence[Found], total: int, bias: int) -> str:
    mine = [f for f in votes if f.implied_bias == bias]
    return (
        f"{len(mine)} of {total} weights have only zero words {_word(mine[0])}: "
        f"symmetric as {'gptq (v1, stored z - 1)' if bias else 'gptq_v2 (stored z)'} writes it"
    )


def _odd_line(f: Found, expected: int) -> str:
    return (
        f"{f.parts.prefix}qzeros: every zero word is {_word(f)}, so z = {(f.constant or 0) + expected} "
        f"everywhere; force zero_point_bias={1 - expected} if the weights are symmetric"
    )


def _unknown_line(weights: Sequence[Found]) -> str:
    bits = sorted({f.geometry.bits for f in weights})
    return (
        f"packed {'/'.join(map(str, bits))}-bit GPTQ weights, but the config is missing: whether zero points "
        "are stored as z or z - 1 cannot be known; give the config, or force zero_point_bias"
    )


def all_ones_reading(section: Mapping[str, Any], options: Options) -> str:
    """How all-ones fields of v1 are read: as asked, as GPTQModel does in its own files, else masked."""
    meta = section.get("meta")
    tools = meta.get("quantizer", []) if isinstance(meta, Mapping) else []
    tools = tools if isinstance(tools, list) else [tools]
    by_gptqmodel = any(str(tool).lower().startswith("gptqmodel:") for tool in tools)
    return str(options.settings.get("all_ones", "carry" if by_gptqmodel else "zero"))


def all_ones_problems(weights: Sequence[Found], bias: int | None, reading: str) -> list[str]:
    """A line on fields of all ones, where they are ambiguous (v1)."""
    affected = [f for f in weights if f.all_ones[0]] if bias == 1 else []
    if not affected:
        return []
    said = {
        "zero": "read as z = 0 (add 1, keep the low bits)",
        "power": "read as z = 2**bits (add 1 without masking)",
        "carry": "read as z = 0 by adding 1 to every field of the whole word, carries included (GPTQModel)",
    }
    fields = sum(f.geometry.n_out * f.geometry.groups for f in affected)
    count, filled = (sum(f.all_ones[i] for f in affected) for i in (0, 1))
    lines = [
        f"{count} of {fields} zero-point fields of {len(affected)} weights are all ones, such as in "
        f"{affected[0].parts.prefix}qzeros: v1 cannot say z = 0; {said[reading]}; settings all_ones (zero, "
        "power, carry) or zero_point_bias=0 force another reading"
    ]
    if filled and reading != "carry":
        lines.append(
            f"{filled} zero words hold nothing but ones from some field up: AutoGPTQ's packer overwrites the "
            "fields above a zero point of 0, and what stood there is lost"
        )
    return lines

"""Rules: how a quantizer chooses the scale. A table of names; the arithmetic is defined in docs/rules.md.

A rule is written `name` or `name:option,option`, for example `optimal:narrow` or `minmax:no-zero`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .arguments import check_name
from .errors import SchemeError
from .schemes import Scheme


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to choose scales.

    Attributes:
        name: name in the table.
        family: the scheme family it serves.
        offsets: the scheme offsets it serves.
        options: options that are set.
        allowed: options that exist.
        summary: one line for users.
        takes_importance: whether weights of the squared error mean anything to it.
    """

    name: str
    family: str
    offsets: tuple[str, ...]
    summary: str
    allowed: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    takes_importance: bool = False

    def __str__(self) -> str:
        """As a user writes it: `name:option,option`."""
        return self.name + (":" + ",".join(sorted(self.options)) if self.options else "")


# fmt: off
_TABLE = (
    Rule("floor",   "mx",     ("none",),
         "OCP's rule: power of two below amax; clamps a maximum beyond the element's"),
    Rule("ceil",    "mx",     ("none",),
         "power of two above amax; never saturates, wastes range"),
    Rule("rceil",   "mx",     ("none",),
         "least exponent that does not saturate (NVIDIA)"),
    Rule("even",    "mx",     ("none",),
         "exponent of amax rounded to the element's mantissa (AMD Quark)"),
    Rule("mse",     "mx",     ("none",),
         "least squared error over all exponents"),
    Rule("absmax",  "affine", ("none",),
         "largest magnitude onto the largest symmetric code"),
    Rule("minmax",  "affine", ("zero_point",),
         "smallest and largest element onto the ends of the range", ("no-zero",)),
    Rule("ggml",    "affine", ("none", "minimum"),
         "byte for byte as the gguf package (q8_0, q4_0, q4_1)"),
    Rule("optimal", "affine", ("none", "zero_point"),
         "least squared error over all storable scales and zero points", ("narrow", "positive"),
         takes_importance=True),
)
# fmt: on

RULES: dict[str, Rule] = {row.name: row for row in _TABLE}
GGML_SCHEMES = ("q8_0", "q4_0", "q4_1")


def rule_for(scheme: Scheme, rule: str | Rule | None) -> Rule:
    """The rule to use for a scheme: parse the name, check that it serves the scheme.

    Raises:
        SchemeError: unknown rule or option, a rule that does not serve this scheme, or a scheme that no rule
            serves.
    """
    if isinstance(rule, Rule):
        rule = str(rule)
    if rule is not None:
        check_name(rule, "rule", "a rule is a name or a Rule", RULES)
    if not scheme.default_rule:
        raise SchemeError(
            f"nothing can be quantized to {scheme.name}; it can only be read and written back",
            found=scheme.name,
            field="scheme",
            hint="q4_0, q4_1 and q8_0 are GGUF types that can",
        )
    name, _, option_text = (rule or scheme.default_rule).partition(":")
    options = frozenset(o.strip() for o in option_text.split(",") if o.strip())
    row = RULES.get(name)
    if row is None or not _serves(row, scheme):
        served = [r.name for r in RULES.values() if _serves(r, scheme)]
        raise SchemeError(
            f"rule {name!r} does not serve scheme {scheme.name!r} ({scheme.describe()})"
            if row
            else f"unknown rule {name!r}",
            found=name,
            field="rule",
            rule="the rule ggml takes GGUF's types: blocks of 32, float16 scales" if name == "ggml" else None,
            hint=f"for this scheme: {', '.join(served) or 'none'}",
        )
    unknown = options - set(row.allowed)
    if unknown:
        raise SchemeError(
            f"rule {name!r} has no option {sorted(unknown)[0]!r}",
            found=sorted(unknown)[0],
            field="rule",
            hint=f"options of {name}: {', '.join(row.allowed) or 'none'}",
        )
    return row if options == row.options else replace(row, options=options)


def _serves(row: Rule, scheme: Scheme) -> bool:
    if row.family != scheme.family or scheme.offset not in row.offsets:
        return False
    if row.name == "ggml":
        return scheme.name in GGML_SCHEMES and scheme.block_size == 32 and scheme.scale.name == "float16"
    return True

"""`blockscale schemes`: the tables of schemes and rules."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option
from .output import Column, print_json, print_table, say
from .text import show_bits


@click.command(short_help="List the schemes and the rules that choose scales.")
@json_option()
def schemes(as_json: bool) -> None:
    """List the schemes and the rules that choose scales."""
    document = _document()
    if as_json:
        print_json("schemes", document)
        return
    say("Schemes (--scheme), in blocks of 32 unless --block-size says otherwise; affine ones")
    say("vary by --scale and --symmetric/--asymmetric; the first rule is the default\n")
    columns = (
        Column("scheme"),
        Column("element"),
        Column("scales"),
        Column("bits", is_number=True),
        Column("rules"),
    )
    print_table(columns, [_scheme_row(row) for row in document["schemes"]])
    say("\nRules (--rule); docs/rules.md defines them\n")
    rows = [(r["name"], r["serves"], ", ".join(r["options"]), r["summary"]) for r in document["rules"]]
    print_table((Column("rule"), Column("serves"), Column("options"), Column("meaning", fold=True)), rows)


def _document() -> dict[str, Any]:
    from ..rules import RULES
    from ..schemes import SCHEMES

    return {
        "schemes": [describe_scheme(row) for row in SCHEMES.values()],
        "rules": [
            {
                "name": rule.name,
                "serves": _serves(rule),
                "options": list(rule.allowed),
                "summary": rule.summary,
            }
            for rule in RULES.values()
        ],
    }


def describe_scheme(scheme: Any) -> dict[str, Any]:
    """A scheme as a JSON object; the same keys in every verb."""
    from ..errors import SchemeError
    from ..rules import RULES, rule_for

    def serves(name: str) -> bool:
        try:
            rule_for(scheme, name)
        except SchemeError:
            return False
        return True

    return {
        "name": scheme.name,
        "description": scheme.describe(),
        "family": scheme.family,
        "element": scheme.element.name,
        "element_bits": scheme.element.bits,
        "block_size": scheme.block_size,
        "scale": scheme.scale.name,
        "offset": scheme.offset,
        "bits_per_element": scheme.bits_per_element,
        "default_rule": scheme.default_rule,
        "rules": [name for name in RULES if serves(name)],
    }


def _scheme_row(row: dict[str, Any]) -> tuple[str, ...]:
    others = [name for name in row["rules"] if name != row["default_rule"]]
    offset = {"none": "", "zero_point": ", zero point", "minimum": ", minimum"}[row["offset"]]
    return (
        row["name"],
        row["element"],
        row["scale"] + offset,
        show_bits(row["bits_per_element"]),
        " ".join([row["default_rule"], *others]),
    )


def _serves(rule: Any) -> str:
    if rule.family == "mx":
        return "MX"
    if rule.name == "ggml":
        return "q8_0 q4_0 q4_1"
    offsets = {"none": "symmetric", "zero_point": "asymmetric"}
    return "affine" if len(rule.offsets) > 1 else offsets[rule.offsets[0]]

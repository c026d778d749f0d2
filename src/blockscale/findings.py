"""What verifying finds: broken rules, and values that are legal but hardly meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import BlockscaleError
from .values import find_nonfinite, first_byte_only, has_nonfinite_codes

Severity = Literal["violation", "suspicious"]
Progress = Callable[[int], None]

_LEAST_CONSTANT = 64  # bytes: a smaller tensor of equal bytes is nothing to wonder about


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found in a file.

    Attributes:
        severity: `violation` of a rule of the format, or `suspicious`: legal, but hardly meant.
        rule: identifier of the rule (`R20`), or its first words where it has none.
        rule_text: the rule.
        message: what was found, in a sentence.
        tensor: the tensor concerned, or None.
        field: the field concerned, or None.
        offset: byte offset of the field in its structure (file, descriptor), or None.
        found: the offending value as text, or None.
        hint: what to do about it, or None.
        file: name of the file concerned, where there are several.
    """

    severity: Severity
    rule: str
    rule_text: str
    message: str
    tensor: str | None = None
    field: str | None = None
    offset: int | None = None
    found: str | None = None
    hint: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying a file found.

    Attributes:
        path: the file or folder.
        kind: `safetensors`, `hrry`, `gguf`, or `safetensors in N shards`.
        nbytes: size of the file, or of all shards.
        tensors: how many tensors could be looked at.
        findings: in the order of the file.
        unchecked: what was not looked at, one line each.
    """

    path: Path
    kind: str
    nbytes: int
    tensors: int
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Finding, ...]:
        """The broken rules."""
        return tuple(f for f in self.findings if f.severity == "violation")

    @property
    def suspicious(self) -> tuple[Finding, ...]:
        """What is legal but hardly meant."""
        return tuple(f for f in self.findings if f.severity == "suspicious")


def finding_of(error: BlockscaleError) -> Finding:
    """A broken rule as a finding."""
    name, _, text = (error.rule or "").partition(": ")
    found = None if error.found is None else repr(error.found)
    return Finding(
        "violation",
        name,
        text or name,
        error.message,
        error.tensor,
        error.field,
        error.offset,
        found,
        error.hint,
    )


def suspicious(message: str, tensor: str | None = None, *, rule: str = "values") -> Finding:
    """Something legal but hardly meant."""
    return Finding("suspicious", rule, "", message, tensor)


def nonfinite(name: str, dtype: np.dtype[Any], chunks: Iterator[NDArray[np.uint8]]) -> list[Finding]:
    """NaN and infinities among the numbers of a plain tensor."""
    if not has_nonfinite_codes(dtype):
        return []
    found = find_nonfinite(chunks, dtype)
    if not found.count:
        return []
    return [
        Finding(
            "suspicious",
            "values",
            "weights are finite numbers",
            f"{found.nan:,} NaN and {found.infinite:,} infinite values; the first is element {found.first:,}",
            name,
            "data",
            None,
            str(found.count),
            "find out where they come from before using the file",
        )
    ]


def constant(name: str, size: int, chunks: Iterator[NDArray[np.uint8]]) -> list[Finding]:
    """Packed codes that are all one byte."""
    byte = first_byte_only(chunks) if size >= _LEAST_CONSTANT else None
    if byte is None:
        return []
    word = "0x" + f"{byte:02x}" * 4
    return [
        Finding(
            "suspicious",
            "values",
            "codes differ from element to element",
            f"all {size:,} bytes of its codes are 0x{byte:02X} (words {word}): was it ever written?",
            name,
            "data",
            None,
            f"0x{byte:02X}",
            "compare with the source: `blockscale compare SOURCE FILE`",
        )
    ]

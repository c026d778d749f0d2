"""Verifying a file: every rule of its format, and values that are legal but hardly meant."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .containers.base import read_exactly
from .containers.hrry import find_problems
from .containers.safetensors import ArrayEntry, SafetensorsFile
from .containers.safetensors_header import find_header_faults
from .containers.sniff import PEEK, open_input, recognise_foreign
from .errors import BlockscaleError, UnsupportedError
from .hurray import TensorDescriptor
from .hurray.filemap import IndexEntry, read_file_map
from .values import cut_ranges, find_nonfinite, first_byte_only, has_nonfinite_codes

Severity = Literal["violation", "suspicious"]
Progress = Callable[[int], None]

# Names of plain tensors that hold packed codes of other toolchains.
_PACKED_ENDS = ("qweight", "weight_packed", "_blocks")
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


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying a file found.

    Attributes:
        path: the file.
        kind: `safetensors` or `hrry`.
        nbytes: size of the file.
        tensors: how many tensors could be looked at.
        findings: in the order of the file.
    """

    path: Path
    kind: str
    nbytes: int
    tensors: int
    findings: tuple[Finding, ...]

    @property
    def violations(self) -> tuple[Finding, ...]:
        """The broken rules."""
        return tuple(f for f in self.findings if f.severity == "violation")

    @property
    def suspicious(self) -> tuple[Finding, ...]:
        """What is legal but hardly meant."""
        return tuple(f for f in self.findings if f.severity == "suspicious")


def verify_file(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Check every rule of a file's format, and its values; reads the whole file in small pieces.

    Args:
        path: a `.hrry` or safetensors file, told by its first bytes, else by its suffix.
        progress: called with the number of bytes looked at since the last call.

    Raises:
        InputError: there is no such file, or it cannot be read.
        UnsupportedError: a file of another kind.
    """
    path = Path(path)
    kind = _kind(path)
    suspicious: list[Finding] = []
    if kind == "hrry":
        violations = [finding_of(error) for error in find_problems(path)]
        scan = _scan_hrry(path, {f.tensor for f in violations}, progress)
    else:
        violations, odd = _check_header(path)
        suspicious += odd
        scan = iter(()) if violations else _scan_safetensors(path, progress)
    tensors = 0
    for findings in scan:
        tensors += 1
        suspicious += findings
    return Verification(path, kind, path.stat().st_size, tensors, (*violations, *suspicious))


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


def _kind(path: Path) -> str:
    fd = open_input(path)
    try:
        foreign = recognise_foreign(os.pread(fd, PEEK, 0))
    finally:
        os.close(fd)
    if foreign is not None and foreign.kind in ("hrry", "safetensors"):
        return foreign.kind
    if path.suffix in (".hrry", ".safetensors"):
        return path.suffix[1:]
    raise UnsupportedError(
        foreign.text if foreign else "the file is of no kind that can be verified",
        file=str(path),
        rule="verify reads .hrry and .safetensors files",
        hint=foreign.hint if foreign else None,
    )


def _check_header(path: Path) -> tuple[list[Finding], list[Finding]]:
    """Violations of a safetensors header; if there are none, what is odd about it."""
    fd = open_input(path)
    try:
        faults = find_header_faults(fd, str(path))
    finally:
        os.close(fd)
    if faults:
        return [finding_of(error) for error in faults], []
    with SafetensorsFile(path) as file:
        return [], [Finding("suspicious", "header", "", problem) for problem in file.problems]


def _scan_safetensors(path: Path, progress: Progress | None) -> Iterator[list[Finding]]:
    """Suspicious findings of each tensor of a sound file."""
    with SafetensorsFile(path) as file:
        for entry in file.entries.values():
            yield _look_at_array(file, entry)
            if progress is not None:
                progress(entry.nbytes)


def _look_at_array(file: SafetensorsFile, entry: ArrayEntry) -> list[Finding]:
    def chunks() -> Iterator[NDArray[np.uint8]]:
        return (file.read_bytes(entry.name, *part) for part in cut_ranges(entry.nbytes))

    found = []
    if entry.dtype is not None and not entry.is_packed:
        found += _nonfinite(entry.name, entry.dtype, chunks())
    if entry.name.endswith(_PACKED_ENDS):
        found += _constant(entry.name, entry.nbytes, chunks())
    return found


def _scan_hrry(path: Path, broken: set[str | None], progress: Progress | None) -> Iterator[list[Finding]]:
    """Suspicious findings of each tensor that breaks no rule; none if the frame is broken."""
    if None in broken:
        return
    fd = open_input(path)
    try:
        frame = read_file_map(np.memmap(path, np.uint8, "r"))
        for row in frame.entries:
            if row.name not in broken:
                yield _look_at_row(fd, row)
            if progress is not None:
                progress(row.data_length)
    finally:
        os.close(fd)


def _look_at_row(fd: int, row: IndexEntry) -> list[Finding]:
    d = TensorDescriptor.parse(_read(fd, row.descriptor_offset, row.descriptor_length).tobytes())
    if not d.buffers:
        return []
    size = d.buffers[0].byte_size

    def chunks() -> Iterator[NDArray[np.uint8]]:
        return (_read(fd, row.data_offset + a, b - a) for a, b in cut_ranges(size))

    if d.quantization is not None:
        return _constant(row.name, size, chunks())
    is_whole = d.layout.name in ("row-major", "column-major") and d.byte_offset == 0
    if d.type is None or d.type.dtype is None or d.type.is_packed or not is_whole:
        return []
    return _nonfinite(row.name, d.type.dtype, chunks())


def _read(fd: int, offset: int, n: int) -> NDArray[np.uint8]:
    out = np.empty(n, np.uint8)
    if n:
        read_exactly(fd, offset, out.data, file="")
    return out


def _nonfinite(name: str, dtype: np.dtype[Any], chunks: Iterator[NDArray[np.uint8]]) -> list[Finding]:
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


def _constant(name: str, size: int, chunks: Iterator[NDArray[np.uint8]]) -> list[Finding]:
    constant = first_byte_only(chunks) if size >= _LEAST_CONSTANT else None
    if constant is None:
        return []
    word = "0x" + f"{constant:02x}" * 4
    return [
        Finding(
            "suspicious",
            "values",
            "codes differ from element to element",
            f"all {size:,} bytes of its codes are 0x{constant:02X} (words {word}): was it ever written?",
            name,
            "data",
            None,
            f"0x{constant:02X}",
            "compare with the source: `blockscale compare SOURCE FILE`",
        )
    ]

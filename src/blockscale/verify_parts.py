"""Verifying what a container's own rules do not say: the dialects of safetensors, and GGUF's blocks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .checkpoint import open_checkpoint
from .containers.gguf import GgufFile
from .containers.gguf_types import GgmlType, GgufEntry
from .dialects import ggml
from .errors import BlockscaleError, FormatError, InputError, UnsupportedError
from .findings import Finding, Progress, Verification, constant, finding_of, nonfinite, suspicious
from .values import cut_ranges

_SLAB_BYTES = 16 << 20


def verify_dialects(path: Path) -> tuple[list[Finding], frozenset[str], list[str]]:
    """Config, names, shapes and contents of quantized weights against each other.

    Returns:
        Findings, the stored tensors that were looked at as parts of weights, and what was not looked at.
    """
    try:
        ckpt = open_checkpoint(path)
    except FormatError as error:
        return [finding_of(error)], frozenset(), ["the quantized weights, for the reason above"]
    except UnsupportedError as error:
        return [], frozenset(), [f"the quantized weights: {error.message}"]
    with ckpt:
        found = [suspicious(text, rule="dialect") for text in ckpt.reading.problems]
        for name in ckpt:
            try:
                found += [suspicious(text, name, rule="dialect") for text in ckpt.findings(name)]
            except BlockscaleError as error:
                found.append(finding_of(error))
            ckpt.forget()
        return found, ckpt.parts, []


def verify_gguf(path: Path, progress: Progress | None) -> Verification:
    """A GGUF file: its header, and the values of the types that blockscale reads."""
    try:
        file = GgufFile(path, tolerant=True)
    except UnsupportedError:
        raise
    except FormatError as error:
        return Verification(path, "gguf", path.stat().st_size, 0, (finding_of(error),))
    with file:
        found = [suspicious(problem, rule="header") for problem in file.problems]
        left: Counter[GgmlType] = Counter()
        for entry in file.entries.values():
            if entry.type.is_plain or ggml.scheme_for(entry.type) is not None:
                found += _look_at(file, entry)
            else:
                left[entry.type] += 1
            if progress is not None:
                progress(entry.nbytes)
        total = len(file.entries) - sum(left.values())
        size = sum(p.stat().st_size for p in file.parts)
    unchecked = [f"the values of the {n} {kind.name} tensors ({kind.note})" for kind, n in left.items()]
    return Verification(path, "gguf", size, total, tuple(found), tuple(unchecked))


def _look_at(file: GgufFile, entry: GgufEntry) -> list[Finding]:
    chunks = (file.read_bytes(entry.name, *part) for part in cut_ranges(entry.nbytes))
    if entry.type.dtype is not None and entry.type.is_plain:
        return nonfinite(entry.name, entry.type.dtype, chunks)
    return [*_look_at_blocks(file, entry), *constant(entry.name, entry.nbytes, chunks)]


def _look_at_blocks(file: GgufFile, entry: GgufEntry) -> list[Finding]:
    """Scales and minimums that are no numbers."""
    rows = entry.nbytes // max(1, entry.row_bytes)
    step = max(1, _SLAB_BYTES // max(1, entry.row_bytes))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        data = file.read_bytes(entry.name, begin * entry.row_bytes, end * entry.row_bytes)
        try:
            ggml.unpack_blocks(data, entry.type, (end - begin, entry.shape[-1]), first_row=begin)
        except (FormatError, InputError) as error:
            return [suspicious(error.message, entry.name)]
    return []

"""Verifying a checkpoint: every rule of its format, and values that are legal but hardly meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .arguments import as_path
from .containers.base import read_exactly
from .containers.hrry import find_problems
from .containers.safetensors import ArrayEntry, SafetensorsFile
from .containers.safetensors_header import find_header_faults
from .containers.sniff import PEEK, open_input, recognise_foreign
from .errors import BlockscaleError, UnsupportedError
from .findings import Finding, Progress, Verification, constant, finding_of, nonfinite, suspicious
from .hurray import TensorDescriptor
from .hurray.filemap import IndexEntry, read_file_map
from .sources import list_shards
from .values import cut_ranges
from .verify_parts import verify_dialects, verify_gguf

__all__ = ["Finding", "Verification", "verify_file"]

# Names of plain tensors that hold packed codes of other toolchains.
_PACKED_ENDS = ("qweight", "weight_packed", "_blocks")


def verify_file(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Check every rule of a checkpoint's format, and its values; reads all of it in small pieces.

    Of safetensors, weights are checked as their dialect has them, too: config, names, shapes and contents.

    Args:
        path: a `.hrry`, safetensors or GGUF file, told by its first bytes, else by its suffix; an index of
            shards; or a model folder.
        progress: called with the number of bytes looked at since the last call.

    Raises:
        InputError: there is no such file, or it cannot be read.
        UnsupportedError: a file of another kind.
    """
    path = as_path(path)
    if path.is_dir() or path.name.endswith(".index.json"):
        try:
            paths = list_shards(path)
        except BlockscaleError as error:
            if not path.exists() or error.field == "which":
                raise
            return Verification(path, "safetensors", 0, 0, (finding_of(error),))
        return _verify_safetensors(path, paths, progress)
    kind = _kind(path)
    if kind == "gguf":
        return verify_gguf(path, progress)
    if kind == "safetensors":
        return _verify_safetensors(path, [path], progress)
    violations = [finding_of(error) for error in find_problems(path)]
    found: list[Finding] = []
    tensors = 0
    for part in _scan_hrry(path, {f.tensor for f in violations}, progress):
        tensors += 1
        found += part
    return Verification(path, kind, path.stat().st_size, tensors, (*violations, *found))


def _verify_safetensors(path: Path, paths: list[Path], progress: Progress | None) -> Verification:
    """Headers, then the dialects of the whole, then values."""
    violations: list[Finding] = []
    odd: list[Finding] = []
    for one in paths:
        broken, strange = _check_header(one)
        name = one.name if len(paths) > 1 else None
        violations += [replace(f, file=name) for f in broken]
        odd += [replace(f, file=name) for f in strange]
    kind = "safetensors" if len(paths) == 1 else f"safetensors in {len(paths)} shards"
    nbytes = sum(p.stat().st_size for p in paths)
    if violations:
        return Verification(path, kind, nbytes, 0, (*violations, *odd))
    found, parts, unchecked = verify_dialects(path)
    told = {f.message for f in odd}
    violations = [f for f in found if f.severity == "violation"]
    odd += [f for f in found if f.severity == "suspicious" and f.message not in told]
    tensors = 0
    for one in paths:
        for part in _scan_safetensors(one, progress, parts):
            tensors += 1
            odd += part
    return Verification(path, kind, nbytes, tensors, (*violations, *odd), tuple(unchecked))


def _kind(path: Path) -> str:
    fd = open_input(path)
    try:
        foreign = recognise_foreign(os.pread(fd, PEEK, 0))
    finally:
        os.close(fd)
    if foreign is not None and foreign.kind in ("hrry", "safetensors", "gguf"):
        return foreign.kind
    if path.suffix in (".hrry", ".safetensors", ".gguf"):
        return path.suffix[1:]
    raise UnsupportedError(
        foreign.text if foreign else "the file is of no kind that can be verified",
        file=str(path),
        rule="verify reads .hrry, .safetensors and .gguf files, and model folders",
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
        return [], [suspicious(problem, rule="header") for problem in file.problems]


def _scan_safetensors(
    path: Path, progress: Progress | None, parts: frozenset[str]
) -> Iterator[list[Finding]]:
    """Suspicious findings of each tensor of a sound file; `parts` of weights were looked at before."""
    with SafetensorsFile(path) as file:
        for entry in file.entries.values():
            yield [] if entry.name in parts else _look_at_array(file, entry)
            if progress is not None:
                progress(entry.nbytes)


def _look_at_array(file: SafetensorsFile, entry: ArrayEntry) -> list[Finding]:
    def chunks() -> Iterator[NDArray[np.uint8]]:
        return (file.read_bytes(entry.name, *part) for part in cut_ranges(entry.nbytes))

    found = []
    if entry.dtype is not None and not entry.is_packed:
        found += nonfinite(entry.name, entry.dtype, chunks())
    if entry.name.endswith(_PACKED_ENDS):
        found += constant(entry.name, entry.nbytes, chunks())
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
        return constant(row.name, size, chunks())
    is_whole = d.layout.name in ("row-major", "column-major") and d.byte_offset == 0
    if d.type is None or d.type.dtype is None or d.type.is_packed or not is_whole:
        return []
    return nonfinite(row.name, d.type.dtype, chunks())


def _read(fd: int, offset: int, n: int) -> NDArray[np.uint8]:
    out = np.empty(n, np.uint8)
    if n:
        read_exactly(fd, offset, out.data, file="")
    return out

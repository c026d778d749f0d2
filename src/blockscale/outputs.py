"""Outputs of long runs: one file or a folder of shards, laid out before any data, resumable, atomic per file.

While a run goes on, every file of it is `<name>.partial` and a journal lies beside them; a tensor's line is
added to the journal when its bytes are written, with their checksums. A run that was interrupted goes on from
there: what the journal lists is checked against the checksums, the rest is done again. At the end files get
their names, and the journal goes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .containers.base import check_output, guard_output, reserve, sync_folder
from .errors import InputError, OutputError
from .journal import Journal, is_committing

_CHECK_BYTES = 8 << 20
# A folder's manifest: what became of each tensor, written last.
MANIFEST = "blockscale.json"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one part of a tensor: file number, offset, size."""

    file: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to come.

    Attributes:
        name: its name in the output folder; empty if the output is this one file.
        size: its size in bytes.
        frame: offset and bytes of all that is no tensor data.
    """

    name: str
    size: int
    frame: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Everything about an output before its data.

    Attributes:
        files: the files with data.
        regions: tensor to part to Region.
        extras: small files to write last (name to bytes): config, index, tokenizer ...
        is_folder: whether the output is a folder.
    """

    files: tuple[PlannedFile, ...]
    regions: Mapping[str, Mapping[str, Region]]
    extras: Mapping[str, bytes]
    is_folder: bool

    @property
    def size(self) -> int:
        """Bytes of everything."""
        return sum(f.size for f in self.files) + sum(len(data) for data in self.extras.values())


class OutputSet:
    """The files of a run in the making.

    Leaving the `with` block normally commits. With `resume`, what was done is kept after an interruption or a
    full disk; otherwise, and after any other error, it is removed. A process that is killed leaves it.

    Attributes:
        path: the file or folder.
        layout: what it holds.
        done: tensor to what is to be said of it, for those that are whole.
        late: small files to write last that depend on what was done.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: OutputLayout,
        fingerprint: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        """Make or reopen the partial files.

        Args:
            path: the file or folder to make.
            layout: what it will hold.
            fingerprint: whatever decides the bytes (source, settings, versions); JSON values.
            overwrite: replace what exists.
            resume: go on with an interrupted run, if there is one.

        Raises:
            OutputError: the output exists; an interrupted run is there and `resume` is not given; another
                process is at it; the disk cannot hold it.
            InputError: the interrupted run had another source or other settings.
        """
        self.path = Path(path) if Path(path).name else Path(path).resolve()
        self.layout = layout
        self.late: dict[str, bytes] = {}
        self._fds: dict[int, int] = {}
        self._root = self.path if layout.is_folder else self.path.parent
        self._resume = resume
        self._overwrite = overwrite or (resume and is_committing(self.path))
        self._check_place()
        names = [self._partial(f).name for f in layout.files]
        self._journal = Journal(self.path, fingerprint, names, overwrite=overwrite, resume=resume)
        self.done = {name: line["result"] for name, line in self._journal.lines.items()}
        try:
            for name in self._journal.left_over:
                (self._root / Path(name).name).unlink(missing_ok=True)
            for i in range(len(layout.files)):
                self._open_file(i)
            self._verify_done()
        except BaseException:
            self.abort(keep=resume)
            raise

    def write(self, tensor: str, part: str, offset: int, data: Any) -> None:
        """Write bytes of a part of a tensor; safe from several threads for bytes of their own.

        Raises:
            InputError: bytes outside the part.
            OutputError: they cannot be written.
        """
        region = self.layout.regions[tensor][part]
        view = memoryview(data)
        if not 0 <= offset <= offset + view.nbytes <= region.size:
            raise InputError(
                f"bytes {offset} to {offset + view.nbytes} of {part}, which has {region.size}", tensor=tensor
            )
        if view.nbytes == 0:
            return
        view, at, fd = view.cast("B"), region.offset + offset, self._fds[region.file]
        while len(view):
            n = guard_output(self.path, self.layout.size, os.pwrite, fd, view, at)
            view, at = view[n:], at + n

    def finish(self, tensor: str, result: Any) -> None:
        """Note that a tensor is whole, with what is to be said of it (JSON values)."""
        self.done[tensor] = result
        line = {"tensor": tensor, "crc": self._checksums(tensor), "result": result}
        self._journal.append(line)

    def commit(self) -> None:
        """Give the files their names, write the small ones, drop the journal.

        If that fails, all that was done is kept for `resume`.
        """
        try:
            self._check_place()  # again: an output may have come meanwhile
            self._give_names()
        except BaseException:
            self.abort(keep=True)
            raise
        self._journal.drop()

    def _give_names(self) -> None:
        self._journal.append({"committing": True})
        for fd in self._fds.values():
            guard_output(self.path, None, os.fsync, fd)
        for i, planned in enumerate(self.layout.files):
            os.close(self._fds.pop(i))
            partial = self._partial(planned)
            if partial.exists():
                guard_output(self.path, None, partial.replace, self._final(planned))
        for name, data in {**self.layout.extras, **self.late}.items():
            temporary = self._root / f"{name}.partial"
            guard_output(self.path, len(data), temporary.write_bytes, data)
            guard_output(self.path, None, temporary.replace, self._root / name)
        sync_folder(self._root)

    def abort(self, *, keep: bool) -> None:
        """Stop; `keep` leaves partial files and journal for `resume`."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        if keep:
            self._journal.close()
            return
        for planned in self.layout.files:
            self._partial(planned).unlink(missing_ok=True)
        for name in (*self.layout.extras, *self.late):
            (self._root / f"{name}.partial").unlink(missing_ok=True)
        self._journal.drop()
        if self.layout.is_folder and self._root.is_dir() and not any(self._root.iterdir()):
            self._root.rmdir()

    def __enter__(self) -> OutputSet:
        """Return the set itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Commit, or keep or remove what was done."""
        if kind is None:
            self.commit()
        else:
            lasting = isinstance(error, Exception) and not isinstance(error, OSError | MemoryError)
            self.abort(keep=self._resume and not lasting)

    # ---- files

    def _check_place(self) -> None:
        if not self.layout.is_folder:
            check_output(self.path, overwrite=self._overwrite)
            return
        if not self.path.parent.is_dir():
            raise OutputError(f"the folder {self.path.parent} does not exist", file=str(self.path))
        if self.path.exists() and not self.path.is_dir():
            raise OutputError("this is a file, not a folder", file=str(self.path), hint="another name")
        names = [*(f.name for f in self.layout.files), *self.layout.extras, MANIFEST]
        self._check_strangers(set(names))
        there = [name for name in names if (self._root / name).exists()]
        if there and not self._overwrite:
            raise OutputError(
                f"the output exists already ({', '.join(there[:3])}{' ...' if len(there) > 3 else ''})",
                file=str(self.path),
                rule="nothing existing is overwritten unless asked",
                hint="--force (overwrite=True), or another name",
            )

    def _check_strangers(self, names: set[str]) -> None:
        """Other weights in the folder would be taken for the model's."""
        found = [p.name for end in _WEIGHTS for p in sorted(self._root.glob(end)) if p.name not in names]
        if found:
            raise OutputError(
                f"the folder holds other weights ({', '.join(found[:3])}{' ...' if len(found) > 3 else ''})",
                file=str(self.path),
                rule="a model folder holds one model",
                hint="remove them, or choose another folder",
            )

    def _final(self, planned: PlannedFile) -> Path:
        return self._root / planned.name if self.layout.is_folder else self.path

    def _partial(self, planned: PlannedFile) -> Path:
        final = self._final(planned)
        return final.with_name(f"{final.name}.partial")

    def _open_file(self, i: int) -> None:
        planned = self.layout.files[i]
        partial, final = self._partial(planned), self._final(planned)
        was_named = self._journal.is_committing and final.is_file() and not partial.exists()
        if was_named and final.stat().st_size == planned.size:
            self._fds[i] = guard_output(self.path, None, os.open, final, os.O_RDWR)
            return
        guard_output(self.path, None, lambda: self._root.mkdir(exist_ok=True))
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        fd = guard_output(self.path, None, os.open, partial, flags, 0o666)
        self._fds[i] = fd
        if os.fstat(fd).st_size != planned.size:
            guard_output(self.path, self.layout.size, os.ftruncate, fd, 0)
            guard_output(self.path, self.layout.size, reserve, fd, planned.size)
        for offset, data in planned.frame:
            guard_output(self.path, self.layout.size, os.pwrite, fd, data, offset)

    def _verify_done(self) -> None:
        """Forget the tensors whose bytes are not what the journal says."""
        for name in list(self.done):
            if name not in self.layout.regions or self._checksums(name) != self._journal.lines[name]["crc"]:
                del self.done[name]

    def _checksums(self, tensor: str) -> list[int]:
        """CRC-32 of each part's bytes, as the file system gives them back."""
        sums = []
        for region in self.layout.regions[tensor].values():
            crc, at, end = 0, region.offset, region.offset + region.size
            while at < end:
                data = os.pread(self._fds[region.file], min(_CHECK_BYTES, end - at), at)
                if not data:
                    return []
                crc, at = zlib.crc32(data, crc), at + len(data)
            sums.append(crc)
        return sums

"""The journal of a long run: what is done, with checksums, so that an interrupted run can go on."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .containers.base import guard_output
from .errors import InputError, OutputError

_VERSION = 1


def journal_path(output: Path) -> Path:
    """Where the journal of an output lies."""
    return output.with_name(f"{output.name}.journal")


def is_committing(output: Path) -> bool:
    """Whether an interrupted run was giving the files of this output their names already."""
    path = journal_path(output)
    return path.is_file() and any("committing" in line for line in _read_lines(path.read_bytes())[0])


class Journal:
    """The open journal of an output; locked, so that no other process writes the same output.

    Attributes:
        lines: tensor to its line (checksums, result), of the run that is gone on with.
        is_committing: whether that run was giving files their names already.
        left_over: partial files of an earlier run that was given up.
    """

    def __init__(
        self,
        output: Path,
        fingerprint: Mapping[str, Any],
        files: list[str],
        *,
        overwrite: bool,
        resume: bool,
    ) -> None:
        """Make or reopen it.

        Args:
            output: the output it belongs to.
            fingerprint: whatever decides the bytes; JSON values.
            files: names of the partial files of this run.
            overwrite: give an interrupted run up.
            resume: go on with an interrupted run.

        Raises:
            OutputError: an interrupted run is there and neither is asked for; another process is at it.
            InputError: the interrupted run had another source or other settings.
        """
        self.output, self.path = output, journal_path(output)
        self._file = guard_output(output, None, open, self.path, "a+b")
        try:
            self._lock()
            self._start(dict(fingerprint), files, overwrite=overwrite, resume=resume)
        except BaseException:
            self.close()
            raise

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; it reaches the system before this returns."""
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        guard_output(self.output, None, self._file.write, text)
        guard_output(self.output, None, self._file.flush)

    def close(self) -> None:
        """Close it and leave it where it is."""
        self._file.close()

    def drop(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = self.path.stat().st_ino == os.fstat(self._file.fileno()).st_ino
        except OSError:
            there = False
        if not there:  # locked by another process, or removed by one that has just ended
            raise OutputError("another process is writing this output", file=str(self.output))

    def _start(self, fingerprint: dict[str, Any], files: list[str], *, overwrite: bool, resume: bool) -> None:
        self._file.seek(0)
        lines, whole = _read_lines(self._file.read())
        header = {"blockscale_journal": _VERSION, "fingerprint": fingerprint, "files": files}
        header = json.loads(json.dumps(header))
        self.lines: dict[str, dict[str, Any]] = {}
        self.is_committing, self.left_over = False, []
        if lines and resume and lines[0] == header:
            self.lines = {line["tensor"]: line for line in lines[1:] if "tensor" in line}
            self.is_committing = any("committing" in line for line in lines)
            guard_output(self.output, None, self._file.truncate, whole)
            return
        if lines and not overwrite:
            raise _another_run(self.output, lines[0], header) if resume else _unfinished(self.output)
        if lines:
            self.left_over = [name for name in lines[0].get("files", []) if name not in files]
        guard_output(self.output, None, self._file.truncate, 0)
        self.append(header)


def _another_run(output: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> InputError:
    was, now = old.get("fingerprint", {}), new["fingerprint"]
    keys = [key for key in now if was.get(key) != now[key]] if isinstance(was, dict) else []
    return InputError(
        f"the interrupted run had another source or other settings ({', '.join(keys) or 'files'})",
        file=str(output),
        rule="a run is resumed with the same source, settings and version",
        hint="the same options as before, or --force to start over",
    )


def _unfinished(output: Path) -> OutputError:
    return OutputError(
        "an interrupted run is there",
        file=str(output),
        hint="--resume goes on with it, --force starts over",
    )


def _read_lines(text: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal, and how many bytes they take; what follows was torn."""
    lines: list[dict[str, Any]] = []
    at = 0
    for raw in text.split(b"\n")[:-1]:
        try:
            line = json.loads(raw)
        except ValueError:
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
        at += len(raw) + 1
    return lines, at

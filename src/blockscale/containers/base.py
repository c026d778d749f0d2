"""What every container shares: atomic output and checked reading of byte ranges."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import ContainerError, OutputError


def check_output(path: Path, *, overwrite: bool) -> None:
    """OutputError if `path` exists and may not be overwritten, is a folder, or its folder is missing."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder", file=str(path), hint="name a file")
    if (path.exists() or path.is_symlink()) and not overwrite:  # a dangling link is a name too
        raise OutputError(
            "the output exists already",
            file=str(path),
            rule="nothing existing is overwritten unless asked",
            hint="--force (overwrite=True), or another name",
        )
    if not path.parent.is_dir():
        raise OutputError(f"the folder {path.parent} does not exist", file=str(path), hint="make it first")


class AtomicFile:
    """A file that appears under its name only when it is whole.

    Bytes go to `<name>.<random>.partial` in the same folder. `commit` makes them durable and renames; leaving
    the `with` block by an exception (Ctrl-C included) removes the partial file.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, size: int | None = None, overwrite: bool = False
    ) -> None:
        """Open the partial file, reserving `size` bytes so that a full disk is found before any work.

        Raises:
            OutputError: the output exists, its folder is missing, or the disk cannot hold `size` bytes.
        """
        self.path = Path(path)
        self._overwrite = overwrite
        self._size = size
        check_output(self.path, overwrite=overwrite)
        self._partial = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._fd = self._guard(os.open, self._partial, flags, 0o666)
        if size is not None:
            try:
                self._guard(reserve, self._fd, size)
            except BaseException:
                self.abort()
                raise

    def write_at(self, offset: int, data: Any) -> None:
        """Write a C-contiguous buffer at a byte offset; safe from several threads."""
        view = memoryview(data)
        if view.nbytes == 0:  # such a view has no cast
            return
        view = view.cast("B")
        while len(view):
            n = self._guard(os.pwrite, self._fd, view, offset)
            view = view[n:]
            offset += n

    def commit(self) -> None:
        """Make the file durable and give it its name."""
        self._guard(os.fsync, self._fd)
        fd, self._fd = self._fd, -1
        self._guard(os.close, fd)  # network file systems may report a full disk only here
        self._give_name()
        sync_folder(self.path.parent)

    def _give_name(self) -> None:
        if self._overwrite:
            self._guard(self._partial.replace, self.path)
            return
        try:  # a link refuses an existing name atomically, a rename would overwrite it
            self.path.hardlink_to(self._partial)
        except FileExistsError:
            self.abort()
            check_output(self.path, overwrite=False)
            raise OutputError("the output came and went meanwhile", file=str(self.path)) from None
        except OSError:  # a file system without links
            check_output(self.path, overwrite=False)
            self._guard(self._partial.replace, self.path)
            return
        self._partial.unlink(missing_ok=True)

    def abort(self) -> None:
        """Drop the partial file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def __enter__(self) -> AtomicFile:
        """Return the file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Commit on success, abort on any exception."""
        if kind is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise

    def _guard(self, action: Callable[..., Any], *args: Any) -> Any:
        return guard_output(self.path, self._size, action, *args)


def guard_output(path: Path, size: int | None, action: Callable[..., Any], *args: Any) -> Any:
    """Call `action(*args)`; an OSError becomes an OutputError that names the output and the bytes needed."""
    try:
        return action(*args)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        need = f" ({size:,} bytes are needed)" if full and size else ""
        raise OutputError(
            f"cannot write: {error.strerror or error}{need}",
            file=str(path),
            hint="free space or choose another disk" if full else None,
        ) from None


def forget_pages(memory: object) -> None:
    """Give back the physical memory of a mapped file; its bytes are read again when they are looked at.

    Without it, a run through a large file keeps all of it resident, as far as the system's memory goes.
    """
    if isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Make a new name durable, where the system lets folders be synced."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def reserve(fd: int, size: int) -> None:
    """Reserve disk space, or at least set the length where the file system cannot reserve."""
    if size > 0 and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(fd, size)


def read_exactly(fd: int, offset: int, out: memoryview, *, file: str) -> None:
    """Fill `out` from a byte offset; ContainerError if the file ends early (it shrank while open)."""
    while len(out):
        n = os.preadv(fd, [out], offset)
        if n == 0:
            raise ContainerError(
                f"the file ends at byte {offset}, {len(out)} bytes early", file=file, found=offset
            )
        out = out[n:]
        offset += n

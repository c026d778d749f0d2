"""What a file is by its first bytes, so that a wrong file is named instead of misread."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

PEEK = 512
"""First bytes of a file that suffice for `recognise_foreign`."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind of file that people meet where they expected weights.

    Attributes:
        kind: short key (`"git-lfs"`, `"html"`, `"gguf"`, ...).
        text: sentence for a message, `"this is ..."`.
        hint: what to do about it.
    """

    kind: str
    text: str
    hint: str


def _starts(*prefixes: bytes) -> Callable[[bytes], bool]:
    return lambda first: first.startswith(prefixes)


def _is_html(first: bytes) -> bool:
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return text.startswith((b"<!doctype html", b"<html", b"<head", b"<body"))


def _is_pickle(first: bytes) -> bool:
    """Protocols 2 to 5; older ones have no mark of their own."""
    return len(first) > 2 and first[0] == 0x80 and 2 <= first[1] <= 5


def _is_safetensors(first: bytes) -> bool:
    """A believable header length, then the brace that opens the JSON header."""
    return first[8:9] == b"{" and 2 <= int.from_bytes(first[:8], "little") <= 100_000_000


# fmt: off
_LFS_HINT = "`git lfs pull` in the clone, or download the file itself"
_TORCH_HINT = "look for a .safetensors version, or convert it with PyTorch: pickles can run code"
_TABLE: tuple[tuple[Callable[[bytes], bool], Foreign], ...] = (
    (lambda first: not first, Foreign(
        "empty", "this file is empty", "download or write it again")),
    (_starts(b"version https://git-lfs", b"version https://hawser"), Foreign(
        "git-lfs", "this is a Git LFS pointer, not the file itself", _LFS_HINT)),
    (_is_html, Foreign(
        "html", "this is an HTML page, not the file itself",
        "the download got a web page (a login, a viewer): use the direct link")),
    (_starts(b"GGUF", b"FUGG"), Foreign(
        "gguf", "this is a GGUF file", "open it under a name that ends in .gguf")),
    (_starts(b"HRRYFILE"), Foreign(
        "hrry", "this is a .hrry file", "open it under a name that ends in .hrry")),
    (_starts(b"PK\x03\x04", b"PK\x05\x06"), Foreign(
        "zip", "this is a zip archive (PyTorch checkpoints and .npz files are)", _TORCH_HINT)),
    (_is_pickle, Foreign(
        "pickle", "this is a Python pickle (an old PyTorch checkpoint?)", _TORCH_HINT)),
    (_starts(b"\x1f\x8b"), Foreign(
        "gzip", "this is a gzip archive", "unpack it first (gunzip, or tar -xzf)")),
    (_is_safetensors, Foreign(
        "safetensors", "this is a safetensors file",
        "open it under a name that ends in .safetensors")),
)
# fmt: on


def recognise_foreign(first_bytes: bytes) -> Foreign | None:
    """The kind of file that begins so, or None if nothing known does.

    Args:
        first_bytes: the first bytes of the file, all of them if there are fewer than `PEEK`.
    """
    return next((row for matches, row in _TABLE if matches(first_bytes)), None)


def describe_foreign(first_bytes: bytes) -> str | None:
    """The sentence of `recognise_foreign`: `"this is a Git LFS pointer, not the file itself"`."""
    foreign = recognise_foreign(first_bytes)
    return foreign.text if foreign else None


def recognise(path: str | os.PathLike[str]) -> str | None:
    """The `kind` of a file by its first bytes (`"safetensors"`, `"hrry"`, `"gguf"`, ...), or None.

    Raises:
        InputError: see `open_input`.
    """
    fd = open_input(path)
    try:
        foreign = recognise_foreign(os.pread(fd, PEEK, 0))
    finally:
        os.close(fd)
    return foreign.kind if foreign else None


def open_input(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises:
        InputError: there is no such file, it is a folder, a pipe or a device, or may not be read.
    """
    name = Path(path)
    try:
        mode = name.stat().st_mode  # before opening: opening a pipe would wait for a writer
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"this is {what}", file=str(name), hint="name a file")
        return os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        hint = "check the name" if name.parent.is_dir() else f"the folder {name.parent} is missing"
        raise InputError("there is no such file", file=str(name), hint=hint) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        if isinstance(error, InputError):
            raise
        text = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be read: {text}", file=str(name)) from None

"""The command `blockscale`: its verbs, and how faults become one message and an exit code.

Exit codes: 0 done; 1 done, and the check that was asked for failed; 2 refused (nothing was written);
130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import warnings
from typing import Any

import click

from ..errors import BlockscaleError, FormatError
from ..version import __version__
from .compare import compare
from .completion import completion
from .convert import convert
from .info import info
from .inspect import inspect
from .output import warn
from .quantize import quantize
from .schemes import schemes
from .text import printable
from .verify import verify

REFUSED = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class GuardedGroup(click.Group):
    """A group whose verbs end every fault in one message on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:
            code = _report(error)
            if code is None:
                raise
            ctx.exit(code)
        return result


@click.group(
    "blockscale",
    cls=GuardedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 done but the check asked for failed, 2 refused. Every verb has --json.",
)
@click.version_option(__version__, "-V", "--version", message="blockscale %(version)s")
def app() -> None:
    """Block-scaled tensors: quantize checkpoints, look into them, measure and verify them."""


for verb in (quantize, convert, inspect, compare, verify, schemes, info, completion):
    app.add_command(verb)


def main() -> None:
    """Entry point of the command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: an output file must not get its number
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        with contextlib.suppress(AttributeError, ValueError):  # names that the terminal cannot show
            getattr(sys, name).reconfigure(errors="backslashreplace")
    with contextlib.suppress(ValueError):
        for number in _STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, _stop)
    app(prog_name="blockscale")


def _stop(number: int, _frame: object) -> None:
    """Stop, partial files removed; another signal must not stop that."""
    for other in _STOPPING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _report(error: BaseException) -> int | None:
    """Say what went wrong; the exit code, or None for what is not ours to catch."""
    if isinstance(error, KeyboardInterrupt):
        warn("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) or getattr(error, "errno", None) == errno.EPIPE:
        _drop_stdout()
        return BROKEN_PIPE
    if not isinstance(error, Exception):
        return None
    warn("\n".join(printable(line) for line in _message(error).split("\n")))
    return REFUSED


def _message(error: Exception) -> str:
    if isinstance(error, BlockscaleError):
        if isinstance(error, FormatError) and error.hint is None:
            error.hint = "`blockscale verify` lists every fault of the file"
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}\n  try:  --threads 1, or a machine with more memory"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if os.environ.get("BLOCKSCALE_TRACEBACK"):
        raise error
    return (
        f"unexpected {type(error).__name__}: {error}\n"
        "  this is a fault in blockscale; BLOCKSCALE_TRACEBACK=1 shows where"
    )


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    warn(f"warning: {printable(message)}")


def _drop_stdout() -> None:
    """Let the interpreter flush what is left into nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""`blockscale info`: the program, the machine, and what the kernels were built with."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option
from .output import print_json, say


@click.command(short_help="Show version, instruction sets, threads and compiler.")
@json_option()
def info(as_json: bool) -> None:
    """Show version, instruction sets, threads and compiler: what a report of a fault should hold.

    BLOCKSCALE_ISA=NAME in the environment forces one of the instruction sets that are listed; results are
    the same with each of them.
    """
    document = _document()
    if as_json:
        print_json("info", document)
        return
    shown = {
        "blockscale": document["version"],
        "instruction set": document["isa"],
        "available": ", ".join(document["isas"]),
        "threads": str(document["threads"]),
        "compiler": document["compiler"],
        "python": document["python"],
        "numpy": document["numpy"],
        "ml_dtypes": document["ml_dtypes"],
        "platform": document["platform"],
    }
    for name, value in shown.items():
        say(f"{name:<16} {value}")


def _document() -> dict[str, Any]:
    import platform

    import ml_dtypes
    import numpy as np

    from .. import native
    from ..threads import thread_count
    from ..version import __version__

    return {
        "version": __version__,
        "isa": native.ISAS[native.chosen_isa()],
        "isas": native.ISAS,
        "threads": thread_count(None),
        "compiler": native.COMPILER,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
        "platform": platform.platform(),
    }

"""`blockscale compare`: the error of every tensor of B against A."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import all_option, file_argument, json_option, select_names, tensors_option
from .output import print_json, progress_bar, say
from .text import show_count

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..compare import Comparison


@click.command(short_help="Measure the error of one checkpoint against another.")
@file_argument("A")
@file_argument("B")
@click.option("--min-sqnr", type=float, metavar="DB", help="Fail (exit 1) if a tensor of B has less SQNR.")
@click.option(
    "--max-rel-mse", type=float, metavar="X", help="Fail (exit 1) if a tensor has more relative MSE."
)
@click.option(
    "--per", type=click.Choice(["block", "channel"]), help="Also show how the error spreads over these."
)
@click.option("--threads", type=click.IntRange(1), metavar="N", help="At most N threads.")
@tensors_option()
@all_option()
@json_option()
def compare(a: str, b: str, **options: Any) -> None:
    """Compare the tensors of B with those of the same name in A, the reference.

    Quantized tensors stand for their decoded values. With --min-sqnr or --max-rel-mse the exit code is 1 if
    a tensor breaks the limit, is missing in B, or cannot be compared; without them, if none could be.
    """
    from ..checkpoint import open_checkpoint
    from ..compare import compare_checkpoints

    with open_checkpoint(a) as left, open_checkpoint(b) as right:
        names = _names(left, right, options["patterns"])
        wanted = set(names)
        total = sum(info.nbytes for name, info in left.infos.items() if name in wanted)
        with progress_bar("comparing", total) as progress:
            result = compare_checkpoints(
                left, right, names=names, per=options["per"], threads=options["threads"], progress=progress
            )
        faults = find_faults(result, options["min_sqnr"], options["max_rel_mse"])
        _show(left, right, result, faults, options)
    if faults or not result.tensors:
        click.get_current_context().exit(1)


def _names(left: Checkpoint, right: Checkpoint, patterns: tuple[str, ...]) -> list[str]:
    names = list(left.infos) + [name for name in right.infos if name not in left.infos]
    return select_names(names, patterns, str(left.path))


def find_faults(result: Comparison, min_sqnr: float | None, max_rel_mse: float | None) -> dict[str, str]:
    """Tensors that fail the check, with the reason; empty if no limit is asked for."""
    if min_sqnr is None and max_rel_mse is None:
        return {}
    faults = {}
    for tensor in result.tensors:
        error = tensor.error
        if tensor.sums.nonfinite:
            faults[tensor.name] = f"{tensor.sums.nonfinite:,} values are NaN or infinite on one side"
        elif min_sqnr is not None and not error.sqnr_db >= min_sqnr:
            faults[tensor.name] = f"SQNR {error.sqnr_db:.2f} dB is below {min_sqnr:g}"
        elif max_rel_mse is not None and not error.relative_mse <= max_rel_mse:
            faults[tensor.name] = f"relative MSE {error.relative_mse:.4g} is above {max_rel_mse:g}"
    faults.update(dict.fromkeys(result.missing, "missing in B"))
    faults.update({name: f"cannot be compared: {reason}" for name, reason in result.failed.items()})
    return faults


def _show(
    left: Checkpoint, right: Checkpoint, result: Comparison, faults: dict[str, str], options: dict[str, Any]
) -> None:
    from . import compare_report as report

    limits = {key: options[key] for key in ("min_sqnr", "max_rel_mse") if options[key] is not None}
    if options["as_json"]:
        print_json("compare", report.document(left, right, result, faults, limits))
        return
    report.print_comparison(left, right, result, show_all=options["show_all"])
    if faults:
        count = len(result.tensors) + len(result.missing) + len(result.failed)
        say(f"\nFAILED: {len(faults)} of {show_count(count, 'tensor')}")
        report.print_list(faults)
    elif limits:
        say("\npassed: every tensor is within the limits")

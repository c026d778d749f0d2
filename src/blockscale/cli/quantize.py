"""`blockscale quantize`: a checkpoint to a `.hrry` file of block-scaled tensors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import all_option, complete_rules, complete_schemes, file_argument, json_option
from .output import print_json, progress_bar, say, warn
from .text import printable, show_bytes

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..pipeline import TensorResult
    from ..plan import Plan
    from ..schemes import Scheme


@click.command(short_help="Quantize a checkpoint into a .hrry file.")
@file_argument("MODEL")
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="The .hrry file to write.")
@click.option(
    "--scheme",
    default="mxfp4",
    show_default=True,
    shell_complete=complete_schemes,
    help="What the numbers become; `blockscale schemes` lists them.",
)
@click.option("--rule", shell_complete=complete_rules, help="How scales are chosen; default: the scheme's.")
@click.option(
    "--axis",
    type=int,
    default=-1,
    show_default=True,
    help="Axis along which blocks run: the one that the matmul sums over.",
)
@click.option("--block-size", type=int, metavar="K", help="Elements per block, a power of two.")
@click.option(
    "--scale",
    type=click.Choice(["float16", "bfloat16", "float32"]),
    help="Type of the scales of affine schemes.",
)
@click.option("--symmetric/--asymmetric", default=None, help="Affine schemes without or with zero points.")
@click.option(
    "--include",
    multiple=True,
    metavar="GLOB",
    help="Quantize the tensors whose name matches, no others; repeatable.",
)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Keep the tensors whose name matches; repeatable."
)
@click.option(
    "--leave-unfit", is_flag=True, help="Keep tensors that cannot carry the scheme, instead of stopping."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done and the exact size; write nothing.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="At most N threads; default: all processors."
)
@all_option()
@json_option()
def quantize(model: str, output: str | None, **options: Any) -> None:
    """Quantize the weights of MODEL (.safetensors or .hrry) into OUT (.hrry).

    By default every floating-point tensor of rank 2 or 3 is quantized, except norms and biases; all others
    are copied bit for bit.
    """
    from ..checkpoint import open_checkpoint
    from ..plan import plan_quantize
    from ..schemes import scheme as find_scheme

    target = _check_target(output, dry_run=options["dry_run"], force=options["force"])
    scheme = find_scheme(
        options["scheme"],
        block_size=options["block_size"],
        scale=options["scale"],
        symmetric=options["symmetric"],
    )
    with open_checkpoint(model) as ckpt:
        plan = plan_quantize(
            ckpt,
            scheme,
            axis=options["axis"],
            rule=options["rule"],
            include=options["include"],
            exclude=options["exclude"],
            leave_unfit=options["leave_unfit"],
        )
        _carry_out(ckpt, plan, scheme, target, options)


def _check_target(output: str | None, *, dry_run: bool, force: bool) -> Path | None:
    """The output, refused before anything is read where it cannot be written."""
    from ..containers.base import check_output
    from ..errors import InputError

    if output is None:
        if dry_run:
            return None
        raise click.UsageError("Missing option '-o' / '--output' (only --dry-run does without).")
    target = Path(output)
    if target.suffix != ".hrry":
        raise InputError(
            f"unknown kind of output {target.suffix!r}",
            file=output,
            found=target.suffix,
            rule="block-scaled tensors are written to .hrry files",
            hint=f"-o {target.with_suffix('.hrry')}",
        )
    if not dry_run:
        check_output(target, overwrite=force)
    return target


def _carry_out(
    ckpt: Checkpoint,
    plan: Plan,
    scheme: Scheme,
    target: Path | None,
    options: dict[str, Any],
) -> None:
    from ..pipeline import TensorResult, run_quantize
    from . import quantize_report as report

    as_json = options["as_json"]
    if not as_json:
        report.print_plan(ckpt, plan, scheme, options["axis"])
    if target is None or options["dry_run"]:
        results = [TensorResult(item, None) for item in plan.items]
        _finish(ckpt, plan, scheme, results, target, None, options)
        if not as_json:
            exists = target is not None and target.exists() and not options["force"]
            say(
                "dry run: nothing was written" + (f"; {target} exists, --force replaces it" if exists else "")
            )
        return
    started = time.perf_counter()
    total = sum(item.nbytes_in for item in plan.items)
    try:
        with progress_bar("quantizing", total) as progress:
            results = run_quantize(
                ckpt, plan, target, overwrite=options["force"], threads=options["threads"], progress=progress
            )
    except KeyboardInterrupt:
        warn(f"interrupted; {printable(target)} was not written")
        click.get_current_context().exit(130)
    seconds = time.perf_counter() - started
    _finish(ckpt, plan, scheme, results, target, seconds, options)
    if not as_json:
        rate = show_bytes(int(total / max(seconds, 1e-9)))
        say(f"wrote {printable(target)}: {plan.size:,} bytes in {seconds:.1f} s, {rate}/s of source")


def _finish(
    ckpt: Checkpoint,
    plan: Plan,
    scheme: Scheme,
    results: list[TensorResult],
    target: Path | None,
    seconds: float | None,
    options: dict[str, Any],
) -> None:
    from . import quantize_report as report

    if options["as_json"]:
        print_json("quantize", report.document(ckpt, plan, scheme, results, target, seconds))
    else:
        report.print_results(results, show_all=options["show_all"])

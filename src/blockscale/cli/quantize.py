"""`blockscale quantize`: a checkpoint to a `.hrry` file of block-scaled tensors."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    all_option,
    complete_rules,
    complete_schemes,
    file_argument,
    json_option,
    output_options,
    source_options,
)
from .output import print_json
from .writing import carry_out, check_early, find_target, open_model, say_written


@click.command(short_help="Quantize a checkpoint into a .hrry file.")
@file_argument("MODEL")
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="The file or folder to write.")
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
@click.option(
    "--requantize", is_flag=True, help="Quantize what is quantized already, too: a loss on top of a loss."
)
@source_options()
@output_options()
@all_option()
@json_option()
def quantize(model: str, output: str | None, **options: Any) -> None:
    """Quantize the weights of MODEL (safetensors, GGUF, .hrry, or a model folder) into OUT.

    OUT is a .hrry, .gguf or .safetensors file, or a folder. By default every floating-point tensor of rank 2
    or 3 is quantized, except norms and biases; all others are copied bit for bit.
    """
    from ..plan import plan_quantize
    from ..schemes import scheme as find_scheme

    scheme = find_scheme(
        options["scheme"],
        block_size=options["block_size"],
        scale=options["scale"],
        symmetric=options["symmetric"],
    )
    check_early(output, options)
    with open_model(model, options) as ckpt:
        plan = plan_quantize(
            ckpt,
            scheme,
            axis=options["axis"],
            rule=options["rule"],
            include=options["include"],
            exclude=options["exclude"],
            leave_unfit=options["leave_unfit"],
            requantize=options["requantize"],
            target=find_target(ckpt, output, options),
        )
        from . import quantize_report as report

        if not options["as_json"]:
            report.print_plan(ckpt, plan, scheme, options["axis"])
        results, seconds = carry_out(ckpt, plan, "quantizing", output, options)
        if options["as_json"]:
            target = None if output is None else plan.target.path
            print_json("quantize", report.document(ckpt, plan, scheme, results, target, seconds))
        else:
            report.print_results(results, show_all=options["show_all"])
            say_written(plan, results, seconds, options)

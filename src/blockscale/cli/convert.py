"""`blockscale convert`: between containers and dialects, exactly where the target can."""

from __future__ import annotations

from typing import Any

import click

from .options import all_option, file_argument, json_option, output_options, source_options
from .output import print_json
from .writing import carry_out, check_early, find_target, open_model, say_written


@click.command(short_help="Convert a checkpoint between containers and dialects.")
@file_argument("MODEL")
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="The file or folder to write.")
@click.option("--exact", is_flag=True, help="Refuse whatever would change a value.")
@source_options()
@output_options()
@all_option()
@json_option()
def convert(model: str, output: str | None, exact: bool, **options: Any) -> None:
    """Convert MODEL (safetensors, GGUF, .hrry, or a model folder) into OUT.

    OUT is a .hrry, .gguf or .safetensors file, or a folder of safetensors shards; --to names the dialect.
    Every tensor keeps its values bit for bit where the target has a form for them; what cannot is written in
    the nearest form, with the largest and the mean error and the reason, or refused with --exact.
    """
    from ..plan import plan_convert
    from . import convert_report as report

    check_early(output, options)
    with open_model(model, options) as ckpt:
        plan = plan_convert(ckpt, find_target(ckpt, output, options), exact=exact)
        if not options["as_json"]:
            report.print_plan(ckpt, plan)
        results, seconds = carry_out(ckpt, plan, "converting", output, options)
        if options["as_json"]:
            print_json("convert", report.document(ckpt, plan, results, seconds))
        else:
            report.print_results(ckpt, results, done=seconds is not None, show_all=options["show_all"])
            say_written(plan, results, seconds, options)

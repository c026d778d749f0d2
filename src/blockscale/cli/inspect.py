"""`blockscale inspect`: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    all_option,
    file_argument,
    json_option,
    read_settings,
    select_names,
    source_options,
    tensors_option,
)
from .output import print_json


@click.command(short_help="Show what a checkpoint holds.")
@file_argument("MODEL")
@click.option("--deep", is_flag=True, help="Read the codes too: how their range is used.")
@source_options()
@tensors_option()
@all_option()
@json_option()
def inspect(model: str, deep: bool, patterns: tuple[str, ...], **options: Any) -> None:
    """Show the tensors of MODEL: shape, element type, scheme, bits, scales, and what is odd about them.

    MODEL is a safetensors, GGUF or .hrry file, or a model folder. What decided how its quantized weights are
    read is shown first; --dialect, --zero-point-bias and --setting force another reading. Reads headers and
    scales only; --deep reads the codes too.
    """
    from ..checkpoint import open_checkpoint
    from ..summary import summarize
    from . import inspect_report as report

    with open_checkpoint(
        model,
        permissive=True,
        dialect=options["dialect"],
        zero_point_bias=options["zero_point_bias"],
        settings=read_settings(options["settings"]),
    ) as ckpt:
        names = select_names(list(ckpt.infos), patterns, model)
        found = list(summarize(ckpt, names, deep=deep))
        if options["as_json"]:
            print_json("inspect", report.document(ckpt, found))
        else:
            report.print_checkpoint(ckpt, found, show_all=options["show_all"])

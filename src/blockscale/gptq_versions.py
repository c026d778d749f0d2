"""Which version of GPTQ is written: v1 stores z - 1 and cannot say z = 0, gptq_v2 stores z."""

from __future__ import annotations

from dataclasses import replace

from .dialects.base import Options
from .errors import UnsupportedError
from .schemes import Scheme
from .targets import Target

GPTQ_V2_NOTE = (
    "checkpoint_format gptq_v2 is written, which stores z: gptq (v1) stores z - 1 and cannot say z = 0; "
    "--setting version=gptq asks for v1"
)


def gptq_v2(target: Target) -> Target | None:
    """A GPTQ target with version gptq_v2; None for other targets, and where the user has chosen a version."""
    if target.kind != "gptq" or "version" in target.options.settings:
        return None
    settings = {**target.options.settings, "version": "gptq_v2"}
    return replace(target, options=Options(target.options.zero_point_bias, settings))


def gptq_for_zero_points(target: Target, scheme: Scheme) -> tuple[Target, tuple[str, ...]]:
    """The target for weights that are quantized to a scheme, and a note where that decides the version.

    Raises:
        UnsupportedError: v1 is asked for, and the scheme has zero points: a block without negative values
            gets z = 0, which would be found out only midway.
    """
    if target.kind != "gptq" or scheme.offset != "zero_point":
        return target, ()
    newer = gptq_v2(target)
    if newer is not None:
        return newer, (GPTQ_V2_NOTE,)
    if target.options.settings["version"] == "gptq":
        raise UnsupportedError(
            f"{scheme.describe()} gives blocks without negative values the zero point 0",
            file=str(target.path),
            found=scheme.name,
            rule="gptq (v1) stores z - 1 and cannot say z = 0",
            hint="--setting version=gptq_v2, which stores z; or --symmetric",
        )
    return target, ()

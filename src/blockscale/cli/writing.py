"""What the verbs that write have in common: open the source, find the target, carry a plan out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import read_settings, read_size
from .output import progress_bar, say, warn
from .text import printable, show_bytes

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..plan import Plan
    from ..results import TensorResult
    from ..targets import Target


def check_early(output: str | None, options: dict[str, Any]) -> None:
    """Refuse an output that cannot be written before anything is read."""
    from ..containers.base import check_output
    from ..errors import InputError

    if output is None:
        if options["dry_run"]:
            return
        raise click.UsageError("Missing option '-o' / '--output' (only --dry-run does without).")
    path = Path(output)
    known = path.suffix in (".hrry", ".gguf", ".safetensors", "") or path.is_dir() or options["kind"]
    if not known:
        raise InputError(
            f"unknown kind of output {path.suffix!r}",
            file=output,
            found=path.suffix,
            rule="the suffix says what is written: .hrry, .gguf, .safetensors, none for a folder",
            hint=f"-o {path.with_suffix('.hrry')}",
        )
    if not options["dry_run"] and path.suffix and not path.is_dir() and not options["resume"]:
        check_output(path, overwrite=options["force"])
    if not options["dry_run"] and options["manifest"]:
        check_output(Path(options["manifest"]), overwrite=options["force"])


def open_model(model: str, options: dict[str, Any]) -> Checkpoint:
    """Open the source as the user wants it read."""
    from ..checkpoint import open_checkpoint

    return open_checkpoint(
        model,
        dialect=options["dialect"],
        zero_point_bias=options["zero_point_bias"],
        settings=read_settings(options["settings"]),
    )


def find_target(ckpt: Checkpoint, output: str | None, options: dict[str, Any]) -> Target:
    """The target; without an output (a dry run), a `.hrry` file."""
    from ..dialects.base import Options
    from ..targets import target_for

    own = ckpt.reading.dialects[0] if ckpt.reading.dialects else None
    return target_for(
        Path(output or "out.hrry"),
        options["kind"],
        own,
        Options(options["zero_point_bias"], read_settings(options["settings"])),
        read_size(options["shard_size"]),
    )


def carry_out(
    ckpt: Checkpoint, plan: Plan, verb: str, output: str | None, options: dict[str, Any]
) -> tuple[list[TensorResult], float | None]:
    """Run a plan with a progress bar; results and seconds, None for a dry run."""
    from ..pipeline import run_plan
    from ..results import TensorResult

    if output is None or options["dry_run"]:
        return [TensorResult(item, None) for item in plan.items], None
    started = time.perf_counter()
    total = sum(item.nbytes_in for item in plan.items)
    try:
        with progress_bar(verb, total) as progress:
            results = run_plan(
                ckpt,
                plan,
                overwrite=options["force"],
                resume=options["resume"],
                threads=options["threads"],
                progress=progress,
            )
    except KeyboardInterrupt:
        kept = "; the same command goes on from here" if options["resume"] else ""
        warn(f"interrupted; {printable(plan.target.path)} was not written{kept}")
        click.get_current_context().exit(130)
    if options["manifest"]:
        _write_manifest(ckpt, plan, results, Path(options["manifest"]), options)
    return results, time.perf_counter() - started


def _write_manifest(
    ckpt: Checkpoint, plan: Plan, results: list[TensorResult], path: Path, options: dict[str, Any]
) -> None:
    from ..containers.base import AtomicFile
    from ..manifest import manifest_bytes

    data = manifest_bytes(ckpt, plan, results)
    with AtomicFile(path, size=len(data), overwrite=options["force"]) as file:
        file.write_at(0, data)


def say_written(
    plan: Plan, results: list[TensorResult], seconds: float | None, options: dict[str, Any]
) -> None:
    """The last line: what was written, how fast."""
    path = plan.target.path
    if seconds is None:
        there = path.is_file() and not options["force"]
        say("dry run: nothing was written" + (f"; {path} exists, --force replaces it" if there else ""))
        return
    total = sum(r.item.nbytes_in for r in results)
    rate = show_bytes(int(total / max(seconds, 1e-9)))
    files = len(plan.layout.files) + len(plan.layout.extras)
    many = f" in {files} files" if files > 1 else ""
    say(f"wrote {printable(path)}: {plan.size:,} bytes{many} in {seconds:.1f} s, {rate}/s of source")

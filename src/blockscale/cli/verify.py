"""`blockscale verify`: every rule of a file's format, each violation named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import file_argument, json_option
from .output import print_json, progress_bar, say
from .text import printable, show_bytes, show_count

if TYPE_CHECKING:
    from ..verify import Finding, Verification


@click.command(short_help="Check every rule of a file's format, and its values.")
@file_argument("FILE")
@click.option("--strict", is_flag=True, help="Fail (exit 1) on suspicious values too.")
@json_option()
def verify(file: str, strict: bool, as_json: bool) -> None:
    """Check every rule of the format of FILE (.hrry, .safetensors, GGUF, or a model folder), and its values.

    Quantized weights in safetensors are checked as their dialect has them: config, names, shapes and contents
    against each other. Exit code 1 if a rule is broken. Values that are legal but hardly meant (NaN among
    weights, codes that are all equal) are listed as suspicious.
    """
    from ..verify import verify_file

    total = sum(p.stat().st_size for p in _files(Path(file)))
    with progress_bar("verifying", total) as progress:
        result = verify_file(file, progress=progress)
    failed = bool(result.violations) or (strict and bool(result.suspicious))
    if as_json:
        print_json("verify", _document(result, passed=not failed))
    else:
        _print(result)
    if failed:
        click.get_current_context().exit(1)


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path] * path.is_file()


def _print(result: Verification) -> None:
    violations, suspicious = result.violations, result.suspicious
    tensors = len({f.tensor for f in violations if f.tensor is not None})
    where = f" in {show_count(tensors, 'tensor')}" if tensors else ""
    say(
        f"{printable(result.path)}: {result.kind}, {show_bytes(result.nbytes)}, "
        f"{show_count(len(violations), 'violation')}{where}, {len(suspicious)} suspicious"
    )
    _print_findings(violations)
    if suspicious:
        say("\nsuspicious (no rule is broken)")
        _print_findings(suspicious)
    for line in result.unchecked:
        say(f"\nnot looked at: {printable(line)}")
    if not violations:
        say(f"no rule is broken; the values of {show_count(result.tensors, 'tensor')} were looked at")


def _print_findings(findings: Sequence[Finding]) -> None:
    for f in findings:
        where = [] if f.tensor is None else [f"tensor {f.tensor!r}"]
        if f.file is not None:
            where.insert(0, f.file)
        if f.field is not None:
            where.append(f"field {f.field}" + (f" (offset {f.offset})" if f.offset is not None else ""))
        say(f"\n{printable(': '.join([f'[{f.rule}]', *where, f.message]))}")
        if f.rule_text:
            say(f"  rule: {printable(f.rule_text)}")
        if f.hint:
            say(f"  try:  {printable(f.hint)}")


def _document(result: Verification, *, passed: bool) -> dict[str, Any]:
    return {
        "path": str(result.path),
        "kind": result.kind,
        "nbytes": result.nbytes,
        "passed": passed,
        "violations": len(result.violations),
        "suspicious": len(result.suspicious),
        "unchecked": list(result.unchecked),
        "findings": [asdict(f) for f in result.findings],
    }

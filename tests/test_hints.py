"""What messages advise does what they say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.errors import BlockscaleError, NonFiniteError, ScaleOverflowError, SchemeError

LARGE = np.full((1, 32), np.finfo(np.float32).max, np.float32)


def run(*args: object) -> str:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(a) for a in args]).stderr


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e2m3", "mxint8", "q4_0", "q8_0", "q4_1"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_symmetry_that_a_scheme_lacks(name: str, symmetric: bool) -> None:
    try:
        bs.scheme(name, symmetric=symmetric)
    except SchemeError as error:
        advised = re.match(r"scheme\('(\w+)'\) is (a?)symmetric", str(error.hint))
        assert advised is not None
        row = bs.scheme(advised[1])
        assert (row.offset == "none") == symmetric == (not advised[2])


@pytest.mark.parametrize("scale", ["float16", "bfloat16"])
def test_scales_that_overflow(scale: str) -> None:
    with pytest.raises(ScaleOverflowError) as caught:
        bs.quantize(LARGE, bs.scheme("int2", scale=scale))
    hint = str(caught.value.hint)
    assert f"scale='{scale}'" not in hint
    assert "float32" in hint
    bs.quantize(LARGE, bs.scheme("int2", scale="float32"))


def test_nan_is_a_matter_of_mx() -> None:
    for name, advised in (("int4", False), ("mxfp4", True)):
        with pytest.raises(NonFiniteError) as caught:
            bs.quantize(np.full((1, 32), np.nan), name)
        assert ("nonfinite=" in str(caught.value.hint)) == advised


def test_the_command_line_advises_what_it_has(tmp_path: Path) -> None:
    bs.save(tmp_path / "s.hrry", {"w": np.full((2, 32), np.nan, np.float32)})
    shown = run("quantize", tmp_path / "s.hrry", "-o", tmp_path / "o.hrry")
    assert "nonfinite" not in shown
    assert "--exclude 'w'" in shown


def test_many_unfit_tensors_get_a_pattern(tmp_path: Path) -> None:
    odd = {f"layers.{i}.odd.weight": np.ones((2, 33), np.float32) for i in range(5)}
    bs.save(tmp_path / "s.hrry", odd | {"layers.0.even.weight": np.ones((2, 64), np.float32)})
    args = ("quantize", tmp_path / "s.hrry", "-o", tmp_path / "o.hrry")
    shown = run(*args)
    assert "--exclude 'layers.*.odd.weight';" in shown
    assert run(*args, "--exclude", "layers.*.odd.weight") == ""
    bs.save(tmp_path / "t.hrry", odd | {"layers.9.odd.weight": np.ones((2, 64), np.float32)})
    shown = run("quantize", tmp_path / "t.hrry", "-o", tmp_path / "p.hrry")
    assert "--exclude" not in shown  # no pattern names these alone
    assert "--leave-unfit" in shown


def test_arguments_are_not_named_twice() -> None:
    with pytest.raises(SchemeError) as caught:
        bs.quantize(LARGE, "int4", rule="foo")
    assert str(caught.value).startswith("unknown rule 'foo'")
    error = BlockscaleError("out of range", field="axis")
    assert str(error) == "field axis: out of range"


def test_completion_help_has_a_line_per_shell() -> None:
    shown = CliRunner().invoke(app, ["completion", "--help"]).stdout
    for shell in ("bash", "zsh", "fish"):
        assert re.search(rf"^  {shell}: +\S", shown, re.MULTILINE)

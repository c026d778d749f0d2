"""The command line: what it prints, its exit codes, and that nothing half-done is left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import blockscale as bs
import convert_files as toys
import gguf_files
from blockscale.checkpoint import open_checkpoint, save_checkpoint
from blockscale.cli.app import app
from blockscale.cli.convert_report import merge_reasons
from blockscale.cli.names import collapse_names, group_rows
from blockscale.cli.output import Column, plain, print_table
from blockscale.cli.text import printable, show_bytes, show_db, show_range, show_shape, show_share
from blockscale.outputs import OutputSet
from blockscale.rules import RULES
from blockscale.schemes import SCHEMES

RNG = np.random.default_rng(7)
VERBS = ("quantize", "convert", "inspect", "compare", "verify", "schemes", "info", "completion")


def run(*args: object, width: int = 100) -> Result:
    """Run a command in this process."""
    return CliRunner(env={"COLUMNS": str(width)}).invoke(app, [str(a) for a in args])


def run_json(*args: object, code: int = 0) -> dict[str, Any]:
    """Run a verb with --json; its one document."""
    result = run(*args, "--json")
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout, parse_constant=lambda c: pytest.fail(f"{c} is no JSON")))


def spawn(*args: object, **options: Any) -> subprocess.Popen[str]:
    """Start the real command."""
    command = [sys.executable, "-m", "blockscale", *map(str, args)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(command, text=True, **pipe)


def refused(result: Result) -> str:
    """The message of a refusal: exit code 2, one message, no traceback, nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small checkpoint with repeated layers."""
    tensors: dict[str, Any] = {"embed.weight": RNG.standard_normal((64, 64)).astype(np.float32)}
    for i in range(12):
        tensors[f"layers.{i}.up.weight"] = RNG.standard_normal((64, 32)).astype(np.float32)
        tensors[f"layers.{i}.norm.weight"] = np.ones(32, np.float32)
    tensors["layers.0.up.weight"][0] = 0
    tensors["ids"] = np.arange(5)
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, tensors, metadata={"format": "pt"})
    return path


@pytest.fixture
def quantized(model: Path) -> Path:
    out = model.with_name("out.hrry")
    assert run("quantize", model, "-o", out).exit_code == 0
    return out


# the command itself


def test_help_and_version() -> None:
    assert run("--version").output == f"blockscale {bs.__version__}\n"
    shown = run("--help").output
    assert all(verb in shown for verb in VERBS)
    for verb in VERBS:
        result = run(verb, "--help")
        assert result.exit_code == 0
        assert verb == "completion" or "--json" in result.output


@pytest.mark.parametrize("args", [["--help"], ["quantize", "--help"], ["--version"]])
def test_help_needs_neither_numpy_nor_rich(args: list[str]) -> None:
    code = (
        f"import sys\nfrom blockscale.cli import main\nsys.argv[1:] = {args!r}\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'ml_dtypes', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_usage_errors_exit_with_2() -> None:
    for args in ((), ("nonsense",), ("quantize",), ("quantize", "x", "--threads", "0"), ("compare", "a")):
        result = run(*args)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_BLOCKSCALE_COMPLETE" in result.output
    assert run("completion", "tcsh").exit_code == 2


def test_completion_of_schemes() -> None:
    env = {
        "_BLOCKSCALE_COMPLETE": "bash_complete",
        "COMP_WORDS": "blockscale quantize --scheme mxfp8",
        "COMP_CWORD": "3",
    }
    process = spawn(env=os.environ | env)
    assert process.communicate()[0].split() == ["plain,mxfp8_e4m3", "plain,mxfp8_e5m2"]


def test_schemes_and_rules_are_listed() -> None:
    shown = run("schemes", width=200).output
    found = run_json("schemes")
    assert {s["name"] for s in found["schemes"]} == set(SCHEMES)
    assert {r["name"] for r in found["rules"]} == set(RULES)
    for row in (*found["schemes"], *found["rules"]):
        assert row["name"] in shown
    by_name = {s["name"]: s for s in found["schemes"]}
    assert by_name["mxfp4"]["rules"] == ["floor", "ceil", "rceil", "even", "mse"]
    assert by_name["mxfp4"]["bits_per_element"] == 4.25


# quantize


def test_quantize(model: Path) -> None:
    out = model.with_name("out.hrry")
    result = run("quantize", model, "-o", out)
    assert result.exit_code == 0
    size = out.stat().st_size
    assert f"output    {size:,} bytes" in result.stdout
    assert "quantize  13 tensors" in result.stdout
    assert "rule floor, blocks along axis -1, 4.25 bits per weight" in result.stdout
    assert "layers.{0..11}.up.weight" in result.stdout
    assert "a norm or bias" in result.stdout
    assert "zero_blocks: 1 of" in result.stdout
    assert f"wrote {out}" in result.stdout
    assert result.stderr == ""
    with open_checkpoint(out) as ckpt, open_checkpoint(model) as source:
        assert ckpt.infos["embed.weight"].scheme == bs.scheme("mxfp4")
        assert np.array_equal(np.asarray(ckpt["ids"]), np.asarray(source["ids"]))


def test_dry_run_writes_nothing_and_knows_the_size(model: Path) -> None:
    out = model.with_name("out.hrry")
    planned = run_json("quantize", model, "--dry-run", "--scheme", "uint4", "-o", out)
    assert not out.exists()
    assert not planned["output"]["written"]
    assert all(t["events"] is None for t in planned["tensors"])
    assert "nothing was written" in run("quantize", model, "--dry-run").output
    done = run_json("quantize", model, "--scheme", "uint4", "-o", out)
    assert planned["output"]["nbytes"] == done["output"]["nbytes"] == out.stat().st_size
    assert "--force replaces it" in run("quantize", model, "--dry-run", "-o", out).output


def test_quantize_document(model: Path) -> None:
    out = model.with_name("out.hrry")
    found = run_json(
        "quantize",
        model,
        "-o",
        out,
        "--scheme",
        "int4",
        "--rule",
        "optimal",
        "--axis",
        "0",
        "--block-size",
        "16",
        "--scale",
        "bfloat16",
    )
    assert (found["blockscale"], found["verb"]) == (bs.__version__, "quantize")
    assert (found["quantized"], found["kept"], found["rule"]) == (13, 13, "optimal")
    assert found["scheme"]["block_size"] == 16
    assert found["scheme"]["scale"] == "bfloat16"
    by_name = {t["name"]: t for t in found["tensors"]}
    up = by_name["layers.0.up.weight"]
    assert (up["axis"], up["bits_per_element"], up["events"]["blocks"]) == (0, 5, 4 * 32)
    assert up["events"]["elements"] == 64 * 32
    assert by_name["ids"]["action"] == "keep"
    assert by_name["ids"]["reason"]
    assert found["events"]["saturated"] == sum(
        t["events"]["saturated"] for t in found["tensors"] if t["events"]
    )


def test_asymmetric_and_patterns(model: Path) -> None:
    out = model.with_name("out.hrry")
    found = run_json(
        "quantize",
        model,
        "-o",
        out,
        "--scheme",
        "int8",
        "--asymmetric",
        "--include",
        "layers.*.up.*",
        "--exclude",
        "layers.3.*",
    )
    assert found["scheme"]["offset"] == "zero_point"
    assert found["quantized"] == 11
    assert {t["reason"] for t in found["tensors"] if t["name"].startswith("layers.3.")} == {"excluded"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--scheme", "mxfp5"], "unknown scheme"),
        (["--scheme", "mxfp4", "--rule", "absmax"], "does not serve"),
        (["--scheme", "mxfp4", "--scale", "float16"], "float8_e8m0"),
        (["--block-size", "33"], "power of two"),
        (["--include", "layer.*"], "matches no tensor"),
        (["--exclude", "nothing*"], "matches no tensor"),
        (["--scheme", "q4_1"], "minimum"),
        (["--axis", "5"], "axis 5"),
        (["--block-size", "64"], "layers.0.up.weight"),
    ],
)
def test_refusals_of_quantize(model: Path, args: list[str], says: str) -> None:
    out = model.with_name("out.hrry")
    assert says in refused(run("quantize", model, "-o", out, *args))
    assert list(out.parent.glob("*.hrry*")) == []


def test_leave_unfit_lists_what_it_leaves(model: Path) -> None:
    out = model.with_name("out.hrry")
    result = run("quantize", model, "-o", out, "--block-size", "64", "--leave-unfit", width=200)
    assert result.exit_code == 0
    assert "layers.{0..11}.up.weight" in result.output.split("kept tensor")[1]


def test_output_is_checked_first(model: Path, quantized: Path, tmp_path: Path) -> None:
    before = quantized.read_bytes()
    assert "exists already" in refused(run("quantize", model, "-o", quantized))
    assert ".hrry" in refused(run("quantize", model, "-o", tmp_path / "out.onnx"))
    assert "does not exist" in refused(run("quantize", model, "-o", tmp_path / "no" / "out.hrry"))
    assert "Missing option" in refused(run("quantize", model))
    assert "the source itself" in run("quantize", quantized, "-o", quantized, "--force").stderr
    assert quantized.read_bytes() == before
    assert run("quantize", model, "-o", quantized, "--force", "--scheme", "int8").exit_code == 0
    assert quantized.read_bytes() != before


def test_a_refused_source_leaves_the_output_untouched(model: Path, quantized: Path, tmp_path: Path) -> None:
    before = quantized.read_bytes()
    x = np.ones((4, 32), np.float32)
    x[2, 7] = np.nan
    bad = tmp_path / "bad.safetensors"
    save_checkpoint(bad, {"a": np.ones((4, 32), np.float32), "w": x})
    result = run("quantize", bad, "-o", quantized, "--force")
    assert result.exit_code == 2
    assert "tensor 'w'" in result.stderr
    assert "[2, 7]" in result.stderr
    assert quantized.read_bytes() == before
    assert [p.name for p in tmp_path.glob("*.partial")] == []


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("12 GB"), 2, "out of memory: 12 GB"),
        (OSError(5, "Input/output error", "disk"), 2, "disk: Input/output error"),
        (ImportError("no kernels"), 2, "unexpected ImportError: no kernels"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_faults_of_the_environment(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("blockscale.pipeline.run_plan", fail)
    result = run("quantize", model, "-o", model.with_name("out.hrry"))
    assert result.exit_code == code
    assert says in result.stderr
    assert len(result.stderr.splitlines()) <= 2


# inspect


def test_inspect(quantized: Path) -> None:
    shown = run("inspect", quantized).output
    for text in (
        "hrry, 26 tensors",
        "format: pt",
        "layers.{0..11}.up.weight",
        "float4_e2m1",
        "2 per byte",
        "4.25",
    ):
        assert text in shown
    assert "codes of" not in shown
    assert "codes of" in run("inspect", quantized, "--deep").output
    every = run("inspect", quantized, "--all", "--tensors", "layers.*").output
    assert "layers.7.up.weight" in every
    assert "24 of them shown" in every


def test_inspect_document(quantized: Path) -> None:
    found = run_json("inspect", quantized, "--deep")
    assert found["kind"] == "hrry"
    assert found["metadata"]["format"] == "pt"
    by_name = {t["name"]: t for t in found["tensors"]}
    up = by_name["layers.0.up.weight"]
    assert up["scheme"]["name"] == "mxfp4"
    assert up["scales"]["count"] == 64
    assert 1 <= up["scales"]["bytes"][0] <= up["scales"]["bytes"][1] <= 254
    assert up["codes"]["possible"] == 16
    assert by_name["ids"]["scales"] is None


def test_inspect_reads_safetensors_and_refuses_others(model: Path, tmp_path: Path) -> None:
    assert "F32" in run("inspect", model).output
    page = tmp_path / "page.safetensors"
    page.write_text("<!DOCTYPE html>")
    assert "HTML page" in refused(run("inspect", page))
    assert "no such file" in refused(run("inspect", tmp_path / "none"))
    assert "matches no tensor" in refused(run("inspect", model, "--tensors", "blk.*"))


def test_inspect_says_what_decided_the_reading(tmp_path: Path) -> None:
    made = toys.READABLE["gptq v1"](tmp_path)
    shown = run("inspect", made, width=120).output
    assert "read as" in shown
    assert "quant_method 'gptq'" in shown
    assert "model.q.weight" in shown
    found = run_json("inspect", made)
    assert found["dialects"] == ["gptq"]
    assert found["evidence"]
    assert found["files"][0]["name"] == "model.safetensors"
    stored = run_json("inspect", made, "--dialect", "none")
    assert "model.q.qweight" in [t["name"] for t in stored["tensors"]]
    zeros = [
        next(t for t in run_json("inspect", made, *more)["tensors"] if t["name"] == "model.q.weight")
        for more in ([], ["--zero-point-bias", "0"])
    ]
    assert zeros[0]["zero_points"]["max"] == zeros[1]["zero_points"]["max"] + 1
    assert "is not KEY=VALUE" in refused(run("inspect", made, "--setting", "x"))
    assert "unknown dialect" in refused(run("inspect", made, "--dialect", "marlin"))
    config = json.loads((made / "config.json").read_text())
    del config["quantization_config"]
    (made / "config.json").write_text(json.dumps(config))
    assert "note: " in run("inspect", made, width=120).output


def test_inspect_lists_shards(tmp_path: Path) -> None:
    made = toys.READABLE["plain shards"](tmp_path)
    shown = run("inspect", made).output
    assert "safetensors in 3 shards" in shown
    assert "model-00003-of-00003.safetensors: " in shown
    assert len(run_json("inspect", made)["files"]) == 3


def test_inspect_shows_the_metadata_of_gguf(tmp_path: Path) -> None:
    made = gguf_files.write(tmp_path, gguf_files.small_file())
    shown = run("inspect", made).output
    for line in (
        "general.architecture: test",
        "b: True",
        "n: 2 of int32: 1, -1",
        "s: 3 of string: 'a', '', 'é'",
    ):
        assert f"  {line}\n" in shown
    metadata = run_json("inspect", made)["metadata"]
    assert metadata["general.architecture"] == "test"
    assert metadata["b"] is True
    assert metadata["n"] == {"type": "int32", "count": 2, "first": [1, -1]}
    assert metadata["deep"] == {"type": "array", "count": 1, "first": [[1, 2]]}


# convert


def test_convert(tmp_path: Path) -> None:
    made, out = toys.READABLE["gptq v1"](tmp_path), tmp_path / "out"
    result = run("convert", made, "-o", out, "--to", "compressed-tensors", width=160)
    assert result.exit_code == 0
    for text in (
        "quant_method 'gptq'",
        "output    compressed-tensors",
        "3 tensors exact, 0 re-en",
        "wrote",
    ):
        assert text in result.stdout
    assert (out / "blockscale.json").exists()
    assert "exists already" in refused_late(run("convert", made, "-o", out, "--to", "compressed-tensors"))
    assert run("convert", made, "-o", out, "--to", "compressed-tensors", "--force").exit_code == 0
    assert run("compare", made, out, "--max-rel-mse", "0").exit_code == 0
    assert run("verify", out).exit_code == 0


def refused_late(result: Result) -> str:
    """A refusal that comes when the source has been read."""
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return result.stderr


def test_convert_says_what_it_costs(tmp_path: Path) -> None:
    made = toys.READABLE["gguf q4_1"](tmp_path)
    shown = run("convert", made, "-o", tmp_path / "out.hrry", width=160).stdout
    assert re.search(r"re-encoded: the minimum is no multiple of the scale in \d+ of \d+ blocks\n", shown)
    assert "1 tensor exact, 1 re-encoded" in shown
    message = refused(run("convert", made, "-o", tmp_path / "no.hrry", "--exact"))
    assert "no multiple" in message
    assert not (tmp_path / "no.hrry").exists()
    planned = run_json("convert", made, "--dry-run")
    assert planned["output"]["written"] is False
    assert planned["output"]["nbytes"] == (tmp_path / "out.hrry").stat().st_size
    assert compare_passes(made, tmp_path / "out.hrry")


def compare_passes(a: Path, b: Path) -> bool:
    return bool(run_json("compare", a, b, "--min-sqnr", "30")["passed"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-o", "out.gguf", "--to", "gptq"], "does not write .gguf"),
        (["-o", "out", "--to", "marlin"], "unknown target"),
        (["-o", "out", "--shard-size", "0"], "is no size"),
        (["-o", "out", "--shard-size", "many"], "is no size"),
        (["-o", "out.onnx"], "unknown kind of output"),
        (["-o", "out", "--to", "gpt-oss"], "is not MXFP4"),
        ([], "Missing option"),
    ],
)
def test_refusals_of_convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str
) -> None:
    made = toys.READABLE["gptq v1"](tmp_path)
    monkeypatch.chdir(tmp_path)
    assert says in refused(run("convert", made, *args))
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def test_a_manifest_beside_a_file(tmp_path: Path) -> None:
    made, out, note = toys.READABLE["awq"](tmp_path), tmp_path / "out.hrry", tmp_path / "out.json"
    assert run("convert", made, "-o", out, "--manifest", note).exit_code == 0
    assert json.loads(note.read_text())["output"]["files"] == [
        {"name": "out.hrry", "nbytes": out.stat().st_size}
    ]
    out.unlink()
    assert "exists already" in refused(run("convert", made, "-o", out, "--manifest", note))
    assert not out.exists()


def test_resume_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = toys.READABLE["plain shards"](tmp_path), tmp_path / "out.hrry"
    real, calls = OutputSet.finish, [0]

    def interrupted(self: OutputSet, tensor: str, result: Any) -> None:
        real(self, tensor, result)
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(OutputSet, "finish", interrupted)
    first = run("quantize", made, "-o", out, "--resume")
    assert first.exit_code == 130
    assert "the same command goes on from here" in first.stderr
    monkeypatch.undo()
    assert "interrupted run" in refused_late(run("quantize", made, "-o", out))
    other = run("quantize", made, "-o", out, "--resume", "--rule", "even")
    assert "other settings" in refused_late(other)
    assert run("quantize", made, "-o", out, "--resume").exit_code == 0
    assert run("quantize", made, "-o", tmp_path / "whole.hrry").exit_code == 0
    assert out.read_bytes() == (tmp_path / "whole.hrry").read_bytes()


def test_settings_reach_source_and_target(tmp_path: Path) -> None:
    made = toys.READABLE["compressed-tensors"](tmp_path)
    out = tmp_path / "out"
    assert run("convert", made, "-o", out, "--to", "gptq", "--setting", "version=gptq_v2").exit_code == 0
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["checkpoint_format"] == "gptq_v2"
    own = tmp_path / "typed"
    typed = run("quantize", out, "-o", own, "--to", "plain-mx", "--setting", "dtypes=typed", "--requantize")
    assert typed.exit_code == 0, typed.stderr
    assert run("compare", out, own, "--min-sqnr", "15").exit_code == 0
    v2 = tmp_path / "from-awq"
    v2.mkdir()
    awq = toys.READABLE["awq"](v2)
    args = ("convert", awq, "-o", v2 / "out", "--to", "compressed-tensors")
    assert "no dialect has a setting 'nonsense'" in refused(run(*args, "--setting", "nonsense=1"))
    assert run(*args, "--setting", "ignore=lm_head,head2", "--setting", "version=gptq_v2").exit_code == 0
    config = json.loads((v2 / "out/config.json").read_text())
    assert config["quantization_config"]["ignore"][-2:] == ["lm_head", "head2"]


# compare


def test_compare(model: Path, quantized: Path) -> None:
    shown = run("compare", model, quantized, width=120).output
    for text in (
        "mxfp4 (float4_e2m1",
        "axis 1: 13 tensors",
        "rule: floor",
        "quantized tensors together (13)",
    ):
        assert text in shown
    assert "13 tensors not quantized and exactly equal" in shown
    assert "SQNR per channel" in run("compare", model, quantized, "--per", "channel").output


def test_limits_of_compare(model: Path, quantized: Path) -> None:
    assert run("compare", model, quantized, "--min-sqnr", "10").exit_code == 0
    failed = run("compare", model, quantized, "--min-sqnr", "30")
    assert failed.exit_code == 1
    assert "FAILED: 13 of 26 tensors" in failed.stdout
    assert run("compare", model, quantized, "--max-rel-mse", "1e-6").exit_code == 1
    found = run_json("compare", model, quantized, "--max-rel-mse", "0.5")
    assert found["passed"] is True
    assert found["limits"] == {"max_rel_mse": 0.5}
    assert run_json("compare", model, quantized)["passed"] is None


def test_compare_document(model: Path, quantized: Path) -> None:
    found = run_json("compare", model, quantized, "--per", "block", "--tensors", "*up*", "--tensors", "ids")
    by_name = {t["name"]: t for t in found["tensors"]}
    assert len(by_name) == 13
    assert by_name["ids"]["sqnr_db"] == "inf"
    up = by_name["layers.5.up.weight"]
    assert 15 < up["sqnr_db"] < 22
    assert (up["scheme"], up["axis"], up["block_size"]) == ("mxfp4", 1, 32)
    assert up["spread"]["count"] == 64
    assert found["b"]["rule"] == "floor"
    assert found["quantized_total"]["elements"] == 12 * 64 * 32


def test_missing_tensors_fail_a_check_only(model: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.safetensors"
    save_checkpoint(part, {"ids": np.arange(5), "new": np.ones(2), "embed.weight": np.ones((2, 2))})
    result = run("compare", model, part)
    assert result.exit_code == 0
    for text in (
        "24 tensors only in A",
        "1 tensor only in B",
        "could not be compared",
        "[64, 64] in A and [2, 2] in B",
    ):
        assert text in result.stdout
    assert run("compare", model, part, "--min-sqnr", "1").exit_code == 1
    assert run("compare", model, part, "--min-sqnr", "1", "--tensors", "ids").exit_code == 0
    assert run("compare", model, part, "--tensors", "embed*").exit_code == 1  # nothing was compared
    other = tmp_path / "other.safetensors"
    save_checkpoint(other, {"x": np.ones(2)})
    assert "no tensor in common" in refused(run("compare", model, other))


# verify


def test_verify(quantized: Path, tmp_path: Path) -> None:
    assert "no rule is broken" in run("verify", quantized).stdout
    data = bytearray(quantized.read_bytes())
    data[-1] ^= 1
    quantized.write_bytes(data)
    result = run("verify", quantized)
    assert result.exit_code == 1
    assert "[F3]" in result.stdout
    found = run_json("verify", quantized, code=1)
    assert found["passed"] is False
    assert found["findings"][0]["rule"] == "F3"
    assert "no such file" in refused(run("verify", tmp_path / "none"))


def test_suspicious_values_fail_only_when_strict(tmp_path: Path) -> None:
    path = tmp_path / "nan.safetensors"
    save_checkpoint(path, {"w": np.full(4, np.nan, np.float32)})
    result = run("verify", path)
    assert result.exit_code == 0
    assert "4 NaN and 0 infinite" in result.stdout
    assert run("verify", path, "--strict").exit_code == 1
    assert run_json("verify", path)["suspicious"] == 1


# the real command


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes seconds to quantize."""
    path = tmp_path_factory.mktemp("big") / "big.safetensors"
    save_checkpoint(path, {"w": RNG.standard_normal((8192, 1024)).astype(np.float16)})
    return path


def test_interrupt_leaves_no_file(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.hrry"
    slow = ("--scheme", "uint4", "--rule", "optimal", "--scale", "float32", "--threads", 1)
    process = spawn("quantize", big, "-o", out, *slow)
    while not list(tmp_path.glob("*.partial")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.strip().splitlines() == [f"interrupted; {out} was not written"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_in_a_row_leave_no_file(big: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out.hrry"
    slow = ("--scheme", "uint4", "--rule", "optimal", "--scale", "float32", "--threads", 1)
    default = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}  # the tests may run under nohup
    process = spawn("quantize", big, "-o", out, *slow, **default)
    while not list(tmp_path.glob("*.partial")):
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(20):
        process.send_signal(number)
        time.sleep(0.002)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [["schemes"], ["info", "--json"], ["completion", "bash"]])
def test_closed_output(args: list[str]) -> None:
    """Where there is no stdout, nothing is printed; the number of a closed one goes to no other file."""
    for last in (1, 2):
        process = spawn(*args, stdout=None, preexec_fn=lambda n=last: os.closerange(1, n + 1))
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


def test_a_full_disk_is_refused(big: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.hrry"
    process = spawn(
        "quantize", big, "-o", out,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )  # fmt: skip
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "bytes are needed" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_quiet(model: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn("inspect", model, "--json", stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (141, "")


def test_refusals_of_the_real_command(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.hrry").write_bytes(b"HRRYFILE" + bytes(96))
    for args in (
        ("inspect", tmp_path / "bad.hrry"),
        ("compare", model, tmp_path / "missing"),
        ("quantize", "-x"),
    ):
        process = spawn(*args)
        out, errors = process.communicate(timeout=20)
        assert process.returncode == 2
        assert out == ""
        assert errors
        assert "Traceback" not in errors


def test_hostile_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    save_checkpoint(
        path, {"\x1b[2Jw\n[red]": np.ones((2, 32), np.float32)}, metadata={"\x1b]0;x\x07": "\x1b[0m"}
    )
    for verb in ("inspect", "verify"):
        shown = run(verb, path).output
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert "\\x1b[2Jw\\n[red]" in run("inspect", path).output
    assert run_json("inspect", path)["tensors"][0]["name"] == "\x1b[2Jw\n[red]"


# helpers of the output


def test_layers_are_collapsed() -> None:
    names = [f"h.{i}.{part}.w1" for i in range(12) for part in ("a", "b")] + ["h.7.c.w1", "top"]
    groups = collapse_names(names, [0] * len(names))
    assert [g.label for g in groups] == ["h.{0..11}.a.w1", "h.{0..11}.b.w1", "h.7.c.w1", "top"]
    assert groups[0].members == tuple(range(0, 24, 2))
    kinds = [i % 4 for i in range(24)] + [0, 0]
    assert next(g.label for g in collapse_names(names, kinds)) == "h.{0..10}.a.w1 (6 of 11)"
    experts = [f"l.{i}.e.{j}" for i in range(3) for j in range(4)]
    assert [g.label for g in collapse_names(experts, [0] * 12)] == ["l.{0..2}.e.{0..3}"]
    assert [g.label for g in collapse_names(["a.1", "a.2", "a.5"], [0] * 3)] == ["a.{1..2,5}"]
    assert len(collapse_names(["conv1d", "conv2d", "w1", "w2", "l.01", "l.02"], [0] * 6)) == 6


def test_short_tables_are_not_collapsed() -> None:
    names = [f"a.{i}" for i in range(13)]
    assert len(group_rows(names[:12], [0] * 12, show_all=False)) == 12
    assert len(group_rows(names, [0] * 13, show_all=False)) == 1
    assert len(group_rows(names, [0] * 13, show_all=True)) == 13


def test_numbers_read_well() -> None:
    assert [show_bytes(n) for n in (0, 999, 1000, 4_356_362, 10**13)] == [
        "0 B",
        "999 B",
        "1 kB",
        "4.36 MB",
        "10 TB",
    ]
    assert [show_share(x) for x in (0, 1e-9, 0.0123, 0.5, 1)] == ["0", "<0.01%", "1.23%", "50.0%", "100.0%"]
    assert (show_db(float("inf")), show_db(18.789)) == ("exact", "18.79")
    assert (show_shape(()), show_shape((3, 4))) == ("scalar", "3x4")
    assert (show_range([1, 2], str), show_range([1, 1], str), show_range([], str)) == ("1..2", "1", "")
    assert printable("a\tb\u202e") == "a\\tb\\u202e"


def test_json_values() -> None:
    value = {"a": (np.float32(1.5), float("nan"), -np.inf, np.int64(3)), "b": b"\x01\xff", "c": None}
    assert plain(value) == {"a": [1.5, "nan", "-inf", 3], "b": "01ff", "c": None}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_tables_fit_the_terminal(width: int) -> None:
    @click.command()
    def table() -> None:
        columns = [Column("name", fold=True), Column("x", is_number=True, rank=2), Column("y", rank=1)]
        print_table(
            [*columns, Column("empty")], [["model.layers.0.mlp.up_proj.weight", "1" * 20, "z" * 25, ""]]
        )

    result = CliRunner(env={"COLUMNS": str(width)}).invoke(table)
    lines = result.output.splitlines()
    assert max(len(line) for line in lines if not line.startswith("left out")) <= width
    assert "empty" not in result.output
    assert ("left out at this width: x" in result.output) == (width < 80)
    assert "..." not in result.output
    assert "…" not in result.output


def test_all_keys_are_documented(model: Path, quantized: Path) -> None:
    """docs/cli.md names every key of every document."""
    text = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    documents = [
        run_json("schemes"),
        run_json("quantize", model, "--dry-run"),
        run_json("quantize", model, "-o", quantized, "--force"),
        run_json("inspect", quantized, "--deep"),
        run_json("compare", model, quantized, "--per", "block"),
        run_json("verify", quantized),
        run_json("convert", quantized, "-o", model.with_name("f"), "--manifest", model.with_name("m.json")),
        run_json("convert", quantized, "--dry-run"),
        json.loads(model.with_name("m.json").read_text()),
    ]
    free = {"metadata", "failed", "faults", "limits", "asked", "settings"}

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value)) if value else set()
        if not isinstance(value, Mapping):
            return set()
        return set(value).union(*(keys(v) for k, v in value.items() if k not in free))

    missing = {key for document in documents for key in keys(document) if f"`{key}`" not in text}
    assert not missing


# ---------------------------------------------------------------- info


def test_info_names_the_instruction_sets() -> None:
    found = run_json("info")
    assert found["isa"] in found["isas"]
    assert found["isas"][0] == "baseline"
    assert "-ffp-contract=off" in found["compiler"]
    assert found["isa"] in run("info").output


@pytest.mark.parametrize("name", ["baseline", "avx1024"])
def test_the_environment_forces_an_instruction_set(name: str) -> None:
    done = spawn("info", "--json", env={**os.environ, "BLOCKSCALE_ISA": name})
    out, err = done.communicate()
    if name == "baseline":
        assert json.loads(out)["isa"] == name
    else:
        assert done.returncode == 2
        assert "BLOCKSCALE_ISA='avx1024'" in err
        assert "baseline" in err


def test_reasons_of_several_tensors_are_added_up() -> None:
    reasons = [
        "the minimum is no multiple of the scale in 1,200 of 1,300 blocks",
        "the minimum is no multiple of the scale in 7 of 8 blocks",
        "zero points reach from -3 to 12, the target stores 1 .. 16",
        "zero points reach from 0 to 17, the target stores 1 .. 16",
        "3 of 4 scales do not fit float16",
        "int4 holds -8 .. 7, the codes reach beyond",
    ]
    assert merge_reasons(reasons) == [
        "the minimum is no multiple of the scale in 1,207 of 1,308 blocks, 2 tensors",
        "zero points reach from -3..0 to 12..17, the target stores 1 .. 16, 2 tensors",
        "3 of 4 scales do not fit float16",
        "int4 holds -8 .. 7, the codes reach beyond",
    ]
    assert merge_reasons([]) == []


def test_what_cannot_be_quantized_is_not_passed_over(tmp_path: Path) -> None:
    """A pattern that names only what cannot be quantized stops the run; the way out is said."""
    w = bs.quantize(RNG.normal(size=(4, 64)), "q8_0")
    source = tmp_path / "s.hrry"
    bs.save(source, {"a.weight": w, "ids": np.arange(64), "b.weight": np.ones((2, 64), np.float32)})
    out = tmp_path / "o.hrry"
    for pattern, why, way in (
        ("ids", "int64 is not a floating-point weight", "--leave-unfit"),
        ("a.*", "a.weight: already quantized", "--requantize"),
    ):
        message = refused(run("quantize", source, "-o", out, "--include", pattern, "--include", "b.*"))
        assert all(part in message for part in (f"field --include: the pattern '{pattern}'", why, way))
        assert not out.exists()
    shown = run("quantize", source, "-o", out, "--include", "ids", "--leave-unfit", "--dry-run").stdout
    assert "nothing is quantized" in shown
    assert run("quantize", source, "-o", out, "--include", "*", "--dry-run").exit_code == 0
    assert (
        run("quantize", source, "-o", out, "--include", "ids", "--exclude", "i*", "--dry-run").exit_code == 0
    )
    shown = run("quantize", source, "-o", out, "--exclude", "b.*", "--scheme", "q8_0").stdout
    assert "nothing is quantized, the output holds the same tensors; --requantize" in shown
    assert (
        "quantize  1 tensor"
        in run("quantize", source, "-o", out, "--include", "a.*", "--requantize", "--force").stdout
    )


@pytest.mark.parametrize("width", [1, 7, 20, 33, 41, 59])
def test_narrow_tables_keep_the_names(width: int) -> None:
    """Columns go, named below the table; the name, which is the row, is broken over lines instead."""
    name = "model.layers.0.mlp.up_proj.weight"

    @click.command()
    def table() -> None:
        columns = [Column("name", fold=True), Column("bits", is_number=True), Column("why", fold=True)]
        print_table(columns, [[name, "4.25", "a norm or bias, which stays"]])

    result = CliRunner(env={"COLUMNS": str(width)}).invoke(table)
    lines = result.output.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    body = [line for line in lines[rule + 1 :] if not line.startswith("left out")]
    assert "".join(line.split("  ")[0].strip() for line in body).startswith(name)
    assert max(map(len, body)) <= width
    assert ("bits" in lines[0]) == (width > 30)
    assert ("left out at this width" in result.output) == (width < 59)

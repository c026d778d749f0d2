"""Long runs in processes of their own: killed at random moments and gone on with, and their memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import convert_files as toys
from blockscale.journal import journal_path
from convert_files import contents
from safetensors_files import python_output

KILLS = 5  # per run; four runs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty weights that take a slow rule some ten milliseconds each."""
    r = np.random.default_rng(5)
    layers = {f"l.{i}.weight": r.standard_normal((64, 512)).astype(np.float16) for i in range(30)}
    return toys.folder(tmp_path_factory.mktemp("model") / "src", layers | toys.plain(), shards=2)


def start(*args: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "blockscale", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()


def arguments(source: Path, out: Path) -> list[object]:
    slow = [
        "quantize",
        source,
        "--scheme",
        "uint4",
        "--rule",
        "optimal",
        "--scale",
        "float32",
        "--threads",
        1,
        "-o",
        out,
    ]
    return slow if out.suffix else [*slow, "--to", "plain-mx", "--shard-size", "100kB"]


def lines_of(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("name", ["out.hrry", "out"])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(model: Path, tmp_path: Path, name: str, seed: int) -> None:
    """After each kill the run goes on from where it was; the output is that of a run without interruption."""
    r = np.random.default_rng(seed)
    whole, out = tmp_path / "whole" / name, tmp_path / name
    whole.parent.mkdir()
    first = start(*arguments(model, whole))
    journal, before = journal_path(out), 0
    for _ in range(KILLS):
        wanted, delay = before + int(r.integers(0, 6)), float(r.uniform(0, 0.02))
        process = start(*arguments(model, out), "--resume")
        while len(lines_of(journal)) < wanted and process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        process.communicate()
        lines = lines_of(journal)
        assert process.returncode < 0, "it ended too early to be killed"
        assert not out.is_file()
        assert len(lines) >= before  # nothing that was done is lost
        before = len(lines)
    finish(start(*arguments(model, out), "--resume"))
    finish(first)
    assert contents(out) == contents(whole)
    assert not journal.exists()


def test_killed_at_twenty_moments_of_one_run(model: Path, tmp_path: Path) -> None:
    """From the first moment to the last: no output or a whole one, and the next run ends with a whole one."""
    whole = tmp_path / "whole.hrry"
    finish(start(*arguments(model, whole)))
    wanted = whole.read_bytes()
    began = time.perf_counter()
    finish(start(*arguments(model, tmp_path / "again.hrry"), "--resume"))
    duration, killed = time.perf_counter() - began, 0
    r = np.random.default_rng(7)
    for i in range(100):  # on a busy machine some runs end before their moment
        out = tmp_path / f"{i}.hrry"
        process = start(*arguments(model, out), "--resume")
        time.sleep(r.uniform(0, duration))
        process.kill()
        process.communicate()
        if process.returncode < 0:
            killed += 1
            assert not out.exists() or out.read_bytes() == wanted
            finish(start(*arguments(model, out), "--resume", *["--force"] * out.exists()))
        assert out.read_bytes() == wanted
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(f"{i}.")] == [out.name]
        out.unlink()
        if killed == 20:
            return
    raise AssertionError(f"only {killed} of 100 runs were long enough to be killed")


def peak(*args: object) -> int:
    """Largest resident memory of a command that ends well, in bytes.

    The process says it itself: what its parent sees counts the parent's own memory before the program began.
    """
    code = """
        import atexit, sys
        from pathlib import Path
        from blockscale.cli import main
        high = lambda: next(l for l in Path("/proc/self/status").open() if l.startswith("VmHWM"))
        atexit.register(lambda: print("\\n" + high().split()[1]))
        main()
    """
    return int(python_output(code, *args).split()[-1]) * 1024


@pytest.mark.parametrize("target", ["compressed-tensors", "hrry", "gguf"])
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path, target: str) -> None:
    """300 MB in three shards, under 150 MB resident; some 60 were measured."""
    source = tmp_path / "src"
    source.mkdir()
    x = np.random.default_rng(0).standard_normal((1024, 4096)).astype(np.float16)
    for i in range(3):
        shard = {f"l.{i}.{j}.weight": x for j in range(12)}
        toys.write_safetensors(source / f"model-{i + 1:05}-of-00003.safetensors", shard)
    out = tmp_path / toys.WRITABLE[target]
    scheme = "q8_0" if target == "gguf" else "int4"
    args = ("quantize", source, "-o", out, "--to", target, "--scheme", scheme, "--threads", 2)
    resident = peak(*args)
    assert sum(map(len, contents(out).values())) > 75e6
    assert resident < 150e6

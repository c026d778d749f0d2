"""Atomic output: a name appears with the whole file behind it, or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from blockscale.containers.base import AtomicFile, check_output, read_exactly
from blockscale.errors import ContainerError, OutputError


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    """A Python process that can import blockscale."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_then_raise(path: Path, error: type[BaseException], *, overwrite: bool = False) -> None:
    with AtomicFile(path, size=100, overwrite=overwrite) as file:
        file.write_at(0, b"some")
        raise error


def test_written_bytes_appear_under_the_name(tmp_path: Path) -> None:
    out = tmp_path / "a.bin"
    with AtomicFile(out, size=8) as file:
        file.write_at(4, b"5678")
        file.write_at(0, np.frombuffer(b"1234", np.uint8))
        file.write_at(8, b"")
        file.write_at(0, np.empty((3, 0), np.float32))
        assert not out.exists()
    assert out.read_bytes() == b"12345678"
    assert names_in(tmp_path) == ["a.bin"]


def test_reserved_size_is_the_size_of_the_file(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a.bin", size=1000):
        pass
    assert (tmp_path / "a.bin").read_bytes() == bytes(1000)


def test_many_threads_may_write(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a.bin", size=8000) as file:
        threads = [
            threading.Thread(target=file.write_at, args=(1000 * i, bytes([i]) * 1000)) for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (tmp_path / "a.bin").read_bytes() == b"".join(bytes([i]) * 1000 for i in range(8))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    with AtomicFile(tmp_path / "a.bin") as file:
        file.write_at(0, b"0123456789")
    assert (tmp_path / "a.bin").read_bytes() == b"0123456789"


# Existing names --------------------------------------------------------------------------------


def test_existing_output_is_refused_and_untouched(tmp_path: Path) -> None:
    out = tmp_path / "a.bin"
    out.write_bytes(b"precious")
    with pytest.raises(OutputError) as caught:
        AtomicFile(out, size=4)
    assert caught.value.file == str(out)
    assert caught.value.hint is not None
    assert "overwrite=True" in caught.value.hint
    assert out.read_bytes() == b"precious"
    assert names_in(tmp_path) == ["a.bin"]


def test_dangling_link_is_an_existing_output(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists already"):
        AtomicFile(tmp_path / "link")


def test_overwrite_replaces_only_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "a.bin"
    out.write_bytes(b"old")
    with AtomicFile(out, overwrite=True) as file:
        file.write_at(0, b"newer")
        assert out.read_bytes() == b"old"
    assert out.read_bytes() == b"newer"


def test_failed_overwrite_keeps_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "a.bin"
    out.write_bytes(b"old")
    with pytest.raises(RuntimeError):
        write_then_raise(out, RuntimeError, overwrite=True)
    assert out.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_output_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    out = tmp_path / "a.bin"
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    file = AtomicFile(out)
    file.write_at(0, b"mine")
    out.write_bytes(b"of another process")
    with pytest.raises(OutputError, match="exists already"), file:
        pass
    assert out.read_bytes() == b"of another process"
    assert names_in(tmp_path) == ["a.bin"]


def test_name_that_comes_and_goes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exists(*_: object) -> None:
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", exists)
    with pytest.raises(OutputError, match="came and went"), AtomicFile(tmp_path / "a.bin"):
        pass
    assert names_in(tmp_path) == []


def refuse_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "no links here")


def test_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    with AtomicFile(tmp_path / "a.bin") as file:
        file.write_at(0, b"mine")
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert names_in(tmp_path) == ["a.bin"]


def test_folder_is_not_an_output(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_output(tmp_path, overwrite=True)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="none does not exist"):
        AtomicFile(tmp_path / "none" / "a.bin")


# Interruptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_exception_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_then_raise(tmp_path / "a.bin", error)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("step", ["fsync", "close"])
def test_failing_commit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    real = os.close

    def fail(fd: int) -> None:
        if step == "close":
            real(fd)
        raise OSError(errno.EIO, "Input/output error")

    file = AtomicFile(tmp_path / "a.bin")
    file.write_at(0, b"some")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OutputError, match="Input/output error"), file:
        pass
    monkeypatch.undo()
    assert names_in(tmp_path) == []


def test_write_on_a_full_disk_names_the_bytes_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    out = tmp_path / "a.bin"
    with pytest.raises(OutputError) as caught, AtomicFile(out, size=12345) as file:
        file.write_at(0, b"some")
    text = str(caught.value)
    assert "No space left on device" in text
    assert "12,345 bytes are needed" in text
    assert str(out) in text
    assert names_in(tmp_path) == []


def test_size_limit_is_found_before_any_work(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from blockscale.containers.base import AtomicFile
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            AtomicFile(sys.argv[1], size=1_000_000)
        except OSError as error:
            print(type(error).__name__, error)
    """
    out, err = start_python(code, tmp_path / "a.bin").communicate(timeout=60)
    assert "OutputError" in out, err
    assert "1,000,000 bytes are needed" in out
    assert "another disk" in out
    assert names_in(tmp_path) == []


def test_killed_process_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    code = """
        import sys, time
        from blockscale.containers.base import AtomicFile
        with AtomicFile(sys.argv[1], size=1000) as file:
            file.write_at(0, b"x" * 500)
            print("half", flush=True)
            time.sleep(60)
    """
    process = start_python(code, tmp_path / "a.bin")
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (tmp_path / "a.bin").exists()
    (left,) = names_in(tmp_path)
    assert left.startswith("a.bin.")
    assert left.endswith(".partial")
    with AtomicFile(tmp_path / "a.bin") as file:  # what was left is in nobody's way
        file.write_at(0, b"again")
    assert (tmp_path / "a.bin").read_bytes() == b"again"


def test_interrupted_process_leaves_nothing(tmp_path: Path) -> None:
    code = """
        import sys, time
        from blockscale.containers.base import AtomicFile
        with AtomicFile(sys.argv[1], size=1000) as file:
            print("half", flush=True)
            time.sleep(60)
    """
    process = start_python(code, tmp_path / "a.bin")
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert names_in(tmp_path) == []


# Reading ---------------------------------------------------------------------------------------


def test_read_exactly_reads_from_an_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, out, at: real(fd, [out[0][:7]], at))
    with (tmp_path / "a.bin").open("rb") as file:
        out = bytearray(50)
        read_exactly(file.fileno(), 25, memoryview(out), file="a.bin")
    assert out == bytes(range(25, 75))


def test_read_exactly_tells_where_the_file_ends(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12345")
    with (tmp_path / "a.bin").open("rb") as file, pytest.raises(ContainerError) as caught:
        read_exactly(file.fileno(), 2, memoryview(bytearray(10)), file="a.bin")
    assert caught.value.found == 5
    assert caught.value.file == "a.bin"
    assert "7 bytes early" in str(caught.value)

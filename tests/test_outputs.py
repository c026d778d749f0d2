"""Outputs of long runs: atomic, resumable, checked; nothing half-done under a final name."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockscale import outputs as module
from blockscale.errors import InputError, OutputError
from blockscale.journal import Journal, is_committing, journal_path
from blockscale.outputs import MANIFEST, OutputLayout, OutputSet, PlannedFile, Region
from safetensors_files import names_in

PRINT = {"source": [["a", 1, 2]], "settings": {"verb": "test"}}
HEAD = b"HEAD"
DATA = {"a": b"aaaa", "b": b"bbbbbbbb", "c": b"cc"}


def layout(*, folder: bool = False) -> OutputLayout:
    """One file, or two files and a config: `HEAD`, then the tensors."""
    if not folder:
        regions = {"a": {"0": Region(0, 4, 4)}, "b": {"0": Region(0, 8, 4), "1": Region(0, 12, 4)}}
        regions["c"] = {"0": Region(0, 16, 2)}
        return OutputLayout((PlannedFile("", 18, ((0, HEAD),)),), regions, {}, False)
    files = (
        PlannedFile("model-00001-of-00002.safetensors", 8, ((0, HEAD),)),
        PlannedFile("model-00002-of-00002.safetensors", 14, ((0, HEAD),)),
    )
    regions = {"a": {"0": Region(0, 4, 4)}, "b": {"0": Region(1, 4, 4), "1": Region(1, 8, 4)}}
    regions["c"] = {"0": Region(1, 12, 2)}
    return OutputLayout(files, regions, {"config.json": b"{}"}, True)


def write_tensor(out: OutputSet, name: str) -> None:
    data, at = DATA[name], 0
    for part, region in out.layout.regions[name].items():
        out.write(name, part, 0, data[at : at + region.size])
        at += region.size
    out.finish(name, {"made": name})


def run(path: Path, names: str = "abc", *, folder: bool = False, **options: Any) -> OutputSet:
    with OutputSet(path, layout(folder=folder), PRINT, **options) as out:
        for name in names:
            if name not in out.done:
                write_tensor(out, name)
    return out


def interrupted(path: Path, names: str = "ab", *, folder: bool = False) -> None:
    """What a killed process leaves: partial files and a journal."""
    out = OutputSet(path, layout(folder=folder), PRINT)
    for name in names:
        write_tensor(out, name)
    out.abort(keep=True)


WHOLE = HEAD + b"aaaabbbbbbbbcc"


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.hrry"
    with OutputSet(path, layout(), PRINT) as out:
        for name in "abc":
            assert names_in(tmp_path) == ["out.hrry.journal", "out.hrry.partial"]
            write_tensor(out, name)
    assert path.read_bytes() == WHOLE
    assert names_in(tmp_path) == ["out.hrry"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with OutputSet(path, layout(folder=True), PRINT) as out:
        for name in "abc":
            assert all(n.endswith(".partial") for n in names_in(path))
            write_tensor(out, name)
        out.late[MANIFEST] = b"[]"
    found = {p.name: p.read_bytes() for p in path.iterdir()}
    assert found == {
        "model-00001-of-00002.safetensors": b"HEADaaaa",
        "model-00002-of-00002.safetensors": b"HEADbbbbbbbbcc",
        "config.json": b"{}",
        MANIFEST: b"[]",
    }
    assert names_in(tmp_path) == ["out"]


def test_existing_outputs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.hrry"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="exists already"):
        run(path)
    with pytest.raises(OutputError, match="exists already"):
        run(path, resume=True)
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["out.hrry"]
    run(path, overwrite=True)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors", MANIFEST])
def test_existing_files_in_a_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / name).write_bytes(b"old")
    (path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(OutputError, match=f"exists already .{name}"):
        run(path, folder=True)
    assert names_in(tmp_path) == ["out"]
    run(path, folder=True, overwrite=True)
    assert (path / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_other_weights_in_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    """They would be read together with the new ones, or instead of them."""
    path = tmp_path / "out"
    path.mkdir()
    (path / name).write_bytes(b"old")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="other weights"):
            run(path, folder=True, overwrite=overwrite)
    assert names_in(path) == [name]


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        run(tmp_path / "no" / "out.hrry")
    with pytest.raises(OutputError, match="does not exist"):
        run(tmp_path / "no" / "out", folder=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="not a folder"):
        run(tmp_path / "file", folder=True)
    assert names_in(tmp_path) == ["file"]


def test_the_current_folder_can_be_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    run(Path(), folder=True)
    assert "config.json" in names_in(inner)
    assert names_in(tmp_path) == ["inner"]


def test_bytes_outside_of_a_part_are_refused(tmp_path: Path) -> None:
    with OutputSet(tmp_path / "out", layout(), PRINT) as out:
        for offset, data in ((0, b"12345"), (4, b"1"), (-1, b"1")):
            with pytest.raises(InputError, match="bytes"):
                out.write("a", "0", offset, data)
        for name in "abc":
            write_tensor(out, name)


# after an error


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("bad source"), False),
        (KeyboardInterrupt(), True),
        (OutputError("disk full"), True),
        (OSError(errno.EIO, "source"), True),
        (MemoryError(), True),
    ],
)
def test_errors_leave_what_can_be_gone_on_with(
    tmp_path: Path, error: BaseException, kept: bool, folder: bool
) -> None:
    path = tmp_path / "out"

    def fail(*, resume: bool) -> None:
        with OutputSet(path, layout(folder=folder), PRINT, resume=resume) as out:
            write_tensor(out, "a")
            raise error

    with pytest.raises(type(error)):
        fail(resume=False)
    assert names_in(tmp_path) == []
    with pytest.raises(type(error)):
        fail(resume=True)
    assert bool(names_in(tmp_path)) == kept
    if kept:
        out = run(path, folder=folder, resume=True)
        assert out.done["a"] == {"made": "a"}


# going on


@pytest.mark.parametrize("folder", [False, True])
def test_resuming_keeps_what_is_done(tmp_path: Path, folder: bool) -> None:
    whole = tmp_path / "whole"
    run(whole, folder=folder)
    path = tmp_path / "out"
    interrupted(path, folder=folder)
    with OutputSet(path, layout(folder=folder), PRINT, resume=True) as out:
        assert out.done == {"a": {"made": "a"}, "b": {"made": "b"}}
        write_tensor(out, "c")
    if folder:
        assert {p.name: p.read_bytes() for p in path.iterdir()} == {
            p.name: p.read_bytes() for p in whole.iterdir()
        }
    else:
        assert path.read_bytes() == whole.read_bytes()
    assert not journal_path(path).exists()


def test_a_leftover_needs_a_word(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(OutputError, match="interrupted run") as caught:
        run(path)
    assert "--resume" in str(caught.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    run(path, overwrite=True)
    assert path.read_bytes() == WHOLE


def test_force_over_an_interrupted_run_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    with OutputSet(path, layout(), PRINT, overwrite=True) as out:
        assert out.done == {}
        for name in "abc":
            write_tensor(out, name)
    assert names_in(tmp_path) == ["out"]


def test_force_removes_the_partial_files_of_another_cut(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path, folder=True)
    one = PlannedFile("model.safetensors", 18, ((0, HEAD),))
    other = OutputLayout((one,), layout().regions, {"config.json": b"{}"}, True)
    with OutputSet(path, other, PRINT, overwrite=True) as out:
        for name in "abc":
            write_tensor(out, name)
    assert names_in(path) == ["config.json", "model.safetensors"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    other = PRINT | {"settings": {"verb": "other"}}
    with pytest.raises(InputError, match=r"another source or other settings \(settings\)"):
        OutputSet(path, layout(), other, resume=True)
    assert names_in(tmp_path) == ["out.journal", "out.partial"]
    with OutputSet(path, layout(), other, resume=True, overwrite=True) as out:
        assert out.done == {}
        for name in "abc":
            write_tensor(out, name)


@pytest.mark.parametrize(("at", "lost"), [(5, "a"), (9, "b"), (13, "b")])
def test_damaged_bytes_are_done_again(tmp_path: Path, at: int, lost: str) -> None:
    path = tmp_path / "out"
    interrupted(path, "abc")
    partial = tmp_path / "out.partial"
    data = bytearray(partial.read_bytes())
    data[at] ^= 0x10
    partial.write_bytes(data)
    with OutputSet(path, layout(), PRINT, resume=True) as out:
        assert set(out.done) == set("abc") - {lost}
        write_tensor(out, lost)
    assert path.read_bytes() == WHOLE


def test_a_damaged_frame_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    partial = tmp_path / "out.partial"
    partial.write_bytes(b"XXXX" + partial.read_bytes()[4:])
    run(path, resume=True)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("size", [0, 10, 100])
def test_a_partial_file_of_another_size_is_begun_again(tmp_path: Path, size: int) -> None:
    path = tmp_path / "out"
    interrupted(path)
    (tmp_path / "out.partial").write_bytes(bytes(size))
    run(path, resume=True)
    assert path.read_bytes() == WHOLE


def test_a_missing_partial_file_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    (tmp_path / "out.partial").unlink()
    run(path, resume=True)
    assert path.read_bytes() == WHOLE


# the journal


@pytest.mark.parametrize(
    "torn", [b"", b'{"tensor":"c","crc":[1', b"\x00\xff", b"7\n", b'{"tensor":\n{"x":1}\n']
)
def test_torn_journal_lines(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "out"
    interrupted(path)
    with journal_path(path).open("ab") as file:
        file.write(torn)
    out = OutputSet(path, layout(), PRINT, resume=True)
    assert set(out.done) == {"a", "b"}
    write_tensor(out, "c")
    out.abort(keep=True)
    lines = [json.loads(line) for line in journal_path(path).read_bytes().splitlines()]
    assert [line.get("tensor") for line in lines] == [None, "a", "b", "c"]
    run(path, "", resume=True)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("cut", range(0, 90, 7))
def test_a_journal_cut_anywhere(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out"
    interrupted(path, "abc")
    text = journal_path(path).read_bytes()
    journal_path(path).write_bytes(text[: max(0, len(text) - cut)])
    run(path, resume=True)
    assert path.read_bytes() == WHOLE


def test_an_empty_journal_gives_no_right_to_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "config.json").write_bytes(b"old")
    journal_path(path).write_bytes(b"")
    for resume in (False, True):
        with pytest.raises(OutputError, match="exists already"):
            run(path, folder=True, resume=resume)
    assert (path / "config.json").read_bytes() == b"old"


def test_journal_lines_hold_checksums(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    lines = [json.loads(line) for line in journal_path(tmp_path / "out").read_text().splitlines()]
    assert lines[0]["fingerprint"] == PRINT
    assert lines[2]["crc"] == [zlib.crc32(b"bbbb"), zlib.crc32(b"bbbb")]


def test_tensors_that_are_not_planned_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "out"
    interrupted(path)
    with journal_path(path).open("ab") as file:
        file.write(b'{"tensor":"other","crc":[],"result":1}\n')
    out = run(path, resume=True)
    assert set(out.done) == set("abc")


def test_two_processes_do_not_write_the_same_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first = OutputSet(path, layout(), PRINT)
    write_tensor(first, "a")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputError, match="another process"):
            OutputSet(path, layout(), PRINT, **options)
    for name in "bc":
        write_tensor(first, name)
    first.commit()
    assert path.read_bytes() == WHOLE


def test_a_journal_that_went_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def end_of_the_other(*_: object) -> None:
        journal_path(tmp_path / "out").unlink()

    monkeypatch.setattr(fcntl, "flock", end_of_the_other)
    with pytest.raises(OutputError, match="another process"):
        Journal(tmp_path / "out", PRINT, [], overwrite=False, resume=False)


# the disk and the last steps


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, count: int, error: Exception) -> Callable[[], None]:
    """Let a function of `os`, or a method of Path, fail at its n-th call."""
    owner: Any = os if hasattr(os, name) and name != "replace" else Path
    real, calls = getattr(owner, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == count:
            raise error
        return real(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return lambda: monkeypatch.setattr(owner, name, real)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(module, "reserve", full)
    with pytest.raises(OutputError, match=r"18 bytes are needed"):
        OutputSet(tmp_path / "out", layout(), PRINT)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_disk_that_fills_up_keeps_for_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "out"
    mend = fail_at(monkeypatch, "pwrite", count, FULL)
    with pytest.raises(OutputError, match="No space left"):
        run(path, resume=True)
    mend()
    assert not path.exists()
    run(path, resume=True)
    assert path.read_bytes() == WHOLE
    assert names_in(tmp_path) == ["out"]


@pytest.mark.parametrize(("folder", "count"), [(False, 1), (True, 1), (True, 2), (True, 3)])
@pytest.mark.parametrize("resume", [False, True])
def test_a_crash_between_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, folder: bool, resume: bool
) -> None:
    """Everything is done; whatever has its name already is not made again."""
    path = tmp_path / "out"
    mend = fail_at(monkeypatch, "replace", count, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OutputError, match="Input/output"):
        run(path, folder=folder, resume=resume)
    mend()
    assert is_committing(path)
    with pytest.raises(OutputError, match=r"interrupted run|exists already"):
        run(path, folder=folder)
    out = run(path, "", folder=folder, resume=True)
    assert set(out.done) == set("abc")
    if folder:
        assert (path / "model-00002-of-00002.safetensors").read_bytes() == b"HEADbbbbbbbbcc"
        assert names_in(path) == ["config.json", *(f.name for f in layout(folder=True).files)]
    else:
        assert path.read_bytes() == WHOLE
    assert names_in(tmp_path) == ["out"]


def test_a_crash_before_the_journal_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    monkeypatch.setattr(Journal, "drop", lambda self: self.close())
    run(path)
    monkeypatch.undo()
    assert names_in(tmp_path) == ["out", "out.journal"]
    out = run(path, "", resume=True)
    assert set(out.done) == set("abc")
    assert names_in(tmp_path) == ["out"]
    assert path.read_bytes() == WHOLE


def test_a_named_file_of_another_size_is_not_written_into(tmp_path: Path) -> None:
    """Someone put another file in the place after the crash: it is replaced whole."""
    path = tmp_path / "out"
    out = OutputSet(path, layout(), PRINT)
    for name in "abc":
        write_tensor(out, name)
    out._journal.append({"committing": True})
    out.abort(keep=True)
    (tmp_path / "out.partial").unlink()
    path.write_bytes(b"x" * 50)
    run(path, resume=True)
    assert path.read_bytes() == WHOLE


def test_an_output_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    out = OutputSet(path, layout(), PRINT)
    for name in "abc":
        write_tensor(out, name)
    path.write_bytes(b"theirs")
    with pytest.raises(OutputError, match="exists already"):
        out.commit()
    assert path.read_bytes() == b"theirs"
    path.unlink()
    run(path, "", resume=True)
    assert path.read_bytes() == WHOLE

"""Writing GGUF files: the same bytes again, what the gguf package reads, refusals, atomic output."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blockscale.containers.gguf import GgufFile, GgufWriter, gguf_value, plan_layout
from blockscale.errors import ContainerError, InputError, OutputError
from gguf_files import GOLDEN, blob, info, small_file, write


def rewrite(source: Path, target: Path, step: int = 1 << 30) -> None:
    """Copy a file through reader and writer, in pieces, the last tensor first."""
    with GgufFile(source) as file:
        specs = [(e.name, e.type, e.shape) for e in file.entries.values()]
        with GgufWriter(target, file.metadata, specs, version=file.version, pad_end=file.pads_end) as out:
            assert out.entries == file.entries
            for name in reversed(list(out.entries)):
                for begin in range(0, out.entries[name].nbytes, step):
                    end = min(begin + step, out.entries[name].nbytes)
                    out.write(name, begin, file.read_bytes(name, begin, end))
            assert out.size == source.stat().st_size


@pytest.mark.parametrize("step", [7, 1 << 30])
def test_rewriting_gives_the_same_bytes(tmp_path: Path, step: int) -> None:
    rewrite(GOLDEN / "golden.gguf", tmp_path / "o", step)
    assert (tmp_path / "o").read_bytes() == (GOLDEN / "golden.gguf").read_bytes()


def test_rewriting_without_padding_at_the_end(tmp_path: Path) -> None:
    content = small_file()[:-15]
    rewrite(write(tmp_path, content), tmp_path / "o")
    assert (tmp_path / "o").read_bytes() == content


def test_layout_is_byte_for_byte_the_format() -> None:
    layout = plan_layout([("x", "F32", (2, 3)), ("q", "q4_0", (2, 32))], {"k": gguf_value(7)})
    head = (
        "47475546 03000000 0200000000000000 0100000000000000"
        "0100000000000000 6b 04000000 07000000"
        "0100000000000000 78 02000000 0300000000000000 0200000000000000 00000000 0000000000000000"
        "0100000000000000 71 02000000 2000000000000000 0200000000000000 02000000 2000000000000000"
    )
    raw = bytes.fromhex(head)
    assert layout.prefix == raw.ljust(128, b"\0")
    assert layout.entries["x"].offset == 128
    assert layout.entries["q"].offset == 160
    assert layout.size == 224
    assert layout.prefix == blob([raw[24:41]], [info("x", (3, 2)), info("q", (32, 2), 2, 32)])


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    arrays: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        "c": np.arange(4, dtype=np.float16),
        "d": np.array(3.5, np.float64),
    }
    metadata = {"general.architecture": "test", "n": 3, "f": 0.5, "list": [1, 2], "words": ["x", "yz"]}
    specs = [
        (name, {"a": "F32", "b": "I16", "c": "F16", "d": "F64"}[name], x.shape) for name, x in arrays.items()
    ]
    bf16 = np.arange(3).astype(ml_dtypes.bfloat16)
    specs.append(("e", "BF16", (3,)))
    with GgufWriter(tmp_path / "t.gguf", metadata, specs) as out:
        for name, x in arrays.items():
            out.write(name, 0, x)
        out.write("e", 0, bf16)
    reader = gguf.GGUFReader(tmp_path / "t.gguf")
    for tensor in reader.tensors[:4]:
        np.testing.assert_array_equal(tensor.data, arrays[tensor.name])
    assert reader.tensors[4].data.tobytes() == bf16.tobytes()
    assert {key: reader.get_field(key).contents() for key in metadata} == metadata


def test_the_gguf_package_reads_the_golden_file_again(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    rewrite(GOLDEN / "golden.gguf", tmp_path / "o.gguf")
    with GgufFile(GOLDEN / "golden.gguf") as file:
        reader = gguf.GGUFReader(tmp_path / "o.gguf")
        assert [t.name for t in reader.tensors] == list(file.entries)
        for tensor in reader.tensors:
            assert tensor.data.tobytes() == file.raw(tensor.name).tobytes()
            assert tuple(reversed(tensor.shape.tolist())) == file.entries[tensor.name].shape
        assert [k for k in reader.fields if not k.startswith("GGUF.")] == list(file.metadata)


def test_writing_from_threads(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    cuts = sorted({0, x.size, *np.random.default_rng(2).integers(0, x.size, 50).tolist()})
    with GgufWriter(tmp_path / "t", None, [("x", "I8", (x.size,))]) as out, ThreadPoolExecutor(4) as pool:
        pieces = list(itertools.pairwise(cuts))
        list(pool.map(lambda piece: out.write("x", piece[0], x[piece[0] : piece[1]]), pieces))
    with GgufFile(tmp_path / "t") as file:
        assert file.raw("x").tobytes() == x.tobytes()


REFUSED: list[tuple[str, Any, Any, str]] = [
    ("name twice", [("x", "F32", (1,)), ("x", "F32", (1,))], None, "occurs twice"),
    ("no name", [("", "F32", (1,))], None, "takes 0 bytes"),
    ("long name", [("x" * 64, "F32", (1,))], None, "takes 64 bytes"),
    ("name of wide letters", [("\u00e9" * 32, "F32", (1,))], None, "takes 64 bytes"),
    ("surrogate", [("\ud800", "F32", (1,))], None, "not Unicode"),
    ("unknown type", [("x", "F8", (1,))], None, "unknown GGUF type"),
    ("zero size", [("x", "F32", (2, 0))], None, "(2, 0) cannot be stored"),
    ("negative size", [("x", "F32", (-1,))], None, "cannot be stored"),
    ("five dimensions", [("x", "F32", (1,) * 5)], None, "cannot be stored"),
    ("too large", [("x", "F32", (2**40, 2**40))], None, "cannot be stored"),
    ("partial block", [("x", "Q8_0", (2, 48))], None, "dimension 1 is 48 = 1 * 32 + 16"),
    ("empty key", [], {"": 1}, "no metadata key"),
    ("key not text", [], {3: 1}, "no metadata key"),
    ("long key", [], {"k" * 65536: 1}, "no metadata key"),
    ("value", [], {"k": None}, "no type of GGUF metadata"),
]


@pytest.mark.parametrize(
    ("specs", "metadata", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_layouts_that_are_refused(tmp_path: Path, specs: Any, metadata: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        GgufWriter(tmp_path / "t.gguf", metadata, specs)
    assert words in caught.value.message
    assert caught.value.file == str(tmp_path / "t.gguf")
    assert list(tmp_path.iterdir()) == []


def test_bad_versions_and_alignments() -> None:
    with pytest.raises(InputError, match="version 1 is not written"):
        plan_layout([], version=1)
    for value in (gguf_value(0), gguf_value(48), gguf_value(32, "uint64")):
        with pytest.raises(ContainerError, match="the value is"):
            plan_layout([], {"general.alignment": value})


@pytest.mark.parametrize(
    ("name", "offset", "data", "words"),
    [
        ("y", 0, b"", "no such tensor"),
        ("x", 0, bytes(17), "outside"),
        ("x", 16, b"a", "outside"),
        ("x", -1, b"a", "outside"),
        ("x", 17, b"", "outside"),
        ("x", 0, np.zeros((4, 4), np.uint8)[:, ::2], "C-contiguous"),
        ("x", 0, "text", "C-contiguous"),
    ],
)
def test_writes_that_are_refused(tmp_path: Path, name: str, offset: int, data: Any, words: str) -> None:
    out = GgufWriter(tmp_path / "t", None, [("x", "F32", (4,))])
    with pytest.raises(InputError, match=words):
        out.write(name, offset, data)
    out.abort()
    assert list(tmp_path.iterdir()) == []


def interrupted(path: Path) -> None:
    with GgufWriter(path, None, [("x", "F32", (4,))]) as out:
        out.write("x", 0, bytes(16))
        raise KeyboardInterrupt


def unfinished(path: Path) -> None:
    with GgufWriter(path, None, [("x", "F32", (4,))]) as out:
        out.write("x", 0, bytes(4))
        out.write("x", 8, bytes(8))


def test_what_is_not_whole_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "t")
    with pytest.raises(InputError, match=r"bytes from 4 of 16 on were never written") as caught:
        unfinished(tmp_path / "t")
    assert caught.value.tensor == "x"
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_kept_unless_asked(tmp_path: Path) -> None:
    path = write(tmp_path, b"mine")
    with pytest.raises(OutputError, match="exists already"):
        GgufWriter(path, None, [])
    out = GgufWriter(path, None, [], True)
    assert path.read_bytes() == b"mine"
    out.commit()
    assert path.read_bytes()[:4] == b"GGUF"
    GgufWriter(path, None, [], True).abort()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]

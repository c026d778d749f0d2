"""The writer: any order and any thread give the same file; misuse and failure give none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from blockscale.containers.safetensors import (
    SafetensorsFile,
    SafetensorsWriter,
    plan_layout,
    stored_name,
    write_safetensors,
)
from blockscale.errors import InputError, OutputError, UnsupportedError
from safetensors_files import names_in, python_output, random_array


def test_layout_is_known_before_data() -> None:
    layout = plan_layout([("a", "F4", (3, 4)), ("b", "F64", ()), ("c", "U8", (0, 2**40))])
    assert list(layout.entries) == ["b", "c", "a"]
    assert [entry.nbytes for entry in layout.entries.values()] == [8, 0, 6]
    assert layout.size == len(layout.prefix) + 14
    assert layout.entries["b"].offset == len(layout.prefix)
    assert len(layout.prefix) % 8 == 0


def test_pieces_in_any_order_give_the_same_file(tmp_path: Path) -> None:
    arrays = {"f4": random_array("F4", (6, 4)), "bf16": random_array("BF16", (5, 3))}
    arrays["scalar"] = random_array("F32", ())
    write_safetensors(tmp_path / "whole", arrays)
    specs = [(name, stored_name(a.dtype), a.shape) for name, a in arrays.items()]
    with SafetensorsWriter(tmp_path / "pieces", specs) as out:
        assert out.size == (tmp_path / "whole").stat().st_size
        out.write_rows("f4", 3, arrays["f4"][3:])
        out.write_rows("bf16", 4, arrays["bf16"][4:])
        out.write_rows("scalar", 0, arrays["scalar"])
        packed = arrays["f4"][:3].view(np.uint8)
        out.write_bytes("f4", 0, (packed[:, 0::2] | packed[:, 1::2] << 4).tobytes())
        out.write_rows("bf16", 0, arrays["bf16"][:4])
        out.write_rows("bf16", 2, arrays["bf16"][2:2])
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_threads_give_the_same_file(tmp_path: Path) -> None:
    array = random_array("F16", (64, 100))
    write_safetensors(tmp_path / "whole", {"x": array})
    with SafetensorsWriter(tmp_path / "threads", [("x", "F16", array.shape)]) as out:
        threads = [
            threading.Thread(target=out.write_rows, args=("x", i, array[i : i + 8])) for i in range(0, 64, 8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (tmp_path / "threads").read_bytes() == (tmp_path / "whole").read_bytes()


def test_any_memory_order_is_written_in_c_order(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    arrays: dict[str, NDArray[Any]] = {
        "t": array.T,
        "s": array[:, ::2, ::-1],
        "n": array.astype(">i2"),
    }
    write_safetensors(tmp_path / "t", arrays)
    with SafetensorsFile(tmp_path / "t") as file:
        for name, wanted in arrays.items():
            assert np.array_equal(file.array(name), wanted)


def test_order_can_be_kept(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {"z": np.zeros(3, np.uint8), "a": np.zeros(2)}
    write_safetensors(tmp_path / "t", arrays, keep_order=True)
    with SafetensorsFile(tmp_path / "t") as file:
        assert list(file.entries) == ["z", "a"]


def test_existing_output_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"old")
    with pytest.raises(OutputError, match="exists already"):
        write_safetensors(path, {"x": np.zeros(1)})
    assert path.read_bytes() == b"old"
    write_safetensors(path, {"x": np.ones(1)}, overwrite=True)
    with SafetensorsFile(path) as file:
        kept = file.array("x")
        write_safetensors(path, {"x": file.array("x") * 2}, overwrite=True)  # while it is mapped
    assert kept.tolist() == [1.0]
    with SafetensorsFile(path) as file:
        assert file.array("x").tolist() == [2.0]
    assert names_in(tmp_path) == ["t"]


def interrupt(out: SafetensorsWriter) -> None:
    out.write_rows("x", 0, np.zeros(4, np.uint8))
    raise KeyboardInterrupt


def test_exception_leaves_no_file(tmp_path: Path) -> None:
    specs = [("x", "U8", (4,))]
    with pytest.raises(KeyboardInterrupt), SafetensorsWriter(tmp_path / "t", specs) as out:
        interrupt(out)
    assert names_in(tmp_path) == []


def test_unwritten_bytes_are_an_error(tmp_path: Path) -> None:
    out = SafetensorsWriter(tmp_path / "t", [("x", "U8", (9,)), ("y", "U8", (0,))])
    for start, stop in [(0, 4), (2, 5), (6, 9)]:
        out.write_rows("x", start, np.zeros(stop - start, np.uint8))
    with pytest.raises(InputError) as caught:
        out.commit()
    assert (caught.value.tensor, caught.value.found) == ("x", 5)
    assert names_in(tmp_path) == []


def test_commit_and_abort_by_hand(tmp_path: Path) -> None:
    out = SafetensorsWriter(tmp_path / "t", [("x", "U8", (2,))])
    out.write_bytes("x", 0, b"ab")
    out.commit()
    with SafetensorsFile(tmp_path / "t") as file:
        assert file.array("x").tolist() == [97, 98]
    SafetensorsWriter(tmp_path / "u", [("x", "U8", (2,))]).abort()
    assert names_in(tmp_path) == ["t"]


U8 = np.uint8
MISUSE: list[tuple[str, Callable[[SafetensorsWriter], None], str]] = [
    ("unknown tensor", lambda out: out.write_rows("y", 0, np.zeros(4, U8)), "no such tensor"),
    ("dtype", lambda out: out.write_rows("x", 0, np.zeros((1, 3), np.int8)), "does not go into U8"),
    ("width", lambda out: out.write_rows("x", 0, np.zeros((1, 4), U8)), "do not fit"),
    ("rank", lambda out: out.write_rows("x", 0, np.zeros(3, U8)), "do not fit"),
    ("rows", lambda out: out.write_rows("x", 3, np.zeros((2, 3), U8)), "rows 3:5 are outside"),
    ("before", lambda out: out.write_rows("x", -1, np.zeros((1, 3), U8)), "rows -1:0"),
    ("bytes", lambda out: out.write_bytes("x", 10, b"abc"), "bytes 10 to 13 are outside"),
    ("negative", lambda out: out.write_bytes("x", -1, b"a"), "bytes -1 to 0 are outside"),
    ("buffer", lambda out: out.write_bytes("x", 0, [1, 2]), "C-contiguous buffer"),
    ("strided", lambda out: out.write_bytes("x", 0, np.zeros(4, U8)[::2]), "C-contiguous buffer"),
    ("uint8 as F4", lambda out: out.write_rows("f4", 0, np.zeros((2, 3), U8)), "into F4"),
    ("half", lambda out: out.write_rows("f4", 1, random_array("F4", (1, 3))), "inside a byte"),
    ("half at the end", lambda out: out.write_rows("f4", 0, random_array("F4", (1, 3))), "inside a byte"),
]  # fmt: skip


@pytest.mark.parametrize(("misuse", "text"), [row[1:] for row in MISUSE], ids=[r[0] for r in MISUSE])
def test_writes_are_checked(tmp_path: Path, misuse: Callable[[SafetensorsWriter], None], text: str) -> None:
    specs = [("x", "U8", (4, 3)), ("f4", "F4", (2, 3))]
    with pytest.raises(InputError) as caught, SafetensorsWriter(tmp_path / "t", specs) as out:
        misuse(out)
    assert text in str(caught.value)
    assert caught.value.file == str(tmp_path / "t")
    assert caught.value.tensor is not None
    assert names_in(tmp_path) == []


SPECS: list[tuple[str, Any, Any, str]] = [
    ("twice", [("x", "U8", (1,)), ("x", "F32", (1,))], None, "occurs twice"),
    ("reserved", [("__metadata__", "U8", (1,))], None, "cannot name a tensor"),
    ("surrogate", [("\ud800", "U8", (1,))], None, "cannot name a tensor"),
    ("not a string", [(3, "U8", (1,))], None, "cannot name a tensor"),
    ("dtype", [("x", "float32", (1,))], None, "no dtype 'float32'"),
    ("negative", [("x", "U8", (-1, -2))], None, "negative"),
    ("odd F4", [("x", "F4", (3, 3))], None, "36 bits, not whole bytes"),
    ("metadata number", [], {"a": 1}, "not a pair of strings"),
    ("metadata key", [], {1: "a"}, "not a pair of strings"),
]


@pytest.mark.parametrize(("specs", "metadata", "text"), [r[1:] for r in SPECS], ids=[r[0] for r in SPECS])
def test_specs_are_checked_before_the_file(tmp_path: Path, specs: Any, metadata: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        SafetensorsWriter(tmp_path / "t", specs, metadata)
    assert text in str(caught.value)
    assert caught.value.file == str(tmp_path / "t")
    assert names_in(tmp_path) == []


def test_header_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockscale.containers.safetensors_layout.MAX_HEADER", 100)
    plan_layout([("x" * 40, "U8", (1,))])
    with pytest.raises(InputError, match="spread the tensors"):
        plan_layout([("x" * 60, "U8", (1,))])


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, np.complex128, object, "S3", "datetime64[s]"])
def test_dtypes_that_the_format_lacks(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        write_safetensors(tmp_path / "t", {"x": np.zeros(2, dtype)})
    assert (caught.value.tensor, caught.value.file) == ("x", str(tmp_path / "t"))
    assert names_in(tmp_path) == []


def test_full_disk_names_the_bytes_needed(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        import numpy as np
        from blockscale.containers.safetensors import write_safetensors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_safetensors(sys.argv[1], {"x": np.zeros(1_000_000, np.uint8)})
        except OSError as error:
            print(error)
    """
    assert "(1,000,080 bytes are needed)" in python_output(code, tmp_path / "t")
    assert names_in(tmp_path) == []

"""Writing `.hrry` files: laid out before the data, filled in any order, there only when whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import blockscale as bs
from blockscale.containers.hrry import HrryFile, HrryWriter, find_problems, write_hrry
from blockscale.containers.hrry_writer import plan_hrry
from blockscale.errors import BlockscaleError, DescriptorError, InputError, OutputError
from blockscale.hurray import (
    BufferHandle,
    HurrayTensor,
    Layout,
    TensorDescriptor,
    decode_tensor,
    encode_tensor,
    plan_array,
    plan_tensor,
    rule_id,
)


def tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "mx": bs.quantize(rng.standard_normal((8, 64)).astype(np.float32), "mxfp4"),
        "blocks": bs.quantize(rng.standard_normal((40, 6)), bs.scheme("uint4"), axis=0),
        "plain": rng.standard_normal((3, 4)).astype(ml_dtypes.bfloat16),
        "empty": np.zeros((0, 3), np.int32),
        "scalar": np.array(1.5),
    }


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    write_hrry(tmp_path / "a.hrry", tensors(), {"a": 1})
    assert left_in(tmp_path) == ["a.hrry"]
    assert find_problems(tmp_path / "a.hrry") == []
    with HrryFile(tmp_path / "a.hrry") as f:
        assert f.metadata == {"a": 1}
        for name, value in tensors().items():
            back = f.tensor(name)
            if isinstance(value, bs.BlockTensor):
                assert isinstance(back, bs.BlockTensor)
                assert back.same_bits(value)
            else:
                assert isinstance(back, np.ndarray)
                assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())


def test_any_order_any_pieces_any_thread(tmp_path: Path) -> None:
    write_hrry(tmp_path / "whole.hrry", tensors())
    specs = [(name, encode_tensor(value)[0]) for name, value in tensors().items()]
    pieces = [
        (name, i, at, buffer[at : at + 5])
        for name, value in tensors().items()
        for i, buffer in enumerate(encode_tensor(value)[1])
        for at in range(0, buffer.size, 5)
    ]
    random.Random(1).shuffle(pieces)

    def write_all(part: list[tuple[str, int, int, NDArray[np.uint8]]]) -> None:
        for piece in part:
            writer.write(*piece)

    with HrryWriter(tmp_path / "pieces.hrry", specs) as writer:
        assert writer.size == (tmp_path / "whole.hrry").stat().st_size
        threads = [threading.Thread(target=write_all, args=(pieces[i::2],)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not (tmp_path / "pieces.hrry").exists()
    assert (tmp_path / "pieces.hrry").read_bytes() == (tmp_path / "whole.hrry").read_bytes()


def test_sizes_are_known_before_the_data() -> None:
    specs = [
        ("w", plan_tensor((4096, 14336), -1, bs.scheme("mxfp4"))),
        ("b", plan_array((4096,), np.float32)),
    ]
    layout = plan_hrry(specs, {"k": "v"})
    assert layout.buffers["w"][0] == (4096, 4096 * 14336 // 2)
    assert layout.buffers["w"][1][1] == 4096 * 14336 // 32
    assert layout.size > 4096 * 14336 * 17 // 32
    assert plan_hrry(specs).size < layout.size


def write_pieces(path: Path, pieces: list[tuple[int, int]]) -> None:
    with HrryWriter(
        path, [("a", plan_array((4,), np.float32)), ("e", plan_array((0,), np.float32))]
    ) as writer:
        for start, end in pieces:
            writer.write("a", 0, start, bytes(end - start))


@pytest.mark.parametrize("pieces", [[], [(0, 8)], [(8, 16)], [(0, 4), (8, 16)], [(4, 16), (0, 3)]])
def test_missing_bytes_are_refused(pieces: list[tuple[int, int]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was not written") as caught:
        write_pieces(tmp_path / "a.hrry", pieces)
    assert caught.value.tensor == "a"
    assert left_in(tmp_path) == []


def test_pieces_may_overlap(tmp_path: Path) -> None:
    write_pieces(tmp_path / "a.hrry", [(12, 16), (0, 4), (2, 14)])
    assert left_in(tmp_path) == ["a.hrry"]


def test_writing_outside_a_buffer_is_refused(tmp_path: Path) -> None:
    with HrryWriter(tmp_path / "a.hrry", [("a", plan_array((4,), np.int8))]) as writer:
        for name, i, offset, data in (
            *(("a", 0, 1, bytes(4)), ("a", 0, -1, bytes(2)), ("a", 0, 5, b"")),
            *(("a", 1, 0, b"x"), ("a", -1, 0, b"x"), ("b", 0, 0, b"x")),
        ):
            with pytest.raises(InputError) as caught:
                writer.write(name, i, offset, data)
            assert caught.value.tensor == name
        with pytest.raises(InputError, match="buffer of bytes"):
            writer.write("a", 0, 0, 4)
        writer.write("a", 0, 4, b"")
        writer.write("a", 0, 0, np.arange(4, dtype=np.int8))
    with HrryFile(tmp_path / "a.hrry") as f:
        assert np.asarray(f.tensor("a")).tolist() == [0, 1, 2, 3]


def write_then_raise(path: Path, error: type[BaseException]) -> None:
    with HrryWriter(path, [("a", plan_array((4,), np.int8))]) as writer:
        writer.write("a", 0, 0, bytes(4))
        raise error


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            write_then_raise(tmp_path / "a.hrry", error)
        assert left_in(tmp_path) == []
    nan = bs.quantize(np.full((1, 32), np.inf, np.float32), "mxfp4", nonfinite="nan-block")
    with pytest.raises(InputError) as caught:  # found when its data are written, after the first tensor
        write_hrry(tmp_path / "a.hrry", {"good": np.zeros(3), "bad": nan})
    assert (caught.value.tensor, caught.value.file) == ("bad", str(tmp_path / "a.hrry"))
    assert left_in(tmp_path) == []


def test_an_existing_file_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.hrry"
    write_hrry(path, {"a": np.zeros(3)})
    before = path.read_bytes()
    with pytest.raises(OutputError, match="exists"):
        write_hrry(path, {"a": np.ones(3)})
    assert path.read_bytes() == before
    write_hrry(path, {"a": np.ones(3)}, overwrite=True)
    assert path.read_bytes() != before
    assert left_in(tmp_path) == ["a.hrry"]
    with pytest.raises(OutputError):
        write_hrry(tmp_path / "no folder" / "a.hrry", {})


@pytest.mark.parametrize("name", ["", "x" * 65536, "é" * 32768, "\ud800"])
def test_names_that_cannot_be_stored(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_hrry(tmp_path / "a.hrry", {name: np.zeros(3)})
    assert str(caught.value.rule).startswith("F10")
    assert left_in(tmp_path) == []


def test_longest_names_can_be_stored(tmp_path: Path) -> None:
    write_hrry(tmp_path / "a.hrry", {"x" * 65535: np.zeros(3), "\0": np.ones(2), "é/ü": np.ones(2)})
    with HrryFile(tmp_path / "a.hrry") as f:
        assert [len(name) for name in f] == [65535, 1, 3]


def test_descriptors_that_break_a_rule_are_not_written(tmp_path: Path) -> None:
    spec = TensorDescriptor(0x03, (3,), (BufferHandle(12, 3),))
    with pytest.raises(DescriptorError) as caught:
        HrryWriter(tmp_path / "a.hrry", [("a", spec)])
    assert (rule_id(caught.value), caught.value.tensor) == ("H19", "a")
    good = plan_array((3,), np.int8)
    with pytest.raises(InputError, match="twice"):
        HrryWriter(tmp_path / "a.hrry", [("a", good), ("a", good)])
    assert left_in(tmp_path) == []


def test_what_permissive_reading_let_pass_is_not_written_again(tmp_path: Path) -> None:
    unknown = TensorDescriptor(0x60, (4,), (BufferHandle(4),))
    with pytest.raises(DescriptorError):
        write_hrry(tmp_path / "a.hrry", {"a": HurrayTensor(unknown, (np.zeros(4, np.uint8),))})
    assert left_in(tmp_path) == []


def test_a_composite_head_has_no_data(tmp_path: Path) -> None:
    head = TensorDescriptor(0x03, (2, 2), (), Layout(0x0B, b"\3\0\0\0\1\0\0\0")).check()
    member = plan_array((2, 2), np.float32)
    with HrryWriter(tmp_path / "a.hrry", [("head", head), ("member", member)]) as writer:
        writer.write("member", 0, 0, np.ones((2, 2), np.float32))
    with HrryFile(tmp_path / "a.hrry") as f:
        first, second = f.entries["head"], f.entries["member"]
        assert first.data_length == 0
        assert second.descriptor_offset == -(-(64 + len(head.encode())) // 8) * 8
        assert np.asarray(f.tensor("member")).tolist() == [[1, 1], [1, 1]]


class Lazy(Mapping[str, Any]):
    """A mapping that makes its values when asked, and counts how many are alive at once."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.made.append(name)
        return np.full((2, 2), int(name))

    def __iter__(self) -> Iterator[str]:
        return iter(["1", "2", "3"])

    def __len__(self) -> int:
        return 3


def test_tensors_are_made_one_at_a_time(tmp_path: Path) -> None:
    lazy = Lazy()
    write_hrry(tmp_path / "a.hrry", lazy)
    assert lazy.made == ["1", "2", "3", "1", "2", "3"]
    with HrryFile(tmp_path / "a.hrry") as f:
        assert np.asarray(f.tensor("3")).tolist() == [[3, 3], [3, 3]]


def test_copying_a_file_through_its_own_tensors(tmp_path: Path) -> None:
    write_hrry(tmp_path / "a.hrry", tensors(), {"n": 2**64 - 1})
    with HrryFile(tmp_path / "a.hrry") as f:
        write_hrry(tmp_path / "b.hrry", {name: f.tensor(name) for name in f}, f.metadata)
    assert (tmp_path / "a.hrry").read_bytes() == (tmp_path / "b.hrry").read_bytes()


def test_streaming_by_the_plan(tmp_path: Path) -> None:
    """A writer that knows shapes only, and fills in slabs of rows as they are made."""
    values = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    scheme = bs.scheme("int4", block_size=32, symmetric=False)
    spec = plan_tensor(values.shape, 1, scheme)
    with HrryWriter(tmp_path / "a.hrry", [("w", spec)]) as writer:
        for start in (32, 0):
            part = bs.quantize(values[start : start + 32], scheme)
            for i, buffer in enumerate(encode_tensor(part)[1]):
                writer.write("w", i, start // 32 * buffer.size, buffer)
    with HrryFile(tmp_path / "a.hrry") as f:
        back = f.tensor("w")
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(bs.quantize(values, scheme))
    descriptor, buffers = encode_tensor(back)
    assert isinstance(decode_tensor(descriptor, buffers), bs.BlockTensor)


def test_unknown_values_are_named(tmp_path: Path) -> None:
    with pytest.raises(BlockscaleError) as caught:
        write_hrry(tmp_path / "a.hrry", {"x": "text"})  # type: ignore[dict-item]
    assert caught.value.tensor == "x"
    assert left_in(tmp_path) == []

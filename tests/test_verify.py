"""Verifying files, and looking at stored numbers: every violation found, odd values named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
import convert_files as toys
import gguf_files
from blockscale.checkpoint import open_checkpoint, save_checkpoint
from blockscale.containers.hrry import HrryFile
from blockscale.elements import ELEMENTS
from blockscale.errors import InputError, UnsupportedError
from blockscale.packing import pack_codes
from blockscale.summary import TensorSummary, summarize
from blockscale.values import (
    code_statistics,
    count_codes,
    find_nonfinite,
    has_nonfinite_codes,
    scale_statistics,
)
from blockscale.verify import Verification, verify_file

RNG = np.random.default_rng(6)


def hrry(path: Path, **tensors: Any) -> Path:
    save_checkpoint(path, tensors, overwrite=True)
    return path


def patch(path: Path, tensor: str, buffer: int, at: int, data: bytes) -> None:
    """Overwrite bytes of a buffer."""
    with HrryFile(path) as file:
        offset = file.entries[tensor].buffer_offsets[buffer] + at
    with path.open("r+b") as out:
        out.seek(offset)
        out.write(data)


def rules(found: Verification) -> list[tuple[str, str | None]]:
    return [(f.rule, f.tensor) for f in found.violations]


def mx(shape: tuple[int, int] = (4, 64)) -> bs.BlockTensor:
    return bs.quantize(RNG.standard_normal(shape).astype(np.float32), "mxfp4", min_scale_byte=1)


def safetensors(path: Path, header: Any, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# violations


def test_a_sound_file_has_no_findings(tmp_path: Path) -> None:
    found = verify_file(hrry(tmp_path / "a.hrry", w=mx(), b=np.ones(3, np.float32)))
    assert (found.findings, found.tensors, found.kind) == ((), 2, "hrry")


def test_every_tensor_with_bad_scales_is_named(tmp_path: Path) -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    path = hrry(tmp_path / "a.hrry", a=mx(), b=bs.quantize(x, "int4"), c=bs.quantize(x, "int4"), d=mx())
    patch(path, "a", 1, 3, b"\xff\x00")
    patch(path, "b", 1, 2, struct.pack("<e", np.nan))
    patch(path, "c", 1, 0, struct.pack("<e", 0.0))
    found = verify_file(path)
    assert rules(found) == [("R23", "a"), ("R20", "b"), ("R20", "c")]
    first = found.violations[0]
    assert "2 of 8" in first.message
    assert first.field == "scales[3]"
    assert first.rule_text.startswith("an MXFP scale byte is 1 to 254")


def test_broken_descriptors_do_not_hide_other_tensors(tmp_path: Path) -> None:
    path = hrry(tmp_path / "a.hrry", a=mx(), b=mx(), c=mx())
    with HrryFile(path) as file:
        at = {name: e.descriptor_offset for name, e in file.entries.items()}
        axis = file.entries["a"].descriptor.offset_of("quantization") + 4
        handle = file.entries["a"].descriptor.offset_of("buffers")
    with path.open("r+b") as out:
        out.seek(at["a"] + axis)
        out.write(struct.pack("<I", 7))
        out.seek(at["a"] + handle + 15)
        out.write(b"\x01")  # a reserved byte
        out.seek(at["b"] + 14)
        out.write(b"\x03")  # float32 storage
    patched = verify_file(path)
    assert {name for _, name in rules(patched)} == {"a", "b"}
    assert {"R8", "H23"} <= {rule for rule, name in rules(patched) if name == "a"}
    assert ("R7", "b") in rules(patched)
    axis_fault = next(f for f in patched.violations if f.rule == "R8")
    assert (axis_fault.field, axis_fault.offset, axis_fault.found) == ("quantization.axis", axis, "7")


def test_a_broken_frame_is_one_violation(tmp_path: Path) -> None:
    path = hrry(tmp_path / "a.hrry", a=mx())
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    assert rules(verify_file(path)) == [("F3", None)]
    path.write_bytes(b"")
    assert len(verify_file(path).violations) == 1


def test_every_fault_of_a_safetensors_header_is_found(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"n": 3},
        "size": entry("F32", [4], 0, 15),
        "offsets": entry("F32", [1], 4, 0),
        "good": entry("F32", [1], 0, 4),
        "field": {"dtype": "F32", "shape": [1]},
    }
    found = verify_file(safetensors(tmp_path / "a.safetensors", header))
    assert [f.tensor for f in found.violations] == [None, "size", "offsets", "field"]
    assert all(f.rule == "safetensors" for f in found.violations)


def test_every_hole_and_overlap_is_found(tmp_path: Path) -> None:
    header = {
        "a": entry("U8", [4], 0, 4),
        "hole": entry("U8", [4], 6, 10),
        "overlap": entry("U8", [4], 8, 12),
        "inside": entry("U8", [1], 9, 10),
    }
    found = verify_file(safetensors(tmp_path / "a.safetensors", header, bytes(15)))
    assert [f.tensor for f in found.violations] == ["hole", "overlap", "inside", None]
    assert "3 bytes follow tensor 'overlap'" in found.violations[-1].message


@pytest.mark.parametrize("text", [b"<!DOCTYPE html><html>", b"PK\x03\x04zip", b"just text"])
def test_other_kinds_are_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(text)
    with pytest.raises(UnsupportedError):
        verify_file(path)
    with pytest.raises(InputError):
        verify_file(tmp_path / "none.hrry")


def test_a_wrong_file_under_a_right_name_is_a_violation(tmp_path: Path) -> None:
    for suffix in ("hrry", "safetensors"):
        path = tmp_path / f"model.{suffix}"
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        (found,) = verify_file(path).violations
        assert "Git LFS pointer" in found.message


# suspicious values


def test_nonfinite_weights_are_suspicious(tmp_path: Path) -> None:
    x = np.ones((3, 5), np.float32)
    x[1, 2], x[2, 0] = np.nan, -np.inf
    tensors = {"w": x, "h": x.astype(ml_dtypes.bfloat16), "ok": np.ones(4), "n": np.arange(3)}
    for name in ("a.hrry", "a.safetensors"):
        found = verify_file(hrry(tmp_path / name, **tensors))
        assert not found.violations
        assert {f.tensor for f in found.suspicious} == {"w", "h"}
        assert "1 NaN and 1 infinite values; the first is element 7" in found.suspicious[0].message


def test_constant_codes_are_suspicious(tmp_path: Path) -> None:
    w = bs.BlockTensor.from_parts(
        bs.scheme("uint4"),
        np.full((4, 64), 8),
        np.ones((4, 2), np.float16),
        zero_points=np.zeros((4, 2), np.int32),
    )
    (found,) = verify_file(hrry(tmp_path / "a.hrry", w=w, good=mx())).suspicious
    assert found.tensor == "w"
    assert "0x88888888" in found.message
    packed = {"l.qweight": np.full(64, 0x77777777, np.int32), "mask": np.full(64, 0x77777777, np.int32)}
    (found,) = verify_file(hrry(tmp_path / "a.safetensors", **packed)).suspicious
    assert (found.tensor, found.found) == ("l.qweight", "0x77")


def test_odd_headers_are_suspicious(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a.safetensors", {"x": entry("F2", [4], 0, 1)}, b"\0")
    (found,) = verify_file(path).suspicious
    assert "'F2'" in found.message


@pytest.mark.parametrize(
    "dtype",
    [
        np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz,
    ],
)  # fmt: skip
def test_nonfinite_codes_of_every_type(dtype: Any) -> None:
    kind = np.dtype(dtype)
    raw = RNG.integers(0, 256, 48 * 1000).astype(np.uint8)
    with np.errstate(invalid="ignore"):
        wide = raw.view(kind).astype(np.float64)
        bad = ~np.isfinite(wide)
    found = find_nonfinite([raw[:9600], raw[9600:]], kind)
    assert has_nonfinite_codes(kind)
    assert (found.nan, found.infinite) == (int(np.isnan(wide).sum()), int(np.isinf(wide).sum()))
    assert found.first == (int(np.flatnonzero(bad)[0]) if bad.any() else -1)


def test_types_without_nonfinite_codes() -> None:
    for dtype in (np.int32, np.bool_, ml_dtypes.float4_e2m1fn, ml_dtypes.int4):
        assert not has_nonfinite_codes(np.dtype(dtype))


# statistics


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_codes_are_counted(bits: int) -> None:
    codes = RNG.integers(0, 1 << bits, 12 * 50).astype(np.uint8)
    packed = pack_codes(codes, bits)
    found = count_codes([packed[:90], packed[90:]], bits)
    assert found.codes.tolist() == np.bincount(codes, minlength=1 << bits).tolist()
    assert found.constant_byte is None


def test_code_statistics_leave_padding_out() -> None:
    codes = np.array([7, 7, 0xF, 0x9, 1, 0, 0, 0], np.uint8)  # int4 7, 7, -1, -7, 1 and three of padding
    found = code_statistics(count_codes([pack_codes(codes, 4)], 4), ELEMENTS["int4"], 5)
    assert (found.lowest, found.highest, found.used) == (-7, 7, 4)
    assert (found.at_low, found.at_high, found.zero) == (0, 0.4, 0)


def test_scale_statistics() -> None:
    found = scale_statistics(np.array([-2, 0, 1, 5, np.nan], np.float16))
    assert (found.minimum, found.median, found.maximum) == (-2, 0.5, 5)
    assert (found.negative, found.zero, found.nonfinite, found.bytes) == (1, 1, 1, None)
    e8m0 = scale_statistics(np.array([120, 127, 130], np.uint8).view(ml_dtypes.float8_e8m0fnu))
    assert (e8m0.bytes, e8m0.median, e8m0.is_constant) == ((120, 130), 1.0, False)


def summary_of(path: Path, name: str = "w", *, deep: bool = True) -> TensorSummary:
    with open_checkpoint(path, permissive=True) as ckpt:
        (found,) = summarize(ckpt, [name], deep=deep)
    return found


def test_unsigned_symmetric_codes_are_recognised(tmp_path: Path) -> None:
    """Cases Z12: the same numbers in an unsigned carrier."""
    codes = RNG.integers(0, 16, (4, 64))
    ones = np.ones((4, 2), np.float16)
    for z, note in (
        (8, "equals int4 symmetric"),
        (0, "the same as no zero point"),
        (3, "zero point 3 everywhere"),
    ):
        w = bs.BlockTensor.from_parts(
            bs.scheme("uint4"), codes, ones, zero_points=np.full((4, 2), z, np.int32)
        )
        found = summary_of(hrry(tmp_path / "a.hrry", w=w))
        assert any(note in text for text in found.notes)
        assert found.zero_points == (z, z)


def test_half_idle_ranges_and_constant_scales_are_noted(tmp_path: Path) -> None:
    """Cases Z5: codes of all-positive weights that use half of the range."""
    w = bs.BlockTensor.from_parts(
        bs.scheme("int4"), RNG.integers(0, 8, (32, 64)), np.ones((32, 2), np.float16)
    )
    found = summary_of(hrry(tmp_path / "a.hrry", w=w))
    assert any("half of the range is idle" in text for text in found.notes)
    assert any("all 64 scales are equal" in text for text in found.notes)
    assert summary_of(hrry(tmp_path / "a.hrry", w=w), deep=False).codes is None


def test_summaries_name_broken_values(tmp_path: Path) -> None:
    path = hrry(tmp_path / "a.hrry", w=mx())
    patch(path, "w", 1, 0, b"\xff")
    found = summary_of(path)
    assert found.problems
    assert found.problems[0].startswith("R23")
    assert found.scales is not None
    assert found.scales.nonfinite == 1


def test_summaries_read_scales_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hrry(tmp_path / "a.hrry", w=mx((64, 64)), p=np.ones(5, np.float32))
    read: list[int] = []
    read_bytes = HrryFile.read_bytes

    def spy(self: HrryFile, name: str, i: int, start: int, stop: int) -> Any:
        read.append(i)
        return read_bytes(self, name, i, start, stop)

    monkeypatch.setattr(HrryFile, "read_bytes", spy)
    monkeypatch.setattr(HrryFile, "tensor", lambda *_: pytest.fail("decodes the tensor"))
    assert summary_of(path, deep=False).scales is not None
    assert summary_of(path, "p", deep=False).scales is None
    assert read == []
    assert summary_of(path).codes is not None
    assert read == [0]


def test_carriers_are_named_apart_from_elements(tmp_path: Path) -> None:
    """Cases P12: the word that holds the codes is not the element type."""
    path = hrry(tmp_path / "a.hrry", w=mx(), f=np.zeros(4, np.float32), b=np.ones(9, np.bool_))
    assert summary_of(path).carrier == "2 per byte"
    assert summary_of(path).info.dtype == "float4_e2m1"
    assert summary_of(path, "f").carrier == ""
    assert summary_of(path, "b").carrier == "8 per byte"
    words = hrry(tmp_path / "a.safetensors", **{"l.qweight": np.ones(8, np.int32)})
    assert "GPTQ or AWQ" in summary_of(words, "l.qweight").notes[0]


# folders, dialects and GGUF


def shown(found: Verification) -> list[tuple[str, str | None]]:
    return [(f.message, f.tensor) for f in found.suspicious]


def test_a_sound_folder(tmp_path: Path) -> None:
    for name in ("compressed-tensors shards", "gptq v1", "gpt-oss", "awq"):
        place = tmp_path / name.replace(" ", "-")
        place.mkdir()
        found = verify_file(toys.READABLE[name](place))
        assert (found.findings, found.unchecked) == ((), ()), name
        assert found.tensors > 3
    assert found.kind == "safetensors"


def test_shards_are_named(tmp_path: Path) -> None:
    made = toys.READABLE["plain shards"](tmp_path)
    second = made / "model-00002-of-00003.safetensors"
    second.write_bytes(second.read_bytes() + b"xyz")
    found = verify_file(made)
    assert found.kind == "safetensors in 3 shards"
    assert {f.file for f in found.violations} == {second.name}
    assert verify_file(made / "model.safetensors.index.json").violations == found.violations
    second.unlink()
    (missing,) = verify_file(made).violations
    assert "1 of 3 shards are missing" in missing.message


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which file of the folder"):
        verify_file(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read"):
        verify_file(tmp_path / "no.safetensors.index.json")


def test_an_index_that_lists_what_is_not_there(tmp_path: Path) -> None:
    made = toys.READABLE["plain shards"](tmp_path)
    index = json.loads((made / "model.safetensors.index.json").read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    (broken,) = verify_file(made).violations
    assert broken.tensor == "ghost"


def test_a_config_that_contradicts_the_parts(tmp_path: Path) -> None:
    made = toys.READABLE["gptq v1"](tmp_path)
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"]["bits"] = 8
    (made / "config.json").write_text(json.dumps(config))
    found = verify_file(made)
    assert len(found.violations) == 1
    assert "8" in found.violations[0].message
    assert found.unchecked


def test_odd_parts_of_a_weight(tmp_path: Path) -> None:
    parts = toys.compressed_parts("q")
    parts["q.weight_packed"][:] = 0x11111111
    parts["q.weight_scale"][0, 0] = 0
    made = toys.folder(tmp_path / "src", parts | {"bad": np.full(3, np.nan, np.float32)})
    found = verify_file(made)
    assert not found.violations
    said = " ".join(message for message, _ in shown(found))
    for text in ("config missing", "every item of 'q.weight_packed'", "1 of 32 scales are zero", "3 NaN"):
        assert said.count(text) == 1, text


def test_gguf(tmp_path: Path) -> None:
    kinds = ["Q8_0", "Q4_0", "Q4_1", "MXFP4"]
    made = gguf_files.write(tmp_path, toys.gguf_blob(toys.gguf_tensors(kinds)))
    found = verify_file(made)
    assert (found.kind, found.tensors, found.findings, found.unchecked) == ("gguf", 5, (), ())
    tensors = toys.gguf_tensors(kinds)
    nan = struct.pack("<e", float("nan"))
    tensors["blk.1.w.weight"] = ("Q4_0", (8, 64), tensors["blk.1.w.weight"][2][:-18] + nan + bytes(16))
    tensors["norm.weight"] = ("F32", (64,), np.full(64, np.inf, np.float32).tobytes())
    tensors["zero.weight"] = ("Q8_0", (8, 64), bytes(16 * 34))
    found = verify_file(gguf_files.write(tmp_path, toys.gguf_blob(tensors), "bad.gguf"))
    assert {f.tensor for f in found.suspicious} == {"blk.1.w.weight", "norm.weight", "zero.weight"}
    assert not found.violations


def test_broken_gguf(tmp_path: Path) -> None:
    whole = toys.gguf_blob(toys.gguf_tensors(["Q8_0"]))
    (broken,) = verify_file(gguf_files.write(tmp_path, whole[:-40])).violations
    assert broken.message
    q4k = gguf_files.blob([], [gguf_files.info("k", (256,), 12)], bytes(160))
    found = verify_file(gguf_files.write(tmp_path, q4k))
    assert found.tensors == 0
    assert "the 1 Q4_K tensors" in found.unchecked[0]

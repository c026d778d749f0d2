"""Descriptors: bytes to values and back, unknown parts kept, nothing but DescriptorError from any bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import BlockscaleError, DescriptorError, InputError
from blockscale.hurray import (
    COLUMN_MAJOR,
    DYNAMIC,
    MXFP,
    NF4,
    ROW_MAJOR,
    BufferHandle,
    ExtensionType,
    Layout,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    Shard,
    Statistics,
    TensorDescriptor,
    UnknownQuantization,
    decode_quantization,
    find_violations,
    strided,
)
from hurray_build import (
    INT4,
    PER_BLOCK,
    PER_CHANNEL,
    PER_TENSOR,
    PLAIN,
    SYMMETRIC,
    VALID,
    Raw,
    handle,
    per_block,
)
from hurray_build import MXFP as RAW_MXFP
from hurray_build import NF4 as RAW_NF4

VECTORS = Path(__file__).parent / "vectors" / "hurray"
MANIFEST: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text())
WORKED_EXAMPLE = """
48525259 01 00 69000000 01000000 48 01 02000000
8000000000000000 8000000000000000
0000000000000000
02
0020000000000000 40000000 00 00 00 00
0001000000000000 40000000 00 00 00 00
18000000
03 01 0100 01000000 80000000 01000000 FFFFFFFF 01 000000
"""


@pytest.mark.parametrize("row", MANIFEST["descriptors"], ids=[r["file"] for r in MANIFEST["descriptors"]])
def test_public_vectors_decode_to_the_manifest(row: dict[str, Any]) -> None:
    data, expect = (VECTORS / row["file"]).read_bytes(), row["expect"]
    d = TensorDescriptor.decode(data)
    assert d.type_tag == expect["element_type_tag"]
    assert d.type_name == expect["element_type"]
    assert list(d.shape) == expect["shape"]
    assert d.byte_offset == expect["byte_offset"]
    assert d.layout.tag == expect["layout_tag"]
    assert [b.byte_size for b in d.buffers] == expect["buffer_byte_sizes"]
    assert (d.quantization is not None) == expect["has_quantization"]
    assert (d.shard is not None) == expect["has_shard"]
    assert d.version_minor == expect["version_minor"]
    assert d.encode() == data
    assert find_violations(data) == []


def test_the_vectors_are_all_there() -> None:
    assert len(MANIFEST["descriptors"]) == 11
    assert {p.name for p in (VECTORS / "descriptors").iterdir()} == {
        Path(row["file"]).name for row in MANIFEST["descriptors"]
    }


def test_worked_example() -> None:
    data = bytes.fromhex(WORKED_EXAMPLE)
    assert len(data) == 105
    d = TensorDescriptor.decode(data)
    assert d == TensorDescriptor(
        INT4,
        (128, 128),
        (BufferHandle(8192), BufferHandle(256)),
        quantization=PerBlockAffine(axis=1, block_size=128, scale_index=1, scale_type="float16"),
    )
    assert d.encode() == data
    assert data == (VECTORS / "descriptors" / "quant_per_block_int4_128x128.bin").read_bytes()
    assert d.offset_of("shape") == 0x14
    assert d.offset_of("byte_offset") == 0x24
    assert d.offset_of("buffer_count") == 0x2C
    assert d.offset_of("buffers") == 0x2D
    assert d.offset_of("quantization") == 0x51


SECTIONS = (
    (PER_TENSOR, PerTensorAffine(0.5, 0)),
    (PER_CHANNEL, PerChannelAffine(0, 1, 2)),
    (PER_BLOCK, PerBlockAffine(1, 16, 1, 2, "float16")),
    (SYMMETRIC, PerBlockAffine(1, 16, 1, None, "float16")),
    (RAW_NF4, NF4(1, 16, 1)),
    (RAW_MXFP, MXFP(1, 32, 1)),
)


@pytest.mark.parametrize(("raw", "value"), SECTIONS)
def test_quantization_sections(raw: Raw, value: Any) -> None:
    assert raw.section is not None
    assert decode_quantization(raw.section) == value
    assert value.encode() == raw.section
    assert decode_quantization(raw.section + b"any padding") == value
    assert TensorDescriptor.decode(bytes(raw)).quantization == value


def test_bytes_after_a_scheme_are_kept() -> None:
    assert SYMMETRIC.section is not None
    raw = SYMMETRIC.but(section=SYMMETRIC.section + b"\xde\xad\xbe\xef")
    d = TensorDescriptor.decode(bytes(raw))
    assert d.quantization_tail == b"\xde\xad\xbe\xef"
    assert d.encode() == bytes(raw)


def test_a_later_minor_version_may_add_bytes_but_no_flags() -> None:
    raw = PLAIN.but(minor=1, tail=b"something new")
    d = TensorDescriptor.decode(bytes(raw))
    assert d.unparsed == b"something new"
    assert d.encode() == bytes(raw)
    with pytest.raises(DescriptorError, match="flags"):
        TensorDescriptor.decode(bytes(raw.but(flags=32)))


def test_data_may_go_on_after_a_descriptor() -> None:
    assert TensorDescriptor.decode(bytes(PLAIN) + b"the first buffer").encode() == bytes(PLAIN)


def test_unknown_tags_are_kept_whole_in_permissive_mode() -> None:
    scheme = PER_BLOCK.but(section=b"\x60\x07\x01\x02 nested")
    for raw, reason in (
        (PLAIN.but(type_tag=0x60), "type tag 0x60"),
        (PLAIN.but(layout_tag=0x60, layout=b"unknown length"), "layout tag 0x60"),
        (scheme, "scheme 0x60"),
        (PLAIN.but(layout_tag=0x60, minor=3, flags=3), "layout tag 0x60"),
    ):
        d = TensorDescriptor.decode(bytes(raw), permissive=True)
        assert d.opaque_because is not None
        assert reason in d.opaque_because
        assert d.encode() == bytes(raw)
        with pytest.raises(DescriptorError):
            TensorDescriptor.decode(bytes(raw))
    unknown = TensorDescriptor.decode(bytes(scheme), permissive=True).quantization
    assert unknown == UnknownQuantization(b"\x60\x07\x01\x02 nested")


def test_private_types_and_layouts_are_framed_and_have_no_meaning() -> None:
    extension = struct.pack("<IBBBBBB2xIBB2x", 12, 1, 1, 1, 1, 5, 6, 15, 1, 1)
    d = TensorDescriptor.decode(bytes(Raw(0xF3, flags=4, tail=extension)))
    assert d.extension_type == ExtensionType(12, 1, 1, 1, 1, 5, 6, 15, 1, 1)
    assert d.type_name == "private 0xF3"
    assert d.opaque_because is not None
    raw = PLAIN.but(
        layout_tag=0xFE, layout=struct.pack("<QI", 7, 5) + b"bytes", handles=(handle(48), handle(5))
    )
    d = TensorDescriptor.decode(bytes(raw))
    assert d.layout.name == "private 0xFE"
    assert d.encode() == bytes(raw)


def test_statistics_are_advisory_and_kept_bit_for_bit() -> None:
    nan = struct.pack(
        "<Q", 0x7FF00000DEADBEEF
    )  # a signalling NaN with a payload, in a field whose bit is clear
    data = struct.pack("<IIQd", 1, 0, 12, 0.0) + nan * 5 + b"\xff\xff\xff\xff" + bytes(4)
    raw = PLAIN.but(flags=8, tail=data)
    d = TensorDescriptor.decode(bytes(raw))
    assert d.statistics is not None
    assert d.statistics.values == {"nnz": 12}
    assert d.encode() == bytes(raw)


def test_a_descriptor_made_in_python_is_checked() -> None:
    good = TensorDescriptor(
        INT4, (4, 32), (BufferHandle(64), BufferHandle(16)), quantization=PerBlockAffine(1, 16)
    )
    assert good.check() == good
    assert good.encode() == bytes(SYMMETRIC)
    for bad in (
        TensorDescriptor(
            INT4, (4, 32), (BufferHandle(63), BufferHandle(16)), quantization=PerBlockAffine(1, 16)
        ),
        TensorDescriptor(0x03, (3,), (BufferHandle(12, 3),)),
        TensorDescriptor(0x03, (1,) * 65, (BufferHandle(4),)),
    ):
        with pytest.raises(DescriptorError):
            bad.check()
    with pytest.raises(InputError):
        strided([2**63])


@pytest.mark.parametrize(
    "parts",
    [
        {"shape": (-1,)},
        {"shape": (2**64,)},
        {"type_tag": 0x103},
        {"buffers": (BufferHandle(4),) * 256},
        {"buffers": (BufferHandle(-4),)},
        {"byte_offset": -1},
        {"composite_role": 256},
        {"quantization": PerBlockAffine(-1, 16)},
        {"quantization": PerBlockAffine(1, 2**32)},
        {"quantization": PerBlockAffine(1, 16, scale_type="e8m0")},
        {"quantization": PerTensorAffine(1.0, 2**31)},
    ],
)
def test_a_descriptor_that_has_no_bytes_cannot_be_made(parts: dict[str, Any]) -> None:
    given: dict[str, Any] = {"type_tag": 0x10, "shape": (4,), "buffers": (BufferHandle(4),)} | parts
    with pytest.raises(InputError):
        TensorDescriptor(**given)


def test_scales_of_python_are_rounded_where_they_can_be_seen() -> None:
    q = PerTensorAffine(0.1)
    assert q.scale == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert decode_quantization(q.encode()) == q
    with pytest.raises(DescriptorError, match="inf"):
        decode_quantization(PerTensorAffine(1e300).encode())


def test_schemes_describe_themselves() -> None:
    for value, words in (
        (PerTensorAffine(0.5, 3), "per-tensor affine, scale 0.5, zero point 3"),
        (PerChannelAffine(2), "per-channel affine along axis 2"),
        (
            PerBlockAffine(1, 32, 1, 2),
            "per-block affine, blocks of 32 along axis 1, float16 scales, int32 zero points",
        ),
        (NF4(0), "NF4, blocks of 64 along axis 0"),
        (MXFP(0), "MX, blocks of 32 along axis 0"),
        (UnknownQuantization(b"\x60"), "unknown scheme 0x60"),
    ):
        assert value.describe() == words


# Random descriptors, valid by construction.


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    rank = len(shape)
    if rank == 0:
        return ROW_MAJOR
    kinds = [
        st.just(ROW_MAJOR),
        st.just(COLUMN_MAJOR),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rank, max_size=rank).map(strided),
        st.lists(st.integers(1, 2**32 - 1), min_size=rank, max_size=rank).map(
            lambda bits: Layout(0x05, struct.pack(f"<{rank}I", *bits))
        ),
        st.binary(max_size=20).map(lambda data: Layout(0xF5, struct.pack("<QI", 7, len(data)) + data)),
    ]
    return draw(st.one_of(kinds))


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)


@st.composite
def descriptors(draw: st.DrawFn) -> TensorDescriptor:
    dims = st.integers(0, 2**64 - 2) | st.integers(0, 40) | st.just(DYNAMIC)
    shape = tuple(draw(st.lists(dims, max_size=6)))
    layout = draw(layouts(shape))
    device = draw(st.sampled_from([0, 0, 1, 2, 4, 7, 0xF1]))
    size = draw(st.integers(0, 2**64 - 1))
    alignment = 1 << draw(st.integers(6, 31))
    buffer = BufferHandle(
        size, alignment, device, draw(st.integers(0, 2)) if device else 0, 2 if device else 0
    )
    shard = None
    if DYNAMIC not in shape and draw(st.booleans()):
        offsets = tuple(draw(st.integers(0, 2**64 - 2 - n)) for n in shape)
        shard = Shard(tuple(n + at for n, at in zip(shape, offsets, strict=True)), offsets)
    statistics = None
    if draw(st.booleans()):
        body = draw(st.binary(min_size=60, max_size=60))
        statistics = Statistics(struct.pack("<II", draw(st.integers(0, 7)), 0) + body + bytes(4))
    quantization, type_tag = None, draw(st.sampled_from([0x01, 0x03, 0x10, 0x15, 0x20, 0x43, 0x46, 0x51]))
    if type_tag == 0x10 and (DYNAMIC in shape or 0 in shape) and layout in (ROW_MAJOR, COLUMN_MAJOR):
        quantization = PerTensorAffine(draw(FINITE), draw(st.integers(-128, 127)))
    return TensorDescriptor(
        type_tag,
        shape,
        (buffer,),
        layout,
        draw(st.integers(0, size)),
        quantization,
        shard,
        statistics,
        composite_role=draw(st.sampled_from([None, 0, 1])),
        version_minor=(minor := draw(st.sampled_from([0, 0, 1, 255]))),
        quantization_tail=draw(st.binary(max_size=9)) if quantization else b"",
        unparsed=draw(st.binary(max_size=9)) if minor else b"",
    )


@settings(max_examples=150, deadline=None)
@given(descriptors())
def test_descriptors_survive_the_round_trip(d: TensorDescriptor) -> None:
    data = d.encode()
    assert TensorDescriptor.decode(data) == d
    assert TensorDescriptor.decode(data).encode() == data
    assert TensorDescriptor.decode(data, permissive=True) == d


@settings(max_examples=100, deadline=None)
@given(descriptors(), st.data())
def test_cut_off_descriptors_are_refused(d: TensorDescriptor, data: st.DataObject) -> None:
    text = d.encode()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(DescriptorError):
        TensorDescriptor.decode(text[:cut])


SEEDS = [
    *(bytes(raw) for raw in VALID.values()),
    *((VECTORS / row["file"]).read_bytes() for row in MANIFEST["descriptors"]),
]


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_one_changed_byte_is_refused_or_kept(seed: bytes) -> None:
    """Either an error of ours, or a descriptor that gives back exactly the bytes it came from."""
    kept = 0
    for i in range(len(seed)):
        for mask in (0x01, 0x02, 0x10, 0x80, 0xFF, seed[i]):
            data = bytearray(seed)
            data[i] ^= mask
            for permissive in (False, True):
                try:
                    d = TensorDescriptor.decode(bytes(data), permissive=permissive)
                except BlockscaleError:
                    continue
                assert d.encode() == bytes(data[: len(d.encode())])
                kept += 1
    assert kept


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_after_a_header_are_no_surprise(body: bytes) -> None:
    for flags in (0, 1, 31):
        for tag, layout in (
            (INT4, 1),
            (0x03, 3),
            (0x03, 4),
            (0x43, 1),
            (0x03, 9),
            (0x03, 0x0A),
            (0xF0, 0xF0),
        ):
            head = struct.pack("<4sBBIIBBI", b"HRRY", 1, 0, 20 + len(body), flags, tag, layout, 2)
            try:
                d = TensorDescriptor.decode(head + body, permissive=True)
            except BlockscaleError:
                continue
            assert d.encode() == head + body


def test_a_tensor_of_rank_64() -> None:
    d = TensorDescriptor(
        INT4, (1,) * 63 + (32,), (BufferHandle(16), BufferHandle(4)), quantization=PerBlockAffine(63, 16)
    )
    assert TensorDescriptor.decode(d.encode()) == d
    assert bytes(Raw(INT4, d.shape, (handle(16), handle(4)), per_block(63, 16, 1))) == d.encode()

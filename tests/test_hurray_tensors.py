"""Tensors and their buffers: where elements lie, what they mean, and what the format cannot hold."""

from __future__ import annotations

import itertools
import math
import struct
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import blockscale as bs
from blockscale.blocks import block_grid
from blockscale.errors import BlockscaleError, DescriptorError, InputError, UnsupportedError
from blockscale.hurray import (
    COLUMN_MAJOR,
    MXFP,
    NF4,
    BufferHandle,
    HurrayTensor,
    Layout,
    PerBlockAffine,
    PerChannelAffine,
    PermissiveWarning,
    PerTensorAffine,
    TensorDescriptor,
    decode_tensor,
    encode_tensor,
    plan_array,
    plan_tensor,
    rule_id,
    scheme_of,
    strided,
    validate_values,
)
from blockscale.schemes import SCHEMES, Scheme
from blockscale.tensor_parts import offset_dtype

INT4, UINT4, INT8, INT2 = 0x48, 0x49, 0x10, 0x4A


def make(type_tag: int, shape: tuple[int, ...], sizes: list[int], **parts: Any) -> TensorDescriptor:
    return TensorDescriptor(
        type_tag, shape, tuple(BufferHandle(n, 64 if n else 1) for n in sizes), **parts
    ).check()


def bits_at(data: bytes, position: int, width: int) -> int:
    """Bits of one long little-endian bit string (1.3 of the format)."""
    return int.from_bytes(data, "little") >> position & ((1 << width) - 1)


def raw_codes(array: NDArray[Any]) -> NDArray[np.int64]:
    """Bit patterns of an array of at most 8 bits per element."""
    bits = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}.get(array.dtype.name, 8)
    return array.view(np.uint8).astype(np.int64) & ((1 << bits) - 1)


# Plain arrays.

PACKED = (
    (ml_dtypes.int4, [-8, 7, -1, 2, 5], "78 2F 05"),
    (ml_dtypes.uint4, [5, 12, 3], "C5 03"),
    (ml_dtypes.float4_e2m1fn, [0.5, -6, 3], "F1 05"),
    (ml_dtypes.int2, [1, -2, -1, 0, 1], "39 01"),
    (ml_dtypes.uint2, [3, 1, 2], "27"),
    (np.bool_, [1, 0, 1, 1, 0], "0D"),
)


@pytest.mark.parametrize(("dtype", "values", "text"), PACKED, ids=[row[2] for row in PACKED])
def test_packed_examples_of_the_format(dtype: Any, values: list[float], text: str) -> None:
    array = np.array(values).astype(dtype)
    descriptor, buffers = encode_tensor(array)
    assert buffers[0].tobytes() == bytes.fromhex(text)
    back = decode_tensor(descriptor, buffers)
    assert isinstance(back, np.ndarray)
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("codes", "text"), [([1, 2, 4, 8], "81 40 20"), ([0x3F, 1, 0x2A, 0x15, 7], "7F A0 56 07 00 00")]
)
@pytest.mark.parametrize("dtype", [ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn])
def test_six_bit_examples_of_the_format(codes: list[int], text: str, dtype: Any) -> None:
    array = np.array(codes, np.uint8).view(dtype)
    descriptor, buffers = encode_tensor(array)
    assert buffers[0].tobytes() == bytes.fromhex(text)
    back = decode_tensor(descriptor, buffers)
    assert isinstance(back, np.ndarray)
    assert back.view(np.uint8).tolist() == codes


DTYPES = [
    *(np.float16, np.float32, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32),
    *(np.int64, np.uint64, np.complex64, np.complex128, ml_dtypes.bfloat16),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=[np.dtype(d).name for d in DTYPES])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0,), (3, 0, 5)])
def test_arrays_keep_every_bit_and_are_not_copied(dtype: Any, shape: tuple[int, ...]) -> None:
    n = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(n).integers(0, 256, n, np.uint8)  # NaN payloads, subnormals, negative zeros
    array = raw.view(dtype).reshape(shape)
    descriptor, buffers = encode_tensor(array)
    assert descriptor == plan_array(shape, dtype)
    assert descriptor.buffers[0] == BufferHandle(n, 64 if n else 1)
    back = decode_tensor(descriptor, buffers)
    assert isinstance(back, np.ndarray)
    assert (back.shape, back.dtype) == (shape, np.dtype(dtype))
    assert back.tobytes() == raw.tobytes()
    assert not back.flags.writeable
    assert n == 0 or np.shares_memory(back, raw)


def test_arrays_of_any_order_are_stored_row_major_and_little_endian() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (base.T, base[::-1, ::2], np.asfortranarray(base), base.astype(">i4")):
        descriptor, buffers = encode_tensor(array)
        assert buffers[0].tobytes() == array.astype("<i4", order="C").tobytes()
        back = decode_tensor(descriptor, buffers)
        assert isinstance(back, np.ndarray)
        assert back.tolist() == array.tolist()


def test_arrays_that_have_no_type_in_the_format() -> None:
    for array in (
        np.array(["a"]),
        np.array([None]),
        np.zeros(3, "M8[s]"),
        np.zeros(2, "i4,f4"),
        np.zeros(2, "g"),
    ):
        with pytest.raises(InputError, match="no element type"):
            encode_tensor(array)
    with pytest.raises(InputError, match="list"):
        encode_tensor([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="float128"):
        decode_tensor(make(0x46, (2,), [32]), [bytes(32)])


STRIDES = [
    ((3, 4), (4, 1), 0),
    ((3, 4), (1, 3), 0),
    ((3, 4), (-4, -1), 11),
    ((3, 4), (8, 2), 3),
    ((3, 4), (0, 1), 2),
    ((2, 3, 2), (6, -2, 1), 4),
    ((1, 3), (10**15, 1), 0),
    ((5,), (7,), 0),
]


@pytest.mark.parametrize(("shape", "strides", "first"), STRIDES)
@pytest.mark.parametrize("tag", [0x10, 0x13, 0x48, 0x4B, 0x20, 0x44])
def test_strided_elements_lie_where_the_formula_says(
    shape: tuple[int, ...], strides: tuple[int, ...], first: int, tag: int
) -> None:
    width = {0x10: 8, 0x13: 16, 0x48: 4, 0x4B: 2, 0x20: 1, 0x44: 6}[tag]
    unit = {6: 3}.get(width, max(1, width // 8))  # bytes of a group, in which byte_offset is counted here
    per = {6: 4}.get(width, max(1, 8 // width))
    offset = (first + per - 1) // per * unit
    data = np.random.default_rng(0).integers(0, 256, 120, np.uint8).tobytes()
    d = make(tag, shape, [120], layout=strided(strides), byte_offset=offset)
    back = decode_tensor(d, [data])
    assert isinstance(back, np.ndarray)
    raw = back.view(np.uint16) if width == 16 else back.view(np.uint8) & ((1 << min(width, 8)) - 1)
    for index in itertools.product(*map(range, shape)):
        n = sum(i * s for i, s in zip(index, strides, strict=True))
        assert raw[index] == bits_at(data, 8 * offset + n * width, width)


def test_strides_that_leave_the_buffer_are_refused() -> None:
    for strides, offset, size in (((4, 1), 0, 11), ((4, 1), 1, 12), ((-4, 1), 7, 12), ((2**62, 1), 0, 12)):
        d = make(INT8, (3, 4), [size], layout=strided(strides), byte_offset=offset)
        with pytest.raises(DescriptorError) as caught:
            decode_tensor(d, [bytes(size)])
        assert rule_id(caught.value) == "H30"


def test_column_major() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    d = make(0x03, (3, 4), [48], layout=COLUMN_MAJOR)
    back = decode_tensor(d, [array.tobytes(order="F")])
    assert isinstance(back, np.ndarray)
    assert back.tolist() == array.tolist()
    codes = np.arange(15, dtype=np.uint8).reshape(3, 5).astype(ml_dtypes.uint4)
    packed = encode_tensor(np.ascontiguousarray(codes.T))[1]
    back = decode_tensor(make(UINT4, (3, 5), [8], layout=COLUMN_MAJOR), packed)
    assert isinstance(back, np.ndarray)
    assert back.tolist() == codes.tolist()


def test_short_six_bit_groups_are_read_in_permissive_mode_only() -> None:
    d = make(0x44, (5,), [4])  # 5 codes: 30 bits, 4 bytes; whole groups would be 6 bytes (A7)
    data = bytes.fromhex("7F A0 56 07")
    with pytest.raises(DescriptorError) as caught:
        decode_tensor(d, [data])
    assert rule_id(caught.value) == "H30"
    back = decode_tensor(d, [data], permissive=True)
    assert isinstance(back, np.ndarray)
    assert back.view(np.uint8).tolist() == [0x3F, 1, 0x2A, 0x15, 7]


def test_layouts_that_are_not_read_say_so_only_when_asked_for_values() -> None:
    for layout, sizes in (
        (Layout(0x05, struct.pack("<2I", 2, 2)), [16]),
        (Layout(0x07, struct.pack("<QQ", 2, 0)), [8, 8, 8]),
        (Layout(0x0B, struct.pack("<BB2xI", 1, 0, 2)), []),
        (Layout(0xF0, struct.pack("<QI", 1, 0)), [16]),
    ):
        d = make(INT8, (4, 4), sizes, layout=layout)
        with pytest.raises(UnsupportedError, match=layout.name):
            decode_tensor(d, [bytes(n) for n in sizes])


def test_tiny_files_cannot_ask_for_any_amount_of_memory() -> None:
    huge = make(INT8, (2**40, 2**20), [16], layout=strided([0, 0]))
    view = decode_tensor(huge, [bytes(16)])
    assert isinstance(view, np.ndarray)
    assert view.shape == (2**40, 2**20)
    packed = decode_tensor(make(INT4, (2**40, 2**20), [16], layout=strided([0, 0])), [bytes(16)])
    assert isinstance(packed, np.ndarray)
    scales = np.ones(1, np.float16).tobytes()
    for d, buffers in (
        (make(INT8, (2**40,), [16], layout=strided([0]), quantization=PerTensorAffine(1.0)), [bytes(16)]),
        (
            make(INT4, (2**31,), [16, 2], layout=strided([0]), quantization=PerBlockAffine(0, 2**31)),
            [bytes(16), scales],
        ),
        (make(0x42, (2**50,), [16], layout=strided([0])), [b"\1" * 16]),
        (make(INT8, (2**62, 2**20), [16], layout=strided([0, 0])), [bytes(16)]),
        (make(INT8, (2**64 - 2, 0), [0]), [b""]),
    ):
        with pytest.raises(UnsupportedError):
            np.asarray(decode_tensor(d, buffers))


# Block tensors.

BLOCK_ROWS = {name: row for name, row in SCHEMES.items() if row.offset != "minimum"}


@st.composite
def block_tensors(draw: st.DrawFn) -> bs.BlockTensor:
    """Any that the format can hold: rank 1 to 4, any axis, partial blocks, empty axes."""
    row: Scheme = draw(st.sampled_from(list(BLOCK_ROWS.values())))
    size = draw(st.sampled_from([16, 32, 64] if row.is_mx else [2, 4, 8, 32]))
    rank = draw(st.integers(1, 4))
    axis = draw(st.integers(0, rank - 1))
    shape = [draw(st.integers(0, 4)) for _ in range(rank)]
    length = (
        draw(st.integers(1, 3)) * size if row.is_mx else draw(st.sampled_from([0, *range(size, 4 * size)]))
    )
    shape[axis] = length
    scheme = bs.scheme(row, block_size=size)
    if not row.is_mx:
        scheme = bs.scheme(
            row.element.name,
            block_size=size,
            symmetric=draw(st.booleans()),
            scale=draw(st.sampled_from(["float16", "bfloat16", "float32"])),
        )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    grid = block_grid(tuple(shape), axis, size)
    codes = np.zeros((grid.rows, grid.padded_length), np.uint8)
    codes[:, : grid.length] = rng.integers(0, 1 << scheme.element.bits, (grid.rows, grid.length))
    packed = bit_rows(codes, scheme.element.bits, grid.row_bytes(scheme.element.bits))
    blocks = (grid.rows, grid.blocks_per_row)
    if scheme.is_mx:
        exponents = rng.integers(1 - scheme.value_exponent, 255, blocks, np.uint8)
        return bs.BlockTensor(grid, scheme, packed, exponents.view(scheme.scale.dtype))
    values = rng.uniform(0.01, 2, blocks) * rng.choice([-1, 1], blocks)
    zeros = rng.integers(-(2**31), 2**31, blocks).astype(np.int32)
    offsets = zeros if scheme.offset == "zero_point" else None
    return bs.BlockTensor(grid, scheme, packed, values.astype(scheme.scale.dtype), offsets)


def bit_rows(codes: NDArray[np.uint8], bits: int, row_bytes: int) -> NDArray[np.uint8]:
    """Each row of codes as one little-endian bit string, zero bits up to `row_bytes`."""
    rows, length = codes.shape
    strings = (codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1).reshape(rows, length * bits)
    padded = np.zeros((rows, 8 * row_bytes), np.uint8)
    padded[:, : length * bits] = strings
    return np.packbits(padded, axis=1, bitorder="little") if rows else np.zeros((0, row_bytes), np.uint8)


@settings(max_examples=250, deadline=None)
@given(block_tensors())
def test_block_tensors_survive_the_round_trip(w: bs.BlockTensor) -> None:
    descriptor, buffers = encode_tensor(w)
    assert descriptor == plan_tensor(w.shape, w.axis, w.scheme)
    assert [b.size for b in buffers] == [h.byte_size for h in descriptor.buffers]
    back = decode_tensor(TensorDescriptor.decode(descriptor.encode()), [b.tobytes() for b in buffers])
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(bs.BlockTensor(w.grid, back.scheme, w.packed, w.row_scales, w.row_offsets))
    found = scheme_of(descriptor)
    assert found is not None
    assert found == (back.scheme, w.axis)
    assert (back.scheme.element, back.scheme.scale, back.scheme.offset) == (
        w.scheme.element,
        w.scheme.scale,
        w.scheme.offset,
    )


@settings(max_examples=100, deadline=None)
@given(block_tensors(), st.data())
def test_every_element_lies_where_the_format_says(w: bs.BlockTensor, data: st.DataObject) -> None:
    """Positions computed here from sections 3.3 and 3.9 alone, one element at a time."""
    if w.size == 0:
        return
    _, buffers = encode_tensor(w)
    index = tuple(data.draw(st.integers(0, n - 1)) for n in w.shape)
    axis, size, bits = w.axis, w.block_size, w.scheme.element.bits
    blocks = -(-w.shape[axis] // size)
    padded = [*w.shape]
    padded[axis] = blocks * size
    position = 0
    for i, n in zip(index, padded, strict=True):
        position = position * n + i
    assert bits_at(buffers[0].tobytes(), position * bits, bits) == int(raw_codes(w.codes()[index][None])[0])
    outer = 0
    for d, (i, n) in enumerate(zip(index, w.shape, strict=True)):
        outer = outer if d == axis else outer * n + i
    block = outer * blocks + index[axis] // size
    at = (*index[:axis], index[axis] // size, *index[axis + 1 :])
    stored = buffers[1].view(w.scheme.scale.dtype)[block]
    if w.scheme.is_mx:
        assert (
            int(stored[None].view(np.uint8)[0])
            == int(w.scales[at][None].view(np.uint8)[0]) + w.scheme.value_exponent
        )
    else:
        assert stored.tobytes() == w.scales[at].tobytes()
    if w.zero_points is not None:
        assert buffers[2].view(np.int32)[block] == w.zero_points[at]


@settings(max_examples=100, deadline=None)
@given(block_tensors())
def test_the_formats_own_arithmetic_agrees_with_block_tensors(w: bs.BlockTensor) -> None:
    descriptor, buffers = encode_tensor(w)
    if w.size:
        values = HurrayTensor(descriptor, tuple(buffers)).dequantize()
        assert values.dtype == np.float32
        assert values.tobytes() == w.dequantize().tobytes() or np.array_equal(
            values, w.dequantize(), equal_nan=True
        )


def block_codes(shape: tuple[int, int]) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(1, 16, shape, np.uint8)  # no zeros: padding shows


def test_partial_blocks_are_padded_along_their_axis() -> None:
    codes, scheme = block_codes((3, 40)), bs.scheme("int4", block_size=16)
    w = bs.BlockTensor.from_parts(scheme, codes.view(ml_dtypes.int4), np.ones((3, 3), np.float16))
    data = encode_tensor(w)[1][0].tobytes()
    rows = [b"".join(bytes([row[i] | row[i + 1] << 4]) for i in range(0, 40, 2)) + bytes(4) for row in codes]
    assert len(data) == 72
    assert data == b"".join(rows)
    tall = block_codes((20, 6))
    w = bs.BlockTensor.from_parts(
        bs.scheme("int4", block_size=8), tall.view(ml_dtypes.int4), np.ones((3, 6), np.float16), axis=0
    )
    data = encode_tensor(w)[1][0].tobytes()
    flat = tall.reshape(-1)
    assert len(data) == 72
    assert data == bytes(flat[i] | flat[i + 1] << 4 for i in range(0, 120, 2)) + bytes(12)


def test_rows_that_do_not_begin_on_a_byte() -> None:
    """int2 in blocks of 2: padded rows of 6 codes take 12 bits, and the file packs them without a break."""
    codes = np.array([[1, 2, 3, 1, 2], [3, 3, 1, 2, 1], [2, 1, 1, 3, 3]], np.uint8)
    w = bs.BlockTensor.from_parts(
        bs.scheme("int2", block_size=2), codes.view(ml_dtypes.int2), np.ones((3, 3), np.float16)
    )
    descriptor, buffers = encode_tensor(w)
    padded = np.pad(codes, ((0, 0), (0, 1))).reshape(-1)
    number = sum(int(c) << 2 * i for i, c in enumerate(padded))
    assert buffers[0].tobytes() == number.to_bytes(5, "little")
    back = decode_tensor(descriptor, buffers)
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(w)


def partial(
    data: bytes, size: int, axis: int = 1, shape: tuple[int, int] = (3, 40)
) -> tuple[TensorDescriptor, list[bytes]]:
    block = 16 if axis == 1 else 8
    count = math.prod(shape) // shape[axis] * -(-shape[axis] // block)
    q = PerBlockAffine(axis, block)
    d = TensorDescriptor(INT4, shape, (BufferHandle(size), BufferHandle(2 * count)), quantization=q)
    return d, [data, np.ones(count, np.float16).tobytes()]


def test_codes_in_the_padding_are_ignored_and_not_kept() -> None:
    codes = block_codes((3, 40))
    full = np.full((3, 48), 9, np.uint8)
    full[:, :40] = codes
    d, buffers = partial((full[:, ::2] | full[:, 1::2] << 4).tobytes(), 72)
    w = decode_tensor(d.check(), buffers)
    assert isinstance(w, bs.BlockTensor)
    assert raw_codes(w.codes()).tolist() == codes.tolist()
    assert w.same_bits(
        bs.BlockTensor.from_parts(w.scheme, codes.view(ml_dtypes.int4), np.ones((3, 3), np.float16))
    )
    odd = np.full((1, 6), 3, np.uint8)  # five codes of 2 bits and one of padding, in two bytes
    one = TensorDescriptor(
        INT2, (1, 5), (BufferHandle(2), BufferHandle(6)), quantization=PerBlockAffine(1, 2)
    )
    w = decode_tensor(one, [b"\xff\xff", np.ones(3, np.float16).tobytes()])
    assert isinstance(w, bs.BlockTensor)
    assert w.packed.tolist() == [[0xFF, 0x03]]
    assert raw_codes(w.codes()).tolist() == odd[:, :5].tolist()


def test_tight_partial_blocks_are_read_in_permissive_mode_with_a_warning() -> None:
    codes = block_codes((3, 40))
    data = (codes[:, ::2] | codes[:, 1::2] << 4).tobytes()
    for size in (60, 61, 71):
        d, buffers = partial(data + bytes(size - 60), size)
        with pytest.raises(DescriptorError, match="60") as caught:
            decode_tensor(d, buffers)
        assert rule_id(caught.value) == "R19"
        assert "permissive" in str(caught.value.hint)
        with pytest.warns(PermissiveWarning, match="without padding"):
            w = decode_tensor(d, buffers, permissive=True)
        assert isinstance(w, bs.BlockTensor)
        assert raw_codes(w.codes()).tolist() == codes.tolist()
        assert (
            HurrayTensor(d, tuple(np.frombuffer(b, np.uint8) for b in buffers), True).codes().tolist()
            == w.codes().tolist()
        )
    d, buffers = partial(data[:59], 59)
    with pytest.raises(DescriptorError):
        decode_tensor(d, buffers, permissive=True)


def test_padding_that_is_a_tail_reads_the_same_both_ways() -> None:
    codes = block_codes((20, 6))
    data = (codes[:, ::2] | codes[:, 1::2] << 4).tobytes()
    for size in (60, 72):
        d, buffers = partial(data + bytes(size - 60), size, 0, (20, 6))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PermissiveWarning)
            w = decode_tensor(d, buffers, permissive=True)
        assert isinstance(w, bs.BlockTensor)
        assert raw_codes(w.codes()).tolist() == codes.tolist()


def test_block_tensors_in_other_layouts() -> None:
    codes = block_codes((3, 40))
    ones = np.ones((3, 3), np.float16)
    w = bs.BlockTensor.from_parts(bs.scheme("uint4", block_size=16, symmetric=True), codes, ones)
    q = PerBlockAffine(1, 16)
    stored = np.zeros((48, 3), np.uint8)
    stored[:40] = codes.T
    flat = stored.reshape(-1)
    column = make(UINT4, (3, 40), [72, 18], layout=COLUMN_MAJOR, quantization=q)
    back = decode_tensor(column, [bytes(flat[::2] | flat[1::2] << 4), ones.tobytes()])
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(w)
    wide = np.zeros((3, 50), np.uint8)  # strides that leave room for the last block, and two more
    wide[:, :40] = codes
    flat = wide.reshape(-1)
    gaps = make(UINT4, (3, 40), [80, 18], layout=strided([50, 1]), byte_offset=5, quantization=q)
    back = decode_tensor(gaps, [bytes(5) + bytes(flat[::2] | flat[1::2] << 4), ones.tobytes()])
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(w)
    with pytest.raises(DescriptorError) as caught:  # the last row has no room for its last block
        make(UINT4, (3, 40), [72, 18], layout=strided([50, 1]), quantization=q)
    assert rule_id(caught.value) == "R19"


def test_byte_offset_of_a_block_tensor() -> None:
    w = bs.quantize(np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32), "mxfp4")
    d, buffers = encode_tensor(w)
    moved = make(d.type_tag, d.shape, [buffers[0].size + 7, 6], quantization=d.quantization, byte_offset=7)
    back = decode_tensor(moved, [bytes(7) + buffers[0].tobytes(), buffers[1]])
    assert isinstance(back, bs.BlockTensor)
    assert back.same_bits(w)


def test_nothing_is_copied_where_nothing_must_move() -> None:
    w = bs.quantize(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32), "mxfp4")
    d, buffers = encode_tensor(w)
    assert np.shares_memory(buffers[0], w.packed)
    assert np.shares_memory(buffers[1], w.row_scales)
    back = decode_tensor(d, buffers)
    assert isinstance(back, bs.BlockTensor)
    assert np.shares_memory(back.packed, w.packed)
    assert np.shares_memory(back.row_scales, w.row_scales)


def test_scales_and_zero_points_may_share_one_buffer() -> None:
    """With an odd number of 16-bit scales the int32 values begin at an odd place (3.8)."""
    codes = np.arange(96, dtype=np.uint8).reshape(3, 32) % 16
    scales = np.array([[1, -2], [3, 4], [0.5, 6]], np.float16)[:, :1]
    zeros = np.array([[7], [-(2**31)], [2**31 - 1]], np.int32)
    d = make(UINT4, (3, 32), [48, 18], quantization=PerBlockAffine(1, 32, 1, 1, "float16"))
    data = (codes[:, ::2] | codes[:, 1::2] << 4).tobytes()
    w = decode_tensor(d, [data, scales.tobytes() + zeros.tobytes()])
    assert isinstance(w, bs.BlockTensor)
    assert w.scales.tolist() == scales.tolist()
    assert w.zero_points is not None
    assert w.zero_points.tolist() == zeros.tolist()


# MX scale bytes.


def mx(
    tag: int, data: bytes, scale: int, shape: tuple[int, ...] = (1, 32)
) -> tuple[TensorDescriptor, list[bytes]]:
    return make(tag, shape, [len(data), 1], quantization=MXFP(1, 32)), [data, bytes([scale])]


def test_mx_integers_are_shifted_at_the_door() -> None:
    """A file means 2**(e - 127) * q; OCP's INT8 means 2**(e - 127) * q / 64 (A11)."""
    for tag, factor, dtype in ((INT8, 6, np.int8), (INT4, 2, ml_dtypes.int4)):
        codes = np.arange(-8, 8).repeat(2).reshape(1, 32)
        data = (
            codes.astype(np.int8).tobytes()
            if tag == INT8
            else encode_tensor(codes.astype(dtype))[1][0].tobytes()
        )
        for e in (1, 100, 127, 254 - factor):
            w = decode_tensor(*mx(tag, data, e))
            assert isinstance(w, bs.BlockTensor)
            assert w.scales.view(np.uint8).tolist() == [[e + factor]]
            with np.errstate(over="ignore"):
                assert w.dequantize().tolist() == (codes * 2.0 ** (e - 127)).astype(np.float32).tolist()
            _, buffers = encode_tensor(w)
            assert buffers[1].tolist() == [e]
            assert buffers[0].tobytes() == data
        for e in (255 - factor, 254):  # no such byte in OCP's convention: the format's own arithmetic
            h = decode_tensor(*mx(tag, data, e))
            assert isinstance(h, HurrayTensor)
            with np.errstate(over="ignore"):
                assert h.dequantize().tolist() == (codes * 2.0 ** (e - 127)).astype(np.float32).tolist()
            _, buffers = encode_tensor(h)
            assert [b.tobytes() for b in buffers] == [data, bytes([e])]


def test_scale_bytes_0_and_255_are_read_in_permissive_mode_with_a_warning() -> None:
    data = bytes(range(16))
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    nibbles = np.array([[b & 15, b >> 4] for b in data]).reshape(1, 32)
    for scale in (0, 255):
        d, buffers = mx(0x43, data, scale)
        with pytest.raises(DescriptorError) as caught:
            decode_tensor(d, buffers)
        assert rule_id(caught.value) == "R23"
        validate_values(d, buffers, permissive=True)
        with pytest.warns(PermissiveWarning, match="R23"):
            w = decode_tensor(d, buffers, permissive=True)
        assert isinstance(w, bs.BlockTensor)
        expected = values[nibbles] * 2.0**-127 if scale == 0 else np.full((1, 32), np.nan)
        assert np.array_equal(w.dequantize(), expected.astype(np.float32), equal_nan=True)
        for tag in (INT8, INT4):
            d, buffers = mx(tag, bytes(32 if tag == INT8 else 16), scale)
            with pytest.warns(PermissiveWarning):
                w = decode_tensor(d, buffers, permissive=True)
            assert isinstance(w, bs.BlockTensor)
            assert np.isnan(w.dequantize()).all() == (scale == 255)


def test_mx_extremes_in_float32() -> None:
    """e = 1 makes subnormal numbers, e = 254 overflows to infinity (A25)."""
    data = bytes([0x21, 0x43, 0x65, 0x87] * 4)
    for e in (1, 254):
        d, buffers = mx(0x43, data, e)
        w = decode_tensor(d, buffers)
        assert isinstance(w, bs.BlockTensor)
        again = HurrayTensor(d, tuple(np.frombuffer(b, np.uint8) for b in buffers)).dequantize()
        assert w.dequantize().tobytes() == again.tobytes()
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0])
        nibbles = np.array([[b & 15, b >> 4] for b in data]).reshape(1, 32)
        with np.errstate(over="ignore"):
            assert again.tolist() == (values[nibbles] * 2.0 ** (e - 127)).astype(np.float32).tolist()


# The other schemes.


def test_per_tensor_arithmetic_is_exact_and_rounded_twice() -> None:
    codes = np.array([2**32 - 1, 0, 2**31, 16777217], np.uint32)
    d = make(0x15, (4,), [16], quantization=PerTensorAffine(0.1, 5))
    h = decode_tensor(d, [codes.tobytes()])
    assert isinstance(h, HurrayTensor)
    assert h.shape == (4,)
    assert h.codes().tolist() == codes.tolist()
    expected = [np.float32(0.1) * np.float32(int(q) - 5) for q in codes]
    assert h.dequantize().tolist() == [float(x) for x in expected]
    scalar = decode_tensor(make(INT8, (), [1], quantization=PerTensorAffine(2.0, -1)), [b"\xff"])
    assert isinstance(scalar, HurrayTensor)
    assert scalar.dequantize().shape == ()
    assert float(scalar.dequantize()) == 0.0


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis: int) -> None:
    codes = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    scales = np.array([0.1, -2.5, 3e38, 1e-40], np.float32)[: codes.shape[axis]]
    zeros = np.array([-128, 127, 0, 3], np.int32)[: codes.shape[axis]]
    n = codes.shape[axis]
    d = make(INT8, (3, 4), [12, 4 * n, 4 * n], quantization=PerChannelAffine(axis, 1, 2))
    h = decode_tensor(d, [codes.tobytes(), scales.tobytes(), zeros.tobytes()])
    assert isinstance(h, HurrayTensor)
    values = h.dequantize()
    for i, j in itertools.product(range(3), range(4)):
        c = (i, j)[axis]
        with np.errstate(over="ignore"):
            assert values[i, j] == scales[c] * np.float32(int(codes[i, j]) - int(zeros[c]))
    assert np.asarray(h).tolist() == values.tolist()
    assert "PerChannelAffine" in repr(h)


def test_nf4_with_partial_blocks_on_either_axis() -> None:
    table = struct.unpack("<16f", struct.pack("<16f", *NF4_TABLE))
    for axis in (0, 1):
        shape = (3, 20) if axis else (20, 3)
        codes = np.arange(60, dtype=np.uint8).reshape(shape) % 16
        scales = np.array([0, 1, 0.1, 3e38, 2.0**-140, 7, 5, 6, 4], np.float32)
        stored = np.zeros((3, 24) if axis else (24, 3), np.uint8)
        stored[: shape[0], : shape[1]] = codes
        flat = stored.reshape(-1)
        d = make(UINT4, shape, [36, 36], quantization=NF4(axis, 8))
        h = decode_tensor(d, [bytes(flat[::2] | flat[1::2] << 4), scales.tobytes()])
        assert isinstance(h, HurrayTensor)
        assert h.codes().tolist() == codes.tolist()
        for i, j in itertools.product(*map(range, shape)):
            row, along = (i, j) if axis else (j, i)
            expected = np.float32(table[codes[i, j]]) * scales[row * 3 + along // 8]
            assert h.dequantize()[i, j] == expected


NF4_TABLE = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@pytest.mark.parametrize(
    ("quantization", "tag"), [(PerChannelAffine(1), INT8), (NF4(1, 8), UINT4), (PerBlockAffine(1, 8), INT4)]
)
def test_empty_tensors_of_every_scheme(quantization: Any, tag: int) -> None:
    for shape in ((3, 0), (0, 8), (0, 0)):
        n = 4 * 8 if shape[1] and isinstance(quantization, PerChannelAffine) else 0
        value = decode_tensor(
            make(tag, shape, [0, n], quantization=quantization), [b"", np.ones(n // 4, "f4").tobytes()]
        )
        assert not isinstance(value, np.ndarray)
        assert value.dequantize().shape == shape


# What the format cannot hold.


def refuse(w: bs.BlockTensor) -> BlockscaleError:
    with pytest.raises(InputError) as caught:
        encode_tensor(w)
    return caught.value


def tensor(scheme: Scheme, shape: tuple[int, ...], scale: Any = 1, axis: int = -1) -> bs.BlockTensor:
    grid = block_grid(shape, axis, scheme.block_size)
    codes = np.zeros(shape, np.uint8).view(scheme.element.dtype)
    kind = np.uint8 if scheme.is_mx else scheme.scale.dtype
    extra = np.zeros(grid.scale_shape, offset_dtype(scheme) or np.int32)
    zeros = {"zero_points": extra} if scheme.offset == "zero_point" else {}
    if scheme.offset == "minimum":
        return bs.BlockTensor.from_parts(
            scheme, codes, np.full(grid.scale_shape, scale, kind), minimums=extra, axis=axis
        )
    return bs.BlockTensor.from_parts(
        scheme, codes, np.full(grid.scale_shape, scale, kind), axis=axis, **zeros
    )


def test_what_cannot_be_stored_is_refused_with_advice() -> None:
    mxfp4, int4, q4_1 = bs.scheme("mxfp4"), bs.scheme("int4"), bs.scheme("q4_1")
    cases = [
        (tensor(q4_1, (2, 32)), "", "uint4"),
        (tensor(mxfp4, (2, 40), 127), "R12", "pad the axis to 64"),
        (tensor(mxfp4, (2, 48), 127), "R12", "block_size=16"),
        (tensor(mxfp4, (64, 40), 127), "R12", "axis=0"),
        (tensor(mxfp4, (2, 0), 127), "R12", "affine"),
        (tensor(bs.scheme(mxfp4, block_size=8), (2, 32), 127), "R10", "block_size=32"),
        (tensor(bs.scheme(mxfp4, block_size=4096), (2, 4096), 127), "R10", "block_size=32"),
        (tensor(mxfp4, (2, 32), 0), "R23", "bs.mx.raise_scales(w)"),
        (tensor(mxfp4, (2, 32), 255), "R23", "quantize again"),
        (tensor(bs.scheme("mxint8"), (2, 32), 6), "R23", "min_scale_byte=7"),
        (tensor(bs.scheme("mxint4"), (2, 32), 2), "R23", "min_scale_byte=3"),
        (tensor(bs.scheme("mxint8"), (2, 32), 255), "R23", "quantize again"),
        (tensor(int4, (2, 16)), "R11", "block_size=16"),
        (tensor(int4, (2, 1)), "R11", "another axis"),
    ]
    for w, rule, advice in cases:
        error = refuse(w)
        assert rule == "" or rule_id(error) == rule  # type: ignore[arg-type]
        assert advice in str(error.hint), (w, error)
        with_plan = error.rule is not None and rule in ("R10", "R11", "R12", "")
        if with_plan:
            with pytest.raises(InputError):
                plan_tensor(w.shape, w.axis, w.scheme)
    for bad in (0.0, np.nan, np.inf):
        assert "rule 20" in str(refuse(tensor(int4, (2, 32), bad)))


def test_advice_of_raised_scales_works() -> None:
    tiny = np.full((2, 32), 2.0**-126, np.float32)
    tiny[:, 0] = 2.0**-125
    w = bs.quantize(tiny, "mxfp4")
    assert w.scales.view(np.uint8).max() == 0
    refuse(w)
    descriptor, buffers = encode_tensor(bs.mx.raise_scales(w))
    assert isinstance(decode_tensor(descriptor, buffers), bs.BlockTensor)


def test_hurray_tensors_have_the_buffers_of_their_table() -> None:
    d = make(INT8, (4,), [4], quantization=PerTensorAffine(1.0))
    for buffers in ((), (np.zeros(3, np.uint8),), (np.zeros(4, np.uint8), np.zeros(4, np.uint8))):
        with pytest.raises(DescriptorError) as caught:
            HurrayTensor(d, buffers)
        assert rule_id(caught.value) == "H32"


def test_opaque_tensors_are_not_interpreted() -> None:
    d = TensorDescriptor(0x60, (4,), (BufferHandle(4),))
    d = TensorDescriptor.decode(d.encode(), permissive=True)
    with pytest.raises(UnsupportedError, match="0x60"):
        decode_tensor(d, [bytes(4)], permissive=True)
    with pytest.raises(DescriptorError):
        encode_tensor(HurrayTensor(d, (np.zeros(4, np.uint8),)))[0].check()

"""Tables of broken Hurray descriptors: rule, fault, bytes, field and its offset; one case a line."""
# ruff: noqa: E501

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from hurray_build import (
    E2M1,
    INT4,
    INT8,
    MXFP,
    NF4,
    NO_BUFFER,
    PARTIAL,
    PER_BLOCK,
    PER_CHANNEL,
    PER_TENSOR,
    PLAIN,
    SYMMETRIC,
    UINT4,
    Raw,
    handle,
    mxfp,
    per_block,
    per_tensor,
)

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
DYNAMIC = U64.pack(2**64 - 1)
INF, NAN = float("inf"), float("nan")


def in_section(raw: Raw, at: int, data: bytes) -> Raw:
    """Other bytes in the quantization section."""
    return raw.patched(raw.section_offset + at, data)


def in_table(raw: Raw, i: int, at: int, data: bytes) -> Raw:
    """Other bytes in a buffer handle."""
    return raw.patched(raw.table_offset + 16 * i + at, data)


def on_gpu(size: int) -> bytes:
    return handle(size, device=1)


# rule, what is wrong, descriptor, field, offset (None: not asserted)
Q, T = Raw.section_offset, Raw.table_offset
Case = tuple[str, str, Raw, str, int | None]


def at_q(raw: Raw, at: int) -> int:
    return raw.section_offset + at


def at_t(raw: Raw, i: int, at: int) -> int:
    return raw.table_offset + 16 * i + at


# fmt: off
QUANTIZATION: Sequence[Case] = (
    *(("R1", f"tag {t:#x}", in_section(PER_BLOCK, 0, bytes([t])), "quantization.scheme_tag", at_q(PER_BLOCK, 0))
      for t in (0x00, 0xFF)),
    *(("R2", f"tag {t:#x}", in_section(PER_BLOCK, 0, bytes([t])), "quantization.scheme_tag", at_q(PER_BLOCK, 0))
      for t in (0x06, 0x3F, 0x40, 0x60, 0x80, 0xF0, 0xFE)),
    *(("R3", f"{name} version {v}", in_section(raw, 1, bytes([v])), "quantization.scheme_version", at_q(raw, 1))
      for name, raw in (("0x01", PER_TENSOR), ("0x03", PER_BLOCK), ("0x05", MXFP)) for v in (0, 2, 255)),
    *(("R4", f"flags {f:#x}", in_section(raw, 2, struct.pack("<H", f)), "quantization.flags", at_q(raw, 2))
      for raw, f in ((PER_TENSOR, 1), (PER_CHANNEL, 2), (PER_BLOCK, 0x8000), (SYMMETRIC, 3), (NF4, 1), (MXFP, 1))),
    *(("R5", f"{len(s) - 1} bytes", raw.but(section=s[:-1]), "quantization", at_q(raw, 0))
      for raw in (PER_TENSOR, PER_CHANNEL, PER_BLOCK, NF4, MXFP) for s in [raw.section or b""]),
    ("R5", "no bytes", PER_BLOCK.but(section=b""), "quantization.scheme_tag", at_q(PER_BLOCK, 0)),
    ("R6", "0x01", in_section(PER_TENSOR, 15, b"\1"), "quantization.reserved", at_q(PER_TENSOR, 12)),
    ("R6", "0x02", in_section(PER_CHANNEL, 17, b"\1"), "quantization.reserved", at_q(PER_CHANNEL, 17)),
    ("R6", "0x03", in_section(PER_BLOCK, 23, b"\1"), "quantization.reserved", at_q(PER_BLOCK, 21)),
    *(("R7", f"{t:#x} in {raw.type_tag:#x}'s scheme", raw.but(type_tag=t, handles=(handle(4096), *raw.handles[1:])), "type_tag", 14)
      for raw, t in ((PER_TENSOR, 0x03), (PER_TENSOR, 0x16), (PER_TENSOR, 0x40), (PER_CHANNEL, 0x17), (PER_BLOCK, 0x12),
                     (PER_BLOCK, 0x03), (SYMMETRIC, E2M1), (NF4, INT4), (NF4, 0x11), (MXFP, 0x11), (MXFP, 0x01), (MXFP, 0x42))),
    *(("R8", f"axis 2 of {raw.type_tag:#x}", in_section(raw, 4, U32.pack(2)), "quantization.axis", at_q(raw, 4))
      for raw in (PER_CHANNEL, PER_BLOCK, NF4, MXFP)),
    ("R8", "scalar", Raw(INT4, (), (handle(1), handle(2)), per_block(0)), "quantization.axis", None),
    ("R8", "axis 2**32 - 1", in_section(MXFP, 4, U32.pack(2**32 - 1)), "quantization.axis", at_q(MXFP, 4)),
    *(("R9", f"dynamic axis of {raw.type_tag:#x}", raw.patched(28, DYNAMIC), "shape[1]", 28)
      for raw in (PER_BLOCK, NF4, MXFP)),
    ("R9", "dynamic channels", PER_CHANNEL.patched(20, DYNAMIC), "shape[0]", 20),
    *(("R10", f"{size} in {raw.type_tag:#x}", in_section(raw, 8, U32.pack(size)), "quantization.block_size", at_q(raw, 8))
      for raw, sizes in ((PER_BLOCK, (0, 1, 3, 24, 2**31 + 1)), (NF4, (0, 4, 12)), (MXFP, (0, 8, 48, 4096)))
      for size in sizes),
    ("R11", "64 of 32", in_section(SYMMETRIC, 8, U32.pack(64)), "quantization.block_size", at_q(SYMMETRIC, 8)),
    ("R11", "2**31 of 32", in_section(SYMMETRIC, 8, U32.pack(2**31)), "quantization.block_size", at_q(SYMMETRIC, 8)),
    ("R11", "NF4 64 of 32", in_section(NF4, 8, U32.pack(64)), "quantization.block_size", at_q(NF4, 8)),
    ("R12", "empty axis", Raw(E2M1, (4, 0), (handle(0), handle(0)), mxfp()), "quantization.block_size", None),
    ("R12", "48 in 32s", Raw(E2M1, (4, 48), (handle(128), handle(8)), mxfp()), "quantization.block_size", None),
    ("R12", "16 in 32s", Raw(E2M1, (4, 16), (handle(128), handle(4)), mxfp()), "quantization.block_size", None),
    *(("R13", f"scales at {i}", in_section(PER_BLOCK, 12, U32.pack(i)), "quantization.scale_index", at_q(PER_BLOCK, 12))
      for i in (3, 255, NO_BUFFER)),
    ("R13", "channel scales", in_section(PER_CHANNEL, 8, U32.pack(3)), "quantization.scale_index", at_q(PER_CHANNEL, 8)),
    ("R13", "NF4 scales", in_section(NF4, 12, U32.pack(NO_BUFFER)), "quantization.scale_index", at_q(NF4, 12)),
    ("R13", "zero points", in_section(PER_BLOCK, 16, U32.pack(3)), "quantization.zero_point_index", at_q(PER_BLOCK, 16)),
    ("R13", "zero points nowhere", in_section(PER_BLOCK, 16, U32.pack(NO_BUFFER)), "quantization.zero_point_index",
     at_q(PER_BLOCK, 16)),
    ("R14", "scales are data", in_section(PER_BLOCK, 12, U32.pack(0)), "quantization.scale_index", at_q(PER_BLOCK, 12)),
    ("R14", "zero points are data", in_section(PER_BLOCK, 16, U32.pack(0)), "quantization.zero_point_index",
     at_q(PER_BLOCK, 16)),
    ("R14", "MXFP scales are data", in_section(MXFP, 12, U32.pack(0)), "quantization.scale_index", at_q(MXFP, 12)),
    ("R15", "0x03", in_section(SYMMETRIC, 16, U32.pack(1)), "quantization.zero_point_index", at_q(SYMMETRIC, 16)),
    ("R15", "0x02", in_section(PER_CHANNEL, 2, b"\1\0"), "quantization.zero_point_index", at_q(PER_CHANNEL, 12)),
    ("R16", "device", SYMMETRIC.but(handles=(handle(64), on_gpu(16))), "buffers[1].device_tag", at_t(SYMMETRIC, 1, 12)),
    ("R16", "memory class", SYMMETRIC.but(handles=(handle(64), handle(16, memory=1))), "buffers[1].memory_class",
     at_t(SYMMETRIC, 1, 14)),
    *(("R17", f"{i}: {n} bytes", in_table(PER_BLOCK, i, 0, U64.pack(n)), f"buffers[{i}].byte_size", at_t(PER_BLOCK, i, 0))
      for i, n in ((1, 15), (1, 17), (2, 31), (2, 33), (2, 2**63))),
    ("R17", "channels", in_table(PER_CHANNEL, 1, 0, U64.pack(16)), "buffers[1].byte_size", at_t(PER_CHANNEL, 1, 0)),
    ("R17", "NF4", in_table(NF4, 1, 0, U64.pack(16)), "buffers[1].byte_size", at_t(NF4, 1, 0)),
    ("R17", "MXFP", in_table(MXFP, 1, 0, U64.pack(9)), "buffers[1].byte_size", at_t(MXFP, 1, 0)),
    ("R17", "shared", Raw(INT4, (4, 32), (handle(64), handle(32)), per_block(1, 16, 1, 1)), "buffers[1].byte_size", None),
    ("R18", "one more", SYMMETRIC.but(handles=(*SYMMETRIC.handles, handle(4))), "buffer_count", SYMMETRIC.table_offset - 1),
    ("R18", "0x01 with two", PER_TENSOR.but(handles=(handle(12), handle(4))), "buffer_count", PER_TENSOR.table_offset - 1),
    ("R18", "shared in three", Raw(INT4, (4, 32), (handle(64), handle(48), handle(32)), per_block(1, 16, 1, 1)),
     "buffer_count", None),
    ("R19", "63 of 64", in_table(SYMMETRIC, 0, 0, U64.pack(63)), "buffers[0].byte_size", at_t(SYMMETRIC, 0, 0)),
    ("R19", "tight", in_table(PARTIAL, 0, 0, U64.pack(60)), "buffers[0].byte_size", at_t(PARTIAL, 0, 0)),
    ("R19", "between", in_table(PARTIAL, 0, 0, U64.pack(71)), "buffers[0].byte_size", at_t(PARTIAL, 0, 0)),
    ("R19", "0x01", in_table(PER_TENSOR, 0, 0, U64.pack(11)), "buffers[0].byte_size", at_t(PER_TENSOR, 0, 0)),
    ("R19", "byte_offset", SYMMETRIC.but(byte_offset=1), "buffers[0].byte_size", at_t(SYMMETRIC, 0, 0)),
    ("R19", "huge", Raw(INT8, (2**40, 2**40), (handle(1),), per_tensor()), "buffers[0].byte_size", None),
    *(("R20", str(s), PER_TENSOR.but(section=per_tensor(s)), "quantization.scale", at_q(PER_TENSOR, 4))
      for s in (0.0, -0.0, NAN, INF, -INF)),
    *(("R21", f"{z} in {t:#x}", Raw(t, (2,), (handle(8),), per_tensor(1.0, z)), "quantization.zero_point", None)
      for t, z in ((INT8, 128), (INT8, -129), (0x11, -1), (0x11, 256), (INT4, 8), (UINT4, 16), (0x4A, 2), (0x4B, 4),
                   (0x12, 2**15), (0x13, -1), (0x15, -1))),
    *(("R22", f"tag {t:#x}", in_section(PER_BLOCK, 20, bytes([t])), "quantization.scale_type", at_q(PER_BLOCK, 20))
      for t in (0, 4, 0x42, 255)),
    *(("R22", f"channel tag {t:#x}", in_section(PER_CHANNEL, 16, bytes([t])), "quantization.scale_type", at_q(PER_CHANNEL, 16))
      for t in (1, 2)),
)

STATISTICS = bytearray(72)
SHARD = struct.pack("<4Q", 6, 8, 0, 0)
EXTENSION = struct.pack("<IBBBBBB2xIBB2x", 4, 2, 1, 1, 1, 2, 1, 1, 0, 0)
PRIVATE = Raw(0xF0, tail=EXTENSION, flags=4)
STRIDED = PLAIN.but(layout_tag=3, layout=struct.pack("<2q", 4, 1))


def statistics(at: int, data: bytes, mask: int = 0x3F) -> Raw:
    raw = bytearray(72)
    raw[:4] = U32.pack(mask)
    raw[at : at + len(data)] = data
    return PLAIN.but(flags=8, tail=bytes(raw))


def tiled(depth: int) -> bytes:
    level = struct.pack("<2Q", 2, 2)
    return (level + bytes([1, 4, 0, 0])) * (depth - 1) + level + bytes([1, 1, 0, 0])


DESCRIPTOR: Sequence[Case] = (
    ("H1", "magic", PLAIN.but(magic=b"HRRX"), "magic", 0),
    ("H2", "length 19", PLAIN.but(length=19), "descriptor_length", 6),
    ("H2", "length beyond", PLAIN.but(length=2**32 - 1), "descriptor_length", 6),
    ("H3", "shape", PLAIN.but(rank=64), "shape", None),
    ("H3", "length in the table", PLAIN.but(length=50), "buffers[0]", 45),
    ("H3", "strides", PLAIN.but(layout_tag=3, length=52), "layout.strides", 44),
    *(("H4", f"major {v}", PLAIN.but(major=v), "version_major", 4) for v in (0, 2, 255)),
    ("H5", "one byte more", PLAIN.but(tail=b"\0"), "descriptor_length", 6),
    *(("H6", f"flag {1 << b:#x}", PLAIN.but(flags=1 << b), "flags", 10) for b in (5, 6, 31)),
    *(("H7", f"type {t:#x}", PLAIN.but(type_tag=t), "type_tag", 14) for t in (0x05, 0x3F, 0x47, 0x60, 0x80, 0xEF)),
    *(("H8", f"type {t:#x}", PLAIN.but(type_tag=t), "type_tag", 14) for t in (0x00, 0xFF)),
    *(("H8", f"layout {t:#x}", PLAIN.but(layout_tag=t), "layout_tag", 15) for t in (0x00, 0xFF)),
    *(("H9", f"layout {t:#x}", PLAIN.but(layout_tag=t), "layout_tag", 15) for t in (0x0C, 0x3F, 0x41, 0x80, 0xEF)),
    ("H10", "section for float32", PLAIN.but(flags=4, tail=EXTENSION), "flags", 10),
    ("H10", "no section", PLAIN.but(type_tag=0xF0), "flags", 10),
    ("H11", "rank 65", PLAIN.but(rank=65), "rank", 16),
    ("H11", "rank 2**32 - 1", PLAIN.but(rank=2**32 - 1), "rank", 16),
    *(("H12", f"layout {t}", Raw(shape=(), layout_tag=t), "layout_tag", 15) for t in (2, 3)),
    ("H13", "49 of 48", PLAIN.but(byte_offset=49), "byte_offset", 36),
    ("H13", "2**64 - 1", PLAIN.but(byte_offset=2**64 - 1), "byte_offset", 36),
    ("H14", "CSR", Raw(layout_tag=7, layout=bytes(16), handles=(handle(8),) * 3, byte_offset=4), "byte_offset", 36),
    ("H14", "head", Raw(layout_tag=11, layout=struct.pack("<BB2xI", 1, 0, 1), handles=(), byte_offset=4), "byte_offset", 36),
    ("H15", "CSR", Raw(layout_tag=7, layout=bytes(15) + b"\1", handles=(handle(8),) * 3), "layout.reserved", 52),
    ("H15", "COO", Raw(layout_tag=6, layout=bytes(15) + b"\1", handles=(handle(8),) * 2), "layout.reserved", 53),
    ("H15", "paged", Raw(layout_tag=10, layout=bytes(31) + b"\1", handles=(handle(8),) * 3), "layout.reserved", 70),
    ("H15", "statistics", statistics(4, b"\1"), "statistics.reserved", 65),
    ("H15", "statistics end", statistics(71, b"\1"), "statistics.reserved", 129),
    ("H15", "extension", PRIVATE.but(tail=EXTENSION[:10] + b"\1" + EXTENSION[11:]), "extension_type.reserved", 71),
    ("H15", "extension end", PRIVATE.but(tail=EXTENSION[:19] + b"\1"), "extension_type.reserved", 79),
    ("H15", "member", PLAIN.but(flags=16, tail=bytes(15) + b"\1"), "composite_member.reserved", 62),
    ("H16", "tiled outer 0", PLAIN.but(layout_tag=4, layout=bytes(20)), "layout.outer", 60),
    ("H16", "tiled inner 5", PLAIN.but(layout_tag=4, layout=bytes(16) + b"\1\5\0\0"), "layout.inner", 61),
    ("H16", "Morton 0 bits", PLAIN.but(layout_tag=5, layout=bytes(8)), "layout.bits[0]", 44),
    ("H16", "COO sorted 2", Raw(layout_tag=6, layout=bytes(8) + b"\2" + bytes(7), handles=(handle(8),) * 2),
     "layout.is_sorted", 52),
    ("H16", "head rule 4", Raw(layout_tag=11, layout=struct.pack("<BB2xI", 4, 0, 1), handles=()), "layout.rule", 44),
    ("H16", "overlay combine 0", Raw(layout_tag=11, layout=struct.pack("<BB2xI", 2, 0, 1), handles=()), "layout.combine", 45),
    ("H16", "group combine 1", Raw(layout_tag=11, layout=struct.pack("<BB2xI", 3, 1, 1), handles=()), "layout.combine", 45),
    ("H16", "Hilbert order 0", PLAIN.but(layout_tag=0x40, layout=struct.pack("<2I", 0, 2)), "layout.order", 44),
    ("H16", "Hilbert rank 3", PLAIN.but(layout_tag=0x40, layout=struct.pack("<2I", 2, 3)), "layout.curve_rank", 48),
    ("H16", "Hilbert of rank 1", Raw(shape=(12,), layout_tag=0x40, layout=struct.pack("<2I", 2, 1)), "layout.curve_rank", 40),
    ("H17", "nine deep", PLAIN.but(layout_tag=4, layout=tiled(9)), "layout.inner", None),
    ("H18", "two buffers", PLAIN.but(handles=(handle(48), handle(48))), "buffer_count", 44),
    ("H18", "no buffer", PLAIN.but(handles=()), "buffer_count", 44),
    ("H18", "CSR with two", Raw(layout_tag=7, layout=bytes(16), handles=(handle(8),) * 2), "buffer_count", 60),
    ("H18", "head with one", Raw(layout_tag=11, layout=struct.pack("<BB2xI", 1, 0, 1)), "buffer_count", 52),
    ("H18", "private with none", Raw(layout_tag=0xF0, layout=struct.pack("<QI", 7, 0), handles=()), "buffer_count", 56),
    *(("H19", f"alignment {a}", PLAIN.but(handles=(handle(48, a),)), "buffers[0].alignment", 53)
      for a in (0, 1, 32, 63, 96, 2**32 - 1)),
    ("H19", "empty, 3", Raw(shape=(0,), handles=(handle(0, 3),)), "buffers[0].alignment", 45),
    *(("H20", f"device {d}", PLAIN.but(handles=(handle(48, device=d),)), "buffers[0].device_tag", 57) for d in (9, 0xEF, 0xFF)),
    ("H21", "CPU 1", PLAIN.but(handles=(handle(48, sync=1),)), "buffers[0].sync_mode", 58),
    ("H21", "CUDA 3", PLAIN.but(handles=(handle(48, device=1, sync=3),)), "buffers[0].sync_mode", 58),
    *(("H22", f"class {m} on {d}", PLAIN.but(handles=(handle(48, device=d, memory=m),)), "buffers[0].memory_class", 59)
      for d, m in ((0, 3), (0, 4), (3, 3), (5, 3), (5, 1), (6, 3), (8, 3), (1, 0xEF), (1, 0xFF), (1, 0xF0))),
    ("H23", "reserved", in_table(PLAIN, 0, 15, b"\1"), "buffers[0].reserved", 60),
    ("H24", "devices", Raw(layout_tag=7, layout=bytes(16), handles=(handle(8), handle(8), on_gpu(8))),
     "buffers[2].device_tag", 61 + 32 + 12),
    ("H25", "offset beyond", PLAIN.but(flags=2, tail=struct.pack("<4Q", 3, 8, 0, 5)), "shard.offset[1]", 85),
    ("H25", "overflow", PLAIN.but(flags=2, tail=struct.pack("<4Q", 3, 8, 2**64 - 1, 0)), "shard.offset[0]", 77),
    ("H25", "dynamic", PLAIN.patched(20, DYNAMIC).but(flags=2, tail=SHARD), "shape[0]", 20),
    ("H26", "mask", statistics(0, U32.pack(0x7F)), "statistics.computed_mask", 61),
    ("H26", "n of m", statistics(64, b"\3\2"), "statistics.nm_n", 125),
    ("H26", "stddev", statistics(56, struct.pack("<d", -1.0)), "statistics.value_stddev", 117),
    ("H26", "has_nan 2", statistics(66, b"\2"), "statistics.has_nan", 127),
    ("H26", "has_inf 2", statistics(67, b"\2"), "statistics.has_inf", 128),
    *(("H27", f"{bits} bits, packing {n}", PRIVATE.but(tail=struct.pack("<IB", bits, n) + EXTENSION[5:]),
       "extension_type.bit_width", 61) for bits, n in ((8, 2), (16, 0), (4, 1), (4, 4), (3, 2), (6, 1), (0, 1))),
    ("H28", "role 2", PLAIN.but(flags=16, tail=b"\2" + bytes(15)), "composite_member.role", 61),
    ("H29", "quantized CSR", Raw(INT4, (4, 32), (handle(64), handle(8), handle(8), handle(16)), per_block(1, 16, 3),
                                 layout_tag=7, layout=bytes(16)), "layout_tag", 15),
)
# fmt: on


# fmt: off
# Rules about values: the data buffer, the parameters, the rule, the field, the value found.
F16, F32, I32 = np.float16, np.float32, np.int32


def scales(dtype: type, n: int, bad: float, at: int) -> bytes:
    array: np.ndarray[tuple[int], np.dtype[np.floating]] = np.ones(n, dtype)
    array[at] = bad
    return array.tobytes()


def exponents(bad: int) -> bytes:
    return bytes([127] * 5 + [bad] + [127] * 2)


VALUES = (
    *(
        (f"0x03 scale {s}", PER_BLOCK, [bytes(64), scales(F16, 8, s, 3), bytes(32)], "R20", "scales[3]")
        for s in (0, NAN, INF)
    ),
    *(
        (f"0x02 scale {s}", PER_CHANNEL, [bytes(12), scales(F32, 3, s, 2), bytes(12)], "R20", "scales[2]")
        for s in (0, NAN, -INF)
    ),
    *((f"NF4 scale {s}", NF4, [bytes(64), scales(F32, 8, s, 7)], "R20", "scales[7]") for s in (-1, NAN, INF)),
    *(
        (
            f"0x02 zero {z}",
            PER_CHANNEL,
            [bytes(12), scales(F32, 3, 1, 0), np.array([1, z, 2], I32).tobytes()],
            "R21",
            "zero_points[1]",
        )
        for z in (128, -129, 2**31 - 1)
    ),
    *((f"scale byte {b}", MXFP, [bytes(128), exponents(b)], "R23", "scales[5]") for b in (0, 255)),
)
# fmt: on

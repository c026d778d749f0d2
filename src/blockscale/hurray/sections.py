"""The smaller parts of a descriptor: buffer handles, shard, statistics, extension type."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import DescriptorError
from .reader import Cursor
from .rules import broken
from .types import is_private

_HANDLE = struct.Struct("<QIBBBB")
_STATISTICS = struct.Struct("<IIQddddddBBBB4s")
_EXTENSION = struct.Struct("<IBBBBBB2sIBB2s")
# fmt: off
_DEVICES = ("CPU", "CUDA", "ROCm", "Metal", "Vulkan", "WebGPU", "Hexagon", "Level Zero", "OpenCL")
_NO_PEER = (0, 3, 5, 6, 8)
# fmt: on
_WEBGPU = 5
_PEER = 3


@dataclass(frozen=True, slots=True)
class BufferHandle:
    """One row of the buffer table.

    Attributes:
        byte_size: size of the buffer in bytes.
        alignment: what the memory is aligned to, a power of two.
        device_tag: 0 CPU, 1 CUDA ...
        sync_mode: 0 producer-synced, 1 event, 2 consumer-stream.
        memory_class: 0 standard, 1 host-pinned, 2 unified, 3 peer.
        reserved: 0, or what a permissive reader let pass.

    Source: Hurray format, 2.4.
    """

    byte_size: int
    alignment: int = 64
    device_tag: int = 0
    sync_mode: int = 0
    memory_class: int = 0
    reserved: int = 0

    def encode(self) -> bytes:
        """The 16 bytes of the handle."""
        return _HANDLE.pack(
            *(self.byte_size, self.alignment, self.device_tag),
            *(self.sync_mode, self.memory_class, self.reserved),
        )


def file_buffer(byte_size: int) -> BufferHandle:
    """The handle of a buffer in a file; an empty one has alignment 1, as the reference writes it."""
    return BufferHandle(byte_size, 64 if byte_size else 1)


def read_handle(cursor: Cursor, i: int) -> BufferHandle:
    """Read row `i` of the buffer table."""
    return BufferHandle(*cursor.unpack(_HANDLE, f"buffers[{i}]"))


def handle_violations(handle: BufferHandle, i: int, start: int) -> Iterator[DescriptorError]:
    """Each broken rule about one handle (H19 .. H23); `start` is its offset."""

    def fault(rule: str, field: str, at: int, message: str) -> DescriptorError:
        found = getattr(handle, field)
        return broken(rule, message, field=f"buffers[{i}].{field}", offset=start + at, found=found)

    alignment, device, memory = handle.alignment, handle.device_tag, handle.memory_class
    if alignment == 0 or alignment & (alignment - 1) or (handle.byte_size and alignment < 64):
        yield fault("H19", "alignment", 8, f"alignment {alignment} of a buffer of {handle.byte_size} bytes")
    if device >= len(_DEVICES) and not is_private(device):
        yield fault("H20", "device_tag", 12, f"device tag {device} is not assigned")
    if handle.sync_mode > 2 or (device == 0 and handle.sync_mode):
        yield fault("H21", "sync_mode", 13, f"sync mode {handle.sync_mode} on {_device_name(device)}")
    if not _is_possible(device, memory):
        yield fault("H22", "memory_class", 14, f"memory class {memory} on {_device_name(device)}")
    if handle.reserved:
        yield fault("H23", "reserved", 15, f"the reserved byte is 0x{handle.reserved:02X}")


def _is_possible(device: int, memory: int) -> bool:
    if is_private(memory):
        return is_private(device)
    if memory > _PEER or (memory == _PEER and device in _NO_PEER):
        return False
    return memory == 0 or device != _WEBGPU


def _device_name(tag: int) -> str:
    return _DEVICES[tag] if tag < len(_DEVICES) else f"device 0x{tag:02X}"


@dataclass(frozen=True, slots=True)
class Shard:
    """The tensor is a part of a larger one.

    Attributes:
        parent_shape: shape of the larger tensor.
        offset: index of this part's first element in it.

    Source: Hurray format, 2.6.
    """

    parent_shape: tuple[int, ...]
    offset: tuple[int, ...]

    def encode(self) -> bytes:
        """The `16 * rank` bytes of the section."""
        return struct.pack(f"<{2 * len(self.parent_shape)}Q", *self.parent_shape, *self.offset)


def read_shard(cursor: Cursor, rank: int) -> Shard:
    """Read a shard section."""
    form = struct.Struct(f"<{rank}Q")
    return Shard(cursor.unpack(form, "shard.parent_shape"), cursor.unpack(form, "shard.offset"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Advisory figures about the tensor's values, kept as they are stored.

    Attributes:
        data: the 72 bytes of the section. Fields whose mask bit is clear may hold anything.

    Source: Hurray format, 2.6.
    """

    data: bytes

    @property
    def values(self) -> dict[str, int | float]:
        """The figures that were computed, by the format's names."""
        mask, _, *rest = _STATISTICS.unpack(self.data)
        return {
            name: value
            for (name, bit), value in zip(_STATISTIC_BITS, rest[:-1], strict=True)
            if mask >> bit & 1
        }

    def encode(self) -> bytes:
        """The 72 bytes of the section."""
        return self.data


_STATISTIC_BITS = (
    *(("nnz", 0), ("sparsity_ratio", 1)),
    *(
        ("value_min", 2),
        ("value_max", 2),
        ("value_abs_max", 2),
        ("value_mean", 3),
        ("value_stddev", 3),
    ),
    *(("nm_n", 4), ("nm_m", 4), ("has_nan", 5), ("has_inf", 5)),
)


def read_statistics(cursor: Cursor) -> Statistics:
    """Read a statistics section."""
    return Statistics(cursor.take(_STATISTICS.size, "statistics"))


def statistics_violations(statistics: Statistics, start: int) -> Iterator[DescriptorError]:
    """H15 and H26; `start` is the section's offset."""
    mask, reserved, *_, tail = _STATISTICS.unpack(statistics.data)
    if mask >> 6:
        message = f"computed_mask is 0x{mask:X}"
        yield broken("H26", message, field="statistics.computed_mask", offset=start, found=mask)
    if reserved or any(tail):
        at = 4 if reserved else 68
        yield broken("H15", "reserved bytes are not zero", field="statistics.reserved", offset=start + at)
    found = statistics.values
    if found.get("nm_n", 0) > found.get("nm_m", 0):
        message = f"n:m is {found['nm_n']}:{found['nm_m']}"
        yield broken("H26", message, field="statistics.nm_n", offset=start + 64, found=found["nm_n"])
    if found.get("value_stddev", 0.0) < 0:
        message = f"the standard deviation is {found['value_stddev']}"
        yield broken(
            "H26",
            message,
            field="statistics.value_stddev",
            offset=start + 56,
            found=found["value_stddev"],
        )
    for name, at in (("has_nan", 66), ("has_inf", 67)):
        if found.get(name, 0) > 1:
            message = f"{name} is {found[name]}"
            yield broken("H26", message, field=f"statistics.{name}", offset=start + at, found=found[name])


@dataclass(frozen=True, slots=True)
class ExtensionType:
    """What a private element type looks like; its values have no meaning here.

    Source: Hurray format, 2.6.
    """

    bit_width: int
    packing_factor: int = 1
    is_float: int = 0
    is_signed: int = 0
    sign_bits: int = 0
    exponent_bits: int = 0
    mantissa_bits: int = 0
    exponent_bias: int = 0
    has_nan: int = 0
    has_inf: int = 0

    def encode(self) -> bytes:
        """The 20 bytes of the section."""
        return _EXTENSION.pack(
            *(self.bit_width, self.packing_factor, self.is_float, self.is_signed),
            *(self.sign_bits, self.exponent_bits, self.mantissa_bits, b""),
            *(self.exponent_bias, self.has_nan, self.has_inf, b""),
        )


def read_extension_type(cursor: Cursor) -> ExtensionType:
    """Read an extension type section; H15."""
    start = cursor.offset
    fields = list(_EXTENSION.unpack(cursor.take(_EXTENSION.size, "extension_type")))
    for i, at in ((11, 18), (7, 10)):
        reserved = fields.pop(i)
        if any(reserved):
            raise broken(
                "H15",
                f"reserved bytes are {reserved.hex(' ')}",
                field="extension_type.reserved",
                offset=start + at,
            )
    return ExtensionType(*fields)


def extension_violations(extension: ExtensionType, start: int) -> Iterator[DescriptorError]:
    """H27; `start` is the section's offset."""
    bits, factor = extension.bit_width, extension.packing_factor
    if (factor != 1) if bits >= 8 else (bits not in (1, 2, 4) or factor != 8 // bits):
        message = f"{bits} bits with packing factor {factor}"
        yield broken("H27", message, field="extension_type.bit_width", offset=start, found=bits)

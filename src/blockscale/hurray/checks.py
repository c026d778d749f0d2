"""The rules of a descriptor that its structure lets us check, each as one error that names its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..blocks import MAX_RANK
from ..errors import DescriptorError
from .geometry import DYNAMIC
from .layouts import ROW_MAJOR
from .quantization import UnknownQuantization, parameter_indices
from .quantization_checks import tensor_violations
from .rules import broken
from .sections import extension_violations, handle_violations, statistics_violations
from .types import is_private

if TYPE_CHECKING:
    from .descriptor import TensorDescriptor


def descriptor_violations(d: TensorDescriptor, *, permissive: bool = False) -> Iterator[DescriptorError]:
    """Each broken rule of a descriptor whose structure is whole.

    Args:
        d: the descriptor.
        permissive: leave out what only strict reading refuses of R19 (partial blocks without padding).
    """
    yield from _header_violations(d)
    if not d.layout.is_known:
        message = f"layout tag 0x{d.layout.tag:02X} is not assigned"
        hint = "permissive reading keeps the descriptor, without interpreting the data"
        yield broken("H9", message, field="layout_tag", offset=15, found=d.layout.tag, hint=hint)
        return  # everything after the layout is unparsed
    yield from _buffer_violations(d)
    yield from _section_violations(d)
    if d.quantization is not None:
        yield from tensor_violations(d, d.quantization, permissive=permissive)


def _header_violations(d: TensorDescriptor) -> Iterator[DescriptorError]:
    if d.type is None and not is_private(d.type_tag):
        message = f"type tag 0x{d.type_tag:02X} is not assigned"
        hint = "permissive reading keeps the descriptor, without interpreting the data"
        yield broken("H7", message, field="type_tag", offset=14, found=d.type_tag, hint=hint)
    if d.rank > MAX_RANK:
        yield broken("H11", f"rank is {d.rank}", field="rank", offset=16, found=d.rank)
    if d.rank == 0 and d.layout != ROW_MAJOR:
        yield broken(
            "H12", f"a scalar in a {d.layout.name} layout", field="layout_tag", offset=15, found=d.layout.tag
        )
    if d.byte_offset and not d.layout.has_offset:
        message = f"byte_offset {d.byte_offset} in a {d.layout.name} layout"
        yield broken(
            "H14", message, field="byte_offset", offset=d.offset_of("byte_offset"), found=d.byte_offset
        )


def _buffer_violations(d: TensorDescriptor) -> Iterator[DescriptorError]:
    start = d.offset_of("buffers")
    if d.buffers and d.byte_offset > d.buffers[0].byte_size:
        message = f"byte_offset {d.byte_offset} in a buffer of {d.buffers[0].byte_size} bytes"
        yield broken(
            "H13", message, field="byte_offset", offset=d.offset_of("byte_offset"), found=d.byte_offset
        )
    for i, handle in enumerate(d.buffers):
        yield from handle_violations(handle, i, start + 16 * i)
    yield from _count_violations(d)
    parameters = set() if d.quantization is None else set(parameter_indices(d.quantization).values())
    for i, handle in enumerate(d.buffers[1:], 1):
        first = d.buffers[0]
        for at, name in ((12, "device_tag"), (14, "memory_class")):
            found, wanted = getattr(handle, name), getattr(first, name)
            if found != wanted:
                rule = "R16" if i in parameters else "H24"
                message = f"buffer {i} has {name} {found}, the data buffer {wanted}"
                field = f"buffers[{i}].{name}"
                yield broken(rule, message, field=field, offset=start + 16 * i + at, found=found)


def _count_violations(d: TensorDescriptor) -> Iterator[DescriptorError]:
    """H18, and R18 for quantized tensors."""
    own, count = d.layout.own_buffers(d.rank), len(d.buffers)
    indices = {} if d.quantization is None else parameter_indices(d.quantization)
    extra = len(set(indices.values()))
    if own is None or isinstance(d.quantization, UnknownQuantization):
        low = 1 if own is None else own
        is_right, wanted = count >= low, f"{low} or more"
    else:
        is_right, wanted = count == own + extra, str(own + extra)
    if not is_right:
        rule = "H18" if d.quantization is None else "R18"
        message = f"{count} buffers, where the layout and its parameters have {wanted}"
        yield broken(rule, message, field="buffer_count", offset=d.offset_of("buffer_count"), found=count)


def _section_violations(d: TensorDescriptor) -> Iterator[DescriptorError]:
    yield from _shard_violations(d)
    if d.statistics is not None:
        yield from statistics_violations(d.statistics, d.offset_of("statistics"))
    if (d.extension_type is not None) != is_private(d.type_tag):
        there = "has" if d.extension_type is not None else "lacks"
        message = f"type tag 0x{d.type_tag:02X} {there} an extension type section"
        yield broken("H10", message, field="flags", offset=10, found=d.flags)
    if d.extension_type is not None:
        yield from extension_violations(d.extension_type, d.offset_of("extension_type"))
    if d.composite_role is not None and d.composite_role > 1:
        message = f"the role is {d.composite_role}"
        offset = d.offset_of("composite_member")
        yield broken("H28", message, field="composite_member.role", offset=offset, found=d.composite_role)


def _shard_violations(d: TensorDescriptor) -> Iterator[DescriptorError]:
    if d.shard is None:
        return
    start = d.offset_of("shard")
    for i, (n, whole, at) in enumerate(zip(d.shape, d.shard.parent_shape, d.shard.offset, strict=False)):
        if DYNAMIC in (n, whole):
            message = "a dynamic dimension in a shard"
            yield broken("H25", message, field=f"shape[{i}]", offset=d.offset_of("shape") + 8 * i, found=n)
        elif at + n > whole:
            message = f"elements {at} to {at + n} of {whole}"
            offset = start + 8 * (d.rank + i)
            yield broken("H25", message, field=f"shard.offset[{i}]", offset=offset, found=at)


def overrun(field: str, offset: int, needed: int, there: int) -> DescriptorError:
    """H3: a field runs past the length that the descriptor gives."""
    message = f"{needed} bytes are needed, {there} are left before descriptor_length"
    return broken("H3", message, field=field, offset=offset, found=there)


def truncated(field: str, offset: int, needed: int, there: int) -> DescriptorError:
    """H2: the bytes end before the descriptor does."""
    message = f"the descriptor is cut off: {needed} bytes are needed, {there} are there"
    return broken("H2", message, field=field, offset=offset, found=there)

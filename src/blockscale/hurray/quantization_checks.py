"""The rules of a quantized tensor that need its shape, type and buffers (R7 .. R9, R11 .. R14, R17, R19)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..blocks import BlockGrid
from ..errors import DescriptorError
from .geometry import DYNAMIC, locate
from .quantization import (
    MXFP,
    KnownQuantization,
    PerChannelAffine,
    PerTensorAffine,
    Quantization,
    UnknownQuantization,
    parameter_indices,
)
from .quantization_reader import field_offset, quantization_violations
from .rules import broken
from .types import storage_type

if TYPE_CHECKING:
    from .descriptor import TensorDescriptor


def tensor_violations(d: TensorDescriptor, q: Quantization, *, permissive: bool) -> Iterator[DescriptorError]:
    """Each broken rule about the quantization of a tensor."""
    start = d.offset_of("quantization")
    if isinstance(q, UnknownQuantization):
        message = f"scheme tag 0x{q.tag:02X} is unknown, reserved or private"
        hint = "permissive reading keeps the section, without interpreting the data"
        yield broken("R2", message, field="quantization.scheme_tag", offset=start, found=q.tag, hint=hint)
        return
    faults = list(quantization_violations(q, start))
    faults += _storage_violations(d, q, start)
    faults += _axis_violations(d, q, start)
    faults += _index_violations(d, q, start)
    if not d.layout.is_dense:
        message = f"a quantized tensor in a {d.layout.name} layout"
        faults.append(broken("H29", message, field="layout_tag", offset=15, found=d.layout.tag))
    yield from faults
    if not faults:  # sizes mean something only when everything else is right
        yield from _size_violations(d, q, permissive=permissive)


def parameter_sizes(d: TensorDescriptor, q: KnownQuantization) -> dict[str, int]:
    """Bytes of each parameter array of a tensor of resolved shape, by the name of its field."""
    if isinstance(q, PerTensorAffine):
        return {}
    if isinstance(q, PerChannelAffine):
        count = d.shape[q.axis]
    else:
        count = BlockGrid(d.shape, q.axis, q.block_size).n_blocks
    widths = {"scale_index": storage_type(q.scale_type).bits // 8, "zero_point_index": 4}
    return {name: count * widths[name] for name in parameter_indices(q)}


def _storage_violations(d: TensorDescriptor, q: KnownQuantization, start: int) -> Iterator[DescriptorError]:
    """R7, and R21 for the one zero point that is in the section."""
    if d.type is None or d.type.name not in q.storage:
        found = f"type 0x{d.type_tag:02X}" if d.type is None else d.type.name
        message = f"{type(q).__name__} over {found}; it allows {', '.join(q.storage)}"
        yield broken("R7", message, field="type_tag", offset=14, found=d.type_tag)
    elif isinstance(q, PerTensorAffine) and not d.type.low <= q.zero_point <= d.type.high:
        message = f"zero point {q.zero_point} is outside {d.type.name} ({d.type.low} to {d.type.high})"
        offset = start + field_offset(q, "zero_point")
        yield broken("R21", message, field="quantization.zero_point", offset=offset, found=q.zero_point)


def _axis_violations(d: TensorDescriptor, q: KnownQuantization, start: int) -> Iterator[DescriptorError]:
    """R8, R9, R11 and R12."""
    if isinstance(q, PerTensorAffine):
        return
    if q.axis >= d.rank:
        message = f"axis {q.axis} of a tensor of rank {d.rank}"
        offset = start + field_offset(q, "axis")
        yield broken("R8", message, field="quantization.axis", offset=offset, found=q.axis)
        return
    length, field = d.shape[q.axis], f"shape[{q.axis}]"
    if length == DYNAMIC:
        offset = d.offset_of("shape") + 8 * q.axis
        yield broken("R9", f"axis {q.axis} is dynamic", field=field, offset=offset, found=length)
        return
    if isinstance(q, PerChannelAffine):
        return
    size = q.block_size
    if isinstance(q, MXFP):
        over = length % size if size else length
        message = f"axis {q.axis} has {length} elements, blocks of {size} leave {over} over"
        rule = "R12" if length == 0 or over else ""
    else:
        message = f"blocks of {size} along an axis of {length} elements"
        rule = "R11" if 0 < length < size else ""
    if rule:
        offset = start + field_offset(q, "block_size")
        yield broken(rule, message, field="quantization.block_size", offset=offset, found=size)


def _index_violations(d: TensorDescriptor, q: KnownQuantization, start: int) -> Iterator[DescriptorError]:
    """R13 and R14."""
    own, count = d.layout.own_buffers(d.rank) or 1, len(d.buffers)
    for name, index in parameter_indices(q).items():
        field, offset = f"quantization.{name}", start + field_offset(q, name)
        if index >= count:
            message = f"buffer {index} of a table of {count}"
            yield broken("R13", message, field=field, offset=offset, found=index)
        elif index < own:
            yield broken("R14", f"buffer {index} holds data", field=field, offset=offset, found=index)


def _size_violations(
    d: TensorDescriptor, q: KnownQuantization, *, permissive: bool
) -> Iterator[DescriptorError]:
    """R17 and R19; both need a resolved shape."""
    if DYNAMIC in d.shape:
        return
    sizes = parameter_sizes(d, q)
    wanted: dict[int, int] = {}
    for name, index in parameter_indices(q).items():  # a shared buffer holds both arrays (3.8)
        wanted[index] = wanted.get(index, 0) + sizes[name]
    for index, size in wanted.items():
        found = d.buffers[index].byte_size
        if found != size:
            message = f"parameter buffer {index} has {found} bytes, the scheme needs {size}"
            offset = d.offset_of("buffers") + 16 * index
            yield broken("R17", message, field=f"buffers[{index}].byte_size", offset=offset, found=found)
    if d.layout.is_readable:
        try:
            locate(d, d.buffers[0].byte_size, permissive=permissive)
        except DescriptorError as error:
            yield error

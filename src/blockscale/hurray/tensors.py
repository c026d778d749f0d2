"""Descriptors and buffers to tensors and back: the door between the format and blockscale's values."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import block_grid
from ..errors import DescriptorError, UnsupportedError
from ..schemes import SCHEMES, Scheme, scheme
from ..tensor import BlockTensor
from .codes import (
    as_bytes,
    check_buffers,
    check_capacity,
    check_sizes,
    pack_flat,
    read_block_rows,
    read_elements,
    write_block_rows,
)
from .descriptor import TensorDescriptor
from .geometry import DYNAMIC, Placement, locate, storage_of
from .layouts import ROW_MAJOR
from .plan import check_storable, describe_tensor
from .quantization import MXFP, KnownQuantization, PerBlockAffine, UnknownQuantization
from .quantized import HurrayTensor
from .rules import RULES, PermissiveWarning, broken, is_tolerated
from .types import storage_type_of
from .values import Parameters, exponent_violations, read_parameters, value_violations

Tensor = NDArray[Any] | BlockTensor | HurrayTensor
_MX_SCHEMES = {row.element.name: row.name for row in SCHEMES.values() if row.is_mx}


def scheme_of(descriptor: TensorDescriptor) -> tuple[Scheme, int] | None:
    """Scheme and axis of the BlockTensor that a descriptor stands for, or None if it stands for none."""
    q, kind = descriptor.quantization, descriptor.type
    if kind is None or descriptor.opaque_because is not None:
        return None
    if isinstance(q, PerBlockAffine):
        symmetric = q.zero_point_index is None
        return scheme(kind.name, block_size=q.block_size, scale=q.scale_type, symmetric=symmetric), q.axis
    if isinstance(q, MXFP):
        return scheme(_MX_SCHEMES[kind.name], block_size=q.block_size), q.axis
    return None


def encode_tensor(value: Tensor) -> tuple[TensorDescriptor, list[NDArray[np.uint8]]]:
    """The descriptor and buffers under which a tensor is stored.

    Args:
        value: a BlockTensor, an array of any layout, or a HurrayTensor (stored as it is).

    Returns:
        The descriptor, and one uint8 `(n,)` array per buffer; memory is shared where nothing must move.

    Raises:
        InputError: the format cannot hold it; the error says what would.

    Source: Hurray format, 2, 3.3, 3.5, 3.9.
    """
    descriptor = describe_tensor(value)
    if isinstance(value, BlockTensor):
        return descriptor, encode_blocks(value)
    if isinstance(value, HurrayTensor):
        return descriptor, list(value.buffers)
    return descriptor, [_array_bytes(value)]


def encode_blocks(w: BlockTensor) -> list[NDArray[np.uint8]]:
    """The buffers of a BlockTensor, or of a part of one that may be shorter than a block.

    Raises:
        InputError: values that the format cannot hold; the error says what would.
    """
    check_storable(w)
    buffers = [write_block_rows(w), _stored_scales(w)]
    return buffers if w.row_offsets is None else [*buffers, as_bytes(w.row_offsets)]


def decode_tensor(
    descriptor: TensorDescriptor, buffers: Iterable[object], *, permissive: bool = False
) -> Tensor:
    """The tensor that a descriptor and its buffers stand for.

    Args:
        descriptor: what the format says about it.
        buffers: one buffer of bytes per row of the buffer table.
        permissive: let pass what permissive mode may; warns where that concerns the data.

    Returns:
        An array without quantization (a read-only view where the type has whole bytes); a BlockTensor for
        per-block affine and MX; a HurrayTensor for the other schemes, and for MX integers whose exponent
        has no E8M0 byte in OCP's convention.

    Raises:
        DescriptorError: a rule of the format is broken, by descriptor, sizes or values.
        UnsupportedError: data that must not be interpreted, or that this library cannot.

    Source: Hurray format, 2.3, 2.7, 3, 3.9.
    """
    _check_readable(descriptor)
    for error in descriptor.violations(permissive=permissive):
        raise error
    parts = check_buffers(descriptor, buffers)
    place = locate(descriptor, parts[0].size, permissive=permissive)
    if place.is_tight:
        message = f"partial blocks are stored without padding; {RULES['R19']}"
        warnings.warn(message, PermissiveWarning, stacklevel=2)
    q = descriptor.quantization
    if q is None or isinstance(q, UnknownQuantization):  # the latter was refused above
        return _decode_array(descriptor, place, parts[0], permissive=permissive)
    check_capacity(descriptor.shape, 4)
    parameters = read_parameters(descriptor, q, parts)
    check_values(descriptor, q, parameters, permissive=permissive)
    w = _decode_blocks(descriptor, place, parts[0], parameters)
    return w if w is not None else HurrayTensor(descriptor, tuple(parts), permissive)


def check_values(
    d: TensorDescriptor, q: KnownQuantization, parameters: Parameters, *, permissive: bool = False
) -> None:
    """Raise the first broken rule about scales and zero points; permissive: warn of what may pass.

    Raises:
        DescriptorError: a value that its scheme forbids.
    """
    for error in value_violations(d, q, parameters):
        _raise_or_warn(error, permissive=permissive)


def validate_buffers(descriptor: TensorDescriptor, sizes: Sequence[int], *, permissive: bool = False) -> None:
    """Check the buffer table against the scheme (R13 to R19) and against the buffers that are there.

    Args:
        descriptor: the tensor.
        sizes: bytes of each buffer.
        permissive: accept partial blocks stored without padding.

    Raises:
        DescriptorError: the first rule that is broken.
    """
    for error in descriptor.violations(permissive=permissive):
        raise error
    check_sizes(descriptor, sizes)
    is_measurable = descriptor.type is not None and descriptor.layout.is_readable
    if is_measurable and DYNAMIC not in descriptor.shape:
        locate(descriptor, sizes[0], permissive=permissive)


def validate_values(
    descriptor: TensorDescriptor, buffers: Iterable[object], *, permissive: bool = False
) -> None:
    """Check scales and zero points in their buffers (R20, R21, R23; H33 for plain float8_e8m0).

    Raises:
        DescriptorError: the first rule that is broken; names the count and the first value.
    """
    parts = check_buffers(descriptor, buffers)
    q = descriptor.quantization
    kind, layout = descriptor.type, descriptor.layout
    if isinstance(q, UnknownQuantization) or descriptor.opaque_because or DYNAMIC in descriptor.shape:
        return
    if q is not None:
        found = value_violations(descriptor, q, read_parameters(descriptor, q, parts))
    elif kind is not None and kind.name == "float8_e8m0" and layout.is_readable:
        place = locate(descriptor, parts[0].size, permissive=permissive)
        found = exponent_violations(place, parts[0])
    else:
        return
    for error in found:
        if not (permissive and is_tolerated(error)):
            raise error


def _check_readable(d: TensorDescriptor) -> None:
    if d.opaque_because is not None:
        raise UnsupportedError(
            f"the data must not be interpreted: {d.opaque_because}",
            rule="unknown tags keep their descriptor only (Hurray 5)",
            hint="the bytes of its buffers can be copied",
        )
    if not d.layout.is_readable:
        raise UnsupportedError(
            f"the values of a {d.layout.name} layout cannot be read",
            found=d.layout.tag,
            field="layout_tag",
            hint="store the tensor row-major, or read its buffers",
        )
    if DYNAMIC in d.shape:
        i = d.shape.index(DYNAMIC)
        offset = d.offset_of("shape") + 8 * i
        raise broken("H31", f"dimension {i} is dynamic", field=f"shape[{i}]", offset=offset, found=DYNAMIC)


def _decode_array(
    d: TensorDescriptor, place: Placement, buffer: NDArray[np.uint8], *, permissive: bool
) -> NDArray[Any]:
    kind = storage_of(d)
    if kind.name == "float8_e8m0":
        for error in exponent_violations(place, buffer):
            _raise_or_warn(error, permissive=permissive)
    return read_elements(kind, place, buffer)


def _decode_blocks(
    d: TensorDescriptor, place: Placement, buffer: NDArray[np.uint8], p: Parameters
) -> BlockTensor | None:
    """The BlockTensor, or None where the format's scheme or exponents have none."""
    found = scheme_of(d)
    if found is None or p.scales is None:
        return None
    row, axis = found
    scales = _canonical_scales(p.scales, row)
    if scales is None:
        return None
    grid = block_grid(d.shape, axis, row.block_size)
    packed = read_block_rows(storage_of(d), place, grid, buffer, is_row_major=d.layout == ROW_MAJOR)
    blocks = (grid.rows, grid.blocks_per_row)
    offsets = None if p.zero_points is None else p.zero_points.reshape(blocks)
    return BlockTensor(grid, row, packed, scales.reshape(blocks), offsets)


def _canonical_scales(stored: NDArray[Any], row: Scheme) -> NDArray[Any] | None:
    """Scales as a BlockTensor has them; None if an exponent has no byte there.

    The format's MX integers have no implied factor, OCP's have (2**-6 for INT8): x = 2**(e - 127) * q in a
    file is byte e - value_exponent in memory (A11).
    """
    if row.value_exponent == 0:
        return stored
    codes = stored.view(np.uint8)
    moved = codes.astype(np.int16) - row.value_exponent
    moved[codes == 255] = 255
    if ((moved > 254) & (codes != 255)).any():
        return None
    return moved.astype(np.uint8).view(row.scale.dtype)


def _stored_scales(w: BlockTensor) -> NDArray[np.uint8]:
    """Scales as a file has them: rows in order, MX integers without OCP's implied factor (A11)."""
    if w.scheme.value_exponent == 0:
        return as_bytes(w.row_scales)
    moved = w.row_scales.reshape(-1).view(np.uint8).astype(np.int16) + w.scheme.value_exponent
    return moved.astype(np.uint8)  # check_storable has seen to 1 .. 254


def _array_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The elements row-major and little-endian, packed if the type is; bit patterns are kept."""
    kind = storage_type_of(array.dtype)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind.bits < 8:
        return pack_flat(flat.view(np.uint8), kind.bits)
    if flat.dtype.newbyteorder("<") != flat.dtype:
        flat = flat.byteswap()
    return flat.view(np.uint8)


def _raise_or_warn(error: DescriptorError, *, permissive: bool) -> None:
    if not (permissive and is_tolerated(error)):
        raise error
    warnings.warn(f"{error.message}; {error.rule}", PermissiveWarning, stacklevel=3)

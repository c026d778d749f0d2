"""Elements in a data buffer: arrays of codes out of it, canonical block rows out of it and into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, as_rows, copy_in_bands
from ..errors import InputError, UnsupportedError
from ..packing import pack_codes, packed_size, unpack_codes
from ..tensor import BlockTensor
from .geometry import Placement
from .rules import broken
from .types import StorageType

if TYPE_CHECKING:
    from .descriptor import TensorDescriptor

_STEP = 1 << 20  # codes packed or unpacked at once: a multiple of every group, and little temporary memory
_LARGEST = (1 << 63) - 1


def as_bytes(data: object) -> NDArray[np.uint8]:
    """The bytes of a buffer as uint8 `(n,)`, without a copy where it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(data, np.uint8)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(f"{type(data).__name__} is not a buffer of bytes: {error}") from None


def check_buffers(descriptor: TensorDescriptor, buffers: Iterable[object]) -> list[NDArray[np.uint8]]:
    """The buffers as uint8 arrays, if they are as many and as long as the buffer table says (H32)."""
    parts = [as_bytes(buffer) for buffer in buffers]
    check_sizes(descriptor, [part.size for part in parts])
    return parts


def check_sizes(descriptor: TensorDescriptor, sizes: Sequence[int]) -> None:
    """H32: buffers are as many and as long as the buffer table says."""
    wanted = [handle.byte_size for handle in descriptor.buffers]
    if list(sizes) != wanted:
        message = f"buffers of {list(sizes)} bytes, the table says {wanted}"
        offset = descriptor.offset_of("buffers")
        raise broken("H32", message, field="buffers", offset=offset, found=list(sizes))


def read_elements(kind: StorageType, place: Placement, buffer: NDArray[np.uint8]) -> NDArray[Any]:
    """The elements as a read-only array of the logical shape.

    A view of the buffer for types of whole bytes; packed types are unpacked to one element per byte.

    Args:
        kind: the storage type.
        place: where the elements lie; it fits the buffer.
        buffer: uint8 `(n,)`, the data buffer.

    Raises:
        UnsupportedError: a type that NumPy lacks, or more elements than it can count.
    """
    if kind.dtype is None:
        raise UnsupportedError(f"NumPy has no {kind.name}", found=kind.name)
    if not kind.is_packed:
        return _view(buffer, place, place.byte_offset, kind.dtype)
    codes, origin = _unpack_span(place, buffer)
    return _view(codes, place, origin, kind.dtype)


def read_block_rows(
    kind: StorageType, place: Placement, grid: BlockGrid, buffer: NDArray[np.uint8], *, is_row_major: bool
) -> NDArray[np.uint8]:
    """Codes in the canonical form of a BlockTensor: uint8 `(rows, row_bytes)`, padded with zero bits.

    A view of the buffer where nothing must move.
    """
    bits, row_bytes = kind.bits, grid.row_bytes(kind.bits)
    check_capacity((grid.rows, row_bytes), 1)
    if is_row_major and not place.is_tight and is_canonical(grid, bits):
        end = place.byte_offset + grid.rows * row_bytes
        return _clear_padding(
            buffer[place.byte_offset : end].reshape(grid.rows, row_bytes), grid.length * bits
        )
    check_expansion(place, buffer.size)
    if place.bits < 8:
        codes, origin = _unpack_span(place, buffer)
        raw = _view(codes, place, origin, np.dtype(np.uint8))
    else:
        raw = _view(buffer, place, place.byte_offset, np.dtype(np.uint8))
    return pack_rows(as_rows(raw, grid.axis), grid, bits)


def write_block_rows(w: BlockTensor) -> NDArray[np.uint8]:
    """The data buffer of a BlockTensor: codes of the padded shape, row-major, packed without a break.

    The tensor's own memory where nothing must move.
    """
    grid, bits = w.grid, w.scheme.element.bits
    if is_canonical(grid, bits):
        return w.packed.reshape(-1)
    codes = np.empty((grid.rows, grid.padded_length), np.uint8)
    for rows in _slabs(grid.rows, grid.padded_length):
        codes[rows] = unpack_codes(w.packed[rows], bits, grid.padded_length)
    outer = codes.reshape(*grid.outer_shape, grid.padded_length)
    stored = np.empty((*grid.shape[: grid.axis], grid.padded_length, *grid.shape[grid.axis + 1 :]), np.uint8)
    copy_in_bands(outer, np.moveaxis(stored, grid.axis, -1))
    return pack_flat(stored.reshape(-1), bits)


def pack_flat(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack uint8 `(n,)` codes into `packed_size(n, bits)` bytes; higher bits are dropped."""
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    out = np.empty(packed_size(codes.size, bits), np.uint8)
    for start in range(0, codes.size, _STEP):
        part = pack_codes(codes[start : start + _STEP], bits)
        at = packed_size(start, bits)
        out[at : at + part.size] = part
    return out


def check_capacity(shape: tuple[int, ...], itemsize: int) -> None:
    """UnsupportedError if an array of this shape is beyond what NumPy can count."""
    if max(shape, default=0) > _LARGEST or math.prod(n for n in shape if n) * itemsize > _LARGEST:
        raise UnsupportedError(f"a tensor of shape {shape} is beyond NumPy's arrays", found=shape)


def check_expansion(place: Placement, size: int) -> None:
    """UnsupportedError if far more elements would be made than the buffer holds (strides of 0).

    Without it, a file of a few bytes could ask for any amount of memory.
    """
    count = math.prod(place.shape)
    if count > size * 8 // place.bits + (1 << 24):
        raise UnsupportedError(
            f"{count:,} elements out of a buffer of {size:,} bytes, by strides that repeat them",
            found=place.strides,
            hint="read the buffer itself",
        )


def _view(memory: NDArray[np.uint8], place: Placement, origin: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    check_capacity(place.shape, dtype.itemsize)
    if place.is_empty:
        array = np.empty(place.shape, dtype)
    else:  # strides of dimensions of 1 may be anything, and NumPy would have to multiply them
        steps = [s * dtype.itemsize if n > 1 else 0 for n, s in zip(place.shape, place.strides, strict=True)]
        array = np.ndarray(place.shape, dtype, memory.data, origin, steps)
    array.flags.writeable = False
    return array


def _unpack_span(place: Placement, buffer: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """Codes of the bytes that the elements span, uint8 `(n,)`, and the index of element [0, ..., 0]."""
    elements, n_bytes = place.group
    first, end = place.byte_span
    span = buffer[first:end]
    if span.size < end - first:  # a last group of 6-bit codes that was cut short
        span = np.concatenate([span, np.zeros(end - first - span.size, np.uint8)])
    origin = (place.byte_offset - first) // n_bytes * elements
    if place.bits == 1:
        return np.unpackbits(span, bitorder="little"), origin
    count = span.size // n_bytes * elements
    codes = np.empty(count, np.uint8)
    for start in range(0, count, _STEP):
        part = codes[start : start + _STEP]
        at = packed_size(start, place.bits)
        part[:] = unpack_codes(span[at : at + packed_size(part.size, place.bits)], place.bits, part.size)
    return codes, origin


def is_canonical(grid: BlockGrid, bits: int) -> bool:
    """True if file order and canonical order are the same bytes."""
    is_last = math.prod(grid.shape[grid.axis + 1 :]) == 1
    return is_last and (grid.rows <= 1 or grid.padded_length * bits % 8 == 0)


def _clear_padding(packed: NDArray[np.uint8], used_bits: int) -> NDArray[np.uint8]:
    """The rows with nothing but zero bits from `used_bits` on; copied only if there is something to clear."""
    at, kept = divmod(used_bits, 8)
    rest = at + (kept > 0)
    is_clear = not packed[:, rest:].any() and not (packed[:, at:rest] >> kept).any()
    if is_clear:
        return packed
    packed = packed.copy()
    packed[:, at:rest] &= (1 << kept) - 1
    packed[:, rest:] = 0
    return packed


def pack_rows(rows: NDArray[np.uint8], grid: BlockGrid, bits: int) -> NDArray[np.uint8]:
    """Pack codes `(rows, length)` into canonical rows."""
    packed = np.empty((grid.rows, grid.row_bytes(bits)), np.uint8)
    for part in _slabs(grid.rows, grid.padded_length):
        padded = np.zeros((part.stop - part.start, grid.padded_length), np.uint8)
        padded[:, : grid.length] = rows[part]
        packed[part] = pack_codes(padded, bits)
    return packed


def _slabs(rows: int, length: int) -> Iterator[slice]:
    """Slices of whole rows with some `_STEP` codes each; none if there are no codes."""
    step = max(1, _STEP // max(length, 1))
    if length:
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

"""Where the elements of a tensor lie in its data buffer, partial blocks and sub-byte types included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..blocks import BlockGrid
from ..errors import DescriptorError
from ..packing import packed_size
from .quantization import NF4, PerBlockAffine, Quantization
from .rules import broken
from .types import StorageType

if TYPE_CHECKING:
    from .descriptor import TensorDescriptor

DYNAMIC = 0xFFFFFFFFFFFFFFFF
"""A dimension that is to be resolved before the data are used."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Elements at `sum(index * stride)` from the one at `byte_offset`.

    Attributes:
        shape: logical shape.
        strides: in elements.
        bits: width of an element.
        byte_offset: byte of the element [0, ..., 0] (which begins at bit 0 of it).
        is_tight: partial blocks are stored without their padding (permissive reading only).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bits: int
    byte_offset: int
    is_tight: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there are no elements."""
        return 0 in self.shape

    @property
    def group(self) -> tuple[int, int]:
        """Elements and bytes of the smallest unit that begins on a byte."""
        if self.bits == 6:
            return 4, 3
        return (8 // self.bits, 1) if self.bits < 8 else (1, self.bits // 8)

    @property
    def element_span(self) -> tuple[int, int]:
        """Lowest and highest element offset (of a tensor that is not empty)."""
        steps = [stride * (n - 1) for n, stride in zip(self.shape, self.strides, strict=True)]
        return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)

    @property
    def byte_span(self) -> tuple[int, int]:
        """First byte, and the byte after the last one, of whole groups."""
        if self.is_empty:
            return self.byte_offset, self.byte_offset
        low, high = self.element_span
        elements, n_bytes = self.group
        first = self.byte_offset + low // elements * n_bytes
        return first, self.byte_offset + -(-(high + 1) // elements) * n_bytes

    def fits(self, size: int, *, permissive: bool) -> bool:
        """True if a buffer of `size` bytes holds every element.

        Permissive: 6-bit codes may end with the byte of the last code instead of with its group (A7).
        """
        first, end = self.byte_span
        if permissive and self.bits == 6 and not self.is_empty:
            end = self.byte_offset + -(-6 * (self.element_span[1] + 1) // 8)
        return first >= 0 and end <= size


def padded_shape(shape: tuple[int, ...], quantization: Quantization | None) -> tuple[int, ...]:
    """The shape that is stored: schemes with partial blocks round their axis up to whole ones.

    Source: Hurray format, 3.9.
    """
    if not isinstance(quantization, (PerBlockAffine, NF4)):
        return shape
    grid = BlockGrid(shape, quantization.axis, quantization.block_size)
    return (*shape[: grid.axis], grid.padded_length, *shape[grid.axis + 1 :])


def data_size(shape: tuple[int, ...], bits: int, quantization: Quantization | None) -> int:
    """Bytes that a writer stores for a row-major tensor: padded, in whole 6-bit groups."""
    return packed_size(math.prod(padded_shape(shape, quantization)), bits)


def locate(descriptor: TensorDescriptor, size: int, *, permissive: bool) -> Placement:
    """Find the elements of a tensor of readable layout, known type and resolved shape.

    Args:
        descriptor: the tensor.
        size: bytes of its data buffer.
        permissive: accept partial blocks stored without padding, and short 6-bit groups.

    Raises:
        DescriptorError: the buffer is too small (R19, or H30 without quantization).

    Source: Hurray format, 2.3, 3.9.
    """
    shape, bits, at = descriptor.shape, storage_of(descriptor).bits, descriptor.byte_offset
    stored = padded_shape(shape, descriptor.quantization)
    strides = descriptor.layout.strides
    padded = Placement(stored, strides(stored), bits, at)
    tight = Placement(shape, strides(shape), bits, at, is_tight=stored != shape)
    if padded.fits(size, permissive=permissive):
        return Placement(shape, padded.strides, bits, at)
    if permissive and tight.fits(size, permissive=True):
        return tight
    raise _too_small(descriptor, size, padded, tight)


def storage_of(descriptor: TensorDescriptor) -> StorageType:
    """The storage type, which must be known (H7)."""
    if descriptor.type is None:
        message = f"type tag 0x{descriptor.type_tag:02X} says nothing about widths"
        raise broken("H7", message, field="type_tag", offset=14, found=descriptor.type_tag)
    return descriptor.type


def _too_small(
    descriptor: TensorDescriptor, size: int, padded: Placement, tight: Placement
) -> DescriptorError:
    first, end = padded.byte_span
    message = f"the data buffer has {size} bytes, the elements lie at bytes {first} to {end}"
    hint = None
    if tight.is_tight:
        message += f" (blocks padded to shape {padded.shape}; without padding to {tight.byte_span[1]})"
        if tight.fits(size, permissive=True):
            hint = "the writer left out the padding of partial blocks; permissive reading accepts that"
    return broken(
        "H30" if descriptor.quantization is None else "R19",
        message,
        field="buffers[0].byte_size",
        offset=descriptor.offset_of("buffers"),
        found=size,
        hint=hint,
    )

"""HurrayTensor: a quantized tensor as a file holds it, with the format's own arithmetic in NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from .codes import check_buffers, check_expansion, read_elements
from .descriptor import TensorDescriptor
from .geometry import locate, storage_of
from .quantization import (
    MXFP,
    NF4,
    KnownQuantization,
    PerBlockAffine,
    PerChannelAffine,
    PerTensorAffine,
    UnknownQuantization,
)
from .values import Parameters, read_parameters

_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


@dataclass(frozen=True, slots=True, eq=False)
class HurrayTensor:
    """A quantized tensor of a scheme that has no BlockTensor: per tensor, per channel, NF4.

    Attributes:
        descriptor: what the file says about it.
        buffers: uint8 `(n,)` each, as many and as long as the buffer table says.
        permissive: how it was read; decides where partial blocks may lie.
    """

    descriptor: TensorDescriptor
    buffers: tuple[NDArray[np.uint8], ...]
    permissive: bool = False

    def __post_init__(self) -> None:
        """Check the sizes of the buffers."""
        object.__setattr__(self, "buffers", tuple(check_buffers(self.descriptor, self.buffers)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.descriptor.shape

    @property
    def ndim(self) -> int:
        """Rank of the tensor."""
        return len(self.descriptor.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def quantization(self) -> KnownQuantization:
        """The scheme.

        Raises:
            UnsupportedError: there is none that is known.
        """
        q = self.descriptor.quantization
        if q is None or isinstance(q, UnknownQuantization):
            raise UnsupportedError("the tensor has no known quantization scheme", found=q)
        return q

    @property
    def parameters(self) -> Parameters:
        """Scales and zero points, flat, in the order of the file."""
        return read_parameters(self.descriptor, self.quantization, self.buffers)

    def codes(self) -> NDArray[Any]:
        """The stored codes: the tensor's shape, the storage type's dtype, read-only."""
        d = self.descriptor
        place = locate(d, self.buffers[0].size, permissive=self.permissive)
        check_expansion(place, self.buffers[0].size)
        return read_elements(storage_of(d), place, self.buffers[0])

    def dequantize(self) -> NDArray[np.float32]:
        """The values that the tensor stands for: float32, the tensor's shape.

        Source: Hurray format, 3 (common arithmetic), 3.1 to 3.5.
        """
        q, codes, p = self.quantization, self.codes(), self.parameters
        if isinstance(q, PerTensorAffine):
            return _affine(codes, np.float32(q.scale), q.zero_point)
        if p.scales is None or codes.size == 0:
            return np.zeros(self.shape, np.float32)
        if isinstance(q, PerChannelAffine):
            line = [1] * codes.ndim
            line[q.axis] = -1
            zeros = 0 if p.zero_points is None else p.zero_points.reshape(line)
            return _affine(codes, p.scales.reshape(line), zeros)
        out = np.empty(self.shape, np.float32)
        rows = np.moveaxis(codes, q.axis, -1)
        scales = _per_element(p.scales, rows.shape, q.block_size)
        zeros = 0 if p.zero_points is None else _per_element(p.zero_points, rows.shape, q.block_size)
        np.moveaxis(out, q.axis, -1)[...] = _block_values(q, rows, scales, zeros)
        return out

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        """NumPy's protocol: the dequantized values."""
        if copy is False:
            raise ValueError("a HurrayTensor becomes an array only by dequantizing, which copies")
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        """Shape, storage type and scheme."""
        kind = self.descriptor.type
        name = kind.name if kind is not None else hex(self.descriptor.type_tag)
        return f"HurrayTensor(shape={self.shape}, {name}, {self.descriptor.quantization})"


def _block_values(
    q: PerBlockAffine | NF4 | MXFP, rows: NDArray[Any], scales: NDArray[Any], zeros: NDArray[np.int32] | int
) -> NDArray[np.float32]:
    if isinstance(q, PerBlockAffine):
        return _affine(rows, scales.astype(np.float32), zeros)
    if isinstance(q, NF4):
        values: NDArray[np.float32] = _NF4[rows.astype(np.uint8)] * scales
        return values
    codes = scales.view(np.uint8).astype(np.int32)
    with np.errstate(over="ignore"):  # beyond float32: infinity, as IEEE has it (A25)
        wide = np.ldexp(rows.astype(np.float64), codes - 127).astype(np.float32)
    wide[codes == 255] = np.nan
    return np.asarray(wide, np.float32)


def _affine(codes: NDArray[Any], scale: Any, zero: Any) -> NDArray[np.float32]:
    """`float32(scale) * float32(q - z)`, the difference exact and each step rounded once."""
    with np.errstate(over="ignore", under="ignore"):
        difference = codes.astype(np.int64) - zero
        return np.asarray(difference.astype(np.float32) * np.asarray(scale, np.float32), np.float32)


def _per_element(values: NDArray[Any], shape: tuple[int, ...], block_size: int) -> NDArray[Any]:
    """Spread one value per block over the elements of its block along the last axis."""
    blocks = values.reshape(*shape[:-1], -1)
    return np.repeat(blocks, block_size, axis=-1)[..., : shape[-1]]

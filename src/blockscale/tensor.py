"""BlockTensor: one block-scaled tensor in memory, an immutable value. It never knows files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .arguments import as_array
from .blocks import BlockGrid, as_rows, block_grid, check_padding
from .dequantize import dequantize_rows
from .errors import InputError, SchemeError
from .metrics import BlockErrors, TensorError, measure_error
from .packing import pack_codes
from .report import QuantizeReport
from .schemes import Scheme
from .tensor_parts import (
    Preparable,
    bit_patterns,
    block_limits,
    block_rows,
    check_affine_scales,
    check_part,
    code_rows,
    offset_dtype,
    sliced_rows,
)


@dataclass(frozen=True, slots=True, eq=False)
class BlockTensor(Preparable):
    """Codes, scales and offsets of one tensor, in canonical form.

    The canonical form has the block axis last: `rows` lines along the axis, each padded to whole blocks with
    zero bits and packed as `packing` says.

    Attributes:
        grid: shape, axis and block size.
        scheme: what the numbers mean; its block size is the grid's.
        packed: uint8 `(rows, row_bytes)`, packed codes.
        row_scales: `(rows, blocks_per_row)` of the scheme's scale dtype.
        row_offsets: `(rows, blocks_per_row)` int32 zero points or float16 minimums, or None.
        report: what quantizing cost; all zero for a tensor that was not quantized here.
    """

    grid: BlockGrid
    scheme: Scheme
    packed: NDArray[np.uint8]
    row_scales: NDArray[Any]
    row_offsets: NDArray[Any] | None = None
    report: QuantizeReport = field(default=QuantizeReport(), repr=False)

    def __post_init__(self) -> None:
        """Check shapes and dtypes of the parts; values are checked by `validate`."""
        grid, scheme = self.grid, self.scheme
        blocks = (grid.rows, grid.blocks_per_row)
        row_bytes = grid.row_bytes(scheme.element.bits)
        check_part("packed", self.packed, (grid.rows, row_bytes), np.dtype(np.uint8))
        check_part("scales", self.row_scales, blocks, scheme.scale.dtype)
        wanted = offset_dtype(scheme)
        if (self.row_offsets is None) != (wanted is None):
            raise SchemeError(
                f"{scheme.name} has offset {scheme.offset!r}, but offsets are "
                f"{'missing' if self.row_offsets is None else 'given'}"
            )
        if self.row_offsets is not None and wanted is not None:
            check_part(scheme.offset, self.row_offsets, blocks, wanted)
        for part in (self.packed, self.row_scales, self.row_offsets):
            if part is not None:
                part.flags.writeable = False

    @classmethod
    def from_parts(
        cls,
        scheme: Scheme,
        codes: ArrayLike,
        scales: ArrayLike,
        *,
        zero_points: ArrayLike | None = None,
        minimums: ArrayLike | None = None,
        axis: int = -1,
    ) -> BlockTensor:
        """Make a BlockTensor from unpacked parts, as a loader has them.

        Args:
            scheme: what the numbers mean.
            codes: the tensor's shape; the element's dtype, or integers (bit patterns for float elements).
            scales: the tensor's shape with `shape[axis]` replaced by the block count; the scale's dtype
                (E8M0: bytes as uint8 are fine).
            zero_points: int32, shaped as scales; for schemes with zero points.
            minimums: float16, shaped as scales; for schemes with minimums.
            axis: the blocked axis.

        Raises:
            InputError: shapes or dtypes that do not fit.
        """
        if not isinstance(scheme, Scheme):
            raise SchemeError(f"{scheme!r} is no Scheme", found=scheme, field="scheme", hint="bs.scheme(...)")
        raw = as_array(codes, "codes")
        grid = block_grid(raw.shape, axis, scheme.block_size)
        check_padding(grid)
        rows = bit_patterns(as_rows(raw, grid.axis), scheme)
        padded = np.zeros((grid.rows, grid.padded_length), np.uint8)
        padded[:, : grid.length] = rows
        offsets = {"none": None, "zero_point": zero_points, "minimum": minimums}[scheme.offset]
        wanted = offset_dtype(scheme)
        return cls(
            grid,
            scheme,
            pack_codes(padded, scheme.element.bits),
            block_rows("scales", scales, grid, scheme.scale.dtype),
            None if offsets is None or wanted is None else block_rows(scheme.offset, offsets, grid, wanted),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.grid.shape

    @property
    def axis(self) -> int:
        """The blocked axis."""
        return self.grid.axis

    @property
    def block_size(self) -> int:
        """Elements per block."""
        return self.grid.block_size

    @property
    def ndim(self) -> int:
        """Rank of the tensor."""
        return len(self.grid.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.grid.rows * self.grid.length

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets."""
        parts = (self.packed, self.row_scales, self.row_offsets)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def bits_per_element(self) -> float:
        """Stored bits per element, parameters and padding included."""
        return 8 * self.nbytes / self.size if self.size else self.scheme.bits_per_element

    @property
    def scales(self) -> NDArray[Any]:
        """Scales at the tensor's rank: its shape with `shape[axis]` replaced by the block count.

        MX scales are ml_dtypes float8_e8m0fnu; `.view(np.uint8)` gives the biased exponents.
        """
        return self._block_view(self.row_scales)

    @property
    def zero_points(self) -> NDArray[np.int32] | None:
        """Zero points (int32, the number subtracted from the code), shaped as `scales`, or None."""
        return self._offset_view("zero_point")

    @property
    def minimums(self) -> NDArray[Any] | None:
        """Minimums (added to the product), shaped as `scales`, or None."""
        return self._offset_view("minimum")

    def codes(self) -> NDArray[Any]:
        """Unpacked codes: the tensor's shape, the element's dtype (ml_dtypes for small types)."""
        return self._tensor_view(code_rows(self.packed, self.grid, self.scheme.element))

    def dequantize(
        self,
        dtype: DTypeLike = np.float32,
        out: NDArray[Any] | None = None,
        *,
        threads: int | None = None,
    ) -> NDArray[Any]:
        """The values that the tensor stands for.

        Args:
            dtype: float32, float16 or bfloat16.
            out: array of the tensor's shape to write into; any strides; decides the dtype if given.
            threads: at most this many threads; None: as many as there are processors.

        Returns:
            ndarray of the tensor's shape (`out` if given); the same bits whatever `threads` is.

        Raises:
            InputError: dtype or `out` that does not fit.
            OverflowingValueError: a finite value beyond float16.

        Source: Hurray format, 3 (common arithmetic), 3.3, 3.5; docs/rules.md.
        """
        parts = (self.packed, self.row_scales, self.row_offsets)
        return dequantize_rows(self.scheme, self.grid, *parts, dtype, out, threads)

    @overload
    def error(self, reference: ArrayLike, *, per: None = None) -> TensorError: ...

    @overload
    def error(self, reference: ArrayLike, *, per: Literal["block", "channel"]) -> BlockErrors: ...

    def error(
        self, reference: ArrayLike, *, per: Literal["block", "channel"] | None = None
    ) -> TensorError | BlockErrors:
        """How far the decoded values are from `reference` (same shape).

        Args:
            reference: the original values.
            per: None for one TensorError; `"block"` or `"channel"` for arrays of the same figures, shaped as
                `scales`, or as the tensor without the axis.
        """
        return measure_error(
            as_array(reference, "reference"), self.dequantize(), self.limits(), self.grid, per
        )

    def validate(self) -> None:
        """Check the values of scales against the scheme.

        Raises:
            InputError: an affine scale that is zero, NaN or infinite; names the count and the first one.
        """
        if (
            not self.scheme.is_mx
        ):  # there every byte means something: 0 .. 254 a power of two, 255 a NaN block
            check_affine_scales(self.row_scales)

    def same_bits(self, other: BlockTensor) -> bool:
        """True if shape, axis, scheme, codes, scales and offsets are equal bit for bit."""
        if not isinstance(other, BlockTensor) or (self.grid, self.scheme) != (other.grid, other.scheme):
            return False
        mine = (self.packed, self.row_scales, self.row_offsets)
        theirs = (other.packed, other.row_scales, other.row_offsets)
        return all(
            a is b or (a is not None and b is not None and a.tobytes() == b.tobytes())
            for a, b in zip(mine, theirs, strict=True)
        )

    def __getitem__(self, index: int | slice) -> BlockTensor:
        """Slice along the first dimension, which must not be the blocked axis; nothing is copied.

        Raises:
            InputError: the first dimension is blocked, or the step is not 1.
        """
        part, rows = sliced_rows(self.grid, index)
        offsets = None if self.row_offsets is None else self.row_offsets[rows]
        return BlockTensor(part, self.scheme, self.packed[rows], self.row_scales[rows], offsets)

    def __len__(self) -> int:
        """Size of the first dimension."""
        return self.grid.shape[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """NumPy's protocol: the dequantized values."""
        if copy is False:
            raise InputError("a BlockTensor becomes an array only by dequantizing, which copies")
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies (pickle, copy) are checked and read-only as the original is."""
        parts = (self.packed, self.row_scales, self.row_offsets)
        return BlockTensor, (self.grid, self.scheme, *parts, self.report)

    def __repr__(self) -> str:
        """Shape, scheme, axis and size."""
        return (
            f"BlockTensor(shape={self.shape}, scheme={self.scheme.name!r} ({self.scheme.describe()}), "
            f"axis={self.axis}, {self.bits_per_element:.3g} bits per element)"
        )

    def _block_view(self, rows: NDArray[Any]) -> NDArray[Any]:
        grid = self.grid
        return np.moveaxis(rows.reshape(*grid.outer_shape, grid.blocks_per_row), -1, grid.axis)

    def _tensor_view(self, rows: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(rows.reshape(*self.grid.outer_shape, self.grid.length), -1, self.grid.axis)

    def _offset_view(self, offset: str) -> NDArray[Any] | None:
        if self.row_offsets is None or self.scheme.offset != offset:
            return None
        return self._block_view(self.row_offsets)

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Smallest and largest value that each block can hold, float64 `(rows, blocks_per_row)`.

        Integer codes round, so their limit lies half a step beyond the last code.
        """
        return block_limits(self.scheme, self.row_scales, self.row_offsets)

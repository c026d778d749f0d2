"""Looking at stored numbers without decoding them: what is not finite, how codes are spread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .elements import ELEMENTS, Element
from .packing import unpack_codes

CHUNK_BYTES = 3 << 20
"""Bytes looked at together: a multiple of every element's and every packed group's size."""

_EXPONENT_MASKS = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}


@dataclass(frozen=True, slots=True)
class NonFinite:
    """What is not finite among some numbers.

    Attributes:
        nan: how many are NaN.
        infinite: how many are infinite.
        first: position of the first one, in the order of the bytes; -1 if there is none.
    """

    nan: int = 0
    infinite: int = 0
    first: int = -1

    @property
    def count(self) -> int:
        """How many there are."""
        return self.nan + self.infinite


def has_nonfinite_codes(dtype: np.dtype[Any]) -> bool:
    """True for types that can hold a NaN or an infinity."""
    native = dtype.newbyteorder("=")
    if native.itemsize == 1:
        return _table(native) is not None
    return native in _EXPONENT_MASKS or native.kind in "fc"


def find_nonfinite(chunks: Iterable[NDArray[np.uint8]], dtype: np.dtype[Any]) -> NonFinite:
    """Count NaNs and infinities.

    Args:
        chunks: the bytes of the numbers, in pieces of whole numbers.
        dtype: their type.
    """
    nan = infinite = at = 0
    first = -1
    for chunk in chunks:
        values = chunk.view(dtype)
        bad = _nonfinite_mask(values)
        if bad.any():
            found = np.flatnonzero(bad)
            first = at + int(found[0]) if first < 0 else first
            with np.errstate(invalid="ignore"):  # signalling NaNs
                n_nan = int(np.count_nonzero(np.isnan(values[found])))
            nan, infinite = nan + n_nan, infinite + found.size - n_nan
        at += values.size
    return NonFinite(nan, infinite, first)


def _nonfinite_mask(values: NDArray[Any]) -> NDArray[np.bool_]:
    native = values.dtype.newbyteorder("=")
    mask = _EXPONENT_MASKS.get(native)
    if mask is not None:  # far faster than isfinite of these types
        bits = values.view(np.dtype(np.uint16).newbyteorder(values.dtype.byteorder))
        return np.asarray((bits & mask) == mask)
    table = _table(native)
    if table is not None:
        return np.asarray(table[values.view(np.uint8)])
    return np.asarray(~np.isfinite(values))


def _table(dtype: np.dtype[Any]) -> NDArray[np.bool_] | None:
    """Which codes of a one-byte type are not finite; None for other sizes or if all are finite."""
    if dtype.itemsize != 1 or "float" not in dtype.name:
        return None
    table = ~np.isfinite(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
    return table if table.any() else None


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """How often each byte, and each code, occurs in packed codes.

    Attributes:
        bits: width of a code.
        bytes: int64 `(256,)`.
        codes: int64 `(2**bits,)`, by bit pattern; padding is counted with the rest.
    """

    bits: int
    bytes: NDArray[np.int64]
    codes: NDArray[np.int64]

    @property
    def constant_byte(self) -> int | None:
        """The byte that all bytes are, or None; also None for no bytes."""
        found = np.flatnonzero(self.bytes)
        return int(found[0]) if found.size == 1 else None


def count_codes(chunks: Iterable[NDArray[np.uint8]], bits: int) -> ByteCounts:
    """Count bytes and codes.

    Args:
        chunks: packed codes, in pieces of whole groups.
        bits: 2, 4, 6 or 8.
    """
    counts = np.zeros(256, np.int64)
    sixes = np.zeros(64, np.int64)
    for chunk in chunks:
        counts += np.bincount(chunk, minlength=256)
        if bits == 6:
            whole = chunk[: chunk.size // 3 * 3]
            sixes += np.bincount(unpack_codes(whole, 6, whole.size // 3 * 4), minlength=64)
    return ByteCounts(bits, counts, sixes if bits == 6 else _codes_of_bytes(counts, bits))


def _codes_of_bytes(counts: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Counts of codes from counts of the bytes that hold them."""
    if bits == 8:
        return counts
    codes = np.zeros(1 << bits, np.int64)
    values = np.arange(256)
    for shift in range(0, 8, bits):
        np.add.at(codes, (values >> shift) & ((1 << bits) - 1), counts)
    return codes


@dataclass(frozen=True, slots=True)
class ScaleStatistics:
    """The scales of one tensor.

    Attributes:
        count: how many there are.
        minimum: smallest finite one.
        median: median of the finite ones.
        maximum: largest finite one.
        negative: how many are negative.
        zero: how many are zero.
        nonfinite: how many are NaN or infinite (E8M0: byte 255).
        bytes: smallest and largest stored byte of E8M0 scales, else None.
    """

    count: int
    minimum: float
    median: float
    maximum: float
    negative: int
    zero: int
    nonfinite: int
    bytes: tuple[int, int] | None = None

    @property
    def is_constant(self) -> bool:
        """True if there are several scales and all are equal."""
        return self.count > 1 and self.minimum == self.maximum and self.nonfinite == 0


@dataclass(frozen=True, slots=True)
class CodeStatistics:
    """The codes of one tensor.

    Attributes:
        count: how many there are, padding left out.
        lowest: smallest code value in use, without scale.
        highest: largest code value in use.
        at_low: share of codes at the low end of the range that the type has.
        at_high: share at the high end.
        zero: share of codes whose value is 0 (with zero points this is not the value 0).
        used: how many different codes occur.
        possible: how many the type has.
        constant_byte: the byte that all packed bytes are, or None.
    """

    count: int
    lowest: float
    highest: float
    at_low: float
    at_high: float
    zero: float
    used: int
    possible: int
    constant_byte: int | None


def scale_statistics(scales: NDArray[Any]) -> ScaleStatistics:
    """Statistics of scales of any type; of one or two bytes, without copies of them.

    Args:
        scales: any shape; float16, bfloat16, float32 or E8M0.
    """
    flat = scales.reshape(-1)
    values, counts = _counted(flat) if flat.dtype.itemsize <= 2 else _sorted(flat)
    finite = np.isfinite(values)
    shown, times = values[finite], counts[finite]
    stored = flat.view(np.uint8) if flat.dtype == ELEMENTS["float8_e8m0"].dtype else None
    return ScaleStatistics(
        flat.size,
        float(shown[0]) if shown.size else 0.0,
        _median(shown, times),
        float(shown[-1]) if shown.size else 0.0,
        int(times[shown < 0].sum()),
        int(times[shown == 0].sum()),
        flat.size - int(times.sum()),
        None if stored is None or stored.size == 0 else (int(stored.min()), int(stored.max())),
    )


def _counted(flat: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The values that occur, ascending, and how often each does."""
    bits = flat.view(f"u{flat.dtype.itemsize}")
    counts = np.zeros(1 << 8 * flat.dtype.itemsize, np.int64)
    for begin in range(0, bits.size, CHUNK_BYTES):
        counts += np.bincount(bits[begin : begin + CHUNK_BYTES], minlength=counts.size)
    used = np.flatnonzero(counts)
    values = used.astype(bits.dtype).view(flat.dtype).astype(np.float32)
    order = np.argsort(values, kind="stable")
    return values[order], counts[used[order]]


def _sorted(flat: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    values = np.sort(flat.astype(np.float32))
    return values, np.ones(values.size, np.int64)


def _median(values: NDArray[np.float32], counts: NDArray[np.int64]) -> float:
    """The median of ascending values that occur more than once; 0 of none."""
    if not values.size:
        return 0.0
    ends = np.cumsum(counts)
    middle = [(int(ends[-1]) - 1) // 2, int(ends[-1]) // 2]
    return float(values[np.searchsorted(ends, middle, side="right")].mean())


def code_statistics(counts: ByteCounts, kind: Element, size: int) -> CodeStatistics:
    """Statistics of codes.

    Args:
        counts: what the data buffer holds.
        kind: the element type.
        size: elements of the tensor; what the buffer holds beyond them is padding, stored as code 0.
    """
    codes = counts.codes.copy()
    codes[0] -= codes.sum() - size
    values = kind.values.astype(np.float64)
    usable = np.isfinite(values)
    used = (codes > 0) & usable
    ends = values[usable].min(), values[usable].max()
    shown = values[used] if used.any() else np.zeros(1)
    return CodeStatistics(
        size,
        float(shown.min()),
        float(shown.max()),
        float(codes[values == ends[0]].sum() / size),
        float(codes[values == ends[1]].sum() / size),
        float(codes[values == 0].sum() / size),
        int(np.count_nonzero(codes > 0)),
        codes.size,
        counts.constant_byte if size > 1 else None,
    )


def first_byte_only(chunks: Iterable[NDArray[np.uint8]]) -> int | None:
    """The byte that all bytes are, or None; stops at the first one that differs."""
    constant: int | None = None
    for chunk in chunks:
        if chunk.size == 0:
            continue
        if constant is None:
            constant = int(chunk[0])
        if not (chunk == constant).all():
            return None
    return constant


def cut_ranges(size: int, step: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Ranges that cover `size` bytes."""
    for begin in range(0, size, step):
        yield begin, min(begin + step, size)

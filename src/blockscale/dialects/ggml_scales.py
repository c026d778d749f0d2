"""Scales of ggml's blocks as bit patterns: what is refused, and the zero that a BlockTensor cannot hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import first_index
from ..errors import FormatError, InputError

_ONE = 0x3C00  # 1.0 as float16
_NAN_BYTE = 255  # of E8M0


@dataclass(frozen=True, slots=True)
class Place:
    """Names blocks in messages: `blocks_per_row`, and the number of the first row of a slab."""

    blocks_per_row: int
    first_row: int

    def of(self, block: int) -> str:
        """Row and block of the `block`-th of the slab."""
        row, index = divmod(block, self.blocks_per_row)
        return f"row {self.first_row + row}, block {index}"


def check_finite(bits: NDArray[Any], what: str, place: Place) -> None:
    """FormatError if float16 bit patterns have NaN or infinities among them; `what` is `"scale d"`."""
    bad = (bits & 0x7C00) == 0x7C00
    if bad.any():
        first = int(np.argmax(bad))
        value = float(bits[first : first + 1].view(np.float16)[0])
        raise FormatError(
            f"{int(bad.sum())} of {bits.size} blocks have a {what} that is NaN or infinite; "
            f"the first is {value} at {place.of(first)}",
            found=value,
            field=what[-1],
            rule="scales and minimums are finite",
            hint="the file is damaged, or was written from weights with NaN or infinite values",
        )


def check_bytes(scales: NDArray[np.uint8], place: Place, nonfinite: str) -> int:
    """The number of E8M0 bytes 255; FormatError if there is one, unless `nonfinite` is `"nan-block"`."""
    bad = scales == _NAN_BYTE
    count = int(np.count_nonzero(bad))
    if count and nonfinite != "nan-block":
        raise FormatError(
            f"{count} of {scales.size} blocks have scale byte 255; "
            f"the first is at {place.of(int(np.argmax(bad)))}",
            found=_NAN_BYTE,
            field="e",
            rule="255 is NaN (OCP MX v1.0, 5.4.1); ggml takes it for 2**128, "
            "and writes it by mistake for blocks near 2**-126",
            hint="nonfinite='nan-block' reads these blocks as NaN",
        )
    return count


def replace_zero_scales(scales: NDArray[Any], packed: NDArray[np.uint8]) -> tuple[int, int]:
    """Scale 1 of the same sign and codes 0 for blocks of scale 0, in place.

    A code 0 times minus 1 is minus zero, as it is times ggml's minus zero.

    Returns:
        The number of such blocks, and of those among them that had other codes.
    """
    index = np.flatnonzero((scales & 0x7FFF) == 0)
    if not index.size:
        return 0, 0
    lost = int(np.count_nonzero(packed[index].any(axis=1)))
    scales[index] |= _ONE
    packed[index] = 0
    return int(index.size), lost


def restore_zero_scales(scales: NDArray[Any], packed: NDArray[np.uint8], sign: int) -> NDArray[Any]:
    """Scale 0 for blocks of scale 1 or -1 and codes 0; a copy if there are any.

    Args:
        scales: float16 bit patterns `(n_blocks,)`.
        packed: codes, uint8 `(n_blocks, bytes)`.
        sign: sign bit that all these zeros get besides their own.
    """
    index = np.flatnonzero((scales & 0x7FFF) == _ONE)
    index = index[~packed[index].any(axis=1)]
    if index.size:
        scales = scales.copy()
        scales[index] = (scales[index] & 0x8000) | sign
    return scales


def check_five_bits(codes: NDArray[np.uint8], type_name: str, bias: int) -> None:
    """InputError unless all codes are `-bias .. 31 - bias`; codes: uint8 `(n_blocks, 32)`."""
    bad = codes + np.uint8(bias) > 31
    if bad.any():
        block, position = first_index(bad)
        found = int(codes[block, position].view(np.int8) if bias else codes[block, position])
        raise InputError(
            f"{int(bad.sum())} codes are outside of {-bias} .. {31 - bias}, the first is {found} "
            f"in block {block}",
            found=found,
            rule=f"{type_name} has five-bit codes",
        )

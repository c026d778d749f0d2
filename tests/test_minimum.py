"""The kernel that turns minimums into zero points: the bits of the plain code, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import reference_minimum
from blockscale.native import ISAS
from blockscale.native_minimum import rewrite_minimums
from blockscale.packing import pack_codes

RNG = np.random.default_rng(17)


def any_half(n: int) -> NDArray[np.float16]:
    """Finite float16 numbers of any exponent and sign, none of them zero."""
    bits = RNG.integers(1, 0x7C00, n).astype(np.uint16) | (RNG.integers(0, 2, n) << 15).astype(np.uint16)
    return bits.view(np.float16)


def parameters(kind: str, n: int) -> tuple[Any, Any]:
    """Scales and minimums of n blocks."""
    if kind == "any":
        return any_half(n), any_half(n)
    if kind == "weights":
        return RNG.normal(0, 0.01, n).astype(np.float16), RNG.normal(0, 0.1, n).astype(np.float16)
    if kind == "extreme":
        return any_half(n) * np.float16(2.0**-14), np.full(n, 65504, np.float16)
    d = RNG.integers(1, 60, n).astype(np.float16)  # many exact fits and ties
    return d, (-d * RNG.integers(-3, 16, n) / RNG.integers(1, 18, n)).astype(np.float16)


@pytest.mark.parametrize("isa", range(len(ISAS)))
@pytest.mark.parametrize("kind", ["any", "weights", "extreme", "multiples"])
@pytest.mark.parametrize(
    ("bits", "n", "blocks"), [(4, 32, 1000), (8, 32, 333), (4, 2, 65), (8, 64, 1), (4, 128, 63)]
)
def test_kernel_equals_reference(isa: int, kind: str, bits: int, n: int, blocks: int) -> None:
    top = 15 if bits == 4 else 31
    codes = RNG.integers(0, top + 1, (blocks, n)).astype(np.uint8)
    codes[RNG.random(blocks) < 0.1] = RNG.integers(0, top + 1)
    d, m = parameters(kind, blocks)
    d[d == 0] = 1
    wanted = reference_minimum.rewrite(codes, d, m, 255 // top)
    for threads in (1, 3):
        packed = pack_codes(codes.reshape(1, -1), bits)
        found = rewrite_minimums(packed, d, m, bits, n, 255 // top, threads=threads, isa=isa)
        assert [a.dtype for a in found] == [a.dtype for a in wanted]
        assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


def test_no_blocks() -> None:
    none = np.empty(0, np.float16)
    codes, scales, zeros = rewrite_minimums(np.empty(0, np.uint8), none, none, 4, 32, 17)
    assert (codes.shape, scales.shape, zeros.shape) == ((0, 32), (0,), (0,))

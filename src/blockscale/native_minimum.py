"""The door to the kernel that writes codes with minimums as codes with zero points; see native.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from .native import CREW, as_bytes, chosen_isa
from .threads import GRAIN, thread_share

_WORK = 16
"""How much more an element costs than in plain decoding."""


def rewrite_minimums(
    packed: NDArray[np.uint8],
    scales: NDArray[np.float16],
    minimums: NDArray[np.float16],
    bits: int,
    block_size: int,
    largest_k: int,
    *,
    threads: int | None = None,
    isa: int | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int32]]:
    """Eight-bit codes with zero points of least squared error (docs/rules.md, "Minimums as zero points").

    Args:
        packed: codes of 4 or 8 bits, contiguous; whole blocks.
        scales: one per block, contiguous, any shape.
        minimums: of the same shape.
        bits: 4 or 8.
        block_size: elements per block, even.
        largest_k: the largest factor of the codes.
        threads: at most this many threads; None: all processors.
        isa: index into ISAS; None: the chosen one. The result does not depend on it.

    Returns:
        Codes `(n_blocks, block_size)`; scales and zero points `(n_blocks,)`.
    """
    n = scales.size
    codes = np.empty((n, block_size), np.uint8)
    new_scales, zero_points = np.empty(n, np.float32), np.empty(n, np.int32)
    flat = (as_bytes(packed), as_bytes(scales), as_bytes(minimums))
    out = (as_bytes(codes), as_bytes(new_scales), as_bytes(zero_points))
    kernels, spec = chosen_isa() if isa is None else isa, (bits, largest_k, block_size)
    share = thread_share(n * block_size, threads, GRAIN // _WORK)
    _kernels.rewrite_minimums(CREW, share, kernels, *flat, spec, *out)
    return codes, new_scales, zero_points

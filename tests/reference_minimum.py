"""Minimums as zero points (docs/rules.md), in plain NumPy: what the kernel must equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_INT32 = 2**31 - 1
_NOISE = 1e-13  # of the sum of squares: errors that float64 cannot tell apart


def rewrite(codes: Array, d: Array, m: Array, largest_k: int) -> tuple[Array, Array, Array]:
    """Codes, float32 scales and int32 zero points for uint8 `(blocks, n)` codes, scales and minimums."""
    d, m = d.astype(np.float64), m.astype(np.float64)
    k, s, z = fit(codes, d, m, largest_k)
    new = codes * k.astype(np.uint8)[:, None]
    constant = (codes == codes[:, :1]).all(axis=1)
    value = (d * codes[:, 0] + m).astype(np.float32)
    s = np.where(constant, np.where(value == 0, np.float32(1), np.abs(value)), s.astype(np.float32))
    z = np.where(constant, value < 0, z).astype(np.int32)
    return np.where(constant[:, None], (value > 0).astype(np.uint8)[:, None], new), s, z


def fit(codes: Array, d: Array, m: Array, largest_k: int) -> tuple[Array, Array, Array]:
    """k, scale and zero point per block, of least squared error."""
    n = codes.shape[1]
    wide = codes.astype(np.int64)
    q1 = wide.sum(axis=1).astype(np.float64)
    q2 = (wide * wide).sum(axis=1).astype(np.float64)
    total = d * d * q2 + 2 * d * m * q1 + n * m * m
    best = np.full(len(d), np.inf)
    k_best, s_best, z_best = np.ones(len(d), np.int64), d.copy(), np.zeros(len(d))
    for k in range(1, largest_k + 1):
        exact_z = -k * m / d
        for z in (np.floor(exact_z), np.ceil(exact_z)):
            z = np.clip(z, -_INT32, _INT32)
            a = d * k * q2 + (m * k - d * z) * q1 - n * m * z
            b = k * k * q2 - 2 * k * z * q1 + n * z * z
            s = np.divide(a, b, out=d / k, where=b > 0).astype(np.float32).astype(np.float64)
            err = total - 2 * s * a + s * s * b
            better = (err < best - _NOISE * total) & (s != 0)
            best[better], k_best[better] = err[better], k
            s_best[better], z_best[better] = s[better], z[better]
    return k_best, s_best, z_best

"""The rule `optimal` of the reference: the search for one block; see tests/reference.py and docs/rules.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reference_numbers import F64, error_sum, positive_scales

# Bounds are compared with this much room, far above the rounding of a sum: it can only widen the search.
SLACK = 2.0**-30

# (err, zero point out of range, |s|, s < 0, |z|, z < 0, s, z): the least wins. A key of only (err,) stands
# for decoding every element to zero, and wins if nothing has less error.
Key = tuple[float, ...]


@dataclass(frozen=True)
class Search:
    """One block, and the lattice `s * (q - z)` to fit to it.

    Attributes:
        x: the values.
        w: their importances.
        qmin: smallest code.
        qmax: largest code.
        z_limit: zero points lie in `-z_limit .. z_limit`.
        signs: signs of scales to try.
    """

    x: F64
    w: F64
    qmin: int
    qmax: int
    z_limit: int
    signs: tuple[int, ...]

    def errors(self, s: F64, z: F64) -> F64:
        """`err` of each pair of scale and zero point, as docs/rules.md defines it."""
        q = np.clip(np.rint(self.x / s[:, None]) + z[:, None], self.qmin, self.qmax)
        d = self.x - s[:, None] * (q - z[:, None])
        return error_sum(self.w * (d * d))

    def best(self, s: F64, z: F64, so_far: Key) -> Key:
        """The least key among the pairs and the best one so far."""
        if not s.size:
            return so_far
        outside = ((z < self.qmin) | (z > self.qmax)).astype(np.float64)
        columns = (self.errors(s, z), outside, np.abs(s), s < 0, np.abs(z), z < 0, s, z)
        first = np.lexsort(columns[::-1])[0]
        return min(so_far, tuple(float(column[first]) for column in columns))


def reach(block: Search, bound: float) -> F64:
    """How far each decoded value may be from its element before that element alone costs `bound`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(block.w > 0, np.sqrt(bound * (1 + SLACK) / block.w), np.inf) * (1 + SLACK)


def fit_every_scale(block: Search, name: str, bound: float, to_zero: Key) -> Key:
    """Try every scale of a 16-bit type and every zero point, less those that cannot win.

    Under |s| > 2 amax every element rounds to zero, or its code lies further away. Below, the largest
    element must be within reach of the largest multiple of s.
    """
    size = np.abs(block.x)
    longest = max(abs(block.qmin), block.qmax) + block.z_limit
    s = positive_scales(name)
    s = s[(s <= 2 * size.max()) & (s * longest * (1 + SLACK) >= (size - reach(block, bound)).max())]
    # No clipped code is nearer than the nearest multiple of s.
    k = np.rint(block.x / s[:, None])
    d = block.x - s[:, None] * k
    lattice = error_sum(block.w * (d * d)) * (1 - SLACK)
    order = np.argsort(lattice, kind="stable")
    best = to_zero
    for start in range(0, s.size, 64):
        part = order[start : start + 64]
        part = part[lattice[part] <= min(bound, best[0])]
        if not part.size:
            break
        for sign in block.signs:
            best = block.best(*_pairs(block, s[part], sign, min(bound, best[0])), best)
    return best


def _pairs(block: Search, s: F64, sign: int, bound: float) -> tuple[F64, F64]:
    """Each scale with every zero point that leaves each element within its reach of the code range."""
    near = reach(block, bound)
    u = 1 / s[:, None]
    # s * (qmin - z) <= x + near and s * (qmax - z) >= x - near, with room for rounding
    first = np.ceil(block.qmin - (sign * block.x + near) * u - 1e-6).max(-1)
    last = np.floor(block.qmax - (sign * block.x - near) * u + 1e-6).min(-1)
    first, last = np.maximum(first, -block.z_limit), np.minimum(last, block.z_limit)
    counts = np.maximum(last - first + 1, 0).astype(np.int64)
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return sign * np.repeat(s, counts), np.repeat(first, counts) + offset


def fit_float32(block: Search, name: str, bound: float, to_zero: Key) -> Key:
    """All float32 scales, by enumerating every vector of codes that any scale gives.

    Between two breakpoints the codes stand still and `err` is a parabola, least at A / Q; the true minimum
    is beside some A / Q. The parabolas are tried, lowest first, until their least is above the best found.
    """
    fits = [_parabolas(block, sign, z, bound) for sign in block.signs for z in _zero_points(block)]
    s, z, least, flat = (np.concatenate(column) for column in zip(*fits, strict=True))
    unsure = 1e-13 * float(error_sum(block.w * (block.x * block.x)))  # rounding of `least`
    order = np.argsort(least, kind="stable")
    best = to_zero
    for start in range(0, s.size, 128):
        part = order[start : start + 128]
        part = part[least[part] <= best[0] * (1 + SLACK) + unsure]
        if not part.size:
            break
        scales = [float32_around(abs(s[i]), flat[i]) for i in part]
        zeros = np.repeat(z[part], [len(some) for some in scales])
        signs = np.repeat(np.sign(s[part]), [len(some) for some in scales])
        best = block.best(signs * np.concatenate(scales), zeros, best)
    return best


def _zero_points(block: Search) -> range:
    return range(-block.z_limit, block.z_limit + 1)


def _parabolas(block: Search, sign: int, z: int, bound: float) -> tuple[F64, F64, F64, F64]:
    """Scale, zero point and least error of the parabola between each two breakpoints; and its flat part.

    The flat part is how far from the scale float64 may see no difference in `err`.
    """
    x, w = sign * block.x, block.w
    left, right = _segments(block, x, z, bound)
    middle = (left + right) / 2
    k = np.clip(np.rint(x / middle[:, None]) + z, block.qmin, block.qmax) - z
    a, q = (w * x * k).sum(-1), (w * k * k).sum(-1)
    rising = (a > 0) & (q > 0)
    a, q = a[rising], q[rising]
    s = a / q
    least = (w * x * x).sum() - a * s
    return sign * s, np.full(s.shape, float(z)), least, np.sqrt(2.0**-46 * np.maximum(least, 0) / q)


def _segments(block: Search, x: F64, z: int, bound: float) -> tuple[F64, F64]:
    """Ends of the ranges of positive s in which no code changes, less those that cannot win."""
    halves = np.arange(block.qmin - z, block.qmax - z) + 0.5
    points = (x[:, None] / halves).ravel()
    edges = np.unique(np.concatenate([[0.0], points[points > 0], [4 * np.abs(x).max()]]))
    left, right = edges[:-1], edges[1:]
    near = reach(block, bound)
    low, high = block.qmin - z, block.qmax - z
    room = SLACK * (np.abs(x).max() + right * max(abs(low), abs(high)))
    # every element within its reach of the range s * low .. s * high, at one end at least
    keep = np.minimum(left * low, right * low) <= (x + near).min() + room
    keep &= np.maximum(left * high, right * high) >= (x - near).max() - room
    keep &= left <= _largest_useful_scale(block, x)
    return left[keep], right[keep]


def _largest_useful_scale(block: Search, x: F64) -> float:
    """A scale whose half clips nothing is no better than its half, which wins ties (rules.md)."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    if block.z_limit:
        whole = (high - low) / (block.qmax - block.qmin - 1)
    elif low < 0 and block.qmin == 0:
        whole = math.inf
    else:
        whole = max(high / block.qmax, low / block.qmin if low else 0.0)
    storable = max(whole, 2.0**-120)  # far above the subnormal numbers every half is storable
    return min(2 * max(high, -low), 2 * storable * (1 + SLACK))


def float32_around(center: float, width: float) -> F64:
    """Every positive float32 within `width` of `center`, and its neighbours on both sides."""
    with np.errstate(over="ignore"):
        ends = np.array([max(center - width, 0.0), center + width]).astype(np.float32)
    first, last = (int(bits) for bits in ends.view(np.uint32))
    infinity = 0x7F800000
    if last - first > 1 << 14:
        raise ArithmeticError("float64 cannot tell more than 16,384 scales apart")
    codes = np.arange(max(first - 1, 1), min(last + 1, infinity - 1) + 1, dtype=np.uint32)
    return codes.view(np.float32).astype(np.float64)

"""The reference's rule `optimal` against plain search over every pair, and its ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import cases
import reference
import reference_numbers as numbers
from blockscale.schemes import scheme
from reference_optimal import Search


def _plain_search(x: NDArray[np.float64], row: Any, narrow: bool, positive: bool) -> tuple[float, float]:
    """Scale and zero point by trying every pair: no bound, no order, the keys of rules.md."""
    qmin, qmax = reference.code_range(row, narrow)
    with_z = row.offset == "zero_point"
    limit = 16 << row.element.bits if with_z else 0
    every = numbers.positive_scales(row.scale.name)
    signed = every if with_z or positive else np.concatenate([every, -every])
    best: tuple[float, ...] = (float(numbers.error_sum(x * x)),)
    for z in range(-limit, limit + 1):
        q = np.clip(np.rint(x / signed[:, None]) + z, qmin, qmax)
        d = x - signed[:, None] * (q - z)
        err = numbers.error_sum(d * d)
        for i in np.flatnonzero(err == err.min()):
            s = float(signed[i])
            key = (float(err[i]), not qmin <= z <= qmax, abs(s), s < 0, abs(z), z < 0, s, z)
            best = min(best, key)
    return (best[-2], best[-1]) if len(best) > 1 else (1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "symmetric", "scale", "width", "options"),
    [
        ("int4", True, "float16", 32, ""),
        ("int4", True, "bfloat16", 16, "narrow"),
        ("int2", True, "float16", 8, "positive"),
        ("uint4", True, "float16", 8, ""),
        ("int8", True, "float16", 8, ""),
        ("uint2", False, "float16", 4, ""),
        ("int2", False, "bfloat16", 4, "narrow"),
    ],
)
def test_optimal_is_the_best_of_every_pair(
    name: str, symmetric: bool, scale: str, width: int, options: str
) -> None:
    row = scheme(name, symmetric=symmetric, scale=scale)
    names = ("normal", "one_sided", "few_integers", "sparse", "half_codes", "near_least_scale", "tiny")
    x = np.concatenate([cases.blocks(case, 1, width) for case in names])
    result = reference.quantize(x, row, rule=f"optimal:{options}")
    for i, block in enumerate(x):
        s, z = _plain_search(block, row, "narrow" in options, "positive" in options)
        assert result.scales[i, 0].astype(float) == s, names[i]
        assert result.zero_points is None or result.zero_points[i, 0] == z, names[i]


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("uint4", [-1.0, 0.5, 3.0]),
        ("uint2", [9.5 * 2.0**-24, 7.5 * 2.0**-24]),
        ("uint2", [10.5 * 2.0**-24, 2.5 * 2.0**-24]),
        ("uint2", [-1.5 * 2.0**-24, -1.5 * 2.0**-24]),
    ],
)
def test_optimal_is_the_best_of_every_pair_with_ties(name: str, x: list[float]) -> None:
    """Halves are as near to the code beside them: zero points that clip them tie with those that do not."""
    row = scheme(name)
    block = np.array(x)
    result = reference.quantize(block, row, rule="optimal")
    assert result.zero_points is not None
    found = (result.scales[0].astype(float), result.zero_points[0])
    assert found == _plain_search(block, row, False, False)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "int8"])
def test_optimal_float32_is_the_best_of_many(name: str) -> None:
    """No float16 or bfloat16 scale, and no float32 scale of a fine net, does better."""
    row = scheme(name, scale="float32")
    x = np.concatenate([cases.blocks(case, 2, 16) for case in ("normal", "one_sided", "integers", "sparse")])
    best = reference.quantize(x, row, rule="optimal")
    weights = np.ones(16)
    qmin, qmax = reference.code_range(row, False)
    for i, block in enumerate(x):
        search = Search(block, weights, qmin, qmax, 0, (1,))
        z = np.zeros(1) if best.zero_points is None else best.zero_points[i].astype(np.float64)
        s = best.scales[i].astype(np.float64)
        least = search.errors(s, z)[0]
        net = (s * (1 + np.linspace(-0.5, 1.2, 4001))).astype(np.float32).astype(np.float64)
        for shift in (-1, 0, 1) if row.offset == "zero_point" else (0,):
            assert (search.errors(net, np.full(net.shape, z[0] + shift)) >= least).all()
        for scale in ("float16", "bfloat16"):
            other = reference.quantize(block, scheme(name, scale=scale), rule="optimal")
            z = np.zeros(1) if other.zero_points is None else other.zero_points.astype(np.float64)
            assert search.errors(other.scales.astype(np.float64), z)[0] >= least


def test_optimal_ties() -> None:
    """Equal errors: zero point in range, smaller |s|, positive s."""
    signed = reference.quantize(np.array([[8.0, 0], [7, -7], [-8, 0]]), scheme("int4"), rule="optimal")
    assert signed.scales[:, 0].tolist() == [-1, 1, 1]
    shifted = reference.quantize(np.array([[15.0, 15], [-15, -15]]), scheme("uint4"), rule="optimal")
    assert shifted.zero_points is not None
    assert shifted.scales[:, 0].tolist() == [1, 1]
    assert shifted.zero_points[:, 0].tolist() == [0, 15]


def test_optimal_follows_the_importance() -> None:
    """Where two elements count and the rest do not, those two are fitted as if alone."""
    x = np.array([1.0, 0.3, 0.11, 5.0])
    weights = np.array([0.0, 1, 1, 0])
    for name in ("int4", "uint4"):
        result = reference.quantize(x, scheme(name), rule="optimal", importance=weights)
        alone = reference.quantize(x[1:3], scheme(name), rule="optimal")
        np.testing.assert_array_equal(result.codes[1:3], alone.codes)
        np.testing.assert_array_equal(result.scales, alone.scales)
    doubled = reference.quantize(np.repeat(x, [1, 2, 1, 3]), scheme("int4"), rule="optimal")
    counted = reference.quantize(x, scheme("int4"), rule="optimal", importance=[1.0, 2, 1, 3])
    np.testing.assert_array_equal(counted.scales, doubled.scales)


def test_importances_of_zero_count_as_one() -> None:
    x = np.array([1.0, 0.3, 0.11, 5.0])
    none = reference.quantize(x, scheme("int4"), rule="optimal", importance=np.zeros(4))
    even = reference.quantize(x, scheme("int4"), rule="optimal")
    np.testing.assert_array_equal(none.codes, even.codes)
    assert none.events["unweighted_blocks"] == 1


def test_optimal_gives_up_to_zero() -> None:
    """Nothing storable beats decoding to zero: scale 1, zero point 0."""
    for name in ("int4", "uint4"):
        result = reference.quantize(np.array([1e-12, -1e-12]), scheme(name), rule="optimal")
        assert result.scales.tolist() == [1]
        assert result.zero_points is None or result.zero_points.tolist() == [0]
        assert result.events["zeroed"] == 2

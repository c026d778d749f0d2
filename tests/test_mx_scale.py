"""`blockscale.mx.choose_scale` and `choose_scale_mse` against the reference and hand-made tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockscale as bs
import cases
import reference
import reference_numbers as numbers
from blockscale.schemes import scheme

MX = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mxint4")


@pytest.mark.parametrize("name", cases.CASES)
def test_choose_scale_is_the_floor_byte(name: str) -> None:
    for block in cases.blocks(name, 20, 32):
        byte = bs.mx.choose_scale(block)
        assert type(byte) is int
        assert byte == reference.choose_scale(block)
        assert byte == reference.quantize(block, scheme("mxfp4"), rule="floor").scales[0]


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "even", "mse"])
def test_choose_scale_by_rule_and_scheme(name: str, rule: str) -> None:
    x = np.concatenate([cases.blocks(case, 8, 32) for case in ("normal", "ties", "tiny", "huge", "sparse")])
    wanted = reference.quantize(x, scheme(name), rule=rule).scales[:, 0]
    got = [bs.mx.choose_scale(block, rule=rule, scheme=name) for block in x]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_choose_scale_next_to_every_power_of_two(dtype: Any) -> None:
    """Where floor(log2) is wrong: nextafter(2**k, 0) for every k (M1)."""
    info = np.finfo(dtype)
    for k in range(int(info.minexp) + 1, int(info.maxexp)):
        power = np.ldexp(dtype(1), k)
        if power <= numbers.FLOAT32_MAX:
            assert bs.mx.choose_scale(np.array([power])) == min(max(k - 2 + 127, 0), 254)
        below = np.nextafter(power, dtype(0))
        if below <= numbers.FLOAT32_MAX:
            assert bs.mx.choose_scale(np.array([-below])) == min(max(k - 3 + 127, 0), 254)


@pytest.mark.parametrize(
    ("amax", "byte"), [(6, 127), (6.5, 127), (6.99, 127), (7, 127), (7.99, 127), (8, 128), (0, 127)]
)
def test_choose_scale_known(amax: float, byte: int) -> None:
    assert bs.mx.choose_scale(np.array([0.1 * amax, -amax, 0])) == byte


@pytest.mark.parametrize(
    "case", ["normal", "ties", "tiny", "huge", "sparse", "zeros", "powers_of_two", "wide"]
)
def test_choose_scale_mse_is_the_best_of_its_window(case: str) -> None:
    for block in cases.blocks(case, 10, 32):
        byte = bs.mx.choose_scale_mse(block)
        assert type(byte) is int
        assert byte == reference.choose_scale_mse(block, 3, 1)
        for span, headroom in ((0, 0), (3, 0), (0, 1), (1, 2), (8, 4), (300, 300)):
            wanted = reference.choose_scale_mse(block, span, headroom)
            assert bs.mx.choose_scale_mse(block, span, headroom) == wanted


@pytest.mark.parametrize("name", MX)
def test_choose_scale_mse_of_other_elements(name: str) -> None:
    element = scheme(name).element.name
    for block in np.concatenate([cases.blocks(case, 10, 32) for case in ("student_t3", "ties")]):
        wanted = reference.choose_scale_mse(block, 3, 1, element)
        assert bs.mx.choose_scale_mse(block, span=3, headroom=1, scheme=name) == wanted


def test_a_wide_window_is_the_rule_mse() -> None:
    x = np.concatenate([cases.blocks(case, 30, 32) for case in ("normal", "laplace", "integers")])
    wanted = bs.quantize(x, "mxfp4", rule="mse").scales.view(np.uint8)[:, 0]
    got = [bs.mx.choose_scale_mse(block, span=254, headroom=254) for block in x]
    np.testing.assert_array_equal(got, wanted)


def test_searching_downward_only_gains_nothing() -> None:
    """accuracy.md 0.2: at 32 elements no normal block chooses an exponent below the floor rule's."""
    for block in cases.blocks("normal", 200, 32):
        assert bs.mx.choose_scale_mse(block, span=3, headroom=0) == bs.mx.choose_scale(block)

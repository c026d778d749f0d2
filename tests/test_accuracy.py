"""The figures of shared/targets.md, "Accuracy": a million values of its own data, block axis last."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockscale as bs
from blockscale.schemes import scheme

ROWS, COLUMNS = 1024, 1024


@cache
def data(name: str) -> NDArray[np.float32]:
    """`name` distributed float32 values, 1024 x 1024, always the same."""
    rng = np.random.default_rng(20261129)
    shape = (ROWS, COLUMNS)
    if name == "normal":
        return rng.standard_normal(shape).astype(np.float32)
    if name == "laplace":
        return rng.laplace(size=shape).astype(np.float32)
    return rng.standard_t(5, size=shape).astype(np.float32)


def relative_error(w: bs.BlockTensor, x: NDArray[np.float32]) -> float:
    """sum (x - y)^2 / sum x^2."""
    reference = x.astype(np.float64)
    difference = w.dequantize().astype(np.float64) - reference
    return float((difference * difference).sum() / (reference * reference).sum())


def sqnr_db(w: bs.BlockTensor, x: NDArray[np.float32]) -> float:
    """-10 log10 of the relative error."""
    return float(-10 * np.log10(relative_error(w, x)))


# fmt: off
MX_FIGURES = (
    # scheme       block  rule     data       dB     tolerance
    ("mxfp4",      32,    "floor", "normal",  18.79, .03),
    ("mxfp4",      32,    "ceil",  "normal",  16.83, .03),
    ("mxfp4",      32,    "rceil", "normal",  18.76, .03),
    ("mxfp4",      32,    "even",  "normal",  19.03, .03),
    ("mxfp4",      32,    "mse",   "normal",  19.05, .03),
    ("mxfp4",      32,    "floor", "laplace", 17.94, .05),
    ("mxfp4",      32,    "ceil",  "laplace", 15.39, .05),
    ("mxfp4",      32,    "rceil", "laplace", 17.58, .05),
    ("mxfp4",      32,    "even",  "laplace", 18.14, .05),
    ("mxfp4",      32,    "mse",   "laplace", 18.22, .05),
    ("mxfp4",      32,    "floor", "t5",      17.98, .08),
    ("mxfp4",      32,    "ceil",  "t5",      15.36, .08),
    ("mxfp4",      32,    "rceil", "t5",      17.55, .08),
    ("mxfp4",      32,    "even",  "t5",      18.15, .08),
    ("mxfp4",      32,    "mse",   "t5",      18.25, .08),
    ("mxfp4",      16,    "mse",   "normal",  19.18, .03),
    ("mxfp4",      64,    "mse",   "normal",  18.99, .03),
    ("mxfp8_e4m3", 32,    "floor", "normal",  30.63, .04),
    ("mxfp8_e4m3", 32,    "rceil", "normal",  31.52, .04),
    ("mxfp8_e4m3", 32,    "even",  "normal",  31.17, .04),
    ("mxfp6_e2m3", 32,    "floor", "normal",  30.93, .04),
    ("mxfp6_e2m3", 32,    "mse",   "normal",  30.99, .04),
    ("mxfp6_e3m2", 32,    "rceil", "normal",  25.56, .04),
    ("mxint8",     32,    "floor", "normal",  41.67, .04),
    ("mxint8",     32,    "ceil",  "normal",  35.65, .04),
    ("mxint8",     32,    "mse",   "normal",  41.72, .04),
)
AFFINE_FIGURES = (
    # scheme  rule                       rows  dB     tolerance
    ("int4",  "absmax",                  1024, 20.26, .03),
    ("int4",  "optimal:narrow",          1024, 20.84, .03),
    ("q4_0",  "ggml",                    1024, 21.29, .03),
    ("int4",  "optimal",                 1024, 21.82, .03),
    ("q4_0",  "optimal",                 1024, 21.82, .03),
    ("uint4", "minmax",                  1024, 21.84, .05),
    ("uint4", "optimal",                 256,  22.33, .05),  # 8192 blocks
    ("q8_0",  "ggml",                    1024, 45.44, .05),
    ("int8",  "optimal",                 256,  46.7,  .15),
    ("q8_0",  "optimal",                 256,  46.7,  .15),
)
RELATIVE_ERRORS = (("floor", .01322), ("ceil", .02077), ("rceil", .01332), ("even", .01250), ("mse", .01244))
SATURATED_SHARES = (("normal", .298), ("laplace", .433), ("t5", .416))
# fmt: on


@pytest.mark.parametrize(("name", "block_size", "rule", "source", "db", "tolerance"), MX_FIGURES)
def test_mx(name: str, block_size: int, rule: str, source: str, db: float, tolerance: float) -> None:
    x = data(source)
    assert sqnr_db(bs.quantize(x, name, rule=rule, block_size=block_size), x) == pytest.approx(
        db, abs=tolerance
    )


@pytest.mark.parametrize(("rule", "share"), RELATIVE_ERRORS)
def test_mxfp4_relative_error(rule: str, share: float) -> None:
    """The same figures as shares; 0.03 dB are 0.7 %."""
    x = data("normal")
    assert relative_error(bs.quantize(x, "mxfp4", rule=rule), x) == pytest.approx(share, rel=0.007)


@pytest.mark.parametrize(("source", "share"), SATURATED_SHARES)
def test_floor_saturates_blocks(source: str, share: float) -> None:
    report = bs.quantize(data(source), "mxfp4", rule="floor").report
    assert report is not None
    assert report.saturated_block_share == pytest.approx(share, abs=0.01)


def test_saturation_by_rule() -> None:
    """accuracy.md 3.1: floor, even and mse on N(0, 1); rceil and ceil never."""
    expected = {"floor": 0.298, "even": 0.128, "mse": 0.156, "rceil": 0.0, "ceil": 0.0}
    for rule, share in expected.items():
        report = bs.quantize(data("normal"), "mxfp4", rule=rule).report
        assert report is not None
        assert report.saturated_block_share == pytest.approx(share, abs=0.01 if share else 0)


@pytest.mark.parametrize(("name", "rule", "rows", "db", "tolerance"), AFFINE_FIGURES)
def test_affine(name: str, rule: str, rows: int, db: float, tolerance: float) -> None:
    x = data("normal")[:rows]
    assert sqnr_db(bs.quantize(x, name, rule=rule), x) == pytest.approx(db, abs=tolerance)


@pytest.mark.parametrize("scale", ["bfloat16", "float32"])
def test_scale_types_hardly_matter_to_optimal(scale: str) -> None:
    """accuracy.md 3.8: within 0.005 dB at int4, since codes follow the stored scale."""
    x = data("normal")[:128]
    row: Any = scheme("int4", scale=scale)
    half = sqnr_db(bs.quantize(x, "int4", rule="optimal"), x)
    assert sqnr_db(bs.quantize(x, row, rule="optimal"), x) == pytest.approx(half, abs=0.01)


def test_axis_does_not_matter() -> None:
    """Blocks along the first axis of the transposed data: the same numbers."""
    x = data("normal")
    last = bs.quantize(x, "mxfp4", rule="mse")
    first = bs.quantize(x.T, "mxfp4", axis=0, rule="mse")
    np.testing.assert_array_equal(first.dequantize().T, last.dequantize())

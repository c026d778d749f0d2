"""Scale bytes and codes equal torchao's, from vectors that torchao made (tests/vectors/torchao)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import blockscale as bs
from blockscale.packing import unpack_codes

FOLDER = Path(__file__).parent / "vectors" / "torchao"
ELEMENTS = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")


def test_the_vectors_are_whole() -> None:
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    with np.load(FOLDER / "mx.npz") as arrays:
        assert sorted(arrays.files) == manifest["arrays"]


@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "even"])
@pytest.mark.parametrize("scheme", ELEMENTS)
def test_scales_and_codes(scheme: str, rule: str) -> None:
    with np.load(FOLDER / "mx.npz") as arrays:
        x = arrays["x"]
        scales, data = arrays[f"{scheme}.{rule}.scale"], arrays[f"{scheme}.{rule}.data"]
    w = bs.quantize(x, scheme, rule=rule)
    np.testing.assert_array_equal(w.scales.view(np.uint8).reshape(-1), scales)
    bits = w.scheme.element.bits
    theirs = unpack_codes(data, 4, 32) if bits == 4 else data
    np.testing.assert_array_equal(w.codes().view(np.uint8), theirs)
    assert len(scales) > 200

"""Mutated configs and parts: dialects read whatever a file holds, or refuse it with an error of ours."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
from blockscale.dialects import compressed_tensors, gpt_oss, plain_mx
from blockscale.dialects.base import Dialect, Options
from blockscale.errors import BlockscaleError
from dialect_parts import Arrays, stored_of, values

NONE = Options()
DIALECTS: tuple[Dialect, ...] = (compressed_tensors, gpt_oss, plain_mx)
JSON: tuple[Any, ...] = (
    *(None, 0, 1, -1, 3, 32, 10**30, 0.5, float("nan"), True, "", "int", "group", "re:.*", "re:(", "Linear"),
    *([], {}, [1], ["a"], {"a": 1}, "compressed-tensors", "mixed-precision", "mxfp4-pack-quantized"),
)
DTYPES = (
    *(np.uint8, np.int8, np.int32, np.int64, np.uint32, np.float16, np.float32, np.bool_),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn),
)
ADDED = (
    *("m.weight_g_idx", "m.weight_zero_point", "m.weight", "m.weight_scale"),
    *("m_scale", "x_blocks", "x_scales"),
)
SETTINGS: tuple[dict[str, Any], ...] = (
    *({}, {}, {"scale_layout": "128x4"}, {"scale_layout": "padded"}),
    *({"orientation": "plain"}, {"scale_shift": 2}),
)


def files() -> list[tuple[Arrays, dict[str, Any]]]:
    """Valid files of every dialect."""
    found: list[tuple[Arrays, dict[str, Any]]] = []
    for scheme in ("int4", "uint4", "int8", "mxfp4", "mxfp8_e4m3"):
        w = bs.quantize(values((12, 128)), scheme)
        written = {"m.weight": w}
        parts = compressed_tensors.write("m.weight", w, NONE)
        found.append((parts, compressed_tensors.config(written, ["a.weight"], NONE)))
        own = plain_mx.from_metadata(plain_mx.metadata(written, [], NONE))
        found.append((plain_mx.write("m.weight", w, NONE), own))
    w = bs.quantize(values((2, 12, 64)), "mxfp4")
    return [*found, (gpt_oss.write("m", w, NONE), gpt_oss.config({"m": w}, [], NONE))]


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON tree."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def change_config(rng: random.Random, config: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *path, last = rng.choice(list(paths(changed)) or [("a",)])
    place = changed
    for key in path:
        place = place[key]
    if rng.random() < 0.2 and isinstance(place, dict):
        place.pop(last, None)
    else:
        place[last] = rng.choice(JSON)
    return changed


def change_parts(rng: random.Random, arrays: Arrays) -> Arrays:
    name = rng.choice(list(arrays))
    shape = list(arrays[name].shape)
    what = rng.randrange(6)
    if what == 0:
        return {n: a for n, a in arrays.items() if n != name}
    if what == 1:
        shapes: list[tuple[int, ...]] = [(3,), (12, 4), (12, 128), (2, 1, 16)]
        return {**arrays, rng.choice(ADDED): np.zeros(rng.choice(shapes), rng.choice(DTYPES))}
    if what == 2 and shape:
        at = rng.randrange(len(shape))
        shape[at] = rng.choice([0, 1, 2, 3, shape[at] + 1, shape[at] * 2, -(-shape[at] // 2)])
        return {**arrays, name: np.zeros(shape, arrays[name].dtype)}
    if what == 3:
        return {**arrays, name: np.zeros(shape, rng.choice(DTYPES))}
    if what == 4:
        ranks: list[tuple[int, ...]] = [(), (1,), (0,), (2, 2, 2), (1, 1, 1, 1)]
        return {**arrays, name: np.zeros(rng.choice(ranks), arrays[name].dtype)}
    numbers = np.random.default_rng(0).integers(-200, 200, shape).astype(np.float32)
    with np.errstate(all="ignore"):
        return {**arrays, name: numbers.astype(arrays[name].dtype)}


def read_everything(arrays: Arrays, config: dict[str, Any], options: Options) -> int:
    """Recognise and read with every dialect; counts what was read."""
    done = 0
    for dialect in DIALECTS:
        found = dialect.recognise(stored_of(arrays), config, arrays.__getitem__, options)
        for weight in found.weights if found is not None else ():
            w = dialect.read(weight, arrays.__getitem__)
            assert (w.shape, w.axis, w.scheme) == (weight.shape, weight.axis, weight.scheme)
            w.dequantize()
            done += 1
    return done


@pytest.mark.parametrize("seed", range(4))
def test_only_our_errors_escape(seed: int) -> None:
    rng = random.Random(seed)
    originals = files()
    read = refused = 0
    for _ in range(500):
        arrays, config = rng.choice(originals)
        for _ in range(rng.choice([0, 1, 2])):
            config = change_config(rng, config)
        for _ in range(rng.choice([0, 1, 2])):
            arrays = change_parts(rng, arrays) if arrays else arrays
        try:
            read += read_everything(arrays, config, Options(settings=rng.choice(SETTINGS)))
        except BlockscaleError:
            refused += 1
    assert read > 50
    assert refused > 100

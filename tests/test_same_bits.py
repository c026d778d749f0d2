"""One result, however it is computed: every instruction set, thread count and slab size, bit for bit.

The kernels take float64 input through plain loops and the rest through vectors, so the same values as float64
are the yardstick here; `test_quantize.py` holds the plain loops against tests/reference.py, and so does
`test_reference_of_every_instruction_set` for a few rows.
"""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import cases
import reference
from blockscale import native
from blockscale.blocks import BlockGrid
from blockscale.native import QuantizedRows
from blockscale.packing import unpack_codes
from blockscale.rules import rule_for
from blockscale.schemes import READ_ONLY_SCHEMES, SCHEMES, Scheme, scheme

ISAS = range(len(native.ISAS))
MX = [name for name, row in SCHEMES.items() if row.is_mx]
# Around the vector width (16), groups of 16 blocks, and blocks of 16, 32 and 64; with and without a tail.
LENGTHS = (15, 16, 31, 32, 33, 48, 64, 80, 511, 512, 544, 1024 + 96)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def _rows() -> list[tuple[Scheme, str]]:
    rows = [(scheme(name), rule) for name in MX for rule in ("floor", "rceil", "mse")]
    rows += [(scheme("mxfp4"), "ceil"), (scheme("mxfp4"), "even")]
    rows += [(scheme(name), "ggml") for name in ("q8_0", "q4_0", "q4_1")]
    for name, scale in itertools.product(
        ("int8", "int4", "uint8", "uint4"), ("float16", "bfloat16", "float32")
    ):
        rows.append((scheme(name, scale=scale, symmetric=True), "absmax"))
        rows.append((scheme(name, scale=scale, symmetric=False), "minmax"))
        rows.append((scheme(name, scale=scale, symmetric=False), "minmax:no-zero"))
    rows += [(scheme("int2"), "absmax"), (scheme("uint2"), "minmax")]
    return rows


ROWS = _rows()


def _id(value: object) -> str:
    return f"{value.name}-{value.scale.name}" if isinstance(value, Scheme) else str(value)


def _bits(parts: QuantizedRows) -> tuple[Any, ...]:
    offsets = None if parts.offsets is None else parts.offsets.tobytes()
    return parts.packed.tobytes(), parts.scales.tobytes(), offsets, parts.events


def _quantize(x: NDArray[Any], row: Scheme, rule: str, isa: int | None, **options: Any) -> tuple[Any, ...]:
    return _bits(native.quantize_rows(x, row, rule_for(row, rule), isa=isa, **options))


@functools.cache
def _every_case(length: int, block_size: int, dtype: Any) -> NDArray[Any]:
    """All named cases below each other, some with non-finite values, one row of arbitrary bits."""
    x = np.concatenate(
        [cases.tensor(name, (2, length), block_size=block_size, dtype=dtype) for name in cases.CASES]
    )
    rng = np.random.default_rng(length)
    bad = np.concatenate([x[:4], cases.tensor("normal", (4, length), dtype=dtype)])
    bad[np.arange(8), rng.integers(0, length, 8)] = np.array([np.nan, np.inf, -np.inf, np.nan] * 2).astype(
        dtype
    )
    bits = np.frombuffer(rng.bytes(8 * length * x.dtype.itemsize), x.dtype).reshape(8, length)
    return np.ascontiguousarray(np.concatenate([x, bad, bits]))


def _refusable(x: NDArray[Any], row: Scheme) -> NDArray[Any]:
    """Without what an affine scheme refuses: there the parts are left as they were."""
    if row.is_mx:
        return x
    limit = 1e4 if row.scale.name == "float16" else 1e37
    with np.errstate(invalid="ignore"):
        good = np.abs(x.astype(np.float32)) < limit
    return np.where(good, x, np.ones(1, x.dtype))


@pytest.mark.parametrize(("row", "rule"), ROWS, ids=_id)
def test_every_instruction_set_and_length(row: Scheme, rule: str) -> None:
    for i, length in enumerate(LENGTHS):
        block_size = 32 if rule == "ggml" else (16, 32, 64)[i % 3]
        sized, dtype = scheme(row, block_size=block_size), DTYPES[i // 3 % 3]
        x = _refusable(_every_case(length, block_size, dtype), row)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            wanted = _quantize(x.astype(np.float64), sized, rule, 0, threads=1)
        for isa in ISAS:
            assert _quantize(x, sized, rule, isa, threads=1) == wanted, (length, dtype, native.ISAS[isa])


def _whole_groups(kind: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """Sixteen full blocks of 32 a row, which some kernels take in one go: values at what decides a code."""
    shape = (32, 512)
    decisive = np.array(
        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7, 0, 0.5, 1, 1.5, 2, 3, 4, 8, 4.47], np.float32
    )
    x = rng.choice(decisive, shape)
    if kind == "an ulp around thresholds":
        bits = x.view(np.int32) + rng.integers(-2, 3, shape).astype(np.int32)
        x = np.where(x == 0, x, bits.view(np.float32))
    if kind == "few values":  # errors of two exponents are often equal
        x = (np.round(rng.standard_normal(shape) * 8) / rng.choice([4, 8, 16], (32, 1))).astype(np.float32)
    if kind in ("normal", "one sign"):
        x = rng.standard_normal(shape).astype(np.float32)
    signs = rng.choice(np.array([1, -1], np.float32), shape)
    if kind == "one sign":  # in some blocks; in whole rows and in none of others
        one = rng.random((32, 16)) < np.arange(32)[:, np.newaxis] / 24 - 0.125
        signs = np.where(np.repeat(one, 32, 1), np.repeat(signs[:, ::32], 32, 1), signs)
        x = np.abs(x)
    x *= signs
    x *= np.exp2(np.repeat(rng.integers(-17, 9, (32, 4)), 128, 1)).astype(np.float32)
    x[:4, :32] = 0
    x[5, 3] = np.nan
    return x


KINDS = ["thresholds", "an ulp around thresholds", "few values", "normal", "one sign"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("row", "rule"),
    [(scheme("mxfp4"), rule) for rule in ("floor", "ceil", "rceil", "even", "mse")]
    + [(scheme(name), "ggml") for name in ("q4_0", "q4_1", "q8_0")]
    + [(row, rule) for row, rule in ROWS if rule in ("absmax", "minmax", "minmax:no-zero")],
    ids=_id,
)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_whole_groups(row: Scheme, rule: str, kind: str, dtype: Any) -> None:
    x = _refusable(_whole_groups(kind, np.random.default_rng(len(kind))).astype(dtype), row)
    for block_size in (32, 128) if row.family == "affine" and rule != "ggml" else (32,):
        sized = scheme(row, block_size=block_size)
        wanted = _quantize(x.astype(np.float64), sized, rule, 0, threads=1)
        for isa in ISAS:
            assert _quantize(x, sized, rule, isa, threads=1) == wanted, native.ISAS[isa]


@pytest.mark.parametrize(("row", "rule"), [row for row in ROWS if row[0].scale.name != "float32"], ids=_id)
def test_reference_of_every_instruction_set(row: Scheme, rule: str) -> None:
    for case in ("normal", "student_t3", "ties", "half_codes", "few_integers", "negative_zeros"):
        x = _refusable(cases.tensor(case, (4, 96)), row)
        wanted = reference.quantize(x, row, rule=rule)
        for isa in ISAS:
            got = native.quantize_rows(x, row, rule_for(row, rule), isa=isa, threads=1)
            codes = np.stack([unpack_codes(line, row.element.bits, 96) for line in got.packed])
            np.testing.assert_array_equal(codes, wanted.codes)
            np.testing.assert_array_equal(
                got.scales.view(f"u{got.scales.itemsize}"), _unsigned(wanted.scales)
            )
            assert {name: got.events[name] for name in wanted.events} == wanted.events


def _unsigned(scales: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(scales).view(f"u{scales.itemsize}")


@pytest.mark.parametrize(("row", "rule"), ROWS, ids=_id)
def test_threads_and_slabs(row: Scheme, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "GRAIN", 64)
    monkeypatch.setattr(native, "SEARCH_GRAIN", 64)
    for shape in ((37, 96), (70, 33), (2, 4096)):
        x = _refusable(cases.tensor("student_t5", shape), row)
        wanted = _quantize(x, row, rule, None, threads=1)
        for isa, threads in itertools.product(ISAS, (2, 5)):
            assert _quantize(x, row, rule, isa, threads=threads) == wanted
        for step in (1, 5, 16):
            slabs = [_quantize(x[i : i + step], row, rule, None, threads=1) for i in range(0, len(x), step)]
            for part in range(3):
                if wanted[part] is not None:
                    assert b"".join(slab[part] for slab in slabs) == wanted[part]
            assert {k: sum(slab[3][k] for slab in slabs) for k in wanted[3]} == wanted[3]


def test_calls_that_meet_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "GRAIN", 64)
    x = cases.tensor("student_t5", (64, 96))
    row = scheme("q8_0")
    wanted = _quantize(x, row, "ggml", None, threads=1)
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(_quantize, x, row, "ggml", None, threads=1 + i % 5) for i in range(300)]
    assert all(call.result() == wanted for call in calls)


def test_a_forked_child_has_threads_of_its_own() -> None:
    """The crew's threads stay with the parent."""
    code = """
import os, warnings
import numpy as np, blockscale as bs
from blockscale import native
native.GRAIN = 64
warnings.simplefilter("ignore")  # Python warns of forks of a process with threads
x = np.ones((64, 64), np.float32)
bs.quantize(x, "mxfp4", threads=3)
child = os.fork()
if child == 0:
    bs.quantize(x, "mxfp4", threads=3)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["7"]


def test_the_interpreter_ends_while_a_daemon_thread_is_at_work() -> None:
    code = """
import threading, time
import numpy as np, blockscale as bs
from blockscale import native
native.GRAIN = 64
x = np.ones((256, 512), np.float32)
def work():
    while True:
        bs.quantize(x, "mxfp4", threads=2)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.02)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_an_exit_handler_waits_for_go_on() -> None:
    code = """
import atexit, queue, threading, time
import numpy as np
todo = queue.Queue()
def work():
    import blockscale as bs
    while (x := todo.get()) is not None:
        bs.quantize(x, "mxfp4", threads=2)
    print("done")
def flush():
    todo.put(None)
    thread.join()
atexit.register(flush)  # before the first kernel, so that it runs after the crew is closed
thread = threading.Thread(target=work, daemon=True)
thread.start()
x = np.ones((64, 512), np.float32)
todo.put(x)
time.sleep(0.5)
for _ in range(20):
    todo.put(x)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "int4", "uint4", "mxfp4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_zeros_of_one_sign(name: str, dtype: Any) -> None:
    row = scheme(name)
    rule = "ggml" if name.startswith("q") else {"int4": "absmax", "uint4": "minmax"}.get(name, "floor")
    for blocks in (1, 16, 40):
        x = np.zeros((blocks, 32), dtype)
        x[1::3] = -x[1::3]
        x[::3] = -x[::3]
        for part in (x, np.negative(np.zeros_like(x))):
            wanted = _quantize(part.astype(np.float64), row, rule, 0)
            assert wanted[3]["zero_blocks"] == blocks
            for isa in ISAS:
                assert _quantize(part, row, rule, isa) == wanted


# ---------------------------------------------------------------- dequantizing


def _random_parts(row: Scheme, rows: int, length: int) -> tuple[BlockGrid, Any, Any, Any]:
    """Any codes; scales of every kind, NaN and infinities too; zero points near and far."""
    rng = np.random.default_rng(length)
    grid = BlockGrid((rows, length), 1, row.block_size)
    shape = (rows, grid.blocks_per_row)
    packed = rng.integers(0, 256, (rows, grid.row_bytes(row.element.bits)), dtype=np.uint8)
    if row.is_mx:
        scales = rng.integers(0, 256, shape, dtype=np.uint8)
        scales[0, ::2] = 255
        scales[0, 1::2] = 0
        return grid, packed, scales.view(row.scale.dtype), None
    scales = (rng.standard_normal(shape) * np.exp2(rng.integers(-20, 8, shape))).astype(row.scale.dtype)
    scales[-1, 0] = np.inf
    if row.offset == "none":
        return grid, packed, scales, None
    if row.offset == "minimum":
        return grid, packed, scales, rng.standard_normal(shape).astype(np.float16)
    far = rng.integers(-(2**31), 2**31, shape)
    return grid, packed, scales, np.where(rng.random(shape) < 0.02, far, far % 16).astype(np.int32)


def _decoded(row: Scheme, grid: BlockGrid, packed: Any, scales: Any, offsets: Any) -> NDArray[np.float32]:
    """The reference's values."""
    codes = np.stack([unpack_codes(line, row.element.bits, grid.padded_length) for line in packed])
    blocks = codes.reshape(grid.rows, grid.blocks_per_row, grid.block_size)
    numbers = scales.view(np.uint8) if row.is_mx else scales.astype(np.float64)
    shifts = np.zeros(scales.shape) if offsets is None else offsets.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite scales
        values = reference.decode(blocks, numbers[..., None], shifts[..., None], row)
    return values.reshape(grid.rows, -1)[:, : grid.length]


@pytest.mark.parametrize("name", [*SCHEMES, *READ_ONLY_SCHEMES, "int8-z", "int4-z"])
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
def test_dequantize_with_every_instruction_set(name: str, block_size: int) -> None:
    row = scheme(name.removesuffix("-z"), block_size=block_size)
    if name.endswith("-z"):
        row = scheme(row, symmetric=False)
    for length in (1, 31, 64, 96, 100, 4096 + 64, 8192 + 33):
        grid, packed, scales, offsets = _random_parts(row, 3, length)
        wanted = _decoded(row, grid, packed, scales, offsets)
        for dtype, isa in itertools.product(DTYPES, ISAS):
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = wanted.astype(dtype)
            out = np.full(grid.shape, 7, dtype)
            lost = native.dequantize_matrix(row, grid, packed, scales, offsets, out, threads=1, isa=isa)
            _assert_same_values(out, rounded)
            assert lost == int((np.isinf(rounded.astype(np.float32)) & np.isfinite(wanted)).sum())


def _assert_same_values(got: NDArray[Any], wanted: NDArray[Any]) -> None:
    """The same bits; of NaNs the processor chooses some."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(_unsigned(got)[~nan], _unsigned(wanted)[~nan])


def test_large_outputs_at_any_address() -> None:
    """From some megabytes on the output is written past the caches, from the first aligned byte on."""
    row = scheme("q8_0")
    grid, packed, scales, _ = _random_parts(row, 300, 4096)
    wanted = _decoded(row, grid, packed, scales, None)
    room = np.zeros(wanted.size + 32, np.float32)
    for isa, shift in itertools.product(ISAS, (0, 1, 4, 15)):
        out = room[shift : shift + wanted.size].reshape(wanted.shape)
        native.dequantize_matrix(row, grid, packed, scales, None, out, threads=1, isa=isa)
        _assert_same_values(out, wanted)
        assert not room[shift + wanted.size :].any()
        room[:] = 0

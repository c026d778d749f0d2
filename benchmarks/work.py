"""What is measured: operations, schemes and sizes, and the data for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import blockscale as bs
from blockscale.native import lined_empty

CACHE_BYTES = 96 << 20
"""A weight "from memory" comes from copies that together take at least this much."""
MOST_SMALL = 1 << 20


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        operation: `quantize`, `dequantize` or `linear`.
        scheme: name of the scheme.
        rule: rule of the quantizer.
        n: rows of the weight.
        k: columns of the weight; blocks run along them.
        rows: activation rows (linear).
        threads: threads.
        activations: None or `int8` (linear): what blockscale does with them.
        cold: whether the weight comes from memory each time (linear).
        dtype: of the array to quantize.
        fresh: whether the decoded array is a new one each time, whose pages the system has yet to give.
    """

    operation: str
    scheme: str
    rule: str | None
    n: int
    k: int
    rows: int = 0
    threads: int = 1
    activations: str | None = None
    cold: bool = True
    dtype: str = "float32"
    fresh: bool = False

    @property
    def label(self) -> str:
        """One line for tables."""
        what = f"{self.operation} {self.scheme}"
        if self.operation == "quantize":
            what += f" {self.rule}" + ("" if self.dtype == "float32" else f" of {self.dtype}")
        if self.fresh:
            what += " to a fresh array"
        if self.operation == "linear":
            what += f", {self.rows} row{'s' if self.rows > 1 else ''}, {self.activations or 'float32'}"
            what += "" if self.cold or self.rows > 1 else ", in cache"
        return f"{what}, {self.n}x{self.k}, {self.threads}T"

    @property
    def elements(self) -> int:
        """Elements of the weight."""
        return self.n * self.k


@lru_cache(maxsize=2)
def values(n: int, k: int, seed: int = 0) -> NDArray[np.float32]:
    """N(0, 1) float32."""
    return np.random.default_rng(seed).standard_normal((n, k), dtype=np.float32)


@lru_cache(maxsize=1)
def input_of(case: Case) -> NDArray[Any]:
    """What the case quantizes."""
    x = values(case.n, case.k)
    return x if case.dtype == "float32" else x.astype(case.dtype)


@lru_cache(maxsize=4)
def tensor(scheme: str, n: int, k: int) -> bs.BlockTensor:
    """The quantized weight."""
    return bs.quantize(values(n, k), scheme)


def copies(case: Case, nbytes: int) -> int:
    """How many copies of a weight of `nbytes` make it come from memory; two of a small one."""
    if case.operation != "linear" or not case.cold:
        return 1
    return max(2, -(-CACHE_BYTES // nbytes)) if nbytes > MOST_SMALL else 2


def copy_of(w: bs.BlockTensor) -> bs.BlockTensor:
    """The same tensor elsewhere in memory, on cache lines as `quantize` lays it."""

    def copied(array: NDArray[Any]) -> NDArray[Any]:
        out = lined_empty(array.shape, array.dtype)
        out[...] = array
        return out

    offsets: Any = None if w.row_offsets is None else copied(w.row_offsets)
    return bs.BlockTensor(w.grid, w.scheme, copied(w.packed), copied(w.row_scales), offsets)


def cases(quick: bool) -> list[Case]:
    """Everything that is measured, or a quarter of it."""
    sizes = [(4096, 4096)] if quick else [(4096, 4096), (4096, 14336), (64, 1024)]
    rules = [("mxfp4", r) for r in ("floor", "ceil", "rceil", "even", "mse")]
    rules += [("q4_0", "ggml"), ("q4_1", "ggml"), ("q8_0", "ggml"), ("int4", "absmax"), ("uint4", "minmax")]
    rules += [("mxfp8_e4m3", "floor"), ("mxint8", "floor")]
    search = [("int4", "optimal"), ("uint4", "optimal")]
    decoded = ("mxfp4", "q4_0", "q4_1", "q8_0", "mxfp8_e4m3", "uint4")
    multiplied = ("mxfp4", "q4_0") if quick else ("mxfp4", "q4_0", "q8_0", "uint4", "mxfp8_e4m3")
    found = []
    for n, k in sizes:
        for threads in (1, 2):
            found += [Case("quantize", s, r, n, k, threads=threads) for s, r in rules]
            found += [Case("dequantize", s, None, n, k, threads=threads) for s in decoded]
            if n * k > MOST_SMALL:
                found += [
                    Case("quantize", s, r, n, k, threads=threads, dtype=dtype)
                    for dtype in ("bfloat16", "float16")
                    for s, r in (("mxfp4", "floor"), ("mxfp4", "mse"), ("q4_0", "ggml"), ("q8_0", "ggml"))
                ]
                found += [
                    Case("dequantize", s, None, n, k, threads=threads, fresh=True)
                    for s in ("mxfp4", "q4_0", "q8_0")
                ]
        small = min(n, 512)  # an exact search takes its time
        found += [Case("quantize", s, r, small, min(k, 4096)) for s, r in search]
        for s in multiplied:
            for threads in (1, 2):
                for rows in (1, 8, 128):
                    for how in (None, "int8"):
                        found.append(Case("linear", s, None, n, k, rows, threads, how))
                if n * k <= 4096 * 4096:
                    found.append(Case("linear", s, None, n, k, 1, threads, "int8", cold=False))
    return list(dict.fromkeys(found))

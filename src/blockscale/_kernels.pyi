"""The compiled kernels; see native.py for the callers and kernels/table.h for the meaning of the tuples."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

isas: tuple[str, ...]
long_tiles: bool
compiler: str
flags: str

class Crew:
    def __init__(self) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...

def quantize_mx(
    crew: Crew,
    threads: int,
    isa: int,
    x: NDArray[np.uint8],
    input_type: int,
    size: tuple[int, ...],
    spec: tuple[Any, ...],
    packed: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    events: NDArray[np.int64],
) -> bool: ...
def quantize_affine(
    crew: Crew,
    threads: int,
    isa: int,
    x: NDArray[np.uint8],
    input_type: int,
    size: tuple[int, ...],
    spec: tuple[Any, ...],
    importance: NDArray[np.float64] | None,
    packed: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    offsets: NDArray[np.uint8] | None,
    events: NDArray[np.int64],
) -> bool: ...
def dequantize(
    crew: Crew,
    threads: int,
    isa: int,
    packed: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    offsets: NDArray[np.uint8] | None,
    size: tuple[int, ...],
    spec: tuple[Any, ...],
    values: NDArray[np.float32],
    out: NDArray[np.uint8],
) -> int: ...
def choose_scale_mse(
    isa: int, x: NDArray[np.float64], spec: tuple[Any, ...], span: int, headroom: int
) -> int: ...
def rewrite_minimums(
    crew: Crew,
    threads: int,
    isa: int,
    packed: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    minimums: NDArray[np.uint8],
    spec: tuple[int, int, int],
    codes: NDArray[np.uint8],
    new_scales: NDArray[np.uint8],
    zero_points: NDArray[np.uint8],
) -> None: ...

class LinearWeight: ...

def linear_weight(
    spec: tuple[Any, ...],
    values: NDArray[np.float32],
    integers: NDArray[np.int16],
    packed: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    offsets: NDArray[np.uint8] | None,
    long_tiles: bool,
) -> LinearWeight: ...
def linear_float(
    crew: Crew,
    threads: int,
    isa: int,
    a: NDArray[np.float32],
    out: NDArray[np.float32],
    weight: LinearWeight,
) -> bool: ...
def linear_int8(
    crew: Crew,
    threads: int,
    isa: int,
    a: NDArray[np.float32],
    out: NDArray[np.float32],
    weight: LinearWeight,
) -> int: ...

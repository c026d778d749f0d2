"""ggml's C library, from llama-cpp-python or ggml-python, through ctypes."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np

from work import Case, copies, values

TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 8, "mxfp4": 39}
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34, "mxfp4": 17}
_F32 = 0


def find_libraries() -> list[c.CDLL]:
    for package in ("llama_cpp", "ggml"):
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found = sorted(Path(folder).rglob("libggml*.so*"), key=lambda p: ("base" not in p.name, p.name))
            if found:
                return [c.CDLL(str(p), mode=c.RTLD_GLOBAL) for p in found]
    raise ImportError("neither llama-cpp-python nor ggml-python is installed")


LIBRARIES = find_libraries()
_p, _n, _i = c.c_void_p, c.c_int64, c.c_int


class Params(c.Structure):
    _fields_ = (("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool))


def function(name: str, result: object, *arguments: object) -> Callable[..., int]:
    for library in LIBRARIES:
        if hasattr(library, name):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found
    raise ImportError(f"libggml has no {name}")


QUANTIZE = function("ggml_quantize_chunk", c.c_size_t, _i, _p, _p, _n, _n, _n, _p)
_INIT = function("ggml_init", _p, Params)
_FREE = function("ggml_free", None, _p)
TENSOR = function("ggml_new_tensor_2d", _p, _p, _i, _n, _n)
DATA = function("ggml_get_data", _p, _p)
MUL_MAT = function("ggml_mul_mat", _p, _p, _p, _p)
GRAPH = function("ggml_new_graph", _p, _p)
EXPAND = function("ggml_build_forward_expand", None, _p, _p)
_LOGGER = c.CFUNCTYPE(None, _i, c.c_char_p, _p)(lambda *_: None)
function("ggml_log_set", None, _p, _p)(c.cast(_LOGGER, _p), None)  # it tells of every tensor


class Context:
    """A context of ggml's, freed with this object.

    Attributes:
        pointer: what ggml knows it by.
    """

    def __init__(self, nbytes: int, *, holds_data: bool = True) -> None:
        self.pointer = _INIT(Params(nbytes, None, not holds_data))
        weakref.finalize(self, _FREE, self.pointer)


def name() -> str:
    """Name and version."""
    for package in ("llama-cpp-python", "ggml-python"):
        try:
            return f"ggml of {package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "ggml"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.scheme not in TYPES or case.k % 32:
        return None
    if case.scheme == "mxfp4" and "ggml-python" in name():  # older than the type
        return None
    if case.operation == "quantize":
        if case.threads > 1 or case.rule not in ("ggml", "floor"):
            return None
        x = values(case.n, case.k)
        packed = np.empty(case.elements // 32 * BLOCK_BYTES[case.scheme], np.uint8)
        arguments = (TYPES[case.scheme], x.ctypes.data, packed.ctypes.data, 0, case.n, case.k, None)
        return lambda: void((QUANTIZE(*arguments), x, packed))
    if case.operation == "dequantize":
        return dequantize(case) if case.threads == 1 else None
    return multiply(case) if case.operation == "linear" else None


class Traits(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("block_size", _n),
        ("interleave", _n),
        ("block_bytes", c.c_size_t),
        ("is_quantized", c.c_bool),
        ("to_float", c.CFUNCTYPE(None, _p, _p, _n)),
    )


@lru_cache(maxsize=1)
def packed_blocks(case: Case) -> np.ndarray:
    """The weight in ggml's blocks."""
    x = values(case.n, case.k)
    packed = np.empty(case.elements // 32 * BLOCK_BYTES[case.scheme], np.uint8)
    QUANTIZE(TYPES[case.scheme], x.ctypes.data, packed.ctypes.data, 0, case.n, case.k, None)
    return packed


def dequantize(case: Case) -> Callable[[], None]:
    """Row by row into one array, as llama.cpp does."""
    traits = function("ggml_get_type_traits", c.POINTER(Traits), _i)(TYPES[case.scheme])
    packed, out = packed_blocks(case), np.empty((case.n, case.k), np.float32)
    to_float = traits.contents.to_float
    return lambda: void((to_float(packed.ctypes.data, out.ctypes.data, case.elements), packed, out))


def plain_weight(case: Case) -> tuple[int, object]:
    """The weight as it lies in files, and what keeps it alive."""
    packed = packed_blocks(case)
    context = Context(packed.nbytes + (1 << 20))
    w = TENSOR(context.pointer, TYPES[case.scheme], case.k, case.n)
    c.memmove(DATA(w), packed.ctypes.data, packed.nbytes)
    return w, context


def multiply(case: Case, weight: Callable[[Case], tuple[int, object]] = plain_weight) -> Callable[[], None]:
    """Graphs of one product each, the weights in turn."""
    a = values(case.rows, case.k, 1)
    runs = []
    for _ in range(copies(case, case.elements // 32 * BLOCK_BYTES[case.scheme])):
        w, alive = weight(case)
        context = Context(case.rows * (case.n + 3 * case.k) * 4 + (16 << 20))
        b = TENSOR(context.pointer, _F32, case.k, case.rows)
        c.memmove(DATA(b), a.ctypes.data, a.nbytes)
        graph = GRAPH(context.pointer)
        EXPAND(graph, MUL_MAT(context.pointer, w, b))
        runs.append(((alive, context), graph))
    turns = cycle(runs)
    plan = _Planned(case.threads)
    return lambda: plan.run(*next(turns))


class _Planned:
    """Computes with a work buffer of its own, so that the context does not grow."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.plan = function("ggml_graph_plan", _Plan, _p, _i, *([_p] if _takes_pool() else []))
        self.compute = function("ggml_graph_compute", _i, _p, c.POINTER(_Plan))
        self.buffer = np.empty(0, np.uint8)

    def run(self, _alive: object, graph: int) -> None:
        extra = (None,) if _takes_pool() else ()
        plan = self.plan(graph, self.threads, *extra)
        if self.buffer.size < plan.work_size:
            self.buffer = np.empty(plan.work_size, np.uint8)
        plan.work_data = self.buffer.ctypes.data
        self.compute(graph, c.byref(plan))


class _Plan(c.Structure):
    _fields_ = (
        ("work_size", c.c_size_t),
        ("work_data", c.c_void_p),
        ("n_threads", c.c_int),
        ("threadpool", c.c_void_p),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("reserved", c.c_byte * 64),
    )


def _takes_pool() -> bool:
    return any(hasattr(library, "ggml_threadpool_new") for library in LIBRARIES)


def void(_: object) -> None:
    """Nothing."""

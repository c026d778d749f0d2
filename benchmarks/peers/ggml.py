"""ggml's C library, from llama-cpp-python or ggml-python, through ctypes."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np

from work import Case, copies, values

TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 8, "mxfp4": 39}
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34, "mxfp4": 17}
_F32 = 0


def _libraries() -> list[c.CDLL]:
    for package in ("llama_cpp", "ggml"):
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found = sorted(Path(folder).rglob("libggml*.so*"), key=lambda p: ("base" not in p.name, p.name))
            if found:
                return [c.CDLL(str(p), mode=c.RTLD_GLOBAL) for p in found]
    raise ImportError("neither llama-cpp-python nor ggml-python is installed")


LIBRARIES = _libraries()


class _Params(c.Structure):
    _fields_ = (("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool))


def _function(name: str, result: object, *arguments: object) -> Callable[..., int]:
    for library in LIBRARIES:
        if hasattr(library, name):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found
    raise ImportError(f"libggml has no {name}")


_p, _n, _i = c.c_void_p, c.c_int64, c.c_int
QUANTIZE = _function("ggml_quantize_chunk", c.c_size_t, _i, _p, _p, _n, _n, _n, _p)
INIT = _function("ggml_init", _p, _Params)
TENSOR = _function("ggml_new_tensor_2d", _p, _p, _i, _n, _n)
DATA = _function("ggml_get_data", _p, _p)
MUL_MAT = _function("ggml_mul_mat", _p, _p, _p, _p)
GRAPH = _function("ggml_new_graph", _p, _p)
EXPAND = _function("ggml_build_forward_expand", None, _p, _p)
COMPUTE = _function("ggml_graph_compute_with_ctx", _i, _p, _p, _i)


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
    return multiply(case) if case.operation == "linear" else None


def multiply(case: Case) -> Callable[[], None]:
    """Graphs of one product each, the weights in turn."""
    kind, x = TYPES[case.scheme], values(case.n, case.k)
    weight_bytes = case.elements // 32 * BLOCK_BYTES[case.scheme]
    a = values(case.rows, case.k, 1)
    runs = []
    for _ in range(copies(case, weight_bytes)):
        context = INIT(
            _Params(weight_bytes + (case.rows * (case.n + 3 * case.k)) * 4 + (16 << 20), None, False)
        )
        w, b = TENSOR(context, kind, case.k, case.n), TENSOR(context, _F32, case.k, case.rows)
        QUANTIZE(kind, x.ctypes.data, DATA(w), 0, case.n, case.k, None)
        c.memmove(DATA(b), a.ctypes.data, a.nbytes)
        graph = GRAPH(context)
        EXPAND(graph, MUL_MAT(context, w, b))
        runs.append((context, graph))
    turns = cycle(runs)
    plan = _Planned(case.threads)
    return lambda: plan.run(*next(turns))


class _Planned:
    """Computes with a work buffer of its own, so that the context does not grow."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.plan = _function("ggml_graph_plan", _Plan, _p, _i, *([_p] if _takes_pool() else []))
        self.compute = _function("ggml_graph_compute", _i, _p, c.POINTER(_Plan))
        self.buffer = np.empty(0, np.uint8)

    def run(self, _context: int, graph: int) -> None:
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

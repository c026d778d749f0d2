"""ggml with the weight rearranged once for the processor's instructions, as llama.cpp loads it."""

from __future__ import annotations

import ctypes as c
import platform
import weakref
from collections.abc import Callable
from functools import lru_cache

from peers import ggml
from peers.ggml import TENSOR, TYPES, Context, function
from work import Case

_i, _p = c.c_int, c.c_void_p

_BUFFERS = "ggml_backend_dev_get_extra_bufts"


def name() -> str:
    """Name and version."""
    return f"{ggml.name()}, repacked"


@lru_cache(maxsize=1)
def _buffer_type() -> int:
    """The processor's own buffer type that rearranges."""
    registry = function("ggml_backend_cpu_reg", _p)()
    address = function("ggml_backend_reg_get_proc_address", _p, _p, c.c_char_p)(registry, _BUFFERS.encode())
    device = function("ggml_backend_reg_dev_get", _p, _p, c.c_size_t)(registry, 0)
    found = c.CFUNCTYPE(c.POINTER(_p), _p)(address)(device)
    label = function("ggml_backend_buft_name", c.c_char_p, _p)
    i = 0
    while found[i]:
        if b"REPACK" in bytes(label(found[i])):
            return int(found[i])
        i += 1
    raise ImportError("this libggml has no buffers that rearrange weights")


class _Buffer:
    """A buffer of ggml's and the context of its tensor, freed with this object."""

    def __init__(self, context: Context, pointer: int) -> None:
        self.context = context
        weakref.finalize(self, function("ggml_backend_buffer_free", None, _p), pointer)


def _weight(case: Case) -> tuple[int, object]:
    packed = ggml.packed_blocks(case)
    context = Context(1 << 20, holds_data=False)
    w = TENSOR(context.pointer, TYPES[case.scheme], case.k, case.n)
    size = function("ggml_backend_buft_get_alloc_size", c.c_size_t, _p, _p)(_buffer_type(), w)
    buffer = function("ggml_backend_buft_alloc_buffer", _p, _p, c.c_size_t)(_buffer_type(), size)
    base = function("ggml_backend_buffer_get_base", _p, _p)(buffer)
    function("ggml_backend_tensor_alloc", _i, _p, _p, _p)(buffer, w, base)
    function("ggml_backend_tensor_set", None, _p, _p, c.c_size_t, c.c_size_t)(
        w, packed.ctypes.data, 0, packed.nbytes
    )
    return w, _Buffer(context, buffer)


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.operation != "linear" or case.scheme not in ("q4_0", "mxfp4") or case.k % 32 or case.n % 8:
        return None
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    return ggml.multiply(case, _weight)

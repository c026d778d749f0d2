"""Writing GPTQ weights: the exact inverse of reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import block_grid
from ..errors import UnsupportedError, error_context
from ..packing import PACKINGS
from ..schemes import Scheme
from ..tensor import BlockTensor
from .base import Options, Stored
from .gptq_config import BIAS, write_config
from .gptq_recognise import OPTIONS
from .gptq_shapes import BITS
from .word_parts import check_options
from .word_write import Ready, check_fit, check_range, is_symmetric, prefix_of, prepare, stored_specs
from .words import WORD, pack_fields, rows_to_gptq


def write(name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
    """The stored tensors of one weight, `qweight`, `qzeros`, `scales`, `g_idx`.

    Signed codes are written unsigned (8 is added to int4 codes and zero points). `qzeros` and `g_idx` are
    always there, whatever they hold; `settings["g_idx"] = False` leaves `g_idx` out.

    Args:
        name: logical name, `...weight`.
        w: `[out, in]` (or `[experts, out, in]`), blocks along the input.
        options: `settings["version"]`: `"gptq"` (default; stored zero points are `z - 1`) or `"gptq_v2"`
            (`z`).

    Raises:
        UnsupportedError: what GPTQ cannot hold, with advice.
        InputError: settings that do not exist.
    """
    check_options(options, OPTIONS, "GPTQ")
    with error_context(tensor=name):
        prefix = prefix_of(name, "GPTQ")
        check_fit(w.grid, w.scheme, "GPTQ", BITS, options.settings)
        ready = prepare(w)
        version = options.settings.get("version", "gptq")
        fields = _zero_fields(ready.zeros, ready.bits, version)
        parts = {
            "qweight": _write_codes(ready),
            "qzeros": pack_fields(fields, PACKINGS[f"gptq{ready.bits}"]),
            "scales": ready.scales,
        }
        if options.settings.get("g_idx", True):
            index = (np.arange(ready.n_in) // w.block_size).astype(np.int32)
            parts["g_idx"] = np.broadcast_to(index, (*ready.lead_shape, ready.n_in)).copy()
        return {prefix + role: part for role, part in parts.items()}


def specs(name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options) -> dict[str, Stored]:
    """What `write` will store, before there are data.

    Raises:
        UnsupportedError: as `write`, as far as shape and scheme tell.
    """
    check_options(options, OPTIONS, "GPTQ")
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    with error_context(tensor=name):
        prefix = prefix_of(name, "GPTQ")
        check_fit(grid, scheme, "GPTQ", BITS, options.settings)
    stored = stored_specs(grid, scheme, prefix, "in")
    if options.settings.get("g_idx", True):
        index = f"{prefix}g_idx"
        stored[index] = Stored(index, "I32", (*grid.shape[:-2], grid.length))
    return stored


def config(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, Any]:
    """`{"quantization_config": {...}}` as transformers, vLLM and GPTQModel load it; see `write_config`.

    GPTQModel loads "gptq" (v1) with asymmetric zero points only from itself: choose version "gptq_v2" for it.
    """
    check_options(options, OPTIONS, "GPTQ")
    symmetric = all(is_symmetric(w) for w in written.values())
    return write_config(written, kept, options, symmetric=symmetric)


def _write_codes(ready: Ready) -> NDArray[np.int32]:
    n_words = ready.n_in * ready.bits // 32
    out = np.empty((ready.lead, n_words, ready.n_out), WORD)
    for e in range(ready.lead):
        rows_to_gptq(ready.rows[e], out[e])
    if ready.flip:
        out ^= ready.flip
    return out.view(np.int32).reshape(*ready.lead_shape, n_words, ready.n_out)


def _zero_fields(zeros: NDArray[np.int64], bits: int, version: str) -> NDArray[np.uint8]:
    top = (1 << bits) - 1
    hint = f".hrry holds any int32 zero point; or quantize again with zero points of 0 .. {top}"
    check_range(zeros, 0, top, "GPTQ", hint)
    none = int((zeros == 0).sum())
    if version == "gptq" and none:
        raise UnsupportedError(
            f"{none} of {zeros.size} zero points are 0",
            rule="gptq (v1) stores z - 1 and cannot say z = 0: writers wrap or clamp it, readers disagree",
            found=none,
            hint='settings {"version": "gptq_v2"}, which stores z',
        )
    return (zeros - BIAS[version]).astype(np.uint8)

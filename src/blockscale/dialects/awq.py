r"""AWQ: checkpoints of AutoAWQ, GPTQModel, auto-round in the version "gemm".

A linear layer `x` of `in` inputs and `out` outputs, 4-bit codes:

    x.qweight  int32 [in, out / 8]       word [i, c], nibble p: code of input i, output 8c + order[p]
    x.qzeros   int32 [groups, out / 8]   word [g, c], nibble p: zero point of group g, output 8c + order[p]
    x.scales   f16|bf16|f32 [groups, out]

with order = 0, 2, 4, 6, 1, 3, 5, 7: outputs 0..7 with codes 0..7 make the word 0x75316420. Stored zero
points are z itself; the value is `scale * (code - z)`. Experts may be stacked, `[experts, in, out / 8]` and
so on. The weight reads as `x.weight`, `[out, in]`, blocks along the input, uint4 codes and int32 zero points.

**Contradictions** raise FormatError with both sides: shapes against each other and the config (GPTQ's words
lie along the input), zero words that hold 7 everywhere though the config says symmetric. Other versions
(gemv, gemv_fast, marlin, llm-awq) are refused with the reason.

What cannot be seen, because every reading is a valid file: words in natural order (GPTQ's in AWQ's shapes);
zero points stored as z - 1 when they are not symmetric; a square weight that was transposed before packing;
scales whose dtype was relabelled between float16 and bfloat16; parts swapped between layers of one shape.

Settings of `Weight`: bits, carrier, group_size (-1: the whole input), act_order (always False), refused
(always None), packed_zeros, zero_point_bias, blocks_per_group, equals.

Source: AutoAWQ 0.2.9, GPTQModel 7.7, vLLM (facts, no code); Hurray format, 3.10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..errors import UnsupportedError, error_context
from ..packing import PACKINGS
from ..schemes import Scheme
from ..tensor import BlockTensor
from .awq_recognise import NAME, OPTIONS, recognise
from .base import Load, Options, Stored, Weight
from .stored_parts import part_findings
from .word_parts import as_words, check_options, load_part
from .word_read import read_scales, read_zero_points
from .word_write import check_fit, check_range, prefix_of, prepare, stored_specs
from .words import WORD, awq_to_rows, pack_fields, rows_to_awq

__all__ = ["NAME", "OPTIONS", "config", "findings", "read", "recognise", "specs", "write"]

_PACKING = PACKINGS["awq4"]


def read(weight: Weight, load: Load) -> BlockTensor:
    """One weight as BlockTensor `[out, in]` (`[experts, out, in]`), blocks along the input.

    Raises:
        FormatError: parts that do not fit the weight.
    """
    with error_context(tensor=weight.name):
        grid = block_grid(weight.shape, weight.axis, weight.scheme.block_size)
        *lead, n_out, n_in = weight.shape
        array = load_part(weight, "qweight", load, (*lead, n_in, n_out // 8))
        words = as_words(array, weight.parts["qweight"]).reshape(-1, n_in, n_out // 8)
        row_bytes = grid.row_bytes(4)
        rows = np.zeros((grid.rows, max(-(-n_in // 8), -(-row_bytes // 4))), WORD)
        for e in range(math.prod(lead)):
            awq_to_rows(words[e], rows[e * n_out : (e + 1) * n_out])
        packed = np.ascontiguousarray(rows.view(np.uint8)[:, :row_bytes])
        scales = read_scales(weight, load, grid)
        return BlockTensor(
            grid, weight.scheme, packed, scales, read_zero_points(weight, load, grid, _PACKING)
        )


def write(name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
    """The stored tensors of one weight, `qweight`, `qzeros`, `scales`: the exact inverse of `read`.

    Signed codes are written unsigned (8 is added to int4 codes and zero points); `qzeros` is always there.

    Args:
        name: logical name, `...weight`.
        w: `[out, in]` (or `[experts, out, in]`), blocks along the input, all of them full.
        options: see `OPTIONS`.

    Raises:
        UnsupportedError: what AWQ cannot hold, with advice.
        InputError: settings that do not exist.
    """
    check_options(options, OPTIONS, "AWQ")
    with error_context(tensor=name):
        prefix = prefix_of(name, "AWQ")
        _check_fit(w.grid, w.scheme, options)
        ready = prepare(w)
        hint = ".hrry holds any int32 zero point; or quantize again with zero points of 0 .. 15"
        check_range(ready.zeros, 0, 15, "AWQ", hint)
        words = np.empty((ready.lead, ready.n_in, ready.n_out // 8), WORD)
        for e in range(ready.lead):
            rows_to_awq(ready.rows[e], words[e])
        if ready.flip:
            words ^= ready.flip
        parts = {
            "qweight": words.view(np.int32).reshape(*ready.lead_shape, ready.n_in, ready.n_out // 8),
            "qzeros": pack_fields(ready.zeros.astype(np.uint8), _PACKING),
            "scales": ready.scales,
        }
        return {prefix + role: part for role, part in parts.items()}


def specs(name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options) -> dict[str, Stored]:
    """What `write` will store, before there are data.

    Raises:
        UnsupportedError: as `write`, as far as shape and scheme tell.
    """
    check_options(options, OPTIONS, "AWQ")
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    with error_context(tensor=name):
        prefix = prefix_of(name, "AWQ")
        _check_fit(grid, scheme, options)
    return stored_specs(grid, scheme, prefix, "out")


def _check_fit(grid: BlockGrid, scheme: Scheme, options: Options) -> None:
    check_fit(grid, scheme, "AWQ", (4,), options.settings)
    if grid.has_partial_blocks and grid.blocks_per_row > 1:
        raise UnsupportedError(
            f"{grid.length} inputs leave a partial last group of {grid.length % grid.block_size}",
            found=grid.length,
            rule=f"AWQ's groups are full: in is a multiple of group_size ({grid.block_size})",
            hint="quantize with a block size that divides the input, or write GPTQ",
        )


def findings(weight: Weight, load: Load) -> tuple[str, ...]:
    """What is odd in the data of a weight: constant words, scales not finite or zero (reads all of them)."""
    return part_findings(weight, load, weight.parts["qweight"], weight.parts["scales"])


def config(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, Any]:
    """`{"quantization_config": {...}}` as transformers, AutoAWQ and vLLM load it.

    `modules_to_not_convert` lists the modules of `kept`. vLLM matches these as parts of names, so a kept
    `mlp.gate` also covers `mlp.gate_proj` of the same layer.

    Raises:
        UnsupportedError: weights with different group sizes; AWQ has one for all.
    """
    check_options(options, OPTIONS, "AWQ")
    sizes = {w.block_size for w in written.values() if w.grid.blocks_per_row > 1}
    single = {n: w.grid.length for n, w in written.items() if w.grid.blocks_per_row == 1}
    group = max(sizes, default=-1)
    odd = {n for n, length in single.items() if group != -1 and length != group}
    if len(sizes) > 1 or odd:
        found = sorted(sizes | {single[n] for n in odd})
        raise UnsupportedError(
            f"weights with groups of {', '.join(map(str, found))}",
            found=found,
            rule="AWQ has one group_size for all weights",
            hint="quantize all with one block size, or write GPTQ, which has overrides per module",
        )
    modules = [n.removesuffix("weight").rstrip("._") if n.endswith("weight") else n for n in kept]
    return {
        "quantization_config": {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,  # qzeros are always stored
            "version": "gemm",
            "modules_to_not_convert": modules or None,
        }
    }

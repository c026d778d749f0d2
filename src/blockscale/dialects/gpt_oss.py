"""gpt-oss: MXFP4 experts as `<name>_blocks` and `<name>_scales`.

| part | dtype | shape | meaning |
|---|---|---|---|
| `<name>_blocks` | U8 | `[experts, rows, groups, 16]` | byte j: element 2j low, 2j + 1 high |
| `<name>_scales` | U8 | `[experts, rows, groups]` | E8M0: the block's factor is `2 ** (byte - 127)` |

Any sizes are read and written, and any number of leading dimensions (none: one matrix). OpenAI's own
checkpoints say `<name>.blocks` and `<name>.scales` (`block.0.mlp.mlp1_weight`); both are read,
`settings["names"] = "openai"` writes them.

**Orientation.** The file keeps `[experts, out, in]`, blocks along `in`, and that is the logical shape given
here: `[experts, rows, groups * 32]`, axis -1. The loader of transformers transposes what it has dequantized:
its plain `gate_up_proj` is `[experts, in, out]`, and so is that of a bfloat16 gpt-oss checkpoint. To quantize
such a plain weight, block its axis 1 (`in`): `write` takes `[experts, in, out]` with axis 1 as well and
stores the same bytes. `settings["orientation"] = "plain"` makes `recognise` give weights so.
Source: openai/gpt-oss `weights.py`; transformers 5.24 `integrations/mxfp4.py` (read, not copied).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..errors import FormatError, UnsupportedError, error_context
from ..schemes import Scheme, scheme
from ..tensor import BlockTensor
from .base import Load, Options, Recognition, Stored, Weight
from .compressed_tensors_config import find_section
from .stored_parts import check_not_nan, missing_part, mx_tensor, part_findings, plural

NAME = "gpt-oss"
_BLOCK_BYTES = 16
_SUFFIXES = {"transformers": ("_blocks", "_scales"), "openai": (".blocks", ".scales")}
_PAIRED = ("gate_up_proj", "down_proj")  # the experts of one layer are packed together or not at all
_MXFP4 = scheme("mxfp4")


def recognise(
    stored: Mapping[str, Stored], config: Mapping[str, Any], load: Load, options: Options
) -> Recognition | None:
    """The weights of this dialect; see `base.Dialect.recognise`.

    Raises:
        FormatError: a part is missing, or blocks and scales contradict each other; quotes both.
    """
    weights, consumed = [], set()
    for blocks_end, scales_end in _SUFFIXES.values():
        for name, part in stored.items():
            if not name.endswith(blocks_end) or not _looks_like_blocks(part):
                continue
            base = name.removesuffix(blocks_end)
            weight = _weight(base, part, stored.get(base + scales_end), base + scales_end, options)
            weights.append(weight)
            consumed |= set(weight.parts.values())
    section = find_section(config) or {}
    method = section.get("quant_method")
    if not weights:
        return _none_found(method)
    problems = []
    if method is None:
        problems.append(f"packed 4-bit, config missing: {plural(len(weights))} read as MXFP4 by the parts")
    elif method != "mxfp4":
        problems.append(f"the config says quant_method {method!r}; _blocks and _scales are read as MXFP4")
    for name, part in stored.items():
        base = name.removesuffix("_scales")
        if base != name and part.dtype == "U8" and name not in consumed and base not in stored:
            raise missing_part(base, "blocks", f"{base}_blocks", [name])
    evidence = [
        f"{plural(len(weights))}: U8 blocks of 16 bytes (2 codes each) beside U8 scales, one per block"
    ]
    return Recognition(NAME, tuple(weights), tuple(evidence), tuple(problems), frozenset(consumed))


def read(weight: Weight, load: Load) -> BlockTensor:
    """One weight, exact, without copying; see `base.Dialect.read`. The byte 255 is NaN, as OCP has it."""
    return mx_tensor(
        weight.scheme, weight.shape, weight.axis, load(weight.parts["blocks"]), load(weight.parts["scales"])
    )


def findings(weight: Weight, load: Load) -> tuple[str, ...]:
    """What is odd in the data of a weight: constant bytes, NaN scales (reads them all)."""
    return part_findings(weight, load, weight.parts["blocks"], weight.parts["scales"])


def write(name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
    """Stored tensors of one weight; see `base.Dialect.write`.

    Args:
        name: logical name, such as `model.layers.0.mlp.experts.gate_up_proj`.
        w: MXFP4 in blocks of 32, `[..., rows, in]` along the last axis, or `[..., in, rows]` along the one
            before.
        options: `settings["names"]`: `"transformers"` (default) or `"openai"`.

    Raises:
        UnsupportedError: another scheme or axis, or a dimension that is no multiple of 32.
        FormatError: a NaN scale, which loaders of the format take for infinity.
    """
    blocks, scales = specs(name, w.shape, w.axis, w.scheme, options).values()
    check_not_nan(w.row_scales, name, scales.name)
    return {
        blocks.name: w.packed.reshape(blocks.shape),
        scales.name: w.row_scales.view(np.uint8).reshape(scales.shape),
    }


def specs(name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options) -> dict[str, Stored]:
    """What `write` will store, before there are data.

    Raises:
        UnsupportedError: as `write`.
    """
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    with error_context(tensor=name):
        _check_writable(grid, scheme)
    ends = _SUFFIXES.get(str(options.settings.get("names", "transformers")))
    if ends is None:
        raise UnsupportedError(
            f"unknown style of names {options.settings['names']!r}", hint=f"one of {', '.join(_SUFFIXES)}"
        )
    groups = (*grid.outer_shape, grid.blocks_per_row)
    return {
        name + ends[0]: Stored(name + ends[0], "U8", (*groups, _BLOCK_BYTES)),
        name + ends[1]: Stored(name + ends[1], "U8", groups),
    }


def config(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, Any]:
    """The `quantization_config` for `config.json`; see `base.Dialect.config`.

    Consumers read entries of `modules_to_not_convert` as names, as beginnings of names and as patterns, so
    only modules whose own weights were kept are listed, never one that holds a packed weight.

    Raises:
        UnsupportedError: one weight of an expert layer is written and its partner kept: no loader takes that.
    """
    for name in kept:
        module, _, leaf = name.rpartition(".")
        partner = next((f"{module}.{p}" for p in _PAIRED if p != leaf and f"{module}.{p}" in written), None)
        if leaf in _PAIRED and partner is not None:
            raise UnsupportedError(
                f"it was kept, but {partner!r} is packed",
                tensor=name,
                rule="the two weights of an expert layer are packed together",
                hint="quantize both, or keep both",
            )
    modules = dict.fromkeys(
        module for module, _, leaf in (n.rpartition(".") for n in kept) if leaf in ("weight", *_PAIRED)
    )
    holding = {name.rpartition(".")[0] for name in written}
    listed = [m for m in modules if m and m not in holding]
    return {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": listed}}


def _looks_like_blocks(part: Stored) -> bool:
    return part.dtype == "U8" and len(part.shape) >= 3


def _weight(base: str, blocks: Stored, scales: Stored | None, scales_name: str, options: Options) -> Weight:
    """One weight from its two parts."""
    if scales is None:
        raise missing_part(base, "scales", scales_name, [blocks.name])
    if blocks.shape[-1] != _BLOCK_BYTES or scales.dtype not in ("U8", "F8_E8M0"):
        raise FormatError(
            f"{blocks.name!r} is {blocks.dtype} {list(blocks.shape)}, {scales.name!r} is {scales.dtype} "
            f"{list(scales.shape)}",
            tensor=base,
            found=blocks.shape,
            rule="blocks are U8 [..., rows, groups, 16], scales U8 [..., rows, groups]",
        )
    if blocks.shape[:-1] != scales.shape:
        raise FormatError(
            f"{blocks.name!r} is {list(blocks.shape)}, so scales are {list(blocks.shape[:-1])}; "
            f"{scales.name!r} is {list(scales.shape)}",
            tensor=base,
            found=scales.shape,
            rule="one scale per block",
        )
    *lead, rows, groups = scales.shape
    columns = groups * _MXFP4.block_size
    plain = options.settings.get("orientation") == "plain"
    shape = (*lead, columns, rows) if plain else (*lead, rows, columns)
    axis = len(shape) - (2 if plain else 1)
    return Weight(base, shape, _MXFP4, axis, {"blocks": blocks.name, "scales": scales.name})


def _none_found(method: object) -> Recognition | None:
    if method != "mxfp4":
        return None
    return Recognition(
        NAME, (), (), ("the config says quant_method 'mxfp4', but no _blocks and _scales are here",)
    )


def _check_writable(grid: BlockGrid, scheme: Scheme) -> None:
    if scheme.element.name != "float4_e2m1" or not scheme.is_mx or scheme.block_size != _MXFP4.block_size:
        raise UnsupportedError(
            f"{scheme.name} ({scheme.describe()}) is not MXFP4 in blocks of 32",
            found=scheme.name,
            rule="gpt-oss files hold MXFP4",
            hint="--scheme mxfp4, or another dialect",
        )
    rank = len(grid.shape)
    if rank < 2 or grid.axis < rank - 2:
        raise UnsupportedError(
            f"blocks run along axis {grid.axis} of {list(grid.shape)}",
            rule="blocks run along the last axis, or along the one before it ([experts, in, out])",
            hint="quantize along the reduction axis",
        )
    left = grid.length % grid.block_size
    if left:
        raise UnsupportedError(
            f"dimension {grid.axis} is {grid.length} = {grid.length // 32} * 32 + {left}",
            rule="MXFP4 takes whole blocks of 32",
            hint="keep this tensor, pad it, or block another axis",
        )

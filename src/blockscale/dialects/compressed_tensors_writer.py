"""Writing weights, and the config beside them, as compressed-tensors stores them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..errors import UnsupportedError, error_context
from ..schemes import Scheme
from ..tensor import BlockTensor
from .base import Options, Stored
from .compressed_tensors_codes import pack_zero_points, words_of
from .compressed_tensors_config import METHOD
from .compressed_tensors_match import looks_like_embedding
from .stored_parts import check_finite, check_not_nan

_MX = {
    "float4_e2m1": ("mxfp4-pack-quantized", "weight_packed", "U8"),
    "float6_e2m3": ("mxfp6-pack-quantized", "weight_packed", "U8"),
    "float8_e4m3": ("mxfp8-quantized", "weight", "F8_E4M3"),
}
_SCALES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
_HEADS = ("lm_head", "output", "embed_out")


@dataclass(frozen=True, slots=True)
class _Form:
    """How compressed-tensors calls a weight; the fields are those of its config.

    Attributes:
        format: how it is stored.
        bits: width of a code.
        kind: `"int"` or `"float"`.
        symmetric: no zero points.
        strategy: `"group"` or `"channel"`.
        group_size: elements per group, None for channels.
    """

    format: str
    bits: int
    kind: str
    symmetric: bool
    strategy: str
    group_size: int | None


def write(name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
    """Stored tensors of one weight; see `base.Dialect.write`.

    Raises:
        UnsupportedError: a scheme, axis, shape or zero point that the format cannot say.
        FormatError: a scale that is NaN or infinite.
    """
    form = _form(name, w.grid, w.scheme)
    module, grid = name.removesuffix("weight"), w.grid
    lead = grid.shape[:-1]
    if w.scheme.is_mx:
        check_not_nan(w.row_scales, name, f"{module}weight_scale")
        role = _MX[w.scheme.element.name][1]
        dtype = w.scheme.element.dtype if role == "weight" else np.dtype(np.uint8)
        return {
            module + role: w.packed.view(dtype).reshape(*lead, w.packed.shape[1]),
            f"{module}weight_scale": w.row_scales.view(np.uint8).reshape(*lead, grid.blocks_per_row),
        }
    check_finite(w.row_scales, name, f"{module}weight_scale")
    words = words_of(w.packed, form.bits, grid.length, flip=w.scheme.element.kind == "int")
    parts: dict[str, NDArray[Any]] = {
        f"{module}weight_packed": words.reshape(*lead, words.shape[1]),
        f"{module}weight_scale": w.row_scales.reshape(*lead, grid.blocks_per_row),
        f"{module}weight_shape": np.array(grid.shape, np.int64),
    }
    if not form.symmetric:
        parts[f"{module}weight_zero_point"] = pack_zero_points(_stored_zero_points(name, w), form.bits, lead)
    return parts


def specs(name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options) -> dict[str, Stored]:
    """What `write` will store, before there are data.

    Raises:
        UnsupportedError: as `write`.
    """
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    form = _form(name, grid, scheme)
    module, lead, bits = name.removesuffix("weight"), grid.shape[:-1], scheme.element.bits
    scales = (*lead, grid.blocks_per_row)
    if scheme.is_mx:
        _, role, dtype = _MX[scheme.element.name]
        rows = [(role, dtype, (*lead, grid.row_bytes(bits))), ("weight_scale", "U8", scales)]
    else:
        rows = [
            ("weight_packed", "I32", (*lead, -(-grid.length * bits // 32))),
            ("weight_scale", _SCALES[scheme.scale.name], scales),
            ("weight_shape", "I64", (len(grid.shape),)),
        ]
        if not form.symmetric:
            words = (*lead[:-1], -(-lead[-1] * bits // 32), grid.blocks_per_row)
            rows.append(("weight_zero_point", "I32", words))
    return {module + role: Stored(module + role, dtype, size) for role, dtype, size in rows}


def config(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, Any]:
    """The `quantization_config` for `config.json`; see `base.Dialect.config`.

    The largest group targets `Linear`, which is what engines with fused or expert layers look for, and
    everything that was kept is listed in `ignore`; other groups, and embeddings, are named one by one. A head
    that is neither written nor kept is tied to the embedding, so it is ignored too.

    Args:
        written: name to weight; only `grid` and `scheme` are looked at.
        kept: names of the weights left alone.
        options: `settings["targets"] == "names"` names every module instead of `Linear`;
            `settings["ignore"]` are further entries of the ignore list.
    """
    groups: dict[_Form, list[str]] = defaultdict(list)
    for name, w in written.items():
        groups[_form(name, w.grid, w.scheme)].append(name.removesuffix(".weight"))
    formats = {form.format for form in groups}
    by_size = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {
        "quantization_config": {
            "quant_method": METHOD,
            "format": formats.pop() if len(formats) == 1 else "mixed-precision" if formats else "dense",
            "quantization_status": "compressed",
            "global_compression_ratio": None,
            "kv_cache_scheme": None,
            "config_groups": {
                f"group_{i}": _group(form, _targets(modules, options, is_main=i == 0))
                for i, (form, modules) in enumerate(by_size)
            },
            "ignore": _ignored(written, kept, options),
        }
    }


def _form(name: str, grid: BlockGrid, scheme: Scheme) -> _Form:
    """What compressed-tensors calls a weight, or the reason for which it has no word for it."""
    with error_context(tensor=name):
        if not (name.endswith(".weight") or name == "weight"):
            raise UnsupportedError(
                "compressed-tensors packs weights of modules, whose names end in '.weight'",
                found=name,
                hint="the dialect gpt_oss for fused experts, or plain_mx",
            )
        if len(grid.shape) < 2 or grid.axis != len(grid.shape) - 1:
            raise UnsupportedError(
                f"blocks run along axis {grid.axis} of {list(grid.shape)}",
                rule="compressed-tensors groups run along the last axis of a matrix",
                hint="quantize with axis=-1",
            )
        form = _mx_form(grid, scheme) if scheme.is_mx else _integer_form(grid, scheme)
        if grid.length % grid.block_size and form.strategy == "group":
            left = grid.length % grid.block_size
            raise UnsupportedError(
                f"dimension {grid.axis} is {grid.length} = {grid.length // grid.block_size} * "
                f"{grid.block_size} + {left}",
                rule=f"{form.format} takes whole groups of {grid.block_size}",
                hint="keep this tensor, or choose a block size that divides it",
            )
        return form


def _mx_form(grid: BlockGrid, scheme: Scheme) -> _Form:
    row = _MX.get(scheme.element.name)
    if row is None or scheme.block_size != 32 or scheme.value_exponent:
        raise UnsupportedError(
            f"{scheme.name} ({scheme.describe()}) has no format in compressed-tensors",
            found=scheme.name,
            hint="mxfp4, mxfp6_e2m3 and mxfp8_e4m3 in blocks of 32 have one; plain_mx stores every scheme",
        )
    if len(grid.shape) != 2 and row[1] == "weight_packed":
        raise UnsupportedError(
            f"{row[0]} holds matrices, this is {list(grid.shape)}",
            found=grid.shape,
            hint="the dialect gpt_oss for fused experts, or one weight per expert",
        )
    return _Form(row[0], scheme.element.bits, "float", True, "group", 32)


def _integer_form(grid: BlockGrid, scheme: Scheme) -> _Form:
    if scheme.offset == "minimum":
        raise UnsupportedError(
            f"{scheme.name} adds a minimum to each block; compressed-tensors subtracts integer zero points",
            found=scheme.name,
            hint="quantize to uint4, or convert where every minimum is a multiple of its scale",
        )
    symmetric = scheme.offset == "none" and scheme.element.kind == "int"
    if grid.blocks_per_row == 1:  # one scale per row, whatever the block size says
        return _Form("pack-quantized", scheme.element.bits, "int", symmetric, "channel", None)
    return _Form("pack-quantized", scheme.element.bits, "int", symmetric, "group", scheme.block_size)


def _stored_zero_points(name: str, w: BlockTensor) -> NDArray[np.int32]:
    """Zero points in the unsigned carrier; codes of an unsigned scheme without them have zero points of 0."""
    if w.row_offsets is None:
        return np.zeros(w.row_scales.shape, np.int32)
    shift = 0 if w.scheme.element.kind == "uint" else 1 << (w.scheme.element.bits - 1)
    stored = w.row_offsets.astype(np.int64) + shift
    top = (1 << w.scheme.element.bits) - 1
    outside = (stored < 0) | (stored > top)
    if outside.any():
        first = int(w.row_offsets[outside][0])
        raise UnsupportedError(
            f"{int(outside.sum())} of {stored.size} zero points lie outside of {-shift} .. {top - shift}, "
            f"the first is {first}",
            tensor=name,
            field="zero_points",
            found=first,
            rule=f"pack-quantized stores zero points in {w.scheme.element.bits} bits",
            hint="the rule 'minmax' with zero in the range keeps them inside; .hrry holds any int32",
        )
    return stored.astype(np.int32)


def _group(form: _Form, targets: list[str]) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": form.bits,
        "type": form.kind,
        "symmetric": form.symmetric,
        "strategy": form.strategy,
        "group_size": form.group_size,
        "dynamic": False,
    }
    if form.kind == "float":
        weights |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": form.format,
    }


def _targets(modules: Sequence[str], options: Options, *, is_main: bool) -> list[str]:
    if not is_main or options.settings.get("targets") == "names":
        return list(modules)
    return ["Linear", *filter(looks_like_embedding, modules)]


def _ignored(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> list[str]:
    """Modules whose weights were kept, in their order, and a tied head."""
    done = {name.removesuffix(".weight") for name in written}
    modules = [n.removesuffix(".weight") for n in kept if n.endswith(".weight")]
    left = [m for m in modules if m not in done]
    heads = {m.rpartition(".")[2] for m in (*done, *left)} & set(_HEADS)
    more = options.settings.get("ignore", ())
    more = more.split(",") if isinstance(more, str) else more  # from the command line
    return list(dict.fromkeys([*left, *([] if heads else ["lm_head"]), *more]))

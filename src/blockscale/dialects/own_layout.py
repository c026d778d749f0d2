"""blockscale's own layout of block-scaled tensors in safetensors: every scheme, and it says what it is.

For a tensor `W` of shape `[.., n]`, whatever its axis:

| stored tensor | dtype | shape |
|---|---|---|
| `W` | the codes: I8, U8, F8_E4M3, F8_E5M2; smaller ones packed into U8 | the shape of `W`; packed: the last dimension is `packed_size(n, bits)` bytes |
| `W_scale` | F16, BF16, F32; U8 for E8M0 | the shape of `W` with the axis divided into blocks |
| `W_zero_point` | I32, the value subtracted from the code | like `W_scale`, if the scheme has them |
| `W_minimum` | F16, the value added to the product | like `W_scale`, if the scheme has them |

Codes are packed along the last dimension, low bits first (element 0 in the low nibble of byte 0; four 6-bit
codes in three bytes), each row padded to whole bytes by zero bits. Values are `W_scale * (code -
W_zero_point)`, or `2 ** (W_scale - 127) * value(code)` for MX.

The file's metadata has one key `blockscale`, a JSON string:

    {"version": 1, "tensors": {"W": {"scheme": "int4", "element": "int4", "block_size": 32,
     "scale": "float16", "offset": "none", "axis": 1, "shape": [64, 96], "rule": "absmax"}}}

`rule` (how the scales were chosen) is for people; the rest says how to read. A reader refuses a version it
does not know. The same object may stand in `config.json` as `quantization_config`, with `"quant_method":
"blockscale"`. `settings["dtypes"] = "typed"` stores MX codes and scales under their own dtypes (F4, F6_E2M3,
F6_E3M2, F8_E8M0).
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, block_grid
from ..containers.safetensors_table import DTYPES, stored_name
from ..elements import ELEMENTS
from ..errors import FormatError, InputError, UnsupportedError, error_context
from ..packing import packed_size
from ..schemes import SCHEMES, Scheme, scheme
from ..tensor import BlockTensor
from .base import Load, Options, Recognition, Stored, Weight
from .own_layout_codes import block_rows, canonical_codes, packed_rows, stored_codes
from .stored_parts import check_finite, missing_part

METADATA_KEY = "blockscale"
VERSION = 1
_OFFSETS = {"zero_point": ("_zero_point", "int32"), "minimum": ("_minimum", "float16")}


def metadata(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, str]:
    """The strings for a file's metadata: `{"blockscale": "<json>"}`."""
    return {METADATA_KEY: json.dumps(_describe_all(written), separators=(",", ":"))}


def from_metadata(strings: Mapping[str, str]) -> dict[str, Any]:
    """What `recognise` needs in its config, out of a file's metadata; empty if it is not of blockscale.

    Raises:
        FormatError: the string is not JSON.
    """
    if METADATA_KEY not in strings:
        return {}
    try:
        return {METADATA_KEY: json.loads(strings[METADATA_KEY])}
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the metadata {METADATA_KEY!r} is not JSON: {error}", field=METADATA_KEY) from None


def config(written: Mapping[str, BlockTensor], kept: Sequence[str], options: Options) -> dict[str, Any]:
    """The same description for `config.json`.

    transformers warns of a method it does not know, then loads what it can: this layout is not for it.
    """
    return {"quantization_config": {"quant_method": METADATA_KEY, **_describe_all(written)}}


def write(name: str, w: BlockTensor, options: Options) -> dict[str, NDArray[Any]]:
    """Stored tensors of one weight; see `base.Dialect.write`.

    Raises:
        UnsupportedError: a scheme that is no variant of a row of the table.
        FormatError: an affine scale that is NaN or infinite.
    """
    stored = specs(name, w.shape, w.axis, w.scheme, options)
    if not w.scheme.is_mx:
        check_finite(w.row_scales, name, f"{name}_scale")
    codes = DTYPES[stored[name].dtype].dtype
    parts: dict[str, NDArray[Any]] = {}
    if DTYPES[stored[name].dtype].bits < 8:
        parts[name] = w.codes()
    else:
        parts[name] = stored_codes(w).view(codes)
    parts[f"{name}_scale"] = np.ascontiguousarray(w.scales).view(DTYPES[stored[f"{name}_scale"].dtype].dtype)
    offsets = w.zero_points if w.scheme.offset == "zero_point" else w.minimums
    if offsets is not None:
        parts[name + _OFFSETS[w.scheme.offset][0]] = np.ascontiguousarray(offsets)
    return parts


def specs(name: str, shape: Sequence[int], axis: int, scheme: Scheme, options: Options) -> dict[str, Stored]:
    """What `write` will store, before there are data.

    Raises:
        UnsupportedError: as `write`.
    """
    grid = block_grid(tuple(shape), axis, scheme.block_size)
    _check_describable(name, grid, scheme)
    typed = options.settings.get("dtypes") == "typed" and scheme.is_mx
    element = scheme.element
    if element.bits == 8 or (typed and element.kind == "float"):
        found = {name: Stored(name, stored_name(element.dtype), grid.shape)}
    else:
        width = packed_size(grid.shape[-1], element.bits)
        found = {name: Stored(name, "U8", (*grid.shape[:-1], width))}
    scale = "U8" if scheme.is_mx and not typed else stored_name(scheme.scale.dtype)
    found[f"{name}_scale"] = Stored(f"{name}_scale", scale, grid.scale_shape)
    if scheme.offset in _OFFSETS:
        ending, dtype = _OFFSETS[scheme.offset]
        found[name + ending] = Stored(name + ending, stored_name(np.dtype(dtype)), grid.scale_shape)
    return found


def recognise(stored: Mapping[str, Stored], config: Mapping[str, Any]) -> Recognition | None:
    """The tensors that blockscale itself described, or None.

    Raises:
        FormatError: the description is malformed, or contradicts the stored parts.
        UnsupportedError: a version of the layout that this blockscale does not know.
    """
    described = config.get(METADATA_KEY)
    if described is None:
        section = config.get("quantization_config")
        if isinstance(section, Mapping) and section.get("quant_method") == METADATA_KEY:
            described = section
    if described is None:
        return None
    if not isinstance(described, Mapping) or not isinstance(described.get("tensors"), Mapping):
        raise FormatError("the description of the tensors is missing", field=METADATA_KEY)
    if described.get("version") != VERSION:
        raise UnsupportedError(
            f"version {described.get('version')!r} of the layout is unknown; this blockscale knows {VERSION}",
            field=f"{METADATA_KEY}.version",
            hint="a newer blockscale",
        )
    weights = [_weight(str(name), entry, stored) for name, entry in described["tensors"].items()]
    evidence = f"metadata {METADATA_KEY!r}, version {VERSION}: {len(weights)} tensors"
    consumed = frozenset(part for w in weights for part in w.parts.values())
    return Recognition("plain-mx", tuple(weights), (evidence,), (), consumed)


def read(weight: Weight, load: Load) -> BlockTensor:
    """One tensor of this layout; bit for bit what was written."""
    grid = block_grid(weight.shape, weight.axis, weight.scheme.block_size)
    codes, scales = load(weight.parts["codes"]), load(weight.parts["scales"])
    bits = weight.scheme.element.bits
    if codes.shape == weight.shape and bits < 8 and codes.dtype != np.uint8:  # F4, F6: one code per byte
        codes = packed_rows(codes, bits)
    if not weight.scheme.is_mx:
        check_finite(scales, weight.name, weight.parts["scales"])
    offsets = load(weight.parts["offsets"]) if "offsets" in weight.parts else None
    rows = canonical_codes(np.ascontiguousarray(codes).view(np.uint8), grid, bits)
    values = block_rows(scales.view(weight.scheme.scale.dtype), grid, grid.blocks_per_row)
    return BlockTensor(
        grid,
        weight.scheme,
        rows,
        values,
        None if offsets is None else block_rows(offsets, grid, grid.blocks_per_row),
    )


def _describe_all(written: Mapping[str, BlockTensor]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "tensors": {n: _describe(w.grid, w.scheme, w.report.rule) for n, w in written.items()},
    }


def _describe(grid: BlockGrid, scheme: Scheme, rule: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scheme": scheme.name,
        "element": scheme.element.name,
        "block_size": scheme.block_size,
        "scale": scheme.scale.name,
        "offset": scheme.offset,
        "axis": grid.axis,
        "shape": list(grid.shape),
    }
    if scheme.value_exponent:
        found["value_exponent"] = scheme.value_exponent
    return found | ({"rule": rule} if rule else {})


def _check_describable(name: str, grid: BlockGrid, wanted: Scheme) -> None:
    """UnsupportedError unless the description leads back to the same scheme."""
    with error_context(tensor=name):
        try:
            same = _scheme(_describe(grid, wanted, "")) == wanted
        except (FormatError, InputError):
            same = False
        if not same:
            raise UnsupportedError(
                f"{wanted.describe()} is no variant of the scheme {wanted.name!r}",
                hint="bs.scheme(...) makes variants",
            )


def _scheme(entry: Mapping[str, Any]) -> Scheme:
    """The scheme that a description names."""
    row, size = SCHEMES.get(str(entry.get("scheme"))), entry.get("block_size")
    scale = str(entry.get("scale"))
    if row is None or scale not in ELEMENTS or not isinstance(size, int):
        said = f"scheme {entry.get('scheme')!r}, scale {scale!r}, block size {size!r}"
        raise FormatError(f"unknown {said}", field=METADATA_KEY)
    symmetric = {"none": True, "zero_point": False}.get(str(entry.get("offset")))
    found = scheme(row, block_size=size, scale=scale, symmetric=symmetric)
    says = (entry.get("element"), entry.get("offset"), entry.get("value_exponent", 0))
    has = (found.element.name, found.offset, found.value_exponent)
    if says != has:
        raise FormatError(
            f"{row.name} has {has}, the description says {says}", field=METADATA_KEY, found=says
        )
    return found


def _weight(name: str, entry: Any, stored: Mapping[str, Stored]) -> Weight:
    """One described tensor, checked against its parts."""
    with error_context(tensor=name):
        shape = entry.get("shape") if isinstance(entry, Mapping) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise FormatError(f"the description is {entry!r}", field=METADATA_KEY)
        try:
            meaning = _scheme(entry)
            grid = block_grid(tuple(shape), entry.get("axis"), meaning.block_size)
        except InputError as error:
            raise FormatError(error.message, field=METADATA_KEY, found=error.found) from None
        return Weight(
            name, grid.shape, meaning, grid.axis, _parts(name, grid, meaning, stored), {"own": True}
        )


def _parts(name: str, grid: BlockGrid, meaning: Scheme, stored: Mapping[str, Stored]) -> dict[str, str]:
    """Role to stored name; FormatError where a part is missing or of another shape or dtype."""
    ways = [
        specs(name, grid.shape, grid.axis, meaning, Options(settings={"dtypes": d}))
        for d in ("bytes", "typed")
    ]
    for part, other in zip(ways[0].values(), ways[1].values(), strict=True):
        if part.name not in stored:
            raise missing_part(name, part.name, part.name, [n for n in ways[0] if n in stored])
        have = stored[part.name]
        if have not in (part, other):
            raise FormatError(
                f"the description takes {part.dtype} {list(part.shape)}; {part.name!r} is {have.dtype} "
                f"{list(have.shape)}",
                found=have.shape,
                field=METADATA_KEY,
            )
    return dict(zip(("codes", "scales", "offsets"), ways[0], strict=False))

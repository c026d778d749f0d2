"""GPTQ's shapes: what the parts of a weight say of its size, width and groups; how inputs go to groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, UnsupportedError
from .word_parts import Geometry, Parts, check_dtypes, fits_gptq

Order = Literal["none", "contiguous", "act_order"]

RULE = (
    "GPTQ: qweight int32 [in * bits / 32, out], qzeros int32 [groups, out * bits / 32], scales [groups, out]"
)
BITS = (2, 4, 8)
ACT_ORDER = (
    "its groups are not contiguous columns (activation order), so no BlockTensor holds it in this order of "
    "columns; gptq.read_dense gives its values, gptq.read_sorted sorted columns and their permutation"
)
_REFUSED_BITS = {
    3: "3-bit codes straddle words (11 + 11 + 10 of them in three words)",
    5: "5-bit codes are stored as bit planes (gptq_p)",
    6: "6-bit codes are stored as bit planes (gptq_p)",
    7: "7-bit codes are stored as bit planes (gptq_p)",
}


def measure(parts: Parts, bits: int | None, group_size: int | None) -> Geometry:
    """The geometry of a weight from the shapes of its parts, checked against the config.

    Args:
        parts: the stored tensors, all there.
        bits: width as the config says it; None if it does not.
        group_size: inputs per group as the config says it (-1: all), None if it does not.

    Raises:
        FormatError: shapes that do not fit together or contradict the config; quotes both.
        UnsupportedError: a width that is not 2, 4 or 8.
    """
    packed = check_dtypes(parts)
    words, scales, zeros = parts.shape("qweight"), parts.shape("scales"), parts.shape("qzeros")
    if not (2 <= len(words) <= 3 and len(words) == len(scales) == len(zeros)):
        _shape_error(parts)
    if not (words[:-2] == scales[:-2] == zeros[:-2] and fits_gptq(parts)):
        _shape_error(parts)
    n_out, groups = scales[-1], scales[-2]
    bits = _settle_bits(parts, bits, packed)
    n_in = _inputs(parts, bits)
    if 0 in (n_in, n_out, groups):
        _shape_error(parts)
    size = _settle_group(parts, n_in, groups, group_size)
    return Geometry(words[:-2], n_in, n_out, bits, groups, size, packed)


def _shape_error(parts: Parts) -> None:
    raise FormatError(
        f"shapes that do not fit together: {_quote(parts)}",
        rule=RULE,
        found={role: part.shape for role, part in parts.roles.items()},
        hint=_explain(parts),
        tensor=f"{parts.prefix}qweight",
    )


def _quote(parts: Parts) -> str:
    return ", ".join(f"{role} {list(part.shape)}" for role, part in parts.roles.items())


def _explain(parts: Parts) -> str | None:
    words, scales, zeros = parts.shape("qweight"), parts.shape("scales"), parts.shape("qzeros")
    if min(len(words), len(scales), len(zeros)) < 2:
        return None
    if words[-1] * 8 == scales[-1]:
        return "these are AWQ's shapes, words along the output: the config should say quant_method awq"
    if words[-2] == scales[-2] == zeros[-2]:
        return "rows are outputs: AWQ's gemv version, or a tensor that was transposed"
    if words[-2] == scales[-1]:
        return "qweight looks transposed"
    if words[-1] == scales[-2]:
        return "scales look transposed"
    return None


def _settle_bits(parts: Parts, bits: int | None, packed: bool) -> int:
    """The width that config and shapes agree on."""
    fitting = [b for b in range(2, 9) if _fits_bits(parts, b, packed)]
    if bits is None:
        if len(fitting) != 1:
            raise FormatError(
                f"the shapes fit codes of {fitting or 'no'} bits: {_quote(parts)}",
                rule=RULE,
                found=fitting,
                hint="give a config that says bits" if fitting else _explain(parts),
                tensor=f"{parts.prefix}qweight",
            )
        bits = fitting[0]
    if bits in _REFUSED_BITS or bits not in BITS:
        raise UnsupportedError(
            f"codes of {bits} bits: {_REFUSED_BITS.get(bits, 'not a width of GPTQ')}",
            rule=f"blockscale reads GPTQ of {', '.join(map(str, BITS))} bits",
            found=bits,
            tensor=f"{parts.prefix}qweight",
        )
    if bits not in fitting:
        raise FormatError(
            f"the config says {bits} bits, the shapes say {fitting or 'none that fits'}: {_quote(parts)}",
            rule=RULE,
            found=bits,
            hint="an override per module may be missing, or this is another model's config",
            tensor=f"{parts.prefix}qweight",
        )
    return bits


def _fits_bits(parts: Parts, bits: int, packed: bool) -> bool:
    words, zeros, n_out = parts.shape("qweight")[-2], parts.shape("qzeros")[-1], parts.shape("scales")[-1]
    if packed and zeros != -(-n_out * bits // 32):
        return False
    index = _index_length(parts)
    return words * 32 % bits == 0 if index is None else words == -(-index * bits // 32)


def _index_length(parts: Parts) -> int | None:
    index = parts.roles.get("g_idx")
    return index.shape[-1] if index is not None and index.shape and index.shape[-1] else None


def _inputs(parts: Parts, bits: int) -> int:
    """Inputs of the layer: g_idx counts them exactly, words only in whole ones."""
    return _index_length(parts) or parts.shape("qweight")[-2] * 32 // bits


def _settle_group(parts: Parts, n_in: int, groups: int, group_size: int | None) -> int:
    if group_size is None:
        if n_in % groups == 0:
            return n_in // groups
        raise FormatError(
            f"{n_in} inputs do not divide into {groups} groups, and the config does not say group_size",
            rule="without a group_size, groups are equal",
            found=groups,
            hint="give a config that says group_size",
            tensor=f"{parts.prefix}scales",
        )
    if group_size == 0 or group_size < -1:
        raise FormatError(
            f"config: group_size is {group_size}", rule="group_size is -1 or positive", found=group_size
        )
    size = n_in if group_size == -1 else group_size
    if groups != -(-n_in // size):
        raise FormatError(
            f"the config says group_size {group_size}, so {n_in} inputs make {-(-n_in // size)} groups, "
            f"but scales have {groups}: {_quote(parts)}",
            rule="groups = ceil(in / group_size)",
            found=groups,
            hint="an override per module may be missing, or this is another model's config",
            tensor=f"{parts.prefix}scales",
        )
    return size


def classify_order(index: NDArray[Any] | None, geometry: Geometry, name: str) -> Order:
    """What a g_idx says: nothing (absent, empty, all -1), input i in group i // size, or anything else.

    Args:
        index: integers `(..., n_in)`, or None.
        geometry: of the weight.
        name: the stored name of g_idx, for messages.

    Raises:
        FormatError: numbers that are no groups, or groups without inputs.
        UnsupportedError: an activation order per expert.
    """
    if index is None or not index.size or (index == -1).all():
        return "none"
    if index.shape != (*geometry.lead, geometry.n_in) or index.dtype.kind not in "iu":
        raise FormatError(
            f"g_idx is {index.dtype} {list(index.shape)}",
            rule=f"g_idx holds a group per input: integers {[*geometry.lead, geometry.n_in]}",
            found=index.shape,
            tensor=name,
        )
    if (index == np.arange(geometry.n_in) // geometry.group_size).all():
        return "contiguous"
    bad = (index < 0) | (index >= geometry.groups)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise FormatError(
            f"{int(bad.sum())} of {bad.size} inputs have no group: number {first} has {index.flat[first]}",
            rule=f"g_idx is 0 .. {geometry.groups - 1}, or all -1",
            found=int(index.flat[first]),
            tensor=name,
        )
    if geometry.lead:
        raise UnsupportedError(
            "an activation order per expert",
            rule="g_idx of experts is i // group_size",
            hint="split the experts into tensors of their own",
            tensor=name,
        )
    used = len(np.unique(index))
    if used != geometry.groups:
        raise FormatError(
            f"g_idx names {used} of {geometry.groups} groups; kernels that honour it and kernels that "
            "assume contiguous groups give different weights",
            rule="each group has inputs",
            found=used,
            hint="settings ignore_g_idx=True if g_idx was never filled in",
            tensor=name,
        )
    return "act_order"


def settings_of(geometry: Geometry, order: Order, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a Weight; see `gptq`."""
    return {
        "bits": geometry.bits,
        "carrier": f"int32 words of {32 // geometry.bits} consecutive inputs",
        "group_size": geometry.stored_group_size,
        "act_order": order == "act_order",
        "packed_zeros": geometry.packed_zeros,
        **extra,
    }

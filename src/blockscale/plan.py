"""Plans: what becomes of each tensor, and how large the output will be, before the work begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .blocks import block_grid
from .carry import carry, output_metadata
from .checkpoint import Checkpoint, TensorInfo
from .errors import BlockscaleError, InputError, error_context
from .gptq_versions import GPTQ_V2_NOTE, gptq_for_zero_points, gptq_v2
from .keep import QUANTIZED_BEFORE, is_kept_by_dialect, reason_to_keep
from .outputs import OutputLayout
from .refusals import check_included, check_patterns, unconvertible, unfit
from .rules import rule_for
from .schemes import Scheme
from .target_layout import plan_output
from .targets import OutputTensor, Target, check_tensor, stored_bytes
from .version import __version__

Action = Literal["quantize", "keep", "recode"]


@dataclass(frozen=True, slots=True)
class PlanItem:
    """What becomes of one tensor.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its type in the source.
        action: `quantize`; `keep`: the values stay, bit for bit; `recode`: another scheme, with an error.
        reason: why it is kept, or why it cannot stay exact; empty if it is quantized.
        scheme: the scheme it gets or has, or None.
        axis: the blocked axis, or None.
        rule: the rule that will choose the scales, or empty.
        nbytes_in: bytes in the source.
        nbytes_out: bytes in the output, without alignment.
        out: how it will be stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    action: Action
    reason: str
    scheme: Scheme | None
    axis: int | None
    rule: str
    nbytes_in: int
    nbytes_out: int
    out: OutputTensor


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of every tensor of a checkpoint.

    Attributes:
        target: where they go.
        items: one per tensor, in the source's order.
        layout: everything about the output but its data.
        settings: what decides the bytes, for the record.
        notes: what was decided for the user, one line each.
    """

    target: Target
    items: tuple[PlanItem, ...]
    layout: OutputLayout
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Exact bytes of the output."""
        return self.layout.size


def plan_quantize(
    ckpt: Checkpoint,
    scheme: Scheme,
    *,
    axis: int = -1,
    rule: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    leave_unfit: bool = False,
    requantize: bool = False,
    target: Target | None = None,
) -> Plan:
    """Plan the quantization of a checkpoint.

    By default every floating-point tensor of rank 2 or 3 is quantized, except norms and biases. With
    `include`, the tensors that match one of its patterns are, whatever their rank.

    Args:
        ckpt: the source.
        scheme: for the tensors that are quantized.
        axis: the axis along which blocks run.
        rule: how scales are chosen; None: the scheme's default.
        include: shell patterns of names to quantize; empty: the default.
        exclude: shell patterns of names to keep; they win.
        leave_unfit: keep tensors that cannot carry the scheme instead of stopping; they are listed.
        requantize: quantize the values of tensors that are quantized already; otherwise they are kept.
        target: where it goes; None: a `.hrry` file.

    Returns:
        The Plan.

    Raises:
        InputError: a pattern that matches nothing; tensors that were to be quantized and cannot be; all are
            named.
        SchemeError: a rule that does not serve the scheme.
    """
    target = target or Target("hrry", Path("out.hrry"))
    chosen = str(rule_for(scheme, rule))
    target, notes = gptq_for_zero_points(target, scheme)
    check_patterns(ckpt, include, "include")
    check_patterns(ckpt, exclude, "exclude")
    items: list[PlanItem] = []
    faults: list[BlockscaleError] = []
    for info in ckpt.infos.values():
        reason = reason_to_keep(ckpt, info, include, exclude, requantize=requantize)
        if not reason and not include and is_kept_by_dialect(target, info.name):
            reason = f"consumers of {target.kind} expect it unquantized"
        out = None
        if not reason:
            try:
                out = _quantized(target, info, scheme, axis)
            except BlockscaleError as error:
                faults.append(error)
                reason = error.message
        items.append(
            _carry_item(ckpt, target, info, reason)
            if out is None
            else _quantize_item(target, info, scheme, chosen, out)
        )
    if faults and not leave_unfit:
        raise unfit(faults, [item.name for item in items])
    if not leave_unfit:
        check_included(ckpt, {i.name: i.reason for i in items if i.action != "quantize"}, include, exclude)
    made = _provenance(ckpt, items, scheme, chosen, axis)
    settings = {"verb": "quantize", "scheme": scheme.describe(), "rule": chosen, "axis": axis}
    return _finished(ckpt, target, items, made, settings, chosen, notes)


def plan_convert(ckpt: Checkpoint, target: Target, *, exact: bool = False) -> Plan:
    """Plan a conversion: every tensor keeps its values where the target can hold them.

    Whether it can may depend on the data (a minimum that is a multiple of its scale, a scale that fits
    float16), so quantized tensors that change their scheme are read once here. GPTQ is written as gptq_v2
    where v1, which cannot say z = 0, would change more values or take wider codes; not if v1 is asked for.

    Args:
        ckpt: the source.
        target: where it goes.
        exact: refuse anything that would change a value.

    Raises:
        InputError: tensors that the target cannot hold, or with `exact`, not exactly; all are named.
    """
    items, faults = _carry_all(ckpt, target, exact=exact)
    notes: tuple[str, ...] = ()
    other = gptq_v2(target)
    if other is not None and _lost_zero_points(ckpt, items, faults):
        again = _carry_all(ckpt, other, exact=exact)
        if _cost(*again) < _cost(items, faults):
            (items, faults), target, notes = again, other, (GPTQ_V2_NOTE,)
    if faults:
        raise unconvertible(faults, len(ckpt.infos), target)
    return _finished(ckpt, target, items, {}, {"verb": "convert", "exact": exact}, "", notes)


def _lost_zero_points(ckpt: Checkpoint, items: Sequence[PlanItem], faults: Sequence[BlockscaleError]) -> bool:
    """Whether weights with zero points change, or take another scheme for them."""
    names = [i.name for i in items if i.out.scheme != ckpt.info(i.name).scheme]
    rows = (ckpt.info(name).scheme for name in [*names, *(str(e.tensor) for e in faults)])
    return any(row is not None and row.offset == "zero_point" for row in rows)


def _cost(items: Sequence[PlanItem], faults: Sequence[BlockscaleError]) -> tuple[int, int, int]:
    changed = sum(item.action == "recode" for item in items)
    return len(faults), changed, sum(item.nbytes_out for item in items)


def _carry_all(
    ckpt: Checkpoint, target: Target, *, exact: bool
) -> tuple[list[PlanItem], list[BlockscaleError]]:
    """What becomes of each tensor, and those that do not go over."""
    items: list[PlanItem] = []
    faults: list[BlockscaleError] = []
    for info in ckpt.infos.values():
        try:
            item = _carry_item(ckpt, target, info, "")
            if exact and item.action == "recode":
                with error_context(tensor=info.name):
                    raise InputError(item.reason, rule="--exact: every value stays as it is")
            items.append(item)
        except BlockscaleError as error:
            error.tensor = error.tensor or info.name
            faults.append(error)
    return items, faults


def _finished(
    ckpt: Checkpoint,
    target: Target,
    items: Sequence[PlanItem],
    made: Mapping[str, object],
    settings: dict[str, Any],
    rule: str,
    notes: tuple[str, ...],
) -> Plan:
    outs = [item.out for item in items]
    metadata = output_metadata(ckpt, target, outs, made)
    layout = plan_output(target, outs, metadata, ckpt.reading, rule)
    settings |= {"target": target.kind, "version": __version__, "tensors": len(items)}
    return Plan(target, tuple(items), layout, settings, notes)


def _provenance(
    ckpt: Checkpoint, items: Sequence[PlanItem], scheme: Scheme, rule: str, axis: int
) -> dict[str, object]:
    """How the tensors were made: comparisons of files that do not say so mean little.

    Tensors that were quantized before and are kept leave their own account behind the new one.
    """
    if not any(item.action == "quantize" for item in items):
        return {}
    made = {
        "blockscale.scheme": f"{scheme.name}: {scheme.describe()}",
        "blockscale.rule": rule,
        "blockscale.axis": str(axis),
    }
    if any(item.reason == QUANTIZED_BEFORE for item in items):
        made = {key: f"{new}; kept tensors: {ckpt.metadata.get(key, 'unknown')}" for key, new in made.items()}
    return {"blockscale.version": __version__, **made}


def _quantized(target: Target, info: TensorInfo, scheme: Scheme, axis: int) -> OutputTensor:
    with error_context(tensor=info.name):
        grid = block_grid(info.shape, axis, scheme.block_size)
        return check_tensor(target, OutputTensor(info.name, info.shape, None, scheme, grid.axis))


def _carry_item(ckpt: Checkpoint, target: Target, info: TensorInfo, reason: str) -> PlanItem:
    with error_context(file=str(ckpt.path), tensor=info.name):
        carried = carry(ckpt, info, target)
    action: Action = "keep" if carried.exact else "recode"
    return _item(target, info, action, reason if carried.exact else carried.reason, "", carried.out)


def _quantize_item(
    target: Target, info: TensorInfo, scheme: Scheme, rule: str, out: OutputTensor
) -> PlanItem:
    return _item(target, info, "quantize", "", rule, out)


def _item(
    target: Target, info: TensorInfo, action: Action, reason: str, rule: str, out: OutputTensor
) -> PlanItem:
    size = stored_bytes(target, out)
    return PlanItem(
        *(info.name, info.shape, info.dtype, action, reason, out.scheme or info.scheme),
        *(out.axis if out.scheme is not None else info.axis, rule, info.nbytes, size, out),
    )

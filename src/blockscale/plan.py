"""Plans: which tensor gets which scheme, and how large the output will be, before any data are read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from .blocks import block_grid
from .checkpoint import Checkpoint, TensorInfo
from .containers.hrry_writer import plan_hrry
from .errors import BlockscaleError, InputError, error_context
from .hurray import TensorDescriptor, plan_tensor
from .rules import rule_for
from .schemes import Scheme
from .version import __version__

# Names that are left alone by default whatever their rank: not the weights of a matmul.
_KEPT_WORDS = ("norm", "bias")
_QUANTIZED_BEFORE = "already quantized"


@dataclass(frozen=True, slots=True)
class PlanItem:
    """What becomes of one tensor.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its type in the source.
        action: `quantize` or `keep`.
        reason: why it is kept; empty if it is quantized.
        scheme: the scheme it gets or has, or None.
        axis: the blocked axis, or None.
        rule: the rule that will choose the scales, or empty.
        nbytes_in: bytes in the source.
        nbytes_out: bytes in the output, without alignment.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    action: Literal["quantize", "keep"]
    reason: str
    scheme: Scheme | None
    axis: int | None
    rule: str
    nbytes_in: int
    nbytes_out: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of every tensor of a checkpoint.

    Attributes:
        items: one per tensor, in the source's order.
        descriptors: the Hurray descriptor of each output tensor, in the same order.
        metadata: key-value metadata of the output.
        size: exact bytes of the output file.
    """

    items: tuple[PlanItem, ...]
    descriptors: tuple[TensorDescriptor, ...]
    metadata: dict[str, object]
    size: int


def plan_quantize(
    ckpt: Checkpoint,
    scheme: Scheme,
    *,
    axis: int = -1,
    rule: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    leave_unfit: bool = False,
) -> Plan:
    """Plan the quantization of a checkpoint into a `.hrry` file.

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

    Returns:
        The Plan.

    Raises:
        InputError: a pattern that matches nothing; tensors that were to be quantized and cannot be; all are
            named.
        SchemeError: a rule that does not serve the scheme.
    """
    chosen = str(rule_for(scheme, rule))
    _check_patterns(ckpt, include, "include")
    _check_patterns(ckpt, exclude, "exclude")
    items: list[PlanItem] = []
    descriptors: list[TensorDescriptor] = []
    faults: list[BlockscaleError] = []
    for info in ckpt.infos.values():
        reason = _reason_to_keep(ckpt, info, include, exclude)
        descriptor = None
        if not reason:
            try:
                descriptor = _quantized(info, scheme, axis)
            except BlockscaleError as error:
                faults.append(error)
                reason = error.message
        if descriptor is None:
            descriptor = _kept(ckpt, info)
            items.append(_keep_item(info, reason, descriptor))
        else:
            items.append(_quantize_item(info, scheme, axis, chosen, descriptor))
        descriptors.append(descriptor)
    if faults and not leave_unfit:
        raise _unfit(faults, len(items))
    metadata = {**ckpt.metadata, **_provenance(ckpt, items, scheme, chosen, axis)}
    named = [(item.name, d) for item, d in zip(items, descriptors, strict=True)]
    return Plan(tuple(items), tuple(descriptors), metadata, plan_hrry(named, metadata).size)


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
    if any(item.reason == _QUANTIZED_BEFORE for item in items):
        made = {key: f"{new}; kept tensors: {ckpt.metadata.get(key, 'unknown')}" for key, new in made.items()}
    return {"blockscale.version": __version__, **made}


def _check_patterns(ckpt: Checkpoint, patterns: Sequence[str], option: str) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in ckpt):
            near = difflib.get_close_matches(pattern, list(ckpt), n=3, cutoff=0.4)
            raise InputError(
                f"the pattern {pattern!r} matches no tensor",
                file=str(ckpt.path),
                found=pattern,
                field=f"--{option}",
                rule="a pattern that matches nothing stops the run",
                hint="near names: " + ", ".join(near) if near else "`blockscale inspect` lists the names",
            )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def _reason_to_keep(
    ckpt: Checkpoint, info: TensorInfo, include: Sequence[str], exclude: Sequence[str]
) -> str:
    if _matches(info.name, exclude):
        return "excluded"
    if info.quantization:
        return _QUANTIZED_BEFORE
    if include and not _matches(info.name, include):
        return "not included"
    if not info.is_float or ckpt.plain_dtype(info.name) is None:
        return f"{info.dtype} is not a floating-point weight"
    if include:
        return ""
    words = info.name.lower().split(".")[-2:]
    if any(kept in word for word in words for kept in _KEPT_WORDS):
        return "a norm or bias"
    return "" if len(info.shape) in (2, 3) else f"rank {len(info.shape)}"


def _quantized(info: TensorInfo, scheme: Scheme, axis: int) -> TensorDescriptor:
    with error_context(tensor=info.name):
        grid = block_grid(info.shape, axis, scheme.block_size)
        return plan_tensor(info.shape, grid.axis, scheme)


def _kept(ckpt: Checkpoint, info: TensorInfo) -> TensorDescriptor:
    with error_context(file=str(ckpt.path), tensor=info.name):
        return ckpt.descriptor(info.name)


def _output_bytes(descriptor: TensorDescriptor) -> int:
    return sum(buffer.byte_size for buffer in descriptor.buffers)


def _keep_item(info: TensorInfo, reason: str, d: TensorDescriptor) -> PlanItem:
    size = _output_bytes(d)
    return PlanItem(
        info.name, info.shape, info.dtype, "keep", reason, info.scheme, info.axis, "", info.nbytes, size
    )


def _quantize_item(info: TensorInfo, scheme: Scheme, axis: int, rule: str, d: TensorDescriptor) -> PlanItem:
    axis %= len(info.shape)
    size = _output_bytes(d)
    return PlanItem(info.name, info.shape, info.dtype, "quantize", "", scheme, axis, rule, info.nbytes, size)


def _unfit(faults: list[BlockscaleError], total: int) -> InputError:
    shown = "; ".join(f"{e.tensor}: {e.message}" for e in faults[:8])
    more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
    names = " ".join(f"--exclude '{e.tensor}'" for e in faults[:3])
    return InputError(
        f"{len(faults)} of {total} tensors cannot carry the scheme: {shown}{more}",
        found=[e.tensor for e in faults],
        rule=faults[0].rule,
        hint=f"--leave-unfit keeps them as they are; or {names}; or another scheme, --block-size or --axis",
    )

"""Another axis for the blocks of a tensor that is quantized already."""

from __future__ import annotations

from typing import NamedTuple

from .arguments import check_type
from .metrics import TensorError
from .quantize import quantize
from .rules import Rule
from .schemes import Scheme
from .tensor import BlockTensor


class Reblocked(NamedTuple):
    """A tensor with its blocks along another axis, and what that cost.

    Attributes:
        tensor: the new tensor.
        added_error: its distance from the values of the old one; 0 if every value survived.
    """

    tensor: BlockTensor
    added_error: TensorError


def reblock(
    w: BlockTensor,
    *,
    axis: int,
    scheme: str | Scheme | None = None,
    rule: str | Rule | None = None,
    threads: int | None = None,
) -> Reblocked:
    """Dequantize and quantize again along another axis; quantizing the original values is better.

    Args:
        w: the tensor.
        axis: where the blocks shall run.
        scheme: another scheme; None: that of `w`.
        rule: how scales are chosen; None: the scheme's default.
        threads: at most this many; None: all processors.

    Returns:
        `(tensor, added_error)`; the error is measured against `w.dequantize()`, not the original values.

    Raises:
        AxisError: no such axis.
        NonFiniteError: `w` has NaN blocks or infinite values.
    """
    check_type(w, BlockTensor, "w", "a BlockTensor")
    values = w.dequantize(threads=threads)
    tensor = quantize(values, w.scheme if scheme is None else scheme, axis=axis, rule=rule, threads=threads)
    return Reblocked(tensor, tensor.error(values))

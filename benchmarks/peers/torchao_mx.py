"""torchao's MXTensor, run eagerly (torch.compile slows the other peers of a process)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import torch
from torchao.prototype.mx_formats.mx_tensor import MXTensor, ScaleCalculationMode

from work import Case, values

ELEMENTS = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp8_e4m3": torch.float8_e4m3fn}
MODES = {"floor": "FLOOR", "ceil": "CEIL", "rceil": "RCEIL", "even": "EVEN"}


def name() -> str:
    """Name and version."""
    return f"torchao {version('torchao')}"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.scheme not in ELEMENTS or case.operation == "linear" or case.rule not in (None, *MODES):
        return None
    x = torch.from_numpy(values(case.n, case.k))
    mode = ScaleCalculationMode[MODES[case.rule or "floor"]]
    element = ELEMENTS[case.scheme]

    def quantize() -> MXTensor:
        torch.set_num_threads(case.threads)
        return MXTensor.to_mx(x, element, 32, scaling_mode=mode)

    if case.operation == "quantize":
        return lambda: void(quantize())
    packed = quantize()

    def dequantize() -> None:
        torch.set_num_threads(case.threads)
        packed.dequantize(torch.float32)

    return dequantize


def void(_: object) -> None:
    """Nothing."""

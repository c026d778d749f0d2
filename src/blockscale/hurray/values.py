"""Parameter arrays of a quantized tensor, and the rules about their values (R20, R21, R23)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DescriptorError
from .codes import check_expansion, read_elements
from .geometry import Placement
from .quantization import MXFP, NF4, KnownQuantization, PerChannelAffine, PerTensorAffine, parameter_indices
from .quantization_checks import parameter_sizes
from .rules import broken
from .types import storage_type

if TYPE_CHECKING:
    from .descriptor import TensorDescriptor


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameter arrays, in the order of the file.

    Attributes:
        scales: `(n,)` of the scale's dtype, one per block or channel; None for per-tensor schemes.
        zero_points: int32 `(n,)`, or None.
    """

    scales: NDArray[Any] | None = None
    zero_points: NDArray[np.int32] | None = None


def read_parameters(
    d: TensorDescriptor, q: KnownQuantization, buffers: Sequence[NDArray[np.uint8]]
) -> Parameters:
    """The parameter arrays out of their buffers; views where the bytes are aligned."""
    indices, sizes = parameter_indices(q), parameter_sizes(d, q)
    if isinstance(q, PerTensorAffine):
        return Parameters()
    scale_bytes = buffers[q.scale_index][: sizes["scale_index"]]
    dtype = storage_type(q.scale_type).dtype
    scales = _aligned(scale_bytes, np.dtype(dtype))
    if "zero_point_index" not in indices:
        return Parameters(scales)
    index = indices["zero_point_index"]
    start = sizes["scale_index"] if index == q.scale_index else 0  # one shared buffer: scales first (3.8)
    zero_bytes = buffers[index][start : start + sizes["zero_point_index"]]
    return Parameters(scales, _aligned(zero_bytes, np.dtype(np.int32)))


def value_violations(d: TensorDescriptor, q: KnownQuantization, p: Parameters) -> Iterator[DescriptorError]:
    """Each broken rule about the values of parameter arrays."""
    if p.scales is not None:
        yield from _scale_violations(q, p.scales)
    if isinstance(q, PerChannelAffine) and p.zero_points is not None and d.type is not None:
        low, high = d.type.low, d.type.high
        bad = (p.zero_points < low) | (p.zero_points > high)
        message = f"zero points are outside {d.type.name} ({low} to {high})"
        yield from _report("R21", "zero_points", p.zero_points, bad, message)


def exponent_violations(place: Placement, buffer: NDArray[np.uint8]) -> Iterator[DescriptorError]:
    """H33: the elements of a plain float8_e8m0 tensor."""
    check_expansion(place, buffer.size)
    codes = read_elements(storage_type("float8_e8m0"), place, buffer).view(np.uint8)
    yield from _report(
        "H33", "data", codes, (codes == 0) | (codes == 255), "float8_e8m0 bytes are 0x00 or 0xFF"
    )


def _scale_violations(q: KnownQuantization, scales: NDArray[Any]) -> Iterator[DescriptorError]:
    if isinstance(q, MXFP):
        codes = scales.view(np.uint8)
        bad = (codes == 0) | (codes == 255)
        yield from _report("R23", "scales", codes, bad, "scale bytes are 0x00 or 0xFF")
        return
    values = scales.astype(np.float32)
    if isinstance(q, NF4):
        bad, message = ~np.isfinite(values) | (values < 0), "scales are NaN, infinite or negative"
    else:
        bad, message = ~np.isfinite(values) | (values == 0), "scales are zero, NaN or infinite"
    yield from _report("R20", "scales", values, bad, message)


def _report(
    rule: str, field: str, values: NDArray[Any], bad: NDArray[np.bool_], message: str
) -> Iterator[DescriptorError]:
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        value = values.reshape(-1)[first].item()
        yield broken(
            rule,
            f"{int(bad.sum())} of {bad.size} {message}; the first is {value} at index {first}",
            field=f"{field}[{first}]",
            found=value,
        )


def _aligned(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = data.view(dtype)
    return array if array.flags.aligned else array.copy()

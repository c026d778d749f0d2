"""Parts of a stored block-scaled tensor whose order in the file is not the one in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import BlockGrid, as_rows, block_grid
from ..packing import packed_size, unit_codes, unpack_codes
from ..schemes import Scheme
from ..tensor import BlockTensor
from .codes import check_buffers, is_canonical, pack_rows
from .descriptor import TensorDescriptor
from .geometry import DYNAMIC, locate
from .layouts import ROW_MAJOR
from .quantization import UnknownQuantization
from .tensors import check_values, scheme_of
from .values import Parameters, read_parameters

Box = tuple[slice, ...]
BoxReader = Callable[[Box], BlockTensor]


def box_reader(
    d: TensorDescriptor, buffers: Sequence[NDArray[np.uint8]], *, permissive: bool = False
) -> BoxReader | None:
    """A function that reads boxes, one slice per dimension, that begin between blocks.

    None where the whole tensor is a view of its buffers anyway, or not row-major.

    Raises:
        DescriptorError: a scale or zero point that its scheme forbids.
    """
    found, q = scheme_of(d), d.quantization
    if found is None or q is None or isinstance(q, UnknownQuantization) or found[0].value_exponent:
        return None
    if d.layout != ROW_MAJOR or d.byte_offset or DYNAMIC in d.shape or 0 in d.shape:
        return None
    row, axis = found
    grid = block_grid(d.shape, axis, row.block_size)
    if is_canonical(grid, row.element.bits) or grid.axis == len(d.shape) - 1:
        return None
    for error in d.violations(permissive=permissive):
        raise error
    parts = check_buffers(d, buffers)
    if locate(d, parts[0].size, permissive=permissive).is_tight:
        return None
    parameters = read_parameters(d, q, parts)
    check_values(d, q, parameters, permissive=permissive)
    return lambda box: _read_box(row, grid, parts[0], parameters, box)


def _read_box(row: Scheme, grid: BlockGrid, data: NDArray[np.uint8], p: Parameters, box: Box) -> BlockTensor:
    bits, axis = row.element.bits, grid.axis
    cut = BlockGrid(tuple(part.stop - part.start for part in box), axis, grid.block_size)
    rows = as_rows(_codes(grid, data, bits, box), axis)
    blocks = slice(box[axis].start // grid.block_size, -(-box[axis].stop // grid.block_size))
    outer = (*box[:axis], *box[axis + 1 :], blocks)

    def parameter(values: NDArray[Any]) -> NDArray[Any]:
        whole = values.reshape(*grid.outer_shape, grid.blocks_per_row)
        return np.ascontiguousarray(whole[outer]).reshape(cut.rows, cut.blocks_per_row)

    scales = parameter(np.asarray(p.scales)).view(row.scale.dtype)
    offsets = None if p.zero_points is None else parameter(p.zero_points)
    return BlockTensor(cut, row, pack_rows(rows, cut, bits), scales, offsets)


def _codes(grid: BlockGrid, data: NDArray[np.uint8], bits: int, box: Box) -> NDArray[np.uint8]:
    """The codes of a box, a byte each."""
    stored = list(grid.shape)
    stored[grid.axis] = grid.padded_length
    if stored[-1] % unit_codes(bits):
        return _codes_of_runs(grid, data, bits, box)
    width, group = packed_size(stored[-1], bits), unit_codes(bits)
    lines = data[: width * math.prod(stored[:-1])].reshape(*stored[:-1], width)
    first, end = box[-1].start // group * group, -(-box[-1].stop // group) * group
    part = np.ascontiguousarray(lines[(*box[:-1], slice(packed_size(first, bits), packed_size(end, bits)))])
    codes = unpack_codes(part.reshape(-1, part.shape[-1]), bits, end - first)
    return codes.reshape(*part.shape[:-1], -1)[..., box[-1].start - first : box[-1].stop - first]


def _codes_of_runs(grid: BlockGrid, data: NDArray[np.uint8], bits: int, box: Box) -> NDArray[np.uint8]:
    """The same where lines do not end on bytes: from the first line along the axis to the last, whole."""
    axis, group = grid.axis, unit_codes(bits)
    inner, part = math.prod(grid.shape[axis + 1 :]), box[grid.axis]
    outer = [range(p.start, p.stop) for p in box[:axis]]
    out = np.empty((*map(len, outer), part.stop - part.start, *grid.shape[axis + 1 :]), np.uint8)
    runs = out.reshape(math.prod(map(len, outer)), -1)
    for run, index in zip(runs, product(*outer), strict=True):
        at = 0
        for n, i in zip(grid.shape[:axis], index, strict=True):
            at = at * n + i
        begin = (at * grid.padded_length + part.start) * inner
        first, end = begin // group * group, -(-(begin + run.size) // group) * group
        packed = data[packed_size(first, bits) : packed_size(end, bits)]
        lost = packed_size(end - first, bits) - packed.size  # of a last group that was cut short
        packed = np.pad(packed, (0, lost)) if lost else packed
        run[:] = unpack_codes(packed, bits, end - first)[begin - first : begin - first + run.size]
    return out[(*(slice(None) for _ in outer), slice(None), *box[axis + 1 :])]

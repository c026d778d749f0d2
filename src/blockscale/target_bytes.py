"""The bytes of a tensor in a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockGrid
from .containers.safetensors_table import DTYPES
from .dialects import dialect, ggml
from .hurray import encode_blocks, encode_tensor
from .packing import pack_codes, packed_size
from .targets import OutputTensor, Target, block_type, stored_parts
from .tensor import BlockTensor


def encode_rows(
    target: Target, t: OutputTensor, w: BlockTensor, first_block: int, *, fresh: bool
) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
    """Part, offset and bytes of blocks that follow each other along the last axis, in `.hrry` or GGUF.

    Args:
        target: where they go.
        t: the whole tensor.
        w: the blocks, as rows of a matrix.
        first_block: number of the first; its codes begin on a byte.
        fresh: whether they were quantized just now (zero blocks then look as ggml writes them).
    """
    if target.kind == "gguf":
        data = ggml.pack_blocks(w, block_type(t), zero_scale="ggml" if fresh else "sign")
        yield "0", first_block * (data.shape[1] // w.grid.blocks_per_row), data.reshape(-1)
        return
    codes_at = packed_size(first_block * w.block_size, w.scheme.element.bits)
    offsets = (codes_at, first_block * w.scheme.scale.bits // 8, first_block * 4)
    for i, (data, at) in enumerate(zip(encode_blocks(w), offsets, strict=False)):
        yield str(i), at, data


def encode_whole(
    target: Target, t: OutputTensor, value: BlockTensor | NDArray[Any], *, fresh: bool
) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
    """Part, offset and bytes of a whole tensor."""
    if target.kind == "hrry":
        for i, data in enumerate(encode_tensor(value)[1]):
            yield str(i), 0, data
    elif isinstance(value, BlockTensor):
        if target.kind == "gguf":
            flat = replace(value, grid=BlockGrid((value.grid.rows, value.grid.length), 1, value.block_size))
            yield from encode_rows(target, t, flat, 0, fresh=fresh)
            return
        module = dialect(target.kind)
        by_name = {s.name: (part, s.dtype) for part, s in stored_parts(target, t).items()}
        for name, array in module.write(t.name, value, target.options).items():
            part, dtype = by_name[name]
            yield part, 0, _bytes(array, dtype)
    elif target.kind == "gguf":
        yield "0", 0, _bytes(value)
    else:
        yield t.name, 0, _bytes(value, stored_parts(target, t)[t.name].dtype)


def _bytes(array: NDArray[Any], dtype: str = "U8") -> NDArray[np.uint8]:
    """An array as a file holds it; safetensors' small dtypes (F4, F6) share bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    bits = DTYPES[dtype].bits
    return pack_codes(data, bits) if bits < 8 else data

"""Saving named tensors to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_array, as_mapping, as_path
from .containers.hrry import write_hrry
from .containers.safetensors import write_safetensors
from .errors import InputError, error_context
from .hurray import HurrayTensor, Tensor
from .tensor import BlockTensor


def save_checkpoint(
    path: str | os.PathLike[str],
    tensors: Mapping[str, ArrayLike | BlockTensor | HurrayTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Save named tensors; the container is told by the suffix, `.hrry` or `.safetensors`.

    The file appears under its name only when it is whole.

    Args:
        path: the output.
        tensors: name to array, BlockTensor or HurrayTensor; safetensors takes arrays only.
        metadata: key-value metadata; strings only for safetensors.
        overwrite: replace an existing file.

    Raises:
        OutputError: the output exists, or cannot be written.
        InputError: a tensor that the container cannot hold, with advice.
    """
    path = as_path(path)
    named = as_mapping(tensors, "tensors", "names to tensors")
    if metadata is not None:
        as_mapping(metadata, "metadata", "keys to values")
    ready = {
        k: v if isinstance(v, (BlockTensor, HurrayTensor)) else as_array(v, f"tensors[{k!r}]")
        for k, v in named.items()
    }
    with error_context(file=str(path)):
        if path.suffix == ".hrry":
            write_hrry(path, ready, metadata=metadata, overwrite=overwrite)
        elif path.suffix == ".safetensors":
            write_safetensors(path, _arrays_only(ready), metadata=metadata, overwrite=overwrite)
        else:
            raise InputError(
                f"unknown kind of output {path.suffix!r}", found=path.suffix, hint=".hrry or .safetensors"
            )


def _arrays_only(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    arrays = {}
    for name, value in tensors.items():
        if not isinstance(value, np.ndarray):
            raise InputError(
                "safetensors holds plain arrays, and this tensor is quantized",
                tensor=name,
                hint="save to .hrry, or save w.dequantize()",
            )
        arrays[name] = value
    return arrays

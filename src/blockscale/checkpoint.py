"""Checkpoints: one way to open and save named tensors, whatever the container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .containers.hrry import HrryFile, write_hrry
from .containers.safetensors import SafetensorsFile, write_safetensors
from .containers.sniff import PEEK, open_input, recognise_foreign
from .errors import InputError, UnsupportedError, error_context
from .hurray import (
    HurrayTensor,
    Tensor,
    TensorDescriptor,
    UnknownQuantization,
    encode_tensor,
    plan_array,
    scheme_of,
)
from .schemes import Scheme
from .tensor import BlockTensor


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint says of a tensor without reading its data.

    Attributes:
        name: its name.
        shape: logical shape, in elements.
        dtype: element type as the container names it.
        nbytes: stored bytes, parameters included.
        scheme: the scheme of a block-scaled tensor, else None.
        axis: the blocked axis of a block-scaled tensor, else None.
        quantization: one line on how it is quantized, empty for plain tensors.
        is_float: whether the values are plain floating-point numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    scheme: Scheme | None
    axis: int | None
    quantization: str
    is_float: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def bits_per_element(self) -> float:
        """Stored bits per element; 0 for an empty tensor."""
        return 8 * self.nbytes / self.size if self.size else 0.0


class Source(Protocol):
    """What a container must offer to be opened as a checkpoint."""

    @property
    def kind(self) -> str:
        """Name of the container."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its own key-value metadata."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Name to TensorInfo, in the file's order."""

    def tensor(self, name: str) -> Tensor:
        """The tensor, lazily where the container can."""

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Stored bytes of a plain tensor's values, into new memory."""

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of a plain tensor that lies row-major and whole-byte, else None."""

    def descriptor(self, name: str) -> TensorDescriptor:
        """Its Hurray descriptor, or that of the same array in a `.hrry` file."""

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """Buffer index, offset and bytes, as a `.hrry` file stores the tensor."""

    def close(self) -> None:
        """Close the file."""


class Checkpoint(Mapping[str, Tensor]):
    """Named tensors in a file, read when asked for.

    Attributes:
        path: the file.
        kind: `"safetensors"` or `"hrry"`.
        metadata: the container's own key-value metadata.
        infos: name to TensorInfo, in the file's order.
    """

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        self.kind = source.kind
        self.metadata = source.metadata
        self.infos = source.infos
        self._source = source

    def __getitem__(self, name: str) -> Tensor:
        """The tensor: an ndarray, a BlockTensor, or a HurrayTensor for other quantizations."""
        self.info(name)
        with error_context(file=str(self.path), tensor=name):
            return self._source.tensor(name)

    def info(self, name: str) -> TensorInfo:
        """What the file says of a tensor.

        Raises:
            InputError: there is no such tensor.
        """
        if name not in self.infos:
            raise InputError("there is no such tensor", file=str(self.path), tensor=name)
        return self.infos[name]

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of a plain tensor whose rows can be read one by one, else None."""
        self.info(name)
        return self._source.plain_dtype(name)

    def read_rows(self, name: str, start: int, stop: int, row_length: int) -> NDArray[Any]:
        """Rows of a plain tensor seen as a matrix `row_length` wide, read into new memory.

        Args:
            name: a tensor with a `plain_dtype`.
            start: first row.
            stop: one past the last row.
            row_length: elements per row.

        Returns:
            `(stop - start, row_length)` of the tensor's dtype.
        """
        dtype = self.plain_dtype(name)
        if dtype is None:
            raise UnsupportedError("its rows cannot be read one by one", tensor=name)
        width = row_length * dtype.itemsize
        with error_context(file=str(self.path), tensor=name):
            data = self._source.read_bytes(name, start * width, stop * width)
        return data.view(dtype).reshape(stop - start, row_length)

    def read_columns(
        self, name: str, rows: tuple[int, int], row_length: int, columns: tuple[int, int]
    ) -> NDArray[Any]:
        """Some columns of some rows, as `read_rows`.

        Args:
            name: a tensor with a `plain_dtype`.
            rows: first row and one past the last.
            row_length: elements per row.
            columns: first column and one past the last.
        """
        if columns == (0, row_length):
            return self.read_rows(name, *rows, row_length)
        dtype = self.plain_dtype(name)
        if dtype is None:
            raise UnsupportedError("its rows cannot be read one by one", tensor=name)
        out = np.empty((rows[1] - rows[0], columns[1] - columns[0]), dtype)
        size = dtype.itemsize
        for i, row in enumerate(range(*rows)):
            at = row * row_length * size
            data = self._source.read_bytes(name, at + columns[0] * size, at + columns[1] * size)
            out[i] = data.view(dtype)
        return out

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """The tensor as a `.hrry` file stores it, in pieces of at most about `limit` bytes.

        Yields:
            Buffer index, byte offset in that buffer, bytes.
        """
        self.info(name)
        yield from self._source.stored_pieces(name, limit)

    def descriptor(self, name: str) -> TensorDescriptor:
        """The Hurray descriptor of the tensor as it is, for a `.hrry` file that keeps it."""
        self.info(name)
        return self._source.descriptor(name)

    def __contains__(self, name: object) -> bool:
        """True if there is a tensor of that name; reads nothing."""
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        """Names in the file's order."""
        return iter(self.infos)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.infos)

    def close(self) -> None:
        """Close the file; arrays handed out stay valid."""
        self._source.close()

    def __enter__(self) -> Checkpoint:
        """Return the checkpoint itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


class _Safetensors:
    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self._file = SafetensorsFile(path)
        self.metadata: Mapping[str, Any] = self._file.metadata
        self.infos: Mapping[str, TensorInfo] = {
            e.name: TensorInfo(e.name, e.shape, e.dtype_name, e.nbytes, None, None, "", _is_float(e.dtype))
            for e in self._file.entries.values()
        }

    def tensor(self, name: str) -> Tensor:
        return self._file.array(name)

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        return self._file.read_bytes(name, start, stop)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        entry = self._file.entries[name]
        return None if entry.is_packed else entry.dtype

    def descriptor(self, name: str) -> TensorDescriptor:
        entry = self._file.entries[name]
        if entry.dtype is None:
            raise UnsupportedError(
                f"a .hrry file has no type for {entry.dtype_name}",
                tensor=name,
                found=entry.dtype_name,
                hint="remove the tensor from the source",
            )
        return plan_array(entry.shape, entry.dtype)

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        entry = self._file.entries[name]
        if entry.is_packed or entry.dtype is None or entry.dtype.kind == "b":  # another layout: few bytes
            yield 0, 0, encode_tensor(self._file.array(name))[1][0]
            return
        for start in range(0, entry.nbytes, limit):
            yield 0, start, self._file.read_bytes(name, start, min(start + limit, entry.nbytes))

    def close(self) -> None:
        self._file.close()


class _Hrry:
    kind = "hrry"

    def __init__(self, path: Path, *, permissive: bool) -> None:
        self._file = HrryFile(path, permissive=permissive)
        self.metadata: Mapping[str, Any] = self._file.metadata
        self.infos: Mapping[str, TensorInfo] = {name: self._info(name) for name in self._file.entries}

    def _info(self, name: str) -> TensorInfo:
        d = self._file.descriptor(name)
        scheme, axis = scheme_of(d) or (None, None)
        return TensorInfo(
            name,
            tuple(d.shape),
            d.type.name if d.type is not None else f"type 0x{d.type_tag:02X}",
            sum(b.byte_size for b in d.buffers),
            scheme,
            axis,
            _describe(d, scheme),
            _is_float(self.plain_dtype(name)),
        )

    def tensor(self, name: str) -> Tensor:
        return self._file.tensor(name)

    def read_bytes(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        return self._file.read_bytes(name, 0, start, stop)

    def plain_dtype(self, name: str) -> np.dtype[Any] | None:
        return self._file.plain_dtype(name)

    def descriptor(self, name: str) -> TensorDescriptor:
        return self._file.descriptor(name)

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        for index, handle in enumerate(self._file.descriptor(name).buffers):
            for start in range(0, handle.byte_size, limit):
                stop = min(start + limit, handle.byte_size)
                yield index, start, self._file.read_bytes(name, index, start, stop)

    def close(self) -> None:
        self._file.close()


def _describe(d: TensorDescriptor, scheme: Scheme | None) -> str:
    """One line on the quantization of a tensor in a .hrry file."""
    if d.quantization is None:
        return ""
    if scheme is not None:
        return scheme.describe()
    if isinstance(d.quantization, UnknownQuantization):
        return f"unknown scheme 0x{d.quantization.tag:02X}"
    words = {"PerTensorAffine": "per-tensor affine", "PerChannelAffine": "per-channel affine", "NF4": "NF4"}
    name = type(d.quantization).__name__
    return words.get(name, name)


def open_checkpoint(path: str | os.PathLike[str], *, permissive: bool = False) -> Checkpoint:
    """Open a safetensors or `.hrry` file; the kind is told by its first bytes.

    Args:
        path: the file.
        permissive: read `.hrry` files that break rules which do not endanger the values.

    Raises:
        InputError: no such file, or a file of another kind (the message says which).
        FormatError: the file breaks a rule of its format.
    """
    path = Path(path)
    with error_context(file=str(path)):
        if _first_bytes_say(path) == "hrry":
            return Checkpoint(path, _Hrry(path, permissive=permissive))
        return Checkpoint(path, _Safetensors(path))


def _first_bytes_say(path: Path) -> str | None:
    fd = open_input(path)
    try:
        foreign = recognise_foreign(os.pread(fd, PEEK, 0))
    finally:
        os.close(fd)
    return foreign.kind if foreign is not None else None


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
    path = Path(path)
    ready = {
        k: v if isinstance(v, (BlockTensor, HurrayTensor)) else np.asarray(v) for k, v in tensors.items()
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


def _is_float(dtype: np.dtype[Any] | None) -> bool:
    """Plain numbers that can be quantized: float64, float32, float16, bfloat16."""
    return dtype is not None and dtype.name in ("float64", "float32", "float16", "bfloat16")

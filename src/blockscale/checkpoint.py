"""Checkpoints: one way to open and save named tensors, whatever the container."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import as_mapping, as_path, is_integer, is_one_of
from .dialects import NAMES, check_settings
from .dialects.base import Options
from .errors import InputError, MissingTensorError, SchemeError, UnsupportedError, error_context
from .hurray import BoxReader, Tensor, TensorDescriptor, encode_tensor, plan_array, plan_tensor
from .saving import save_checkpoint
from .sources import HrrySource, Reading, Source, TensorInfo, open_source, without_collection
from .tensor import BlockTensor

__all__ = ["Checkpoint", "Tensor", "TensorInfo", "open_checkpoint", "save_checkpoint"]


class Checkpoint(Mapping[str, Tensor]):
    """Named tensors in a file or model folder, read when asked for.

    Attributes:
        path: the file or folder.
        kind: `"safetensors"`, `"hrry"`, `"gguf"`, or `"safetensors in N shards"`.
        metadata: the container's own key-value metadata.
        infos: name to TensorInfo, in the file's order.
        reading: how the source was understood: dialects, evidence, problems, config, companions.
        paths: the files that hold tensors.
        parts: stored tensors that are parts of quantized weights.
        asked: how the caller wanted it read; what is None is left to the source.
    """

    def __init__(self, path: Path, source: Source, asked: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.kind = source.kind
        self.metadata = source.metadata
        self.infos = source.infos
        self.reading: Reading = source.reading
        self.paths = tuple(source.paths)
        self.parts: frozenset[str] = source.parts
        self.asked = dict(asked or {})
        self._source = source

    @property
    def nbytes(self) -> int:
        """Bytes of the files that hold tensors."""
        return sum(path.stat().st_size for path in self.paths)

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
        if not isinstance(name, str) or name not in self.infos:
            raise MissingTensorError("there is no such tensor", file=str(self.path), tensor=name)
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

    def rows(self, name: str, start: int, stop: int) -> BlockTensor | None:
        """Rows of a block-scaled tensor, blocks along the last axis, as a matrix in new memory.

        None if the container can only give the whole tensor.
        """
        self.info(name)
        with error_context(file=str(self.path), tensor=name):
            return self._source.rows(name, start, stop)

    def check_values(self, name: str) -> None:
        """Refuse a tensor of a `.hrry` file whose scales or zero points break a rule; reads only these.

        Raises:
            DescriptorError: such a value.
        """
        self.info(name)
        if isinstance(self._source, HrrySource):
            self._source.file.check_values(name)

    def boxes(self, name: str) -> BoxReader | None:
        """A function that reads boxes of a block-scaled tensor, one slice per dimension, into new memory.

        Boxes begin between blocks; safe from several threads. None if the container can only give the whole
        tensor.
        """
        self.info(name)
        with error_context(file=str(self.path), tensor=name):
            return self._source.boxes(name)

    def stored_pieces(self, name: str, limit: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """The tensor as a `.hrry` file stores it, in pieces of at most about `limit` bytes where possible.

        Yields:
            Buffer index, byte offset in that buffer, bytes.
        """
        self.info(name)
        if isinstance(self._source, HrrySource):
            yield from self._source.stored_pieces(name, limit)
            return
        dtype = self.plain_dtype(name)
        if dtype is None or dtype.kind == "b":  # another layout than here
            for index, data in enumerate(encode_tensor(self[name])[1]):
                yield index, 0, data
            return
        for start, data in self.plain_pieces(name, limit):
            yield 0, start, data

    def plain_pieces(self, name: str, limit: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Byte offset and bytes of a plain tensor, in pieces of at most `limit` bytes, into new memory."""
        nbytes = self.info(name).nbytes
        for start in range(0, nbytes, limit):
            yield start, self._source.read_bytes(name, start, min(start + limit, nbytes))

    def logical_dtype(self, name: str) -> np.dtype[Any] | None:
        """Dtype of the array that `self[name]` gives, for tensors that are not block-scaled.

        Quantized tensors without a scheme of ours (two-level GGUF types, activation order) decode to float32.
        None: a dtype that nothing here knows.
        """
        info, dtype = self.info(name), self.plain_dtype(name)
        if dtype is not None:
            return dtype
        if info.quantization:
            return np.dtype(np.float32)
        return self._source.packed_dtype(name)

    def descriptor(self, name: str) -> TensorDescriptor:
        """The Hurray descriptor of the tensor as it is, for a `.hrry` file that keeps it.

        Raises:
            InputError: the format cannot hold it.
            UnsupportedError: a dtype that nothing here knows.
        """
        info = self.info(name)
        if isinstance(self._source, HrrySource):
            return self._source.file.descriptor(name)
        if info.scheme is not None and info.axis is not None:
            return plan_tensor(info.shape, info.axis, info.scheme)
        dtype = self.logical_dtype(name)
        if dtype is None:
            raise UnsupportedError(f"the dtype {info.dtype} is unknown here", tensor=name, found=info.dtype)
        return plan_array(info.shape, dtype)

    def __contains__(self, name: object) -> bool:
        """True if there is a tensor of that name; reads nothing."""
        return name in self.infos

    def __eq__(self, other: object) -> bool:
        """Checkpoints are equal to themselves only: comparing values would read everything."""
        return self is other

    def __hash__(self) -> int:
        """As for any object."""
        return id(self)

    def __iter__(self) -> Iterator[str]:
        """Names in the file's order."""
        return iter(self.infos)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.infos)

    def findings(self, name: str) -> tuple[str, ...]:
        """What is legal in a quantized weight but hardly meant, one line each; reads all of it."""
        with error_context(file=str(self.path), tensor=name):
            return self._source.findings(name)

    def forget(self) -> None:
        """Give back the physical memory of what was read through maps; arrays stay valid."""
        self._source.forget()

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


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    permissive: bool = False,
    dialect: str | None = None,
    zero_point_bias: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Open a file or model folder; kind and dialect are told by bytes, config, names and shapes.

    Files: safetensors, `.hrry`, GGUF (any part of a split one), `*.safetensors.index.json`. Folders: a
    `config.json` with one safetensors file or shards and their index.

    Args:
        path: the file or folder.
        permissive: read `.hrry` files that break rules which do not endanger the values.
        dialect: read quantized weights as this dialect only; `"none"`: show the stored tensors as they are.
        zero_point_bias: 1 if stored zero points are `z - 1` (GPTQ v1), 0 if they are `z`; None: as the config
            says.
        settings: further choices of a dialect, see its module.

    Raises:
        InputError: no such file, or a file of another kind (the message says which).
        FormatError: the file breaks a rule of its format, or config, names and shapes contradict each other.
    """
    path = as_path(path)
    options = Options(
        zero_point_bias, dict(as_mapping({} if settings is None else settings, "settings", "keys to values"))
    )
    check_settings(options.settings)
    _check_forced(dialect, zero_point_bias)
    asked = {"dialect": dialect, "zero_point_bias": zero_point_bias, "settings": options.settings}
    with error_context(file=str(path)), without_collection():
        source = open_source(path, permissive=permissive, options=options, forced=dialect)
        return Checkpoint(path, source, asked)


def _check_forced(dialect: str | None, zero_point_bias: int | None) -> None:
    if not is_one_of(dialect, (None, "none", *NAMES)):
        raise SchemeError(
            f"unknown dialect {dialect!r}",
            found=dialect,
            field="dialect",
            hint=f"one of {', '.join(NAMES)}, none",
        )
    if zero_point_bias is not None and not (is_integer(zero_point_bias) and zero_point_bias in (0, 1)):
        raise InputError(
            f"zero_point_bias is {zero_point_bias!r}",
            found=zero_point_bias,
            field="zero_point_bias",
            rule="1 if stored zero points are z - 1, 0 if they are z, None as the config says",
        )

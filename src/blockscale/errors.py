"""The exceptions of blockscale: each names what was found, the rule it breaks, and what to do.

Every layer fills in what it knows: the lowest one the rule and the value, the middle one the tensor, the
top one the file (see `error_context`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class BlockscaleError(Exception):
    """Base of every error that blockscale raises on purpose.

    Attributes:
        message: what is wrong, in one sentence, with the value found.
        rule: the rule that is broken; for formats the identifier of the rule (`"R10"`) and its text.
        found: the offending value, if there is one.
        hint: what to do about it.
        file: the file concerned.
        tensor: the tensor concerned.
        field: the field of a header or descriptor concerned.
        offset: byte offset of the field, in the structure that `message` speaks of.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        found: object = None,
        hint: str | None = None,
        file: str | None = None,
        tensor: str | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        self.found = found
        self.hint = hint
        self.file = file
        self.tensor = tensor
        self.field = field
        self.offset = offset

    def __str__(self) -> str:
        """The whole message: place, fault, then `rule:` and `try:` lines."""
        where = [str(self.file)] if self.file is not None else []
        if self.tensor is not None:
            where.append(f"tensor {self.tensor!r}")
        if self.field is not None and not (not where and self._names_field()):
            at = f" (offset {self.offset})" if self.offset is not None else ""
            where.append(f"field {self.field}{at}")
        lines = [": ".join([*where, self.message])]
        if self.rule is not None:
            lines.append(f"  rule: {self.rule}")
        if self.hint is not None:
            lines.append(f"  try:  {self.hint}")
        return "\n".join(lines)

    def _names_field(self) -> bool:
        """Whether the message names the field itself, as those about arguments do."""
        return self.offset is None and str(self.field) in self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all fields, so that errors survive process pools."""
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(kind: type[BlockscaleError], message: str, fields: dict[str, object]) -> BlockscaleError:
    error = kind(message)
    error.__dict__.update(fields)
    return error


class InputError(BlockscaleError, ValueError):
    """An argument that cannot be used: dtype, shape, axis, option."""


class MissingTensorError(InputError, KeyError):
    """A name that a checkpoint does not hold."""

    def __str__(self) -> str:
        """The whole message (KeyError would print its own)."""
        return BlockscaleError.__str__(self)


class RowIndexError(InputError, IndexError):
    """A row that a tensor does not have; ends a loop over its rows, as IndexError does."""


class SchemeError(InputError):
    """A scheme, rule or option that does not exist or does not fit."""


class AxisError(InputError):
    """An axis outside the tensor."""


class BlockAxisError(InputError):
    """A matmul whose reduction axis is not the axis along which the weight's blocks run."""


class BlockSizeError(InputError):
    """A block size that is not allowed."""


class NonFiniteError(InputError):
    """NaN, an infinity or a number beyond float32 among the values to quantize."""


class ScaleOverflowError(InputError):
    """A scale beyond the range of its stored type."""


class OverflowingValueError(InputError):
    """A decoded value that the requested output type cannot hold."""


class UnsupportedError(BlockscaleError, NotImplementedError):
    """Something that is valid but that blockscale cannot do, with the reason."""


class FormatError(BlockscaleError, ValueError):
    """A file or descriptor that breaks a rule of its format."""


class DescriptorError(FormatError):
    """A Hurray descriptor that breaks a rule."""


class ContainerError(FormatError):
    """A file whose structure is broken: truncated, overlapping, out of bounds."""


class OutputError(BlockscaleError, OSError):
    """Output that cannot be written: it exists, the disk is full, the folder is missing."""

    def __str__(self) -> str:
        """The whole message (OSError would print its own)."""
        return BlockscaleError.__str__(self)


@contextmanager
def error_context(*, file: str | None = None, tensor: str | None = None) -> Iterator[None]:
    """Fill in the file and tensor of any BlockscaleError that passes through and lacks them."""
    try:
        yield
    except BlockscaleError as error:
        if error.file is None:
            error.file = file
        if error.tensor is None:
            error.tensor = tensor
        raise

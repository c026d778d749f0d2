"""Arguments of the public functions: what is of the wrong Python type is refused like any other bad input."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, SchemeError


def as_array(value: object, field: str, dtype: Any = None) -> NDArray[Any]:
    """An argument as an array.

    Raises:
        InputError: it is no array of numbers of one shape.
    """
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).split(". ")[0]
        raise InputError(
            f"{type(value).__name__} is not an array of numbers: {reason}",
            found=type(value).__name__,
            field=field,
            hint="a NumPy array, or nested lists of one length",
        ) from None


def as_dtype(value: Any, field: str) -> np.dtype[Any]:
    """An argument as a dtype.

    Raises:
        InputError: NumPy knows no such dtype.
    """
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{value!r} is no dtype: {error}", found=value, field=field) from None
    return found


def as_path(value: object) -> Path:
    """An argument as a path that the system can look up.

    Raises:
        InputError: it is no path, or holds a NUL byte or a name that is too long.
    """
    try:
        path = Path(os.fsdecode(value))  # type: ignore[arg-type]
    except TypeError:
        raise InputError(
            f"a path is a string or a pathlib.Path, not {type(value).__name__}", found=value, field="path"
        ) from None
    try:
        path.lstat()
    except ValueError as error:
        raise InputError(f"{str(path)!r} is no path: {error}", found=str(path), field="path") from None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise InputError(f"cannot be reached: {error.strerror}", file=str(path), field="path") from None
    return path


def as_mapping(value: object, field: str, of: str) -> Mapping[Any, Any]:
    """An argument as a mapping; InputError for anything else.

    Args:
        value: the argument.
        field: its name.
        of: what it maps, for the message.
    """
    check_type(value, Mapping, field, f"a mapping of {of}")
    return cast(Mapping[Any, Any], value)


def check_type(value: object, kind: type, field: str, noun: str) -> None:
    """InputError unless an argument is of a type.

    Args:
        value: the argument.
        kind: the type.
        field: its name.
        noun: the type in words, with its article.
    """
    if not isinstance(value, kind):
        found = type(value).__name__
        raise InputError(f"{field} is a {found}, not {noun}", found=found, field=field)


def check_name(value: object, field: str, noun: str, names: Collection[str]) -> None:
    """SchemeError unless an argument is a string.

    Args:
        value: the argument.
        field: its name.
        noun: what it is and may be, for the message.
        names: those there are, for the hint.
    """
    if not isinstance(value, str):
        raise SchemeError(
            f"{noun}, not {type(value).__name__}",
            found=value,
            field=field,
            hint=f"one of {', '.join(names)}",
        )


def is_one_of(value: object, names: Collection[str | None]) -> bool:
    """True for one of some names (or None, if that is among them); False for anything else, arrays too."""
    return (value is None or isinstance(value, str)) and value in names


def is_integer(value: object) -> bool:
    """True for what counts as an integer: int and NumPy's integers, not bool and not arrays of several."""
    if isinstance(value, bool | np.bool_):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def first_index(found: NDArray[np.bool_]) -> tuple[int, ...]:
    """Where the first true element of an array is, in C order; there must be one."""
    return tuple(int(i) for i in np.unravel_index(int(found.argmax()), found.shape))

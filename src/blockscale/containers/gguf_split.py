"""Models that are split over several GGUF files, as `NAME-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ContainerError
from .gguf_header import Header
from .gguf_values import GgufValue

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_paths(path: Path, metadata: Mapping[str, GgufValue]) -> list[Path]:
    """The files of the model that `path` is part of, in order; only itself if it is not split.

    Args:
        path: any of the files.
        metadata: its metadata.

    Raises:
        ContainerError: the metadata speak of several files, but the name does not say which.
    """
    count = _integer(metadata, COUNT)
    if count is None or count <= 1:
        return [path]
    match = _NAME.fullmatch(path.name)
    number = _integer(metadata, NUMBER) or 0
    if match is None or int(match["count"]) != count or int(match["number"]) != number + 1:
        raise ContainerError(
            f"it is part {number + 1} of {count} by its metadata, but its name does not say so",
            rule=f"split files are named NAME-{number + 1:05}-of-{count:05}.gguf",
            found=path.name,
            field=COUNT,
            hint="give the files their names back; other parts are found by them",
        )
    return [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]


def check_parts(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    """The files belong together: numbers, counts, and no tensor twice.

    Raises:
        ContainerError: they do not.
    """
    seen: dict[str, Path] = {}
    for i, (path, header) in enumerate(zip(paths, headers, strict=True)):
        for key, wanted in ((NUMBER, i), (COUNT, len(paths))):
            found = _integer(header.metadata, key)
            if found != wanted:
                raise ContainerError(
                    f"the value is {found}, not {wanted}",
                    rule="parts of a split model are numbered from 0 and agree on their count",
                    found=found,
                    file=str(path),
                    field=key,
                )
        for name in header.entries:
            if name in seen:
                raise ContainerError(
                    f"the tensor is in {seen[name].name} already",
                    rule="names of tensors are unique among the parts",
                    file=str(path),
                    tensor=name,
                )
            seen[name] = path
    total = _integer(headers[0].metadata, TENSORS)
    if total is not None and total != len(seen):
        raise ContainerError(
            f"the parts hold {len(seen)} tensors, the metadata say {total}",
            rule="a split model is whole",
            found=len(seen),
            file=str(paths[0]),
            field=TENSORS,
        )


def without_split(metadata: Mapping[str, GgufValue]) -> dict[str, GgufValue]:
    """Metadata of the whole model: the keys that number its files left out."""
    return {key: value for key, value in metadata.items() if key not in (NUMBER, COUNT, TENSORS)}


def _integer(metadata: Mapping[str, GgufValue], key: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    if type(value.value) is not int or value.value < 0:
        raise ContainerError(f"the value is {value!r}", rule="it is a count", found=value.value, field=key)
    return value.value

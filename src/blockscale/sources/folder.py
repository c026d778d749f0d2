"""Opening a file or a model folder: which files belong together, and what else lies beside them."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..containers.safetensors import SafetensorsFile
from ..containers.sniff import recognise
from ..dialects.base import Options
from ..errors import ContainerError, FormatError, InputError, error_context
from .base import Source
from .gguf import GgufSource
from .hrry import HrrySource
from .safetensors import SafetensorsSource


def open_source(path: Path, *, permissive: bool, options: Options, forced: str | None) -> Source:
    """Open a file or a folder; the kind is told by its first bytes.

    Raises:
        InputError: nothing there that can be opened; the message says what is.
        FormatError: a file breaks a rule of its format.
    """
    if path.is_dir():
        return _open_folder(path, options, forced)
    if path.name.endswith(".index.json"):
        return _open_shards(path, options, forced)
    kind = recognise(path)
    if kind == "hrry":
        return HrrySource(path, permissive=permissive)
    if kind == "gguf":
        return GgufSource(path)
    return _open_safetensors([path], path.parent, options, forced, alone=True)


def list_shards(path: Path) -> list[Path]:
    """The files that hold the weights of a model folder, or of an index.

    Raises:
        InputError: it does not say which.
        ContainerError: a broken index, or shards that are missing.
    """
    if path.is_dir():
        indices, files = _weights_of(path)
        if not indices:
            return files
        path = indices[0]
    return [path.parent / name for name in sorted(set(_weight_map(path).values()))]


def _open_folder(folder: Path, options: Options, forced: str | None) -> Source:
    indices, files = _weights_of(folder)
    if indices:
        return _open_shards(indices[0], options, forced)
    return _open_safetensors(files, folder, options, forced)


def _weights_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """The index, if there is one, and the safetensors files."""
    indices = sorted(folder.glob("*.safetensors.index.json"))
    files = sorted(folder.glob("*.safetensors"))
    if len(indices) == 1:
        return indices, files
    if len(files) == 1 or (files and not indices and all("-of-" in f.name for f in files)):
        return [], files
    listed = ", ".join(p.name for p in (*indices, *files)[:4]) or "none"
    raise InputError(
        f"which file of the folder is meant? There are {len(files)} .safetensors files: {listed}",
        file=str(folder),
        field="which",
        rule="a model folder has one .safetensors file, or shards and one *.safetensors.index.json",
        hint="name the file",
    )


def _open_shards(index: Path, options: Options, forced: str | None) -> Source:
    listed = _weight_map(index)
    names = sorted(set(listed.values()))
    return _open_safetensors([index.parent / n for n in names], index.parent, options, forced, listed=listed)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor to file, all of which are there."""
    listed = _read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
        raise ContainerError("there is no weight_map from names to files", file=str(index))
    names = sorted(set(listed.values()))
    missing = [n for n in names if "/" in n or not (index.parent / n).is_file()]
    if missing:
        raise ContainerError(
            f"{len(missing)} of {len(names)} shards are missing: {', '.join(missing[:3])}",
            file=str(index),
            found=missing,
            hint="download them, or mend the index",
        )
    return listed


def _open_safetensors(
    paths: Sequence[Path],
    folder: Path,
    options: Options,
    forced: str | None,
    *,
    alone: bool = False,
    listed: Mapping[str, str] | None = None,
) -> SafetensorsSource:
    files: list[SafetensorsFile] = []
    try:
        for path in paths:
            with error_context(file=str(path)):
                files.append(SafetensorsFile(path))
        if listed is not None:
            _check_index(files, listed)
        config, companions = _read_companions(folder, {p.name for p in paths}, alone=alone)
        return SafetensorsSource(files, config, companions, options, forced)
    except BaseException:
        for f in files:
            f.close()
        raise


def _check_index(files: Sequence[SafetensorsFile], listed: Mapping[str, str]) -> None:
    """Every tensor that the index lists is in its shard."""
    there = {f.path.name: f.entries for f in files}
    wrong = [name for name, shard in listed.items() if name not in there[shard]]
    if wrong:
        raise ContainerError(
            f"the index lists {len(wrong)} tensors that are not in their shards, the first {wrong[0]!r}",
            file=str(files[0].path.parent),
            tensor=wrong[0],
            found=listed[wrong[0]],
        )


_TRAVELS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md", ".vocab", ".bpe")


def _read_companions(folder: Path, own: set[str], *, alone: bool) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """The config beside the weights, and the small files that belong to the model.

    A lone file in a folder of other things has a config only if it is called as models call theirs.
    """
    if alone and own != {"model.safetensors"}:
        return {}, ()
    config = _read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    for name in ("quantize_config.json", "quant_config.json"):
        if (folder / name).is_file():
            config = _with_quantize_config(config, _read_json(folder / name), folder / name)
    companions = sorted(
        p
        for p in folder.iterdir()
        if p.is_file() and p.suffix in _TRAVELS and not p.name.endswith(".safetensors.index.json")
    )
    return config, tuple(companions)


def _with_quantize_config(config: dict[str, Any], extra: dict[str, Any], path: Path) -> dict[str, Any]:
    inside = config.get("quantization_config")
    if not isinstance(inside, dict):
        return {**config, "quantization_config": extra}
    for key in ("bits", "group_size", "desc_act", "sym", "checkpoint_format"):
        if key in inside and key in extra and inside[key] != extra[key]:
            raise FormatError(
                f"{key} is {extra[key]!r} here and {inside[key]!r} in config.json",
                file=str(path),
                field=key,
                found=extra[key],
                hint="mend the wrong one; --dialect and --zero-point-bias force a reading",
            )
    return {**config, "quantization_config": {**extra, **inside}}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 100 << 20:
            raise ContainerError("the JSON file is above 100 MiB", file=str(path))
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"it is not JSON: {error}", file=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
    if not isinstance(value, dict):
        raise ContainerError("it is no JSON object", file=str(path), found=type(value).__name__)
    return value


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the garbage collector, which takes half of the time that an index of 100,000 tensors needs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

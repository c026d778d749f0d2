"""What GPTQ and AWQ share: the parts of a weight, its config section, its shapes, its block size.

Both store a weight as `<prefix>qweight`, `<prefix>qzeros`, `<prefix>scales` (GPTQ also `<prefix>g_idx`),
where the prefix ends in `.` (or `_`: vLLM's `w13_qweight`). The weight is called `<prefix>weight`, as the
plain one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, InputError, UnsupportedError
from ..schemes import Scheme, scheme
from .base import Options, Stored, Weight
from .words import U32, WORD

ROLES = ("qweight", "qzeros", "scales", "g_idx")
NEEDED = ("qweight", "scales", "qzeros")
SCALE_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
PLAIN_ZEROS = (*SCALE_NAMES, "I8", "U8", "I16", "I32", "I64")


@dataclass(frozen=True, slots=True)
class Parts:
    """The stored tensors of one weight.

    Attributes:
        prefix: what their names start with.
        roles: role to stored tensor.
    """

    prefix: str
    roles: Mapping[str, Stored]

    @property
    def name(self) -> str:
        """Logical name of the weight."""
        return f"{self.prefix}weight"

    @property
    def module(self) -> str:
        """Name of the module, as configs spell it."""
        return self.prefix.rstrip("._")

    @property
    def complete(self) -> bool:
        """True if no part is missing."""
        return all(role in self.roles for role in NEEDED)

    def shape(self, role: str) -> tuple[int, ...]:
        """Stored shape of a part."""
        return self.roles[role].shape

    def check_complete(self) -> None:
        """FormatError that names the first missing part."""
        for role in NEEDED:
            if role not in self.roles:
                there = ", ".join(f"{self.prefix}{r}" for r in self.roles)
                raise FormatError(
                    f"{self.prefix}{role} is missing; found {there}",
                    rule=f"a quantized weight has {', '.join(NEEDED)}",
                    found=sorted(self.roles),
                    hint="add the shard that holds it, or export the model again",
                    tensor=self.prefix + role,
                )


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers behind the shapes of one weight.

    Attributes:
        lead: dimensions before the matrix (experts), usually none.
        n_in: inputs of the layer.
        n_out: outputs of the layer.
        bits: width of a code.
        groups: groups along the input.
        group_size: inputs per group; the last group may have fewer.
        packed_zeros: True if zero points lie in words, False if they are plain numbers shaped as the scales.
    """

    lead: tuple[int, ...]
    n_in: int
    n_out: int
    bits: int
    groups: int
    group_size: int
    packed_zeros: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return (*self.lead, self.n_out, self.n_in)

    @property
    def stored_group_size(self) -> int:
        """The group size as configs say it: -1 if the only group is the whole input."""
        return -1 if self.groups == 1 else self.group_size


def find_parts(stored: Mapping[str, Stored]) -> list[Parts]:
    """All weights that have a `qweight` or `qzeros`, in the order of the file."""
    prefixes: dict[str, None] = {}
    for name in stored:
        for role in ("qweight", "qzeros"):
            prefix = name.removesuffix(role)
            if name.endswith(role) and (not prefix or prefix[-1] in "._"):
                prefixes[prefix] = None
    return [Parts(p, {r: stored[p + r] for r in ROLES if p + r in stored}) for p in prefixes]


def fits_gptq(parts: Parts) -> bool:
    """True if the parts have GPTQ's shapes: words along the input."""
    if not parts.complete:
        return False
    words, scales, zeros = (parts.shape(role) for role in NEEDED)
    same_rank = len(words) == len(scales) == len(zeros) >= 2
    return same_rank and words[-1] == scales[-1] and zeros[-2] == scales[-2]


def fits_awq(parts: Parts) -> bool:
    """True if the parts have the shapes of AWQ's gemm version: 4-bit words along the output."""
    if not parts.complete:
        return False
    words, scales, zeros = (parts.shape(role) for role in NEEDED)
    same_rank = len(words) == len(scales) == len(zeros) >= 2
    return same_rank and words[-1] * 8 == scales[-1] and zeros[-2] == scales[-2]


def quantization_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that speaks of quantization; empty if there is none.

    Args:
        config: a `config.json`, or a `quantize_config.json` (`quant_config.json`) as it is.
    """
    for place in (config, config.get("text_config"), config.get("llm_config")):
        section = place.get("quantization_config") if isinstance(place, Mapping) else None
        if isinstance(section, Mapping):
            return section
    known = {"quant_method", "bits", "w_bit", "group_size", "q_group_size"}
    return config if known & set(config) else {}


def quant_method(section: Mapping[str, Any]) -> str:
    """The declared method, lower case with `-`; empty if there is none."""
    return str(section.get("quant_method", section.get("method", ""))).lower().replace("_", "-")


def read_int(section: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these keys that is there, as an integer.

    Raises:
        FormatError: it is no integer.
    """
    for key in keys:
        value = section.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(f"config: {key} is {value!r}", rule=f"{key} is an integer", found=value)
        return value
    return None


def check_options(options: Options, known: Mapping[str, tuple[Any, ...]], dialect: str) -> None:
    """InputError for a setting that the dialect does not have, or a value that the setting does not take."""
    for key, value in options.settings.items():
        if key not in known:
            raise InputError(
                f"{dialect} has no setting {key!r}",
                found=key,
                rule="options that are unknown or retired are refused, never ignored",
                hint=f"one of {', '.join(known)}",
            )
        if not any(value is v or (value == v and type(value) is type(v)) for v in known[key]):
            raise InputError(
                f"{dialect}: {key} = {value!r}",
                found=value,
                hint=f"{key} is one of {', '.join(repr(v) for v in known[key])}",
            )
    if options.zero_point_bias not in (None, 0, 1):
        raise InputError(
            f"zero_point_bias is {options.zero_point_bias!r}",
            found=options.zero_point_bias,
            hint="1 (stored z - 1), 0 (stored z) or None (as the config says)",
        )


def check_dtypes(parts: Parts) -> bool:
    """Check the dtypes of the parts.

    Returns:
        True if the zero points lie in words, False if they are plain numbers shaped as the scales.

    Raises:
        UnsupportedError: words of another width.
        FormatError: scales or zero points that are no numbers of a known kind.
    """
    words, scales, zeros = (parts.roles[role] for role in NEEDED)
    if words.dtype not in ("I32", "U32"):
        raise UnsupportedError(
            f"the codes lie in {words.dtype} words",
            rule="GPTQ and AWQ (gemm) use int32 words; I16 is AWQ's gemv_fast or a pack_dtype of GPTQModel",
            found=words.dtype,
            hint="export the model again with 32-bit words",
            tensor=words.name,
        )
    if scales.dtype not in SCALE_NAMES:
        raise FormatError(
            f"the scales are {scales.dtype}",
            rule=f"scales are {', '.join(SCALE_NAMES)}",
            found=scales.dtype,
            tensor=scales.name,
        )
    if zeros.shape == scales.shape and zeros.dtype in PLAIN_ZEROS:
        return zeros.dtype in ("I32", "U32") and scales.shape[-1:] == (1,)
    if zeros.dtype not in ("I32", "U32"):
        raise FormatError(
            f"the zero points are {zeros.dtype} {zeros.shape}, the scales {scales.shape}",
            rule="zero points are int32 words, or plain numbers shaped as the scales",
            found=zeros.dtype,
            tensor=zeros.name,
        )
    return True


def block_size_of(geometry: Geometry, name: str) -> tuple[int, int]:
    """Block size of the BlockTensor and how many blocks make a group.

    A single group is one block, the next power of two above the input. A group size that is no power of two
    is cut into blocks of its largest power of two, which all get the group's scale: the values stay the same.

    Raises:
        UnsupportedError: an odd group size.
    """
    if geometry.groups == 1:
        return max(2, 1 << (geometry.n_in - 1).bit_length()), 1
    size = geometry.group_size
    block = size & -size
    if block < 2:
        raise UnsupportedError(
            f"groups of {size} inputs cannot be cut into blocks of a power of two",
            found=size,
            rule="block sizes are powers of two, at least 2",
            tensor=name,
        )
    return block, size // block


def make_scheme(geometry: Geometry, scales: Stored, name: str) -> tuple[Scheme, int]:
    """The scheme of a weight, and how many of its blocks make a group."""
    block, repeat = block_size_of(geometry, name)
    row = scheme(f"uint{geometry.bits}", block_size=block, scale=SCALE_NAMES[scales.dtype], symmetric=False)
    return row, repeat


def load_part(weight: Weight, role: str, load: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Load a part and check that it has the shape that the weight needs.

    Raises:
        FormatError: it has another shape.
    """
    array: NDArray[Any] = np.asarray(load(weight.parts[role]))
    if array.shape != shape:
        raise FormatError(
            f"{weight.parts[role]} has shape {array.shape}, the weight {weight.shape} needs {shape}",
            found=array.shape,
            tensor=weight.parts[role],
        )
    return array


def as_words(array: NDArray[Any], name: str) -> U32:
    """A stored int32 array as uint32 words; nothing is copied if it is contiguous."""
    if array.dtype.itemsize != 4 or array.dtype.kind not in "iu":
        raise FormatError(f"{array.dtype} where int32 words belong", found=str(array.dtype), tensor=name)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).view(WORD)


def near_names(name: str, names: Iterable[str]) -> str:
    """Up to three names that look like this one, for a message."""
    import difflib

    found = difflib.get_close_matches(name, list(names), 3, 0.4)
    return f"near names: {', '.join(found)}" if found else "no name comes near"

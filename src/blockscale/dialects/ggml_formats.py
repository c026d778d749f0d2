"""The block types of ggml that a BlockTensor holds exactly, and what GGUF can hold.

Source: ggml, `ggml-common.h`; gguf package 0.19, `quants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..containers.gguf_types import GgmlType, explain_length, ggml_type
from ..errors import UnsupportedError
from ..schemes import Scheme, scheme


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a block lies in its bytes: scale, minimum, fifth bits, codes; each where the format has it.

    Attributes:
        type: the ggml type.
        scheme: what the numbers mean.
        bias: what ggml adds to a code before it is stored.
        code_bits: bits that a code has in the file: 4, 5 or 8.
    """

    type: GgmlType
    scheme: Scheme
    bias: int
    code_bits: int

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scale, which is first."""
        return self.scheme.scale.bits // 8

    @property
    def high_at(self) -> int:
        """Where the fifth bits begin, or the codes if there are none."""
        return self.scale_bytes * (2 if self.scheme.offset == "minimum" else 1)

    @property
    def codes_at(self) -> int:
        """Where the codes (their low four bits) begin."""
        return self.high_at + (4 if self.code_bits == 5 else 0)


def _format(type_name: str, bias: int, code_bits: int) -> BlockFormat:
    return BlockFormat(ggml_type(type_name), scheme(type_name.lower()), bias, code_bits)


FORMATS: dict[str, BlockFormat] = {
    row.type.name: row
    for row in (
        _format("Q8_0", 0, 8),
        _format("Q4_0", 8, 4),
        _format("Q4_1", 0, 4),
        _format("Q5_0", 16, 5),
        _format("Q5_1", 0, 5),
        _format("MXFP4", 0, 4),
    )
}
"""Types that a BlockTensor holds exactly."""


def scheme_for(type_name: str | GgmlType) -> Scheme | None:
    """The scheme of a block type, or None where a BlockTensor cannot hold it."""
    found = FORMATS.get(ggml_type(type_name).name)
    return found.scheme if found else None


def spec_for(wanted: Scheme) -> str | None:
    """The name of the ggml type that holds a scheme bit for bit, or None."""
    rows = [row for row in FORMATS.values() if same_numbers(row.scheme, wanted)]
    named = [row for row in rows if row.scheme.name == wanted.name]
    return (named or rows)[0].type.name if rows else None


def same_numbers(a: Scheme, b: Scheme) -> bool:
    """Schemes that differ in name or default rule only; five-bit codes fit no other name."""
    if a.name != b.name and not (a.default_rule and b.default_rule):
        return False
    mine = (a.family, a.element, a.block_size, a.scale, a.offset, a.value_exponent)
    return mine == (b.family, b.element, b.block_size, b.scale, b.offset, b.value_exponent)


def can_hold(wanted: Scheme, shape: Sequence[int], axis: int = -1) -> str | None:
    """Why GGUF cannot hold a tensor of a scheme, in a sentence; None if it can."""
    shape = tuple(shape)
    if not shape:
        return "a scalar has no blocks"
    if spec_for(wanted) is None:
        names = ", ".join(f"{row.scheme.name} ({row.scheme.describe()})" for row in FORMATS.values())
        return f"GGUF has no type for {wanted.name} ({wanted.describe()}); it has {names}"
    if axis % len(shape) != len(shape) - 1:
        last = len(shape) - 1
        return f"its blocks run along dimension {axis % len(shape)}; GGUF blocks run along the last, {last}"
    uneven = explain_length(shape, wanted.block_size)
    return None if uneven is None else f"{uneven}; GGUF rows are whole blocks of {wanted.block_size}"


def format_of(type_name: str | GgmlType) -> BlockFormat:
    """The row of a type; UnsupportedError, with the reason, where there is none."""
    kind = ggml_type(type_name)
    if kind.name not in FORMATS:
        raise UnsupportedError(
            f"{kind.name} is not read as blocks: {kind.note or 'plain numbers'}",
            rule="a BlockTensor has one level of scales and evenly spaced codes (as scheme 0x03), or is MX",
            found=kind.name,
            hint="dequantize() reads its values as float32" if kind.note else "read it as an array",
        )
    return FORMATS[kind.name]

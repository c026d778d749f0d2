"""The rules of the Hurray format, one row each: identifier, text, section, and what permissive mode does.

`R1` .. `R23` carry the numbers of the format's list of reject rules (section 3.6 of the digest), `H..` are
the other rules of a descriptor, `F..` those of a `.hrry` file. Every error of `blockscale.hurray` and
`blockscale.containers.hrry` names one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ContainerError, DescriptorError


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the format.

    Attributes:
        id: `R10`, `H4`, `F7` ...
        text: what must hold.
        section: where the digest of the format says so.
        is_tolerated: permissive mode lets a violation pass. (R19 is tolerated in part: see `geometry`.)
    """

    id: str
    text: str
    section: str
    is_tolerated: bool = False

    def __str__(self) -> str:
        """One line: identifier, text, section."""
        return f"{self.id}: {self.text} (Hurray {self.section})"


# fmt: off
_TABLE = (
    # descriptor: framing and header
    Rule("H1",  'a descriptor begins with "HRRY"', "2.1"),
    Rule("H2",  "descriptor_length is at least 20, and that many bytes are there", "2.7"),
    Rule("H3",  "every part lies inside descriptor_length", "2.7"),
    Rule("H4",  "the descriptor's version is 1.x", "2.7"),
    Rule("H5",  "a version 1.0 descriptor ends exactly with its last part", "2.7"),
    Rule("H6",  "flag bits 5 to 31 are zero", "2.1"),
    Rule("H7",  "the type tag is assigned", "1.1", is_tolerated=True),
    Rule("H8",  "tags 0x00 and 0xFF are invalid", "1.1, 2.3"),
    Rule("H9",  "the layout tag is assigned", "2.3", is_tolerated=True),
    Rule("H10", "an extension type section is there exactly for type tags 0xF0 to 0xFE", "2.1"),
    Rule("H11", "rank is at most 64", "2.1"),
    Rule("H12", "a scalar is stored row-major", "2.2"),
    Rule("H13", "byte_offset is at most the size of buffer 0", "2.2"),
    Rule("H14", "byte_offset is 0 for sparse, block-paged and composite layouts", "2.2"),
    # descriptor: layout and sections
    Rule("H15", "reserved bytes are zero", "2.7"),
    Rule("H16", "the fields of a layout have assigned values", "2.3"),
    Rule("H17", "tiled layouts nest at most 8 deep", "2.3"),
    Rule("H18", "the buffer table has the layout's own buffers, and one per parameter array", "2.4"),
    Rule("H19", "alignment is a power of two, at least 64 for a buffer that is not empty", "2.4"),
    Rule("H20", "the device tag is assigned", "2.4"),
    Rule("H21", "sync_mode is 0, 1 or 2, and 0 on a CPU", "2.4"),
    Rule("H22", "memory_class is assigned and possible on the device", "2.4"),
    Rule("H23", "the reserved byte of a buffer handle is zero", "2.4", is_tolerated=True),
    Rule("H24", "all buffers of a tensor share device_tag and memory_class", "2.4"),
    Rule("H25", "a shard lies inside its parent and has no dynamic dimension", "2.2, 2.6"),
    Rule("H26", "statistics have no reserved mask bit, n <= m, stddev >= 0, flags of 0 or 1", "2.6"),
    Rule("H27", "an extension type below 8 bits has 1, 2 or 4 and is packed, others are not", "2.6"),
    Rule("H28", "a composite member is a correction (0) or a base (1)", "2.6"),
    Rule("H29", "only dense layouts are quantized", "6.1, A26", is_tolerated=True),
    # descriptor: when the data are used
    Rule("H30", "the data buffer holds every element that the layout addresses", "2.7"),
    Rule("H31", "dynamic dimensions are resolved before the data are used", "2.2"),
    Rule("H32", "a buffer has the size that the buffer table says", "2.4"),
    Rule("H33", "float8_e8m0 bytes are 1 to 254", "3.7", is_tolerated=True),
    # quantization: header and framing
    Rule("R1",  "the scheme tag is not 0x00 or 0xFF", "3.6"),
    Rule("R2",  "the scheme tag is assigned", "3.6", is_tolerated=True),
    Rule("R3",  "the scheme's version is 1", "3.6, A16"),
    Rule("R4",  "no flag bit is set that the scheme does not define", "3.6"),
    Rule("R5",  "the quantization section is as long as the scheme needs", "3.6"),
    Rule("R6",  "reserved bytes are zero", "3.6"),
    Rule("R7",  "the storage type is one of the scheme's", "3.6"),
    # quantization: axis and block
    Rule("R8",  "axis is below the rank", "3.6"),
    Rule("R9",  "the quantized axis is not dynamic", "3.6"),
    Rule("R10", "block size is a power of two, 2 or more (NF4: 8 or more; MXFP: 16 to 2048)", "3.6"),
    Rule("R11", "a block is no longer than the axis, unless that is empty", "3.6"),
    Rule("R12", "an MXFP axis is one or more whole blocks", "3.6"),
    # quantization: buffers
    Rule("R13", "a parameter index is below buffer_count", "3.6"),
    Rule("R14", "a parameter buffer is not one of the data buffers", "3.6"),
    Rule("R15", "a symmetric scheme has zero-point index 0xFFFFFFFF", "3.6"),
    Rule("R16", "parameter buffers share the data buffer's device_tag and memory_class", "3.6"),
    Rule("R17", "a parameter buffer has exactly the size that the scheme says", "3.6"),
    Rule("R18", "buffer_count is the layout's own buffers and the distinct parameter buffers", "3.6"),
    Rule("R19", "the data buffer holds the whole tensor, its last blocks padded to full ones", "3.6, 3.9"),
    # quantization: values
    Rule("R20", "a scale is finite and not zero (NF4: finite and not negative)", "3.6"),
    Rule("R21", "a zero point lies in the range of the storage type", "3.6"),
    Rule("R22", "the scale type is float32 (per block: float16, bfloat16 or float32)", "3.6"),
    Rule("R23", "an MXFP scale byte is 1 to 254", "3.6, 3.7", is_tolerated=True),
    # files
    Rule("F1",  "a file has a header of 64 and a trailer of 40 bytes", "4.1"),
    Rule("F2",  'a file begins with "HRRYFILE"', "4.1"),
    Rule("F3",  'a file ends with "HRRY"', "4.1"),
    Rule("F4",  "the container's version is 1.x", "4.1, A16"),
    Rule("F5",  "file flag bits 3 to 31 are zero", "4.1"),
    Rule("F6",  "the data alignment is a power of two from 4096 to 2097152", "4.1"),
    Rule("F7",  "the index has the CRC-32C of the trailer (0 where none is stored)", "4.1"),
    Rule("F8",  "the index lies between header and trailer, at a multiple of 8", "4.1"),
    Rule("F9",  "the metadata lie between header and trailer, at a multiple of 8, or are absent", "4.1"),
    Rule("F10", "a tensor name is UTF-8 of 1 to 65535 bytes and unique", "4.1"),
    Rule("F11", "a metadata key is UTF-8 of 1 to 65535 bytes and unique", "4.1"),
    Rule("F12", "a metadata value is one of the seven kinds and whole", "4.1"),
    Rule("F13", "the index gives a descriptor the length that it gives itself", "4.1"),
    Rule("F14", "a descriptor lies inside the file, at a multiple of 8", "4.1"),
    Rule("F15", "the data lie inside the file, at a multiple of the alignment", "4.1"),
    Rule("F16", "data_length runs from the first buffer to the end of the last one", "4.1"),
    Rule("F17", "index flags are zero", "4.1"),
    Rule("F18", "the index is used up by its entries", "4.1"),
    Rule("F19", "nothing in the file overlaps", "4.1"),
    Rule("F20", "the first descriptor lies at 64 or later, at a multiple of 8", "4.1"),
    Rule("F21", "reserved bytes are zero", "4.1"),
    Rule("F22", "a count is possible in the bytes that are there", "4.1"),
    Rule("F23", "the index of a file with SORTED_INDEX is sorted by name", "4.1"),
)
# fmt: on

RULES: dict[str, Rule] = {row.id: row for row in _TABLE}


class PermissiveWarning(UserWarning):
    """Something that strict reading refuses and permissive reading let pass, with its consequence."""


def broken(
    rule_id: str,
    message: str,
    *,
    field: str | None = None,
    offset: int | None = None,
    found: object = None,
    hint: str | None = None,
) -> DescriptorError:
    """The error that says a descriptor breaks a rule; `offset` counts from the descriptor's first byte."""
    return DescriptorError(
        message, rule=str(RULES[rule_id]), field=field, offset=offset, found=found, hint=hint
    )


def broken_file(
    rule_id: str,
    message: str,
    *,
    field: str | None = None,
    offset: int | None = None,
    found: object = None,
    hint: str | None = None,
    tensor: str | None = None,
) -> ContainerError:
    """The error that says a file breaks a rule; `offset` counts from the file's first byte."""
    return ContainerError(
        message,
        rule=str(RULES[rule_id]),
        field=field,
        offset=offset,
        found=found,
        hint=hint,
        tensor=tensor,
    )


def rule_id(error: DescriptorError | ContainerError) -> str:
    """Identifier of the rule that an error names (`"R10"`), or an empty string."""
    return (error.rule or "").partition(":")[0]


def is_tolerated(error: DescriptorError) -> bool:
    """True if permissive mode lets this violation pass."""
    rule = RULES.get(rule_id(error))
    return rule is not None and rule.is_tolerated

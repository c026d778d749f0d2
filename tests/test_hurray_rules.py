"""Every rule of a Hurray descriptor, each broken by a small change of a valid one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from blockscale.errors import DescriptorError
from blockscale.hurray import (
    RULES,
    TensorDescriptor,
    decode_quantization,
    decode_tensor,
    find_violations,
    rule_id,
    validate_buffers,
    validate_values,
)
from hurray_build import (
    MXFP,
    NF4,
    PER_BLOCK,
    PLAIN,
    VALID,
    Raw,
    handle,
    mxfp,
    nf4,
    per_block,
    per_channel,
    per_tensor,
)
from hurray_rule_cases import (
    DESCRIPTOR,
    DYNAMIC,
    PRIVATE,
    QUANTIZATION,
    SHARD,
    STRIDED,
    U32,
    VALUES,
    Case,
    in_section,
    in_table,
    statistics,
)

F16, I32 = np.float16, np.int32


def ids(cases: Sequence[Case]) -> list[str]:
    return [f"{rule} {what}" for rule, what, *_ in cases]


@pytest.mark.parametrize("name", VALID)
def test_the_base_descriptors_are_valid(name: str) -> None:
    raw = bytes(VALID[name])
    assert TensorDescriptor.decode(raw).encode() == raw
    assert find_violations(raw) == []


@pytest.mark.parametrize("raw", [PRIVATE, STRIDED, statistics(0, b""), PLAIN.but(flags=2, tail=SHARD)])
def test_the_base_sections_are_valid(raw: Raw) -> None:
    assert TensorDescriptor.decode(bytes(raw)).encode() == bytes(raw)


@pytest.mark.parametrize("case", [*QUANTIZATION, *DESCRIPTOR], ids=ids([*QUANTIZATION, *DESCRIPTOR]))
def test_broken_rule_is_named(case: Case) -> None:
    rule, _, raw, field, offset = case
    with pytest.raises(DescriptorError) as caught:
        TensorDescriptor.decode(bytes(raw))
    error = caught.value
    assert rule_id(error) == rule
    assert error.rule == str(RULES[rule])
    assert error.field == field
    assert offset is None or error.offset == offset
    assert error.offset is not None
    assert error.offset <= len(bytes(raw))
    text = str(error)
    assert field in text
    assert f"rule: {rule}: " in text


@pytest.mark.parametrize("case", [*QUANTIZATION, *DESCRIPTOR], ids=ids([*QUANTIZATION, *DESCRIPTOR]))
def test_find_violations_names_the_same_rule_first(case: Case) -> None:
    found = find_violations(bytes(case[2]))
    assert found
    assert rule_id(found[0]) == case[0]


TOLERATED = {"H7", "H9", "H23", "H29", "R2"}
TOLERATED_CASES = {("R19", "tight"), ("R19", "between")}


@pytest.mark.parametrize("case", [*QUANTIZATION, *DESCRIPTOR], ids=ids([*QUANTIZATION, *DESCRIPTOR]))
def test_permissive_lets_pass_what_it_may_and_nothing_else(case: Case) -> None:
    rule, what, raw, *_ = case
    if rule in TOLERATED or (rule, what) in TOLERATED_CASES:
        assert TensorDescriptor.decode(bytes(raw), permissive=True).encode() == bytes(raw)
    else:
        with pytest.raises(DescriptorError) as caught:
            TensorDescriptor.decode(bytes(raw), permissive=True)
        assert rule_id(caught.value) == rule


@pytest.mark.parametrize(
    ("raw", "buffers", "rule", "field"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES]
)
def test_values_are_checked_when_first_used(raw: Raw, buffers: list[bytes], rule: str, field: str) -> None:
    descriptor = TensorDescriptor.decode(bytes(raw))
    for use in (decode_tensor, validate_values):
        with pytest.raises(DescriptorError) as caught:
            use(descriptor, buffers)
        assert rule_id(caught.value) == rule
        assert caught.value.field == field
        assert "1 of " in str(caught.value)


def test_values_that_are_legal_although_odd() -> None:
    ones = np.array([-1.0, 2.0**-24, 65504.0, -(2.0**-14)] * 2, F16).tobytes()
    extreme = np.array([2**31 - 1, -(2**31), 0, 8] * 2, I32).tobytes()
    validate_values(TensorDescriptor.decode(bytes(PER_BLOCK)), [bytes(64), ones, extreme])
    validate_values(TensorDescriptor.decode(bytes(NF4)), [bytes(64), bytes(32)])  # absmax 0
    validate_values(TensorDescriptor.decode(bytes(MXFP)), [bytes(128), bytes([1, 254] * 4)])


def test_plain_e8m0_bytes() -> None:
    descriptor = TensorDescriptor.decode(bytes(Raw(0x42, (2, 2), (handle(4),))))
    validate_values(descriptor, [bytes([1, 127, 254, 2])])
    for bad in (0, 255):
        with pytest.raises(DescriptorError) as caught:
            decode_tensor(descriptor, [bytes([1, bad, 254, 2])])
        assert rule_id(caught.value) == "H33"


def test_rules_of_use() -> None:
    small = TensorDescriptor.decode(bytes(PLAIN.but(handles=(handle(47),))))
    dynamic = TensorDescriptor.decode(bytes(PLAIN.patched(20, DYNAMIC)))
    plain = TensorDescriptor.decode(bytes(PLAIN))
    for rule, descriptor, buffers in (
        ("H30", small, [bytes(47)]),
        ("H31", dynamic, [bytes(48)]),
        ("H32", plain, [bytes(47)]),
        ("H32", plain, [bytes(48), b""]),
        ("H32", plain, []),
    ):
        with pytest.raises(DescriptorError) as caught:
            decode_tensor(descriptor, buffers)
        assert rule_id(caught.value) == rule


def test_validate_buffers_compares_with_the_table() -> None:
    block = TensorDescriptor.decode(bytes(PER_BLOCK))
    validate_buffers(block, [64, 16, 32])
    for sizes, rule in (([63, 16, 32], "H32"), ([64, 16], "H32")):
        with pytest.raises(DescriptorError) as caught:
            validate_buffers(block, sizes)
        assert rule_id(caught.value) == rule
    with pytest.raises(DescriptorError) as caught:
        validate_buffers(TensorDescriptor.decode(bytes(PLAIN.but(handles=(handle(47),)))), [47])
    assert rule_id(caught.value) == "H30"
    validate_buffers(TensorDescriptor.decode(bytes(PLAIN.patched(20, DYNAMIC))), [48])


def test_every_descriptor_rule_has_a_case() -> None:
    covered = {case[0] for case in (*QUANTIZATION, *DESCRIPTOR)} | {v[3] for v in VALUES}
    covered |= {"H30", "H31", "H32", "H33"}
    assert covered == {rule for rule in RULES if rule[0] in "HR"}


@pytest.mark.parametrize("case", QUANTIZATION, ids=ids(QUANTIZATION))
def test_section_alone_is_checked_as_far_as_it_goes(case: Case) -> None:
    rule, _, raw, _, _ = case
    start = raw.section_offset
    section = bytes(raw)[start : start + len(raw.section or b"")]
    if rule not in ("R1", "R2", "R3", "R4", "R5", "R6", "R10", "R15", "R20", "R22"):
        return
    with pytest.raises(DescriptorError) as caught:
        decode_quantization(section)
    assert rule_id(caught.value) == rule
    assert caught.value.offset is not None
    assert caught.value.offset < 24


def test_sections_alone_accept_what_needs_a_tensor() -> None:
    for section in (per_tensor(), per_channel(9, 1), per_block(9, 2**31, 200), nf4(), mxfp(7, 2048)):
        assert decode_quantization(section).encode() == section


def test_every_violation_is_listed_and_the_worst_comes_first() -> None:
    raw = in_table(in_section(PER_BLOCK, 4, U32.pack(7)), 0, 8, U32.pack(3)).but(type_tag=0x03)
    assert [rule_id(e) for e in find_violations(bytes(raw))] == ["H19", "R7", "R8"]

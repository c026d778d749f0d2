"""Words to canonical rows and back: each fast path against plain loops."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.dialects import awq, carriers, gptq, words
from blockscale.errors import BlockscaleError, UnsupportedError
from blockscale.packing import PACKINGS, pack_codes
from blockscale.quantize import quantize
from blockscale.schemes import scheme
from word_files import AWQ_ORDER, Arrays, make_layer, recognise, words_across, words_down

SIZES = [(8, 8), (16, 8), (24, 40), (8, 264), (264, 8), (1160, 24), (136, 1032)]


def canonical(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of words from codes (in, out)."""
    packed = pack_codes(codes.T.astype(np.uint8), bits)
    return np.ascontiguousarray(packed).view(words.WORD)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (16, 16), (17, 1025), (1025, 17), (40, 2100)])
def test_transpose_words(m: int, n: int) -> None:
    data = np.arange(m * n, dtype=np.uint32).reshape(m, n)
    out = np.zeros((n, m), np.uint32)
    words.transpose_words(data, out)
    assert (out == data.T).all()


def test_transpose_nibbles_every_position() -> None:
    for i in range(8):
        for p in range(8):
            block = np.zeros((8, 3), np.uint32)
            block[i] = np.uint32(9 << (4 * p))
            words.transpose_nibbles(block)
            wanted = np.zeros((8, 3), np.uint32)
            wanted[p] = np.uint32(9 << (4 * i))
            assert (block == wanted).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_gptq_rows_equal_plain_loops(bits: int, n_in: int, n_out: int) -> None:
    if n_in * bits % 32:
        n_in = 32
    codes = np.random.default_rng(n_in).integers(0, 1 << bits, (n_in, n_out))
    qweight = words_down(codes, bits).view(np.uint32)
    rows = np.zeros((n_out, qweight.shape[0]), np.uint32)
    words.gptq_to_rows(qweight, rows)
    assert (rows == canonical(codes, bits)).all()
    back = np.empty_like(qweight)
    words.rows_to_gptq(rows, back)
    assert (back == qweight).all()


@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_awq_rows_equal_plain_loops(n_in: int, n_out: int) -> None:
    codes = np.random.default_rng(n_in).integers(0, 16, (n_in, n_out))
    qweight = words_across(codes, 4, AWQ_ORDER).view(np.uint32)
    rows = np.zeros((n_out, n_in // 8), np.uint32)
    words.awq_to_rows(qweight, rows)
    assert (rows == canonical(codes, 4)).all()
    back = np.empty_like(qweight)
    words.rows_to_awq(rows, back)
    assert (back == qweight).all()


def test_awq_rows_of_inputs_that_fill_no_word() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (12, 16))
    rows = np.zeros((16, 2), np.uint32)
    words.awq_to_rows(words_across(codes, 4, AWQ_ORDER).view(np.uint32), rows)
    padded = np.concatenate([codes, np.zeros((4, 16), np.int64)])
    assert (rows == canonical(padded, 4)).all()


@pytest.mark.parametrize(("name", "bits"), [("gptq2", 2), ("gptq4", 4), ("gptq8", 8), ("awq4", 4)])
def test_fields_equal_plain_loops(name: str, bits: int) -> None:
    packing = PACKINGS[name]
    fields = np.random.default_rng(2).integers(0, 1 << bits, (3, 64)).astype(np.uint8)
    made = words.pack_fields(fields, packing)
    assert made.dtype == np.int32
    assert (made == words_across(fields, bits, packing.order)).all()
    assert (words.unpack_fields(made, packing, 64) == fields).all()
    assert (words.unpack_fields(made, packing, 61) == fields[:, :61]).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("n_out", [32, 36])
def test_constant_field(bits: int, n_out: int) -> None:
    fields = np.full((2, n_out), 1)
    assert words.constant_field(words_across(fields, bits), bits, n_out) == 1
    dirty = words_across(fields, bits)
    if n_out * bits % 32:  # what lies behind the last field does not count
        dirty[:, -1] |= -(1 << (n_out * bits % 32))
        assert words.constant_field(dirty, bits, n_out) == 1
    for at in (0, n_out - 1):
        fields = np.full((2, n_out), 1)
        fields[1, at] = 2
        assert words.constant_field(words_across(fields, bits), bits, n_out) is None
    assert words.constant_field(np.zeros((0, 4), np.int32), bits, 32) is None


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_count_all_ones(bits: int) -> None:
    top, per = (1 << bits) - 1, 32 // bits
    fields = np.zeros((1, 3 * per), np.int64)
    assert words.count_all_ones(words_across(fields, bits), bits, fields.shape[1]) == (0, 0)
    fields[0, 1] = top
    fields[0, per + 1 : 2 * per] = top  # a word filled from its second field up
    fields[0, 3 * per - 1] = top
    packed = words_across(fields, bits)
    assert words.count_all_ones(packed, bits, 3 * per) == (per + 1, 1)
    assert words.count_all_ones(packed, bits, 3 * per - 1) == (per, 1)


@pytest.mark.parametrize("name", ["int2", "int4", "int8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_carriers_keep_every_value(name: str, symmetric: bool) -> None:
    row = scheme(name, block_size=16, symmetric=symmetric)
    weight = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
    w = quantize(weight, row)
    unsigned = carriers.as_unsigned(w)
    assert unsigned.scheme.element.name == "u" + name
    assert unsigned.dequantize().tobytes() == w.dequantize().tobytes()
    assert carriers.as_unsigned(unsigned) is unsigned
    if symmetric:
        back = carriers.as_signed(unsigned)
        assert back.same_bits(w)
        assert carriers.as_signed(back) is back


def test_carriers_refuse_what_is_not_symmetric() -> None:
    weight = np.random.default_rng(3).random((4, 32)).astype(np.float32)
    with pytest.raises(UnsupportedError, match="not symmetric"):
        carriers.as_signed(quantize(weight, scheme("uint4")))
    for name in ("mxfp4", "mxint8"):
        with pytest.raises(UnsupportedError):
            carriers.as_unsigned(quantize(weight, name))


SECTION = st.fixed_dictionaries(
    {},
    optional={
        "quant_method": st.sampled_from(["gptq", "awq", "auto-round", "", None, 3]),
        "bits": st.sampled_from([2, 3, 4, 8, 0, -4, "4", None, True]),
        "group_size": st.sampled_from([8, 16, -1, 0, -7, 10**12, 2.5, None]),
        "checkpoint_format": st.sampled_from(["gptq", "gptq_v2", "marlin", "gemm", "", 7]),
        "version": st.sampled_from(["gemm", "gemv", None]),
        "sym": st.sampled_from([True, False, None]),
        "desc_act": st.booleans(),
        "dynamic": st.sampled_from([None, {}, {"a": None}, {"-:a": {}}, {"+:a": {"bits": 8}}, [1], "a"]),
        "meta": st.sampled_from([None, {}, {"quantizer": "gptqmodel:1"}, {"quantizer": [3]}, "x"]),
    },
)
PART = st.tuples(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32]), min_size=0, max_size=4),
    st.sampled_from(["int32", "float16", "int16", "float32", "uint8"]),
    st.sampled_from([0, 1, 7]),
)


@settings(max_examples=200, deadline=None)
@given(
    section=st.none() | SECTION,
    roles=st.dictionaries(st.sampled_from(["qweight", "qzeros", "scales", "g_idx"]), PART),
    good=st.booleans(),
    bias=st.sampled_from([None, 0, 1]),
)
def test_odd_checkpoints_give_our_errors_only(
    section: Any, roles: dict[str, Any], good: bool, bias: int | None
) -> None:
    arrays: Arrays = make_layer(16, 16, 8).gptq(1, "a.") if good else {}
    for role, (shape, dtype, value) in roles.items():
        arrays[f"a.{role}"] = np.full(shape, value, dtype)
    for dialect in (gptq, awq):
        with suppress(BlockscaleError):
            found = recognise(dialect, arrays, section, bias=bias)
            for weight in found.weights if found else ():
                dialect.read(weight, arrays.__getitem__)


def test_layers_of_the_tests_are_what_they_say() -> None:
    layer = make_layer(16, 8, 8)
    assert layer.weight.shape == (8, 16)
    q, z, s = layer.codes[9, 3], layer.zeros[1, 3], layer.scales[1, 3]
    assert layer.weight[3, 9] == np.float32(q - z) * np.float32(s)

r"""GPTQ: checkpoints of AutoGPTQ, GPTQModel, transformers, auto-round; v1 ("gptq") and v2 ("gptq_v2").

A linear layer `x` of `in` inputs and `out` outputs, codes of 2, 4 or 8 bits (per word `f = 32 / bits`):

    x.qweight  int32 [in / f, out]       word [r, o], bits p*b..: code of input r*f + p of output o
    x.qzeros   int32 [groups, out / f]   word [g, c], bits p*b..: zero point of group g, output c*f + p
    x.scales   f16|bf16|f32 [groups, out]
    x.g_idx    int32 [in]                group of each input; absent, empty or all -1: input // group_size

Inputs 0..7 with codes 0..7 make the word 0x76543210. Stored zero points are `z - 1` in "gptq" (v1), `z` in
"gptq_v2"; the value is `scale * (code - z)`. Experts may be stacked: `[experts, in / f, out]` and so on.
The weight reads as `x.weight`, `[out, in]`, blocks along the input, uint codes with int32 zero points.

Symmetric files stay unsigned, z = 2**(bits - 1) everywhere; `settings["equals"]` of such a weight says
"int4 symmetric", and `carriers.as_signed` makes the switch. Zero points as plain numbers shaped as the
scales hold z.

Layers whose plain weight is not [out, in] (GPT-2's Conv1D, embeddings) read as its transpose.

**Activation order** (a g_idx that permutes): groups are sets of columns, which no BlockTensor in that order
of columns can say. `recognise` says so (`settings["act_order"]`, evidence); `read` refuses; `read_dense`
gives the exact values in the original order; `read_sorted` a BlockTensor of the columns sorted by group and
the permutation. Nothing is ever written in activation order.

**All-ones fields in v1.** z - 1 with z = 0 does not fit; writers wrap to all ones. GPTQModel subtracts from
whole words, which borrows from the next field; AutoGPTQ 0.7.1 ORs unmasked numbers, which sets every field
above too (what stood there is lost; `problems` counts such words). Readers disagree: AutoGPTQ's
`qlinear_cuda_old` adds 1 and keeps the low bits (z = 0), its `qlinear_cuda` and the exllama kernels keep
the low bits and add 1 (z = 2**bits), GPTQModel adds 1 to whole words with carries, which undoes its own
borrow. Our stance is what the writer meant: z = 0 field by field ("zero"), and in files that name GPTQModel
as the quantizer whole words with carries ("carry"). `Options.settings["all_ones"]` forces "zero", "carry"
or "power" (2**bits); `zero_point_bias=0` reads stored values as z. Affected fields are counted in
`problems`.

**Contradictions** raise FormatError with both sides: shapes against each other and the config, a label
against zero words that only the other version writes for symmetric weights (0x77777777 is v1, 0x88888888
v2; 0x7F7F7F7F / 0x80808080; 0x55555555 / 0xAAAAAAAA), desc_act without g_idx, a g_idx that leaves groups
empty. A missing `checkpoint_format` means v1 unless the words say v2; a missing config is read from shapes,
and if its words do not say v1 or v2, `read` refuses until `zero_point_bias` is given.

What cannot be seen, because every reading is a valid file: v1 zero points labelled v2 or the reverse when
they are not symmetric; words in another order of fields (AWQ's in GPTQ's shapes); a square weight that was
transposed before packing; scales whose dtype was relabelled between float16 and bfloat16; the g_idx of
another layer of the same size; a dropped g_idx when the config says desc_act false; a config of another
model with the same bits and group size; scales and zero points swapped between layers of one shape.

Settings of `Weight`: bits, carrier, group_size (-1: the whole input), act_order, refused (why `read` will
not, or None), packed_zeros, zero_point_bias (None: unknown), all_ones, blocks_per_group, equals.

Source: AutoGPTQ 0.7.1, GPTQModel 7.7, vLLM, transformers, auto-round (facts, no code); Hurray format, 3.10.
"""

from __future__ import annotations

from .gptq_read import findings, read, read_dense, read_sorted
from .gptq_recognise import NAME, OPTIONS, recognise
from .gptq_write import config, specs, write

__all__ = [
    "NAME",
    "OPTIONS",
    "config",
    "findings",
    "read",
    "read_dense",
    "read_sorted",
    "recognise",
    "specs",
    "write",
]

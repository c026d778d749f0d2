"""Writes the golden files of this folder with pyhurray; no part of blockscale is used.

Run: python tests/vectors/hurray/make_pyhurray.py (needs pyhurray 0.1.0 and NumPy). The expected values in
`pyhurray/manifest.json` are computed here in plain Python, from the format's formulas: Python's floats are
wider than float32, every product below is exact in them, and `struct` rounds once to float32.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hurray
import numpy as np

FOLDER = Path(__file__).parent / "pyhurray"
COMMAND = "python tests/vectors/hurray/make_pyhurray.py"
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
# name: bits, and (exponent bits, mantissa bits, bias) of floats
FLOATS = {
    "float8_e4m3": (8, 4, 3, 7),
    "float8_e5m2": (8, 5, 2, 15),
    "float4_e2m1": (4, 2, 1, 1),
    "float6_e2m3": (6, 2, 3, 1),
    "float6_e3m2": (6, 3, 2, 3),
}
INTEGERS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "int16": 16, "int32": 32}


def f32(x: float) -> float:
    """Round to float32, to infinity beyond it."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def pack(codes: list[int], bits: int) -> bytes:
    """One long little-endian bit string; 6-bit codes in whole groups of four."""
    if bits == 6:
        codes = codes + [0] * (-len(codes) % 4)
    number = sum((code & ((1 << bits) - 1)) << (i * bits) for i, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


def value_of(code: int, kind: str) -> float:
    """The number that a code stands for, without scale."""
    if kind in INTEGERS:
        bits = INTEGERS[kind]
        return float(code - (1 << bits) if kind[0] == "i" and code >> (bits - 1) else code)
    bits, e_bits, m_bits, bias = FLOATS[kind]
    sign = -1.0 if code >> (bits - 1) else 1.0
    exponent, mantissa = code >> m_bits & ((1 << e_bits) - 1), code & ((1 << m_bits) - 1)
    if kind == "float8_e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if kind == "float8_e5m2" and exponent == 31:
        return sign * math.inf if mantissa == 0 else math.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - m_bits)
    return sign * ((1 << m_bits) + mantissa) * 2.0 ** (exponent - bias - m_bits)


def widen(bits: int, kind: str) -> float:
    """The value of a float16, bfloat16 or float32 bit pattern."""
    form = {"float16": "<e", "bfloat16": "<f", "float32": "<f"}[kind]
    raw = (
        struct.pack("<H", bits)
        if kind == "float16"
        else struct.pack("<I", bits << 16 if kind == "bfloat16" else bits)
    )
    return float(struct.unpack(form, raw)[0])


def scale_bits(rng: random.Random, kind: str) -> int:
    """A finite scale that is not zero, sometimes negative, as a bit pattern."""
    size = 32 if kind == "float32" else 16
    exponent, mantissa = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23)}[kind]
    middle = (1 << (exponent - 1)) - 1
    e = middle + rng.randint(-6, 6)
    return rng.randrange(2) << (size - 1) | e << mantissa | rng.randrange(1 << mantissa)


def every_code(rng: random.Random, count: int, bits: int) -> list[int]:
    """All codes of a type as often as they fit, in random order, then random ones."""
    codes = (
        [i % (1 << bits) for i in range(count)]
        if bits <= 8
        else [rng.randrange(1 << bits) for _ in range(count)]
    )
    rng.shuffle(codes)
    return codes


class Case:
    """One tensor: what pyhurray gets, and what a reader must find."""

    def __init__(self, kind: str, shape: list[int], codes: list[int]) -> None:
        self.kind, self.shape, self.codes = kind, shape, codes
        self.bits = INTEGERS.get(kind) or FLOATS[kind][0]
        self.stored: list[int] | None = None  # with the padding of partial blocks
        self.aux: list[bytes] = []
        self.scheme: Any = None

    def finish(
        self, name: str, scheme: str, dequantize: Callable[[int, int], float], **fields: Any
    ) -> dict[str, Any]:
        """The manifest's entry; `dequantize(position, code)` gives each value."""
        values = [dequantize(i, code) for i, code in enumerate(self.codes)]
        raw = b"".join(struct.pack("<f", f32(v)) for v in values)
        return {
            "name": name,
            "type": self.kind,
            "shape": self.shape,
            "scheme": scheme,
            **fields,
            "codes": "".join(f"{c:0{-(-self.bits // 4)}x}" for c in self.codes),
            "buffers": [self.data.hex(), *(a.hex() for a in self.aux)],
            "values_f32": raw.hex(),
        }

    @property
    def data(self) -> bytes:
        """Buffer 0."""
        return pack(self.codes if self.stored is None else self.stored, self.bits)

    def tensor(self) -> hurray.Tensor:
        """pyhurray's tensor."""
        kind = getattr(hurray.dtype, self.kind, None) or getattr(hurray, self.kind)
        return hurray.Tensor(self.data, kind, self.shape, aux_buffers=self.aux, quantization=self.scheme)


def block_of(position: int, shape: list[int], axis: int, size: int) -> int:
    """Index of the block of the element at a row-major position (3.3 of the digest)."""
    index: list[int] = []
    rest = position
    for n in reversed(shape):
        index.insert(0, rest % n)
        rest //= n
    outer = 0
    for i, n in enumerate(shape):
        if i != axis:
            outer = outer * n + index[i]
    blocks = -(-shape[axis] // size)
    return int(outer * blocks + index[axis] // size)


def affine(q: float, scale: float, zero: int) -> float:
    """Both factors are float32, so their product is exact here and rounded once at the end."""
    return scale * f32(q - zero)


def padded(codes: list[int], shape: list[int], axis: int, size: int) -> list[int]:
    """Row-major codes with zeros up to whole blocks along `axis` (3.9; pyhurray itself never pads)."""
    inner = math.prod(shape[axis + 1 :])
    line, over = shape[axis] * inner, -shape[axis] % size * inner
    return [c for i in range(0, len(codes), line) for c in codes[i : i + line] + [0] * over]


Made = tuple[Case, dict[str, Any]]


def per_tensor(rng: random.Random, kind: str, zero: int) -> Made:
    case = Case(kind, [3, 7], [])
    case.codes = every_code(rng, 21, case.bits)
    scale = widen(scale_bits(rng, "float32"), "float32")
    case.scheme = hurray.PerTensorAffine(scale, zero)
    entry = case.finish(
        f"per_tensor.{kind}",
        "per_tensor",
        lambda _, c: affine(value_of(c, kind), scale, zero),
        scale=scale,
        zero_point=zero,
    )
    return case, entry


def per_channel(rng: random.Random, kind: str, axis: int, *, symmetric: bool) -> Made:
    shape = [3, 5]
    case = Case(kind, shape, [])
    case.codes = every_code(rng, 15, case.bits)
    bits = [scale_bits(rng, "float32") for _ in range(shape[axis])]
    scales = [widen(b, "float32") for b in bits]
    low = -(1 << (case.bits - 1)) if kind[0] == "i" else 0
    zeros = [0 if symmetric else low + rng.randrange(1 << case.bits) for _ in bits]
    case.aux = [struct.pack(f"<{len(bits)}I", *bits)]
    if symmetric:
        case.scheme = hurray.PerChannelAffine.symmetric(axis, 1)
    else:
        case.aux.append(struct.pack(f"<{len(zeros)}i", *zeros))
        case.scheme = hurray.PerChannelAffine.asymmetric(axis, 1, 2)

    def value(i: int, code: int) -> float:
        channel = i // 5 if axis == 0 else i % 5
        return affine(value_of(code, kind), scales[channel], zeros[channel])

    name = f"per_channel.{kind}.axis{axis}.{'symmetric' if symmetric else 'zero_points'}"
    return case, case.finish(name, "per_channel", value, axis=axis, symmetric=symmetric)


def per_block(
    rng: random.Random, kind: str, scale_kind: str, shape: list[int], axis: int, *, symmetric: bool
) -> Made:
    size = 16
    case = Case(kind, shape, [])
    case.codes = every_code(rng, math.prod(shape), case.bits)
    count = math.prod(shape) // shape[axis] * -(-shape[axis] // size)
    bits = [scale_bits(rng, scale_kind) for _ in range(count)]
    scales = [widen(b, scale_kind) for b in bits]
    # any int32 is a legal zero point here
    zeros = [0] * count if symmetric else [rng.choice([-1, 0, 7, 8, 300, 2**31 - 1, -(2**31)]) for _ in bits]
    case.aux = [struct.pack(f"<{count}{'I' if scale_kind == 'float32' else 'H'}", *bits)]
    dtype = getattr(hurray, scale_kind)
    if symmetric:
        case.scheme = hurray.PerBlockAffine.symmetric(axis, size, 1, dtype)
    else:
        case.aux.append(struct.pack(f"<{count}i", *zeros))
        case.scheme = hurray.PerBlockAffine.asymmetric(axis, size, 1, 2, dtype)

    if shape[axis] % size:
        case.stored = padded(case.codes, shape, axis, size)

    def value(i: int, code: int) -> float:
        b = block_of(i, shape, axis, size)
        return affine(value_of(code, kind), scales[b], zeros[b])

    name = f"per_block.{kind}.{scale_kind}.axis{axis}.{'symmetric' if symmetric else 'zero_points'}"
    name += ".partial" if case.stored else ""
    fields = {"axis": axis, "block_size": size, "scale_type": scale_kind, "symmetric": symmetric}
    return case, case.finish(name, "per_block", value, **fields)


def nf4(rng: random.Random) -> Made:
    shape, size = [3, 32], 16
    case = Case("uint4", shape, every_code(rng, 96, 4))
    bits = [scale_bits(rng, "float32") & 0x7FFFFFFF for _ in range(6)]
    bits[3] = 0  # an absmax of zero is legal
    scales = [widen(b, "float32") for b in bits]
    case.aux = [struct.pack("<6I", *bits)]
    case.scheme = hurray.NF4(1, size, 1)
    entry = case.finish("nf4", "nf4", lambda i, c: scales[i // size] * f32(NF4[c]), axis=1, block_size=size)
    return case, entry


def mxfp(rng: random.Random, kind: str, shape: list[int], axis: int, exponents: list[int]) -> Made:
    size = 32
    case = Case(kind, shape, [])
    case.codes = every_code(rng, math.prod(shape), case.bits)
    count = math.prod(shape) // size
    stored = [exponents[i % len(exponents)] for i in range(count)]
    case.aux = [bytes(stored)]
    case.scheme = hurray.MXFP(axis, size, 1)

    def value(i: int, code: int) -> float:
        return value_of(code, kind) * 2.0 ** (stored[block_of(i, shape, axis, size)] - 127)

    return case, case.finish(f"mxfp.{kind}.axis{axis}", "mxfp", value, axis=axis, block_size=size)


def make_all() -> dict[str, list[Made]]:
    """Every tensor, by file."""
    rng = random.Random(20260822)
    blocks = [
        per_block(rng, kind, scale_kind, [4, 32], 1, symmetric=symmetric)
        for kind, scale_kind, symmetric in [
            *(("int4", "float16", True), ("int4", "bfloat16", True), ("int4", "float32", True)),
            *(("uint4", "float16", False), ("uint4", "bfloat16", False), ("uint4", "float32", False)),
            *(("int8", "float16", False), ("uint8", "float32", False)),
            *(("int2", "bfloat16", True), ("uint2", "float16", False)),
        ]
    ]
    blocks.append(per_block(rng, "int4", "float16", [32, 6], 0, symmetric=False))
    blocks.append(per_block(rng, "int4", "float16", [3, 40], 1, symmetric=True))  # partial blocks
    blocks.append(per_block(rng, "uint2", "float32", [20, 3], 0, symmetric=False))
    ordinary, extreme = [127, 120, 134, 100], [1, 2, 126, 253, 254]
    mx = [mxfp(rng, kind, [8, 64], 1, ordinary + extreme) for kind in FLOATS]
    mx += [mxfp(rng, kind, [8, 64], 1, ordinary) for kind in ("int8", "int4")]
    mx.append(mxfp(rng, "float4_e2m1", [32, 5], 0, ordinary))
    return {
        "per_tensor.hrry": [
            per_tensor(rng, kind, zero)
            for kind, zero in [
                ("int8", -3),
                ("uint8", 128),
                ("int4", 0),
                ("uint2", 3),
                ("int16", -300),
                ("int32", 7),
            ]
        ],
        "per_channel.hrry": [
            per_channel(rng, "int8", 0, symmetric=True),
            per_channel(rng, "uint4", 1, symmetric=False),
            per_channel(rng, "int32", 1, symmetric=False),
        ],
        "per_block.hrry": blocks,
        "nf4.hrry": [nf4(rng)],
        "mxfp.hrry": mx,
    }


def main() -> None:
    """Write the files and the manifest."""
    FOLDER.mkdir(exist_ok=True)
    manifest: dict[str, Any] = {
        "producer": "pyhurray",
        "version": hurray.__version__,
        "command": COMMAND,
        "numpy": np.__version__,
        "files": {},
    }
    for file, made in make_all().items():
        tensors = {entry["name"]: case.tensor() for case, entry in made}
        metadata = {"producer": "pyhurray", "tensors": len(made), "ratio": 0.5, "flags": [True, False]}
        hurray.save(str(FOLDER / file), tensors, kv=metadata)
        for _, entry in made:
            entry["descriptor"] = tensors[entry["name"]].descriptor.encode().hex()
        manifest["files"][file] = {"metadata": metadata, "tensors": [entry for _, entry in made]}
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(manifest['files'])} files in {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()

// Packed weights to float32, a piece of a row at a time, for the matmul. The values are those of
// `dequantize`, bit for bit; what lies past the row's end decodes to anything and meets zeros.

#if defined(__AVX2__)

#if defined(__AVX512F__)
struct Float16Lanes {
  __m512 v;
};
inline Float16Lanes lanes_mul(Float16Lanes a, float s) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(s))}; }
inline Float16Lanes lanes_add(Float16Lanes a, float s) { return {_mm512_add_ps(a.v, _mm512_set1_ps(s))}; }
inline void lanes_store(float* out, Float16Lanes a) { _mm512_storeu_ps(out, a.v); }
inline Float16Lanes lanes_load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Float16Lanes lanes_sum(Float16Lanes sum, Float16Lanes x, Float16Lanes y) {
  return {_mm512_add_ps(sum.v, _mm512_mul_ps(x.v, y.v))};
}

struct Int16Lanes {
  __m512i v;
};
inline Float16Lanes lanes_float(Int16Lanes q, int32_t z) {
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(q.v, _mm512_set1_epi32(z)))};
}
// 16 nibbles, each in the low bits of a 32-bit lane; the bits above are anything.
inline Int16Lanes load_nibbles(const uint8_t* p) {
  int64_t word;
  memcpy(&word, p, 8);
#if defined(__AVX512VBMI__)
  const __m512i from = _mm512_set_epi64(0x0000003C00000038, 0x0000003400000030, 0x0000002C00000028,
                                        0x0000002400000020, 0x0000001C00000018, 0x0000001400000010,
                                        0x0000000C00000008, 0x0000000400000000);
  return {_mm512_multishift_epi64_epi8(from, _mm512_set1_epi64(word))};
#else
  const __m512i half = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
  return {_mm512_srlv_epi32(_mm512_permutexvar_epi32(half, _mm512_set1_epi64(word)), shift)};
#endif
}
inline Int16Lanes signed_nibbles(Int16Lanes q) {
  return {_mm512_srai_epi32(_mm512_slli_epi32(q.v, 28), 28)};
}
inline Int16Lanes unsigned_nibbles(Int16Lanes q) { return {_mm512_and_epi32(q.v, _mm512_set1_epi32(15))}; }
inline Float16Lanes e2m1_values(Int16Lanes q) {
  const __m512 values = _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
  return {_mm512_permutexvar_ps(q.v, values)};
}
inline Int16Lanes load_signed_bytes(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Int16Lanes load_unsigned_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Float16Lanes halves_to_float(__m256i h) { return {_mm512_cvtph_ps(h)}; }

#else  // AVX2: two halves
struct Float16Lanes {
  __m256 a, b;
};
inline Float16Lanes lanes_mul(Float16Lanes x, float s) {
  return {_mm256_mul_ps(x.a, _mm256_set1_ps(s)), _mm256_mul_ps(x.b, _mm256_set1_ps(s))};
}
inline Float16Lanes lanes_add(Float16Lanes x, float s) {
  return {_mm256_add_ps(x.a, _mm256_set1_ps(s)), _mm256_add_ps(x.b, _mm256_set1_ps(s))};
}
inline void lanes_store(float* out, Float16Lanes x) {
  _mm256_storeu_ps(out, x.a);
  _mm256_storeu_ps(out + 8, x.b);
}

inline Float16Lanes lanes_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Float16Lanes lanes_sum(Float16Lanes sum, Float16Lanes x, Float16Lanes y) {
  return {_mm256_add_ps(sum.a, _mm256_mul_ps(x.a, y.a)), _mm256_add_ps(sum.b, _mm256_mul_ps(x.b, y.b))};
}

struct Int16Lanes {
  __m256i a, b;
};
inline Float16Lanes lanes_float(Int16Lanes q, int32_t z) {
  const __m256i shift = _mm256_set1_epi32(z);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(q.a, shift)), _mm256_cvtepi32_ps(_mm256_sub_epi32(q.b, shift))};
}
inline Int16Lanes load_nibbles(const uint8_t* p) {
  int32_t low, high;
  memcpy(&low, p, 4);
  memcpy(&high, p + 4, 4);
  const __m256i shift = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  return {_mm256_srlv_epi32(_mm256_set1_epi32(low), shift), _mm256_srlv_epi32(_mm256_set1_epi32(high), shift)};
}
inline Int16Lanes signed_nibbles(Int16Lanes q) {
  return {_mm256_srai_epi32(_mm256_slli_epi32(q.a, 28), 28), _mm256_srai_epi32(_mm256_slli_epi32(q.b, 28), 28)};
}
inline Int16Lanes unsigned_nibbles(Int16Lanes q) {
  const __m256i mask = _mm256_set1_epi32(15);
  return {_mm256_and_si256(q.a, mask), _mm256_and_si256(q.b, mask)};
}
inline __m256 e2m1_half(__m256i q) {  // the magnitude from a table of eight, the sign from bit 3
  const __m256 magnitudes = _mm256_set_ps(6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(q, 28), _mm256_set1_epi32(INT32_MIN));
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, q), _mm256_castsi256_ps(sign));
}
inline Float16Lanes e2m1_values(Int16Lanes q) { return {e2m1_half(q.a), e2m1_half(q.b)}; }
inline Int16Lanes load_signed_bytes(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Int16Lanes load_unsigned_bytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Float16Lanes halves_to_float(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
#endif

// E5M2 is the upper byte of a float16. E4M3 with its exponent moved into float16's is 2**-8 of its value, save
// for its NaN, which is given float16's.
inline Float16Lanes e5m2_values(const uint8_t* p) {
  const __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return halves_to_float(_mm256_slli_epi16(h, 8));
}
inline Float16Lanes e4m3_values(const uint8_t* p) {
  const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i rest = _mm256_and_si256(c, _mm256_set1_epi16(0x7F));
  const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(rest, _mm256_set1_epi16(0x7F)),
                                       _mm256_set1_epi16(0x7E00));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(c, _mm256_set1_epi16(0x80)), 8);
  const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(rest, 7), sign), nan);
  return lanes_mul(halves_to_float(half), 256.0f);
}

// One class per kind of code: 16 codes at `p` to values without scale; z is the zero point.
struct ReadE2m1 {
  static constexpr int kBits = 4;
  static Float16Lanes read(const uint8_t* p, int32_t) { return e2m1_values(load_nibbles(p)); }
};
struct ReadInt4 {
  static constexpr int kBits = 4;
  static Float16Lanes read(const uint8_t* p, int32_t z) { return lanes_float(signed_nibbles(load_nibbles(p)), z); }
};
struct ReadUint4 {
  static constexpr int kBits = 4;
  static Float16Lanes read(const uint8_t* p, int32_t z) { return lanes_float(unsigned_nibbles(load_nibbles(p)), z); }
};
struct ReadInt8 {
  static constexpr int kBits = 8;
  static Float16Lanes read(const uint8_t* p, int32_t z) { return lanes_float(load_signed_bytes(p), z); }
};
struct ReadUint8 {
  static constexpr int kBits = 8;
  static Float16Lanes read(const uint8_t* p, int32_t z) { return lanes_float(load_unsigned_bytes(p), z); }
};
struct ReadE4m3 {
  static constexpr int kBits = 8;
  static Float16Lanes read(const uint8_t* p, int32_t) { return e4m3_values(p); }
};
struct ReadE5m2 {
  static constexpr int kBits = 8;
  static Float16Lanes read(const uint8_t* p, int32_t) { return e5m2_values(p); }
};

// The scales of `count` blocks as float32.
inline void read_scales(const LinearSpec& spec, const void* from, int64_t first, int64_t count, float* out) {
  if (spec.family == 0) {
    const uint8_t* bytes = static_cast<const uint8_t*>(from) + first;
    const float unit = spec.unit;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t e = bytes[i], ends = e == 0 || e == 255 ? 0x400000u : 0u;  // 0: subnormal; 255: NaN
      out[i] = float_of(e << 23 | ends) * unit;
    }
    return;
  }
  int64_t i = 0;
  if (spec.scale_type == kFloat16) {
    const uint16_t* halves = static_cast<const uint16_t*>(from) + first;
    for (; i + 16 <= count; i += 16)
      lanes_store(out + i, halves_to_float(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + i))));
  }
  for (; i < count; ++i) out[i] = load_scale(spec.scale_type, from, first + i);
}

// A piece of a row that begins at element `begin`, n elements (the last 16 may go beyond).
template <typename Read, int kOffset>
inline void decode_blocks(const LinearSpec& spec, const uint8_t* packed, int64_t first, int64_t begin, int64_t n,
                          float* out) {
  const int64_t size = spec.block_size;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(size));
  first += begin >> shift;
  const int64_t count = ((begin + n - 1) >> shift) - (begin >> shift) + 1;
  float scales[kChunk / 16], minimums[kChunk / 16];
  read_scales(spec, spec.scales, first, count, scales);
  if (kOffset == 2) read_scales(spec, spec.offsets, first, count, minimums);
  const int32_t* zero_points = kOffset == 1 ? static_cast<const int32_t*>(spec.offsets) + first : nullptr;
  const auto step = [&](int64_t block, int64_t sixteen) {
    const int32_t z = kOffset == 1 ? zero_points[block] : 0;
    const Float16Lanes value = lanes_mul(Read::read(packed + sixteen * (2 * Read::kBits), z), scales[block]);
    lanes_store(out + sixteen * 16, kOffset == 2 ? lanes_add(value, minimums[block]) : value);
  };
  const int64_t sixteens = (n + 15) / 16;
  if (size == 32) {  // the usual size: no loop in the loop
    for (int64_t b = 0; b < sixteens / 2; ++b) step(b, 2 * b), step(b, 2 * b + 1);
    if (sixteens & 1) step(sixteens / 2, sixteens - 1);
    return;
  }
  for (int64_t b = 0, i = 0; b < count; ++b) {  // a piece begins between blocks, or lies within one
    const int64_t end = i + size / 16 < sixteens ? i + size / 16 : sixteens;
    for (; i < end; ++i) step(b, i);
  }
}

// One activation row meets four weight rows without a tile: lanes(j) += a * w_j, `blocks` blocks of 32 from `begin`.
template <typename Read, int kOffset>
inline void dot_blocks(const LinearSpec& spec, int64_t r, int64_t begin, int64_t blocks, const float* a,
                       float* lanes) {
  const int64_t row_blocks = (spec.length + 31) / 32;
  float scales[4][kChunk / 32], minimums[4][kChunk / 32];
  const uint8_t* packed[4];
  const int32_t* zero_points[4] = {};
  Float16Lanes sum[4];
  for (int j = 0; j < 4; ++j) {
    const int64_t first = (r + j) * row_blocks + begin / 32;
    read_scales(spec, spec.scales, first, blocks, scales[j]);
    if (kOffset == 2) read_scales(spec, spec.offsets, first, blocks, minimums[j]);
    if (kOffset == 1) zero_points[j] = static_cast<const int32_t*>(spec.offsets) + first;
    packed[j] = spec.packed + (r + j) * spec.row_bytes + begin / 8 * Read::kBits;
    sum[j] = lanes_load(lanes + j * 16);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const Float16Lanes x = lanes_load(a + b * 32), y = lanes_load(a + b * 32 + 16);
    for (int j = 0; j < 4; ++j) {
      const int32_t z = kOffset == 1 ? zero_points[j][b] : 0;
      const uint8_t* p = packed[j] + b * (4 * Read::kBits);
      __builtin_prefetch(p + 12 * spec.row_bytes);
      Float16Lanes v = lanes_mul(Read::read(p, z), scales[j][b]);
      Float16Lanes w = lanes_mul(Read::read(p + 2 * Read::kBits, z), scales[j][b]);
      if (kOffset == 2) v = lanes_add(v, minimums[j][b]), w = lanes_add(w, minimums[j][b]);
      sum[j] = lanes_sum(lanes_sum(sum[j], x, v), y, w);
    }
  }
  for (int j = 0; j < 4; ++j) lanes_store(lanes + j * 16, sum[j]);
}

typedef void (*DecodeBlocks)(const LinearSpec&, const uint8_t*, int64_t, int64_t, int64_t, float*);
typedef void (*DotBlocks)(const LinearSpec&, int64_t, int64_t, int64_t, const float*, float*);
struct Decoder {
  DecodeBlocks decode;
  DotBlocks dot;
};

template <typename Read, int kOffset>
inline Decoder decoder() {
  return {decode_blocks<Read, kOffset>, dot_blocks<Read, kOffset>};
}

template <typename Read>
inline Decoder integer_decoder(const LinearSpec& spec) {
  if (spec.offset == 0) return decoder<Read, 0>();
  return spec.offset == 1 ? decoder<Read, 1>() : decoder<Read, 2>();
}

// The fast decoder of a weight, or nulls.
inline Decoder find_decoder(const LinearSpec& spec) {
  if (spec.block_size < 16) return {};
  switch (spec.kind) {
    case LinearKind::kE2m1: return decoder<ReadE2m1, 0>();
    case LinearKind::kE4m3: return decoder<ReadE4m3, 0>();
    case LinearKind::kE5m2: return decoder<ReadE5m2, 0>();
    case LinearKind::kInt4: return integer_decoder<ReadInt4>(spec);
    case LinearKind::kUint4: return integer_decoder<ReadUint4>(spec);
    case LinearKind::kInt8: return integer_decoder<ReadInt8>(spec);
    case LinearKind::kUint8: return integer_decoder<ReadUint8>(spec);
    default: return {};
  }
}

// Whether code - z fits 32 bits for every zero point of a row.
inline bool zero_points_fit(const LinearSpec& spec, int64_t first, int64_t blocks) {
  const int32_t* z = static_cast<const int32_t*>(spec.offsets) + first;
  int32_t least = 0;
  for (int64_t b = 0; b < blocks; ++b) least = z[b] < least ? z[b] : least;
  return least >= INT32_MIN + 256;
}
#else
typedef void (*DecodeBlocks)(const LinearSpec&, const uint8_t*, int64_t, int64_t, int64_t, float*);
typedef void (*DotBlocks)(const LinearSpec&, int64_t, int64_t, int64_t, const float*, float*);
struct Decoder {
  DecodeBlocks decode;
  DotBlocks dot;
};
inline Decoder find_decoder(const LinearSpec&) { return {}; }
inline bool zero_points_fit(const LinearSpec&, int64_t, int64_t) { return false; }
#endif

// Elements [begin, begin + n) of row r, n at most kChunk; begin is a multiple of kChunk.
inline void decode_piece(const LinearSpec& spec, DecodeBlocks fast, int64_t r, int64_t begin, int64_t n,
                         uint8_t* codes, float* out) {
  const int64_t size = spec.block_size, blocks = (spec.length + size - 1) / size;
  const uint8_t* packed = spec.packed + r * spec.row_bytes + packed_bytes(begin, spec.bits);
  if (spec.family == 2) {
    memcpy(out, packed, static_cast<size_t>(n) * 4);
    return;
  }
  if (fast && (spec.offset != 1 || zero_points_fit(spec, r * blocks + begin / size, (n + size - 1) / size))) {
    fast(spec, packed, r * blocks, begin, n, out);
    return;
  }
  const DecodeSpec plain{spec.bits, spec.family, spec.scale_type, spec.offset, kFloat32, spec.values};
  unpack(packed, n, spec.bits, codes);
  for (int64_t i = 0; i < n;) {
    const int64_t b = (begin + i) / size, rest = (b + 1) * size - (begin + i);
    const int64_t m = rest < n - i ? rest : n - i;
    decode_block(plain, codes + i, m, spec.scales, spec.offsets, r * blocks + b, out + i);
    i += m;
  }
}

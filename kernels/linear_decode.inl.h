// Packed weights to float32, a piece of a row at a time, for the matmul. The values are those of
// `dequantize`, bit for bit; what lies past the row's end decodes to anything and meets zeros.

#if defined(__AVX2__)
#define BLOCKSCALE_VECTOR_DECODE 1

#if defined(__AVX512F__)
struct Float16Lanes {
  __m512 v;
};
inline Float16Lanes lanes_mul(Float16Lanes a, float s) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(s))}; }
inline Float16Lanes lanes_add(Float16Lanes a, float s) { return {_mm512_add_ps(a.v, _mm512_set1_ps(s))}; }
inline void lanes_store(float* out, Float16Lanes a) { _mm512_storeu_ps(out, a.v); }

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

// Decode 16 values at a time; `load` turns a place in the packed row into values without scale.
template <int kBits, typename Load>
inline void decode_sixteens(const uint8_t* packed, int64_t n, float s, Load load, float* out) {
  for (int64_t i = 0; i < n; i += 16) lanes_store(out + i, lanes_mul(load(packed + i * kBits / 8), s));
}

inline float scale_of(const LinearSpec& spec, int64_t block) {
  if (spec.family == 0) return e8m0_value(static_cast<const uint8_t*>(spec.scales)[block]);
  if (spec.scale_type == kFloat16) return _cvtsh_ss(static_cast<const uint16_t*>(spec.scales)[block]);
  return load_scale(spec.scale_type, spec.scales, block);
}

// One piece of one block, n a multiple of 16; false: not one of the fast kinds.
inline bool decode_fast(const LinearSpec& spec, const uint8_t* packed, int64_t n, int64_t block, float* out) {
  const float s = scale_of(spec, block) * spec.unit;
  int32_t z = 0;
  if (spec.offset == 1) {
    z = static_cast<const int32_t*>(spec.offsets)[block];
    if (z < INT32_MIN + 256) return false;  // code - z would not fit
  }
  switch (spec.kind) {
    case kE2m1:
      decode_sixteens<4>(packed, n, s, [](const uint8_t* p) { return e2m1_values(load_nibbles(p)); }, out);
      break;
    case kInt4:
      decode_sixteens<4>(
          packed, n, s, [z](const uint8_t* p) { return lanes_float(signed_nibbles(load_nibbles(p)), z); }, out);
      break;
    case kUint4:
      decode_sixteens<4>(
          packed, n, s, [z](const uint8_t* p) { return lanes_float(unsigned_nibbles(load_nibbles(p)), z); }, out);
      break;
    case kInt8:
      decode_sixteens<8>(packed, n, s, [z](const uint8_t* p) { return lanes_float(load_signed_bytes(p), z); }, out);
      break;
    case kUint8:
      decode_sixteens<8>(packed, n, s, [z](const uint8_t* p) { return lanes_float(load_unsigned_bytes(p), z); },
                         out);
      break;
    case kE4m3:
      decode_sixteens<8>(packed, n, s, [](const uint8_t* p) { return e4m3_values(p); }, out);
      break;
    case kE5m2:
      decode_sixteens<8>(packed, n, s, [](const uint8_t* p) { return e5m2_values(p); }, out);
      break;
    default:
      return false;
  }
  if (spec.offset == 2) {
    const float m = load_scale(spec.scale_type, spec.offsets, block);
    for (int64_t i = 0; i < n; ++i) out[i] += m;
  }
  return true;
}
#endif

// Elements [begin, begin + n) of row r, n at most kChunk; begin is a multiple of kChunk.
inline void decode_piece(const LinearSpec& spec, int64_t r, int64_t begin, int64_t n, uint8_t* codes, float* out) {
  const int64_t size = spec.block_size, blocks = (spec.length + size - 1) / size;
  const uint8_t* row = spec.packed + r * spec.row_bytes;
  const DecodeSpec plain{spec.bits, spec.family, spec.scale_type, spec.offset, kFloat32, spec.values};
  bool unpacked = false;
  if (spec.family == 2) {
    memcpy(out, row + begin * 4, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n;) {
    const int64_t b = (begin + i) / size, rest = (b + 1) * size - (begin + i);
    const int64_t m = rest < n - i ? rest : n - i;
#if BLOCKSCALE_VECTOR_DECODE
    if (size >= 16 && decode_fast(spec, row + packed_bytes(begin + i, spec.bits), (m + 15) / 16 * 16, r * blocks + b,
                                  out + i)) {
      i += m;
      continue;
    }
#endif
    if (!unpacked) unpack(row + packed_bytes(begin, spec.bits), n, spec.bits, codes);
    unpacked = true;
    decode_block(plain, codes + i, m, spec.scales, spec.offsets, r * blocks + b, out + i);
    i += m;
  }
}

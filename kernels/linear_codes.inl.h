// Sixteen codes to float32, for the matmul: the values are those of `dequantize`, bit for bit.

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
  return {_mm512_fmadd_ps(x.v, y.v, sum.v)};
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
inline Float16Lanes lanes_lookup(Float16Lanes table, Int16Lanes q) { return {_mm512_permutexvar_ps(q.v, table.v)}; }
inline Int16Lanes all_nibbles() {  // each code where it is looked up
  return {_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)};
}
inline Int16Lanes load_signed_bytes(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Int16Lanes load_unsigned_bytes(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Float16Lanes halves_to_float(__m256i h) { return {_mm512_cvtph_ps(h)}; }
// 0 is 2**-127, a subnormal, and 255 is NaN: both want the top bit of the mantissa.
inline Float16Lanes e8m0_lanes(Int16Lanes e) {
  const __mmask16 ends = _mm512_cmpge_epu32_mask(_mm512_sub_epi32(e.v, _mm512_set1_epi32(1)), _mm512_set1_epi32(254));
  const __m512i bits = _mm512_slli_epi32(e.v, 23);
  return {_mm512_castsi512_ps(_mm512_mask_or_epi32(bits, ends, bits, _mm512_set1_epi32(0x400000)))};
}

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
  return {_mm256_fmadd_ps(x.a, y.a, sum.a), _mm256_fmadd_ps(x.b, y.b, sum.b)};
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
inline __m256 e8m0_half(__m256i e) {  // 0 is 2**-127, a subnormal, and 255 is NaN: the top bit of the mantissa
  const __m256i ends = _mm256_or_si256(_mm256_cmpeq_epi32(e, _mm256_setzero_si256()),
                                       _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
  const __m256i top = _mm256_and_si256(ends, _mm256_set1_epi32(0x400000));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(e, 23), top));
}
inline Float16Lanes e8m0_lanes(Int16Lanes e) { return {e8m0_half(e.a), e8m0_half(e.b)}; }
inline Float16Lanes halves_to_float(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
#endif

inline Float16Lanes e5m2_values(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return halves_to_float(halves_of_codes(code, 8));
}
#if defined(__AVX512VBMI__)
// The upper two bytes of every code's value in float32 but for the sign; the others are zeros.
struct E4m3Bytes {
  alignas(64) uint8_t upper[128] = {}, lower[128] = {};
  constexpr E4m3Bytes() {
    for (uint32_t code = 1; code < 128; ++code) {
      uint32_t exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {  // subnormal: moved up to where a float32 has its first bit
        for (exponent = 1; fraction < 8; fraction *= 2) --exponent;
        fraction &= 7;
      }
      const uint32_t half = code == 127 ? 0x7FC0 : ((exponent + 120) << 7) | (fraction << 4);
      upper[code] = static_cast<uint8_t>(half >> 8), lower[code] = static_cast<uint8_t>(half & 255);
    }
  }
};
constexpr E4m3Bytes kE4m3Bytes;

inline __m512i lookup_7_bits(const uint8_t* table, __m512i index) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
}
// Two bytes of each of sixteen codes from lane `first` on.
inline Float16Lanes e4m3_lanes(__m512i lower, __m512i upper, int first) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i from = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
  const __m512i bytes = _mm512_or_si512(_mm512_slli_epi32(from, 16), _mm512_slli_epi32(from, 24));
  const __m512i second = _mm512_set1_epi32(0x40000000);  // the top byte is of the second vector
  return {_mm512_castsi512_ps(
      _mm512_maskz_permutex2var_epi8(0xCCCCCCCCCCCCCCCC, lower, _mm512_or_si512(bytes, second), upper))};
}
// Sixteen times kMany values: the look-ups are as many for 32 as for 16.
template <int kMany>
inline void e4m3_lookup(const uint8_t* p, Float16Lanes* out) {
  const __m512i code = kMany == 1 ? _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))
                                  : _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i upper = _mm512_ternarylogic_epi32(lookup_7_bits(kE4m3Bytes.upper, code), code, sign, 0xF8);
  const __m512i lower = lookup_7_bits(kE4m3Bytes.lower, code);
  for (int i = 0; i < kMany; ++i) out[i] = e4m3_lanes(lower, upper, i * 16);
}
inline Float16Lanes e4m3_values(const uint8_t* p) {
  Float16Lanes value;
  e4m3_lookup<1>(p, &value);
  return value;
}
#else
inline Float16Lanes e4m3_values(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return lanes_mul(halves_to_float(halves_of_codes(code, 7)), 256.0f);
}
#endif

// One class per kind of code: 16 codes at `p` to values without scale; z is the zero point.
struct ReadE2m1 {
  static constexpr int kBits = 4;
  static Float16Lanes values(Int16Lanes q, int32_t) { return e2m1_values(q); }
  static Float16Lanes read(const uint8_t* p, int32_t z) { return values(load_nibbles(p), z); }
};
struct ReadInt4 {
  static constexpr int kBits = 4;
  static Float16Lanes values(Int16Lanes q, int32_t z) { return lanes_float(signed_nibbles(q), z); }
  static Float16Lanes read(const uint8_t* p, int32_t z) { return values(load_nibbles(p), z); }
};
struct ReadUint4 {
  static constexpr int kBits = 4;
  static Float16Lanes values(Int16Lanes q, int32_t z) { return lanes_float(unsigned_nibbles(q), z); }
  static Float16Lanes read(const uint8_t* p, int32_t z) { return values(load_nibbles(p), z); }
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

// The codes of one block: zero point z, scale s, minimum m.
template <typename Read, int kOffset>
struct BlockValues {
  int32_t z;
  float s, m;
  BlockValues(int32_t zero_point, float scale, float minimum) : z(zero_point), s(scale), m(minimum) {}
  Float16Lanes read(const uint8_t* p) const {
    const Float16Lanes value = lanes_mul(Read::read(p, z), s);
    return kOffset == 2 ? lanes_add(value, m) : value;
  }
  void read_two(const uint8_t* p, Float16Lanes* two) const {
    two[0] = read(p), two[1] = read(p + 2 * Read::kBits);
  }
};

#if defined(__AVX512VBMI__)
template <>
inline void BlockValues<ReadE4m3, 0>::read_two(const uint8_t* p, Float16Lanes* two) const {
  e4m3_lookup<2>(p, two);
  two[0] = lanes_mul(two[0], s), two[1] = lanes_mul(two[1], s);
}
#endif

#if defined(__AVX512F__)
// Four bits: the sixteen values that a block can have, found once, then looked up.
template <typename Read, int kOffset>
  requires(Read::kBits == 4)
struct BlockValues<Read, kOffset> {
  Float16Lanes table;
  BlockValues(int32_t z, float s, float m) : table(lanes_mul(Read::values(all_nibbles(), z), s)) {
    if (kOffset == 2) table = lanes_add(table, m);
  }
  Float16Lanes read(const uint8_t* p) const { return lanes_lookup(table, load_nibbles(p)); }
  void read_two(const uint8_t* p, Float16Lanes* two) const { two[0] = read(p), two[1] = read(p + 8); }
};
#endif
#endif

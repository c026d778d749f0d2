// A Wide is 64 bytes in four parts of 16: one register of AVX-512, two of AVX2.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define BLOCKSCALE_MANY 1
constexpr int kMostRows = 4;  // activation rows at a time
constexpr int kSignedOffset = 128, kUnsignedOffset = 0;  // what is added to codes to make them unsigned
struct Wide {
  __m512i v;
};
struct WideFloat {
  __m512 v;
};
inline Wide wide_load(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Wide wide_xor(Wide x, int c) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(static_cast<char>(c)))}; }
// The table repeats every sixteen bytes, so that bits above a nibble do not matter.
inline Wide wide_low(Wide table, Wide x) { return {_mm512_permutexvar_epi8(x.v, table.v)}; }
inline Wide wide_high(Wide table, Wide x) { return wide_low(table, {_mm512_srli_epi16(x.v, 4)}); }
inline Wide wide_table(const int8_t* sixteen) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)))};
}
inline void wide_halves(const uint8_t* p, Wide* first, Wide* second) {
  const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
  first->v = _mm512_shuffle_i32x4(a, b, 0x88);
  second->v = _mm512_shuffle_i32x4(a, b, 0xDD);
}
inline Wide wide_dot(Wide w0, Wide a0, Wide w1, Wide a1) {
  return {_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w0.v, a0.v), w1.v, a1.v)};
}
inline Wide wide_pairs(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi32(x.v, y.v), _mm512_unpackhi_epi32(x.v, y.v))};
}
inline Wide wide_quads(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi64(x.v, y.v), _mm512_unpackhi_epi64(x.v, y.v))};
}
inline WideFloat wide_float(Wide x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline WideFloat wide_floats(const float* p) { return {_mm512_loadu_ps(p)}; }
inline WideFloat wide_spread(const float* p) {  // p[j] to all of part j
  const __m512 x = _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  return {_mm512_permutevar_ps(x, _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0))};
}
inline WideFloat wide_constant(float c) { return {_mm512_set1_ps(c)}; }
inline WideFloat wide_zero() { return {_mm512_setzero_ps()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline WideFloat operator+(WideFloat x, WideFloat y) { return {_mm512_add_ps(x.v, y.v)}; }
inline WideFloat operator-(WideFloat x, WideFloat y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline __m128 wide_total(WideFloat x) {  // (part 0 + part 2) + (part 1 + part 3)
  const __m256 low = _mm512_castps512_ps256(x.v), high = _mm512_extractf32x8_ps(x.v, 1);
  const __m256 sum = _mm256_add_ps(low, high);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

#else  // AVX2: two halves; signed codes
constexpr int kMostRows = 2;
constexpr int kSignedOffset = 0, kUnsignedOffset = -128;
struct Wide {
  __m256i a, b;
};
struct WideFloat {
  __m256 a, b;
};
inline __m256i half_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Wide wide_load(const void* p) { return {half_load(p), half_load(static_cast<const char*>(p) + 32)}; }
inline Wide wide_xor(Wide x, int c) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(c));
  return {_mm256_xor_si256(x.a, mask), _mm256_xor_si256(x.b, mask)};
}
inline Wide wide_low(Wide table, Wide x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_shuffle_epi8(table.a, _mm256_and_si256(x.a, mask)),
          _mm256_shuffle_epi8(table.b, _mm256_and_si256(x.b, mask))};
}
inline Wide wide_high(Wide table, Wide x) {
  return wide_low(table, {_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
inline Wide wide_table(const int8_t* sixteen) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
  return {t, t};
}
inline void wide_halves(const uint8_t* p, Wide* first, Wide* second) {
  const __m256i a = half_load(p), b = half_load(p + 32), c = half_load(p + 64), d = half_load(p + 96);
  *first = {_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(c, d, 0x20)};
  *second = {_mm256_permute2x128_si256(a, b, 0x31), _mm256_permute2x128_si256(c, d, 0x31)};
}
// |w| <= 128 and |a| <= 127, so that pairs of products fit 16 bits.
inline __m256i half_dot(__m256i w, __m256i a) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
inline Wide wide_dot(Wide w0, Wide a0, Wide w1, Wide a1) {
  return {_mm256_add_epi32(half_dot(w0.a, a0.a), half_dot(w1.a, a1.a)),
          _mm256_add_epi32(half_dot(w0.b, a0.b), half_dot(w1.b, a1.b))};
}
inline __m256i half_pairs(__m256i x, __m256i y) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
}
inline __m256i half_quads(__m256i x, __m256i y) {
  return _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
}
inline Wide wide_pairs(Wide x, Wide y) { return {half_pairs(x.a, y.a), half_pairs(x.b, y.b)}; }
inline Wide wide_quads(Wide x, Wide y) { return {half_quads(x.a, y.a), half_quads(x.b, y.b)}; }
inline WideFloat wide_float(Wide x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline WideFloat wide_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline WideFloat wide_spread(const float* p) {
  const __m256 x = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  return {_mm256_permutevar_ps(x, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0)),
          _mm256_permutevar_ps(x, _mm256_set_epi32(3, 3, 3, 3, 2, 2, 2, 2))};
}
inline WideFloat wide_constant(float c) { return {_mm256_set1_ps(c), _mm256_set1_ps(c)}; }
inline WideFloat wide_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline WideFloat operator+(WideFloat x, WideFloat y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline WideFloat operator-(WideFloat x, WideFloat y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline __m128 wide_total(WideFloat x) {
  const __m256 sum = _mm256_add_ps(x.a, x.b);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}
#endif

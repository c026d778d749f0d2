// A Wide is 64 bytes in four parts of 16: one register of AVX-512, two of AVX2.

constexpr int64_t kFewWeights = 16;  // weight rows that are finished together
constexpr int64_t kOneRowWeights = 64;  // where one activation row meets them

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define BLOCKSCALE_MANY 1
constexpr int kMostRows = 4;  // activation rows at a time
constexpr bool kLookLow = true;  // lower nibbles are looked up: other pipes than those of dot products do it
constexpr int kSignedOffset = 128, kUnsignedOffset = 0;  // what is added to codes to make them unsigned
struct Wide {
  __m512i v;
};
struct WideFloat {
  __m512 v;
};
inline Wide wide_load(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Wide wide_load_once(const void* p) {  // kept in a register, where compilers load twice
  __m512i v = _mm512_loadu_si512(p);
  __asm__("" : "+v"(v));
  return {v};
}
inline Wide wide_xor(Wide x, int c) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(static_cast<char>(c)))}; }
// The table repeats every sixteen bytes, so that bits above a nibble do not matter.
inline Wide wide_low(Wide table, Wide x) { return {_mm512_permutexvar_epi8(x.v, table.v)}; }
inline Wide wide_upper(Wide x) { return {_mm512_srli_epi16(x.v, 4)}; }
inline Wide wide_nibble(Wide x, int flip) {  // the lower one of each byte, bits of `flip` turned
  const __m512i bits = _mm512_set1_epi8(static_cast<char>(flip));
  return {_mm512_ternarylogic_epi32(x.v, _mm512_set1_epi8(15), bits, 0x6A)};
}
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
inline Wide wide_dot_few_bits(Wide w0, Wide a0, Wide w1, Wide a1) { return wide_dot(w0, a0, w1, a1); }
inline Wide wide_pack(Wide x, Wide y) { return {_mm512_packs_epi32(x.v, y.v)}; }
inline Wide wide_add_shorts(Wide x) { return {_mm512_madd_epi16(x.v, _mm512_set1_epi16(1))}; }
inline Wide wide_add_shorts_to(Wide sum, Wide x) {
  return {_mm512_dpwssd_epi32(sum.v, x.v, _mm512_set1_epi16(1))};
}
inline Wide wide_add_next(Wide x, Wide y) {
  const __m512 a = _mm512_castsi512_ps(x.v), b = _mm512_castsi512_ps(y.v);
  return {_mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                           _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)))};
}
// Of x and y: words 0 + 2, 1 + 3, 4 + 6, 5 + 7 of each part.
inline Wide wide_add_words(Wide x, Wide y) {
  const __m512 a = _mm512_castsi512_ps(x.v), b = _mm512_castsi512_ps(y.v);
  return {_mm512_add_epi16(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                           _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)))};
}
inline Wide wide_pairs(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi32(x.v, y.v), _mm512_unpackhi_epi32(x.v, y.v))};
}
inline Wide wide_quads(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi64(x.v, y.v), _mm512_unpackhi_epi64(x.v, y.v))};
}
inline WideFloat wide_float(Wide x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline WideFloat wide_floats(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Wide wide_plus(Wide x, Wide y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline Wide wide_zeros() { return {_mm512_setzero_si512()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline WideFloat wide_fused(WideFloat x, WideFloat y, WideFloat z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline WideFloat wide_minus_product(WideFloat z, WideFloat x, WideFloat y) {
  return {_mm512_fnmadd_ps(x.v, y.v, z.v)};
}
inline void wide_store(float* p, WideFloat x) { _mm512_store_ps(p, x.v); }

// The lanes of each row halved, 8 + 4 + 2 + 1, and no -0; lane 4 k + j lies at 4 j + k. Reads sixteen rows at a time.
inline void add_wide_lanes(const float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; n += 16) {
    __m512 quads[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float* p = lanes + (n + i * 4) * 16;
      const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
      const __m512 c = _mm512_loadu_ps(p + 32), d = _mm512_loadu_ps(p + 48);
      quads[i] = halve_2(halve_4(a, b), halve_4(c, d));
    }
    const __m512 sums = halve_8(halve_16(quads[0], quads[1]), halve_16(quads[2], quads[3])) + _mm512_setzero_ps();
    const int64_t left = count - n < 16 ? count - n : 16;
    _mm512_mask_storeu_ps(out + n, static_cast<__mmask16>((1u << left) - 1), sums);
  }
}

#else  // AVX2: two halves; signed codes
constexpr int kMostRows = 2;
constexpr bool kLookLow = false;
constexpr int kSignedOffset = 0, kUnsignedOffset = -128;
struct Wide {
  __m256i a, b;
};
struct WideFloat {
  __m256 a, b;
};
inline __m256i half_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Wide wide_load(const void* p) { return {half_load(p), half_load(static_cast<const char*>(p) + 32)}; }
inline Wide wide_load_once(const void* p) { return wide_load(p); }
inline Wide wide_xor(Wide x, int c) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(c));
  return {_mm256_xor_si256(x.a, mask), _mm256_xor_si256(x.b, mask)};
}
inline Wide wide_low(Wide table, Wide x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_shuffle_epi8(table.a, _mm256_and_si256(x.a, mask)),
          _mm256_shuffle_epi8(table.b, _mm256_and_si256(x.b, mask))};
}
inline Wide wide_upper(Wide x) { return {_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}; }
inline Wide wide_nibble(Wide x, int flip) {  // the lower one of each byte, bits of `flip` turned
  const __m256i mask = _mm256_set1_epi8(15), bits = _mm256_set1_epi8(static_cast<char>(flip));
  return {_mm256_xor_si256(_mm256_and_si256(x.a, mask), bits), _mm256_xor_si256(_mm256_and_si256(x.b, mask), bits)};
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
// 0 <= w <= 24: four products fit 16 bits.
inline __m256i half_dot_few_bits(__m256i w0, __m256i a0, __m256i w1, __m256i a1) {
  const __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(w0, a0), _mm256_maddubs_epi16(w1, a1));
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}
inline Wide wide_dot_few_bits(Wide w0, Wide a0, Wide w1, Wide a1) {
  return {half_dot_few_bits(w0.a, a0.a, w1.a, a1.a), half_dot_few_bits(w0.b, a0.b, w1.b, a1.b)};
}
inline Wide wide_pack(Wide x, Wide y) { return {_mm256_packs_epi32(x.a, y.a), _mm256_packs_epi32(x.b, y.b)}; }
inline Wide wide_add_shorts(Wide x) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(x.a, ones), _mm256_madd_epi16(x.b, ones)};
}
inline Wide wide_add_next(Wide x, Wide y) {  // hadd keeps to parts of 16 bytes
  return {_mm256_hadd_epi32(x.a, y.a), _mm256_hadd_epi32(x.b, y.b)};
}
inline __m256i half_add_words(__m256i x, __m256i y) {
  const __m256 a = _mm256_castsi256_ps(x), b = _mm256_castsi256_ps(y);
  return _mm256_add_epi16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)));
}
inline Wide wide_add_words(Wide x, Wide y) { return {half_add_words(x.a, y.a), half_add_words(x.b, y.b)}; }
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
inline Wide wide_plus(Wide x, Wide y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Wide wide_zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline WideFloat wide_fused(WideFloat x, WideFloat y, WideFloat z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline WideFloat wide_minus_product(WideFloat z, WideFloat x, WideFloat y) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
inline void wide_store(float* p, WideFloat x) { _mm256_store_ps(p, x.a), _mm256_store_ps(p + 8, x.b); }
inline WideFloat wide_turned(WideFloat x) {  // lane 4 i + j of x at lane 4 j + i
  const __m256i from = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  return {_mm256_permutevar8x32_ps(_mm256_unpacklo_ps(x.a, x.b), from),
          _mm256_permutevar8x32_ps(_mm256_unpackhi_ps(x.a, x.b), from)};
}

// The lanes of each row halved, 8 + 4 + 2 + 1, and no -0; lane 4 k + j lies at 4 j + k.
inline __m256 half_total(__m256 x) {
  const __m256 y = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4E));
  return _mm256_add_ps(y, _mm256_permute_ps(y, 0xB1));
}
inline void add_wide_lanes(const float* lanes, int64_t count, float* out) {
  for (int64_t r = 0; r < count; ++r, lanes += 16) {
    const __m256 sum = _mm256_add_ps(half_total(_mm256_load_ps(lanes)), half_total(_mm256_load_ps(lanes + 8)));
    out[r] = _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1))) + 0.0f;
  }
}
#endif

inline Wide wide_high(Wide table, Wide x) { return wide_low(table, wide_upper(x)); }

// How codes are stored: nibbles that are their own value when `flip` is turned, nibbles to look up, bytes.
enum StoredCodes { kNibbles, kLookup, kBytes };

inline StoredCodes stored_codes_of(const LinearSpec& spec) {
  if (spec.bits != 4) return kBytes;
  return spec.kind == LinearKind::kInt4 || spec.kind == LinearKind::kUint4 ? kNibbles : kLookup;
}

// What stored codes lie above the integers, so that they are not negative (or, bytes on AVX2, signed).
inline int stored_offset(const LinearSpec& spec) {
  switch (spec.kind) {
    case LinearKind::kInt4: return 8;
    case LinearKind::kUint4: return 0;
    case LinearKind::kE2m1: return 12;
    default: return spec.kind == LinearKind::kUint8 ? kUnsignedOffset : kSignedOffset;
  }
}

// Of nibbles, half added up: two words each. (Few multiplications: they are what the dot products wait for.)
[[gnu::always_inline]] inline Wide wide_nibble_sums(const Wide* x) {
  return wide_add_words(wide_pack(x[0], x[1]), wide_pack(x[2], x[3]));
}

// Four integers in each part of x[0 .. 3], dot products: their sums, that of x[k] at lane k of the part. Stored nibbles
// are at most 15, looked up ones 24: sums of 8 products with activations fit 16 bits, of 16 those of nibbles.
template <StoredCodes kCodes>
[[gnu::always_inline]] inline Wide wide_sums(const Wide* x) {
  if constexpr (kCodes == kBytes) return wide_quads(wide_pairs(x[0], x[1]), wide_pairs(x[2], x[3]));
  if constexpr (kCodes == kNibbles) return wide_add_shorts(wide_nibble_sums(x));
  return wide_add_next(wide_add_shorts(wide_pack(x[0], x[1])), wide_add_shorts(wide_pack(x[2], x[3])));
}

// As above, from corrections on, which lie at those lanes; or half of them, before the last sum, at lane 2 k of the
// first Wide for k < 2, at lane 2 k - 4 of the second for others, and zeros between.
#if BLOCKSCALE_MANY
template <StoredCodes kCodes>
constexpr int64_t kCorrections = kCodes == kLookup ? 2 : 1;  // Wides

template <StoredCodes kCodes>
[[gnu::always_inline]] inline Wide wide_sums_from(const Wide* x, const int32_t* corrections) {
  const Wide from = wide_load(corrections);
  if constexpr (kCodes == kBytes) return wide_plus(wide_sums<kCodes>(x), from);
  if constexpr (kCodes == kLookup)
    return wide_add_next(wide_add_shorts_to(from, wide_pack(x[0], x[1])),
                         wide_add_shorts_to(wide_load(corrections + 16), wide_pack(x[2], x[3])));
  return wide_add_shorts_to(from, wide_nibble_sums(x));
}
#else
template <StoredCodes kCodes>
constexpr int64_t kCorrections = 1;

template <StoredCodes kCodes>
[[gnu::always_inline]] inline Wide wide_sums_from(const Wide* x, const int32_t* corrections) {
  return wide_plus(wide_sums<kCodes>(x), wide_load(corrections));
}
#endif

// What finds stored codes.
struct Storing {
  Wide table;
  int flip;  // stored value = code ^ flip
  explicit Storing(const LinearSpec& spec) : flip(stored_offset(spec) & (spec.bits == 4 ? 8 : 128)) {
    int8_t sixteen[16] = {};
    for (int c = 0; c < 16 && spec.bits == 4; ++c)
      sixteen[c] = static_cast<int8_t>(spec.integers[c] + stored_offset(spec));
    table = wide_table(sixteen);
  }
};

// Nibbles, the lower and the upper ones.
template <StoredCodes kCodes>
[[gnu::always_inline]] inline void stored_nibbles(Wide x, const Storing& by, Wide* c) {
  c[0] = kCodes == kNibbles && !kLookLow ? wide_nibble(x, by.flip) : wide_low(by.table, x);
  c[1] = kCodes == kNibbles ? wide_nibble(wide_upper(x), by.flip) : wide_high(by.table, x);
}

// Whether codes are neither nibbles nor bytes, or bytes that mean other integers.
inline bool is_table(const LinearSpec& spec) {
  return spec.bits == 8 ? spec.kind == LinearKind::kTable : spec.bits != 4;
}

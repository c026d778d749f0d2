// Vectors to narrower numbers in memory and back: bytes, float16, bfloat16, packed codes.

// The low byte of each lane.
inline void store_bytes(uint8_t* p, Words v) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8,
                                         12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)v, order);
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storel_epi64((__m128i*)p, both);
#else
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint8_t>(v[i]);
#endif
}

// The lanes of four vectors as bytes, in order; every lane is at most 255.
inline void store_bytes4(uint8_t* p, const Words* v) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_packus_epi32((__m512i)v[0], (__m512i)v[1]);
  const __m512i high = _mm512_packus_epi32((__m512i)v[2], (__m512i)v[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_packus_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packus_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256((__m256i*)p, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
#else
  for (int i = 0; i < 4; ++i) store_bytes(p + i * kLanes, v[i]);
#endif
}

// The same for a block of 32.
inline void store_block32(uint8_t* p, const Words* v) {
#if defined(__AVX512F__)
  store_bytes(p, v[0]);
  store_bytes(p + 16, v[1]);
#else
  for (int i = 0; i < 32; i += 4 * kLanes) store_bytes4(p + i, v + i / kLanes);
#endif
}

// kLanes numbers of a 16-bit type, widened. Infinities and NaN stay what they are.
inline Floats widen_half(const uint16_t* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  Words h;
  for (int i = 0; i < kLanes; ++i) h[i] = p[i];
  const Words magnitude = h & 0x7FFFu;
  const Words finite = (Words)((Floats)(magnitude << 13) * 0x1p112f);  // normalises subnormals too
  const Words special = (magnitude << 13) | 0x7F800000u;
  return (Floats)(select((Ints)(magnitude >= 0x7C00u), special, finite) | ((h & 0x8000u) << 16));
#endif
}

inline Floats widen_bfloat16(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return (Floats)_mm512_slli_epi32(wide, 16);
#elif defined(__AVX2__)
  return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  Words h;
  for (int i = 0; i < kLanes; ++i) h[i] = p[i];
  return (Floats)(h << 16);
#endif
}

// Bytes of an input element that vectors read.
constexpr int64_t input_width(int32_t type) { return type == kFloat32 ? 4 : 2; }

// n inputs (whole vectors) as floats: where they lie, or widened at `out`.
inline const float* as_floats(int32_t type, const void* from, int64_t n, float* out) {
  if (type == kFloat32) return static_cast<const float*>(from);
  const uint16_t* p = static_cast<const uint16_t*>(from);
  if (type == kFloat16)
    for (int64_t i = 0; i < n; i += kLanes) store(out + i, widen_half(p + i));
  else
    for (int64_t i = 0; i < n; i += kLanes) store(out + i, widen_bfloat16(p + i));
  return out;
}

// kLanes values rounded to float16, halves to even. NaNs become the quiet NaN of their sign.
inline void store_half(uint16_t* p, Floats v) {
  const Words u = (Words)v, a = u & 0x7FFFFFFFu;
#if defined(__AVX2__)
  const Words quiet = merge(0x80000000u, u, spread(0x7FC00000u));
  const Floats clean = (Floats)select((Ints)(a > 0x7F800000u), quiet, u);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)clean, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)clean, _MM_FROUND_TO_NEAREST_INT));
#endif
#else
  const Words normal = (a + 0xFFFu + (a >> 13 & 1u) - (112u << 23)) >> 13;
  const Words subnormal = (Words)((Floats)a + 0.5f) - 0x3F000000u;  // 0.5 has an ulp of 2**-24
  Words h = select((Ints)(a < 0x38800000u), subnormal, normal);
  h = select((Ints)(a >= 0x477FF000u), spread(0x7C00u), h);
  h = select((Ints)(a > 0x7F800000u), spread(0x7E00u), h) | (u >> 16 & 0x8000u);
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(h[i]);
#endif
}

// The same for bfloat16; NaNs keep their upper bits.
inline void store_bfloat16(uint16_t* p, Floats v) {
  const Words u = (Words)v, a = u & 0x7FFFFFFFu;
  const Words rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  const Words h = select((Ints)(a > 0x7F800000u), quiet, rounded);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)h));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)h, (__m256i)h), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(pairs));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(h[i]);
#endif
}

// Finite values that become infinite when rounded to a type of which `first` (bits of a float32) is the
// least.
inline Ints overflows(Floats v, uint32_t first) {
  return (Ints)(((Words)v & 0x7FFFFFFFu) - first < 0x7F800000u - first);
}

// Whether a code of four bits, a byte each, has the magnitude 1 or 3; n is a multiple of 16.
inline bool has_code_1_or_3(const uint8_t* codes, int64_t n) {
#if defined(__AVX2__)
  if (n % 32 == 0) {
    __m256i found = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 32) {
      const __m256i odd =
          _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(codes + i)), _mm256_set1_epi8(5));
      found = _mm256_or_si256(found, _mm256_cmpeq_epi8(odd, _mm256_set1_epi8(1)));
    }
    return !_mm256_testz_si256(found, found);
  }
#endif
  constexpr uint64_t kOnes = 0x0101010101010101ull;
  uint64_t found = 0;
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t w;
    memcpy(&w, codes + i, 8);
    w = (w & 5 * kOnes) ^ kOnes;               // a zero byte where the code is 1 or 3
    found |= (w - kOnes) & ~w & 0x80 * kOnes;  // a zero byte gives its high bit
  }
  return found;
}

// Sixteen codes of four bits, a byte each, to eight bytes, the first code of a pair low.
inline uint64_t join_nibbles(const uint8_t* codes) {
  uint64_t w[2];
  memcpy(w, codes, 16);
  for (uint64_t& v : w) {
    v = (v | v >> 4) & 0x00FF00FF00FF00FFull;
    v = (v | v >> 8) & 0x0000FFFF0000FFFFull;
    v = (v | v >> 16) & 0xFFFFFFFFull;
  }
  return w[0] | w[1] << 32;
}

// Packs codes of four bits; n is a multiple of 16 and the high bits are zero.
inline void pack_nibbles(const uint8_t* codes, int64_t n, uint8_t* out) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i weight = _mm512_set1_epi16(0x1001);  // low + 16 * high
  for (; i + 64 <= n; i += 64) {
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_loadu_si512(codes + i), weight);
    _mm256_storeu_si256((__m256i*)(out + i / 2), _mm512_cvtepi16_epi8(pairs));
  }
#elif defined(__AVX2__)
  const __m256i weight = _mm256_set1_epi16(0x1001);
  for (; i + 32 <= n; i += 32) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i*)(codes + i)), weight);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i*)(out + i / 2), _mm256_castsi256_si128(bytes));
  }
#endif
  for (; i < n; i += 16) {
    const uint64_t word = join_nibbles(codes + i);
    memcpy(out + i / 2, &word, 8);
  }
}

// Packs codes of six bits, four to three bytes; n is a multiple of 16 and the high bits are zero.
inline void pack_sixes(const uint8_t* codes, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t w;
    memcpy(&w, codes + i, 8);
    w = (w & 0x00FF00FF00FF00FFull) | (w >> 2 & 0x0FC00FC00FC00FC0ull);
    w = (w & 0x00000FFF00000FFFull) | (w >> 4 & 0x00FFF00000FFF000ull);
    w = (w & 0x0000000000FFFFFFull) | (w >> 8 & 0x0000FFFFFF000000ull);
    memcpy(out, &w, 6);
    out += 6;
  }
}

// Vectors as wide as the instruction set has them, from the compilers' vector types: the arithmetic is the
// usual operators, lane by lane, so one text serves every instruction set. Intrinsics only where compilers
// find nothing good: conversions, minimum and maximum, moves between lanes.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));

typedef double Doubles __attribute__((vector_size(4 * kLanes)));  // half as many lanes
typedef int64_t Longs __attribute__((vector_size(4 * kLanes)));

template <typename Vector, typename T>
inline Vector load(const T* p) {
  Vector v;
  memcpy(&v, p, sizeof v);
  return v;
}

template <typename Vector, typename T>
inline void store(T* p, Vector v) {
  memcpy(p, &v, sizeof v);
}

inline Floats spread(float v) { return Floats{} + v; }
inline Words spread(uint32_t v) { return Words{} + v; }
inline Ints spread(int32_t v) { return Ints{} + v; }

// All ones where a comparison holds: b ? x : y without a branch.
inline Floats select(Ints mask, Floats x, Floats y) { return (Floats)(((Ints)x & mask) | ((Ints)y & ~mask)); }
inline Words select(Ints mask, Words x, Words y) { return (x & (Words)mask) | (y & (Words)~mask); }

// Bits of x where the constant has ones, of y elsewhere.
inline Words merge(uint32_t mask, Words x, Words y) {
#if defined(__AVX512F__)
  return (Words)_mm512_ternarylogic_epi32((__m512i)spread(mask), (__m512i)x, (__m512i)y, 0xCA);
#else
  return (x & mask) | (y & ~mask);
#endif
}

// y * factor + c, for products that are exact: fused or not, the bits are the same.
inline Floats exact_product_plus(Floats y, float factor, float c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)y, (__m512)spread(factor), (__m512)spread(c));
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)y, (__m256)spread(factor), (__m256)spread(c));
#else
  return y * factor + c;
#endif
}

// For estimates whose errors are accounted for: fused or not, which only makes them smaller.
inline Floats plus_product(Floats sum, Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}
inline Floats less_product(Floats v, Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)v);
#elif defined(__AVX2__)
  return (Floats)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)v);
#else
  return v - a * b;
#endif
}
inline Floats rounded(Floats v) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)v, 0);
#elif defined(__AVX2__)
  return (Floats)_mm256_round_ps((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (v + 0x1.8p23f) - 0x1.8p23f;
#endif
}
inline Floats magnitude(Floats v) { return (Floats)((Words)v & 0x7FFFFFFFu); }

// As the processors define them: the second where one is NaN.
#if defined(__AVX512F__)
inline Floats minimum(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
inline Floats maximum(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline Ints maximum(Ints a, Ints b) { return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
inline Ints minimum(Ints a, Ints b) { return (Ints)_mm512_min_epi32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
inline Floats minimum(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
inline Floats maximum(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline Ints maximum(Ints a, Ints b) { return (Ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }
inline Ints minimum(Ints a, Ints b) { return (Ints)_mm256_min_epi32((__m256i)a, (__m256i)b); }
#else
inline Floats minimum(Floats a, Floats b) { return select((Ints)(a < b), a, b); }
inline Floats maximum(Floats a, Floats b) { return select((Ints)(a > b), a, b); }
inline Ints maximum(Ints a, Ints b) { return (Ints)select(a > b, (Words)a, (Words)b); }
inline Ints minimum(Ints a, Ints b) { return (Ints)select(a < b, (Words)a, (Words)b); }
#endif

#if defined(__AVX512F__)
inline Doubles minimum(Doubles a, Doubles b) { return (Doubles)_mm512_min_pd((__m512d)a, (__m512d)b); }
inline Doubles maximum(Doubles a, Doubles b) { return (Doubles)_mm512_max_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__)
inline Doubles minimum(Doubles a, Doubles b) { return (Doubles)_mm256_min_pd((__m256d)a, (__m256d)b); }
inline Doubles maximum(Doubles a, Doubles b) { return (Doubles)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
inline Doubles minimum(Doubles a, Doubles b) {
  const Longs less = (Longs)(a < b);
  return (Doubles)(((Longs)a & less) | ((Longs)b & ~less));
}
inline Doubles maximum(Doubles a, Doubles b) {
  const Longs more = (Longs)(a > b);
  return (Doubles)(((Longs)a & more) | ((Longs)b & ~more));
}
#endif

// Truncated to integers; values beyond int32 give nonsense, not a trap.
inline Ints truncate(Floats v) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvttps_epi32((__m512)v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvttps_epi32((__m256)v);
#else
  return __builtin_convertvector(v, Ints);
#endif
}

// To the nearest integer, halves to even; nonsense beyond int32.
inline Ints round_nearest(Floats v) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)v);
#else
  const Floats whole = (v + 0x1.8p23f) - 0x1.8p23f;  // right below 2**22; callers ask for no more
  return truncate(whole);
#endif
}

inline Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }

inline bool any(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  return mask[0] | mask[1] | mask[2] | mask[3];
#endif
}

// Bit i: lane i of a mask.
inline uint32_t lane_bits(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  return bits;
#endif
}

// Subtracts 1 where the mask holds; written so that it becomes one masked instruction.
inline void count(Ints* sum, Ints mask) { *sum = mask ? *sum - 1 : *sum; }

// Number of lanes that hold in all vectors added up: each added mask is 0 or -1.
inline int64_t count_lanes(Ints minus) {
  int64_t n = 0;
  for (int i = 0; i < kLanes; ++i) n -= minus[i];
  return n;
}

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

// Sixteen vectors to sixteen numbers: the lanes of each combined, in no order that callers may rely on.
// They may be floats: all loads and stores copy bytes.
template <typename Vector, typename T, typename Combine>
[[gnu::always_inline]] inline void combine_lanes(const Vector* vectors, T* out, Combine combine) {
  Ints v[16];
  for (int i = 0; i < 16; ++i) v[i] = load<Ints>(vectors + i);
#if defined(__AVX512F__) || defined(__AVX2__)
  Ints quads[4];
  for (int i = 0; i < 4; ++i) {  // in each 128 bits: a lane of each of the vectors 4i .. 4i + 3
    Ints pairs[2];
    for (int j = 0; j < 2; ++j) {
#if defined(__AVX512F__)
      const __m512i a = (__m512i)v[4 * i + 2 * j], b = (__m512i)v[4 * i + 2 * j + 1];
      pairs[j] = combine((Ints)_mm512_unpacklo_epi32(a, b), (Ints)_mm512_unpackhi_epi32(a, b));
    }
    const __m512i a = (__m512i)pairs[0], b = (__m512i)pairs[1];
    quads[i] = combine((Ints)_mm512_unpacklo_epi64(a, b), (Ints)_mm512_unpackhi_epi64(a, b));
#else
      const __m256i a = (__m256i)v[4 * i + 2 * j], b = (__m256i)v[4 * i + 2 * j + 1];
      pairs[j] = combine((Ints)_mm256_unpacklo_epi32(a, b), (Ints)_mm256_unpackhi_epi32(a, b));
    }
    const __m256i a = (__m256i)pairs[0], b = (__m256i)pairs[1];
    quads[i] = combine((Ints)_mm256_unpacklo_epi64(a, b), (Ints)_mm256_unpackhi_epi64(a, b));
#endif
  }
  Ints half[2];
  for (int i = 0; i < 2; ++i) {
#if defined(__AVX512F__)
    const __m512i a = (__m512i)quads[2 * i], b = (__m512i)quads[2 * i + 1];
    half[i] = combine((Ints)_mm512_shuffle_i32x4(a, b, 0x44), (Ints)_mm512_shuffle_i32x4(a, b, 0xEE));
  }
  const __m512i a = (__m512i)half[0], b = (__m512i)half[1];
  store(out, combine((Ints)_mm512_shuffle_i32x4(a, b, 0x88), (Ints)_mm512_shuffle_i32x4(a, b, 0xDD)));
#else
    const __m256i a = (__m256i)quads[2 * i], b = (__m256i)quads[2 * i + 1];
    half[i] =
        combine((Ints)_mm256_permute2x128_si256(a, b, 0x20), (Ints)_mm256_permute2x128_si256(a, b, 0x31));
    store(out + 8 * i, half[i]);
  }
#endif
#else
  for (int i = 0; i < 16; ++i) {
    const Ints swapped = {v[i][2], v[i][3], v[i][0], v[i][1]}, two = combine(v[i], swapped);
    const Ints crossed = {two[1], two[0], two[3], two[2]};
    const int32_t all = combine(two, crossed)[0];
    memcpy(out + i, &all, sizeof all);
  }
#endif
}

[[gnu::always_inline]] inline void largest_lanes(const Ints* v, int32_t* out) {
  combine_lanes(v, out, [](Ints a, Ints b) { return maximum(a, b); });
}

// Sums in any order: for estimates, never for results.
inline void sum_lanes(const Floats* v, float* out) {
  combine_lanes(v, out, [](Ints a, Ints b) { return (Ints)((Floats)a + (Floats)b); });
}

// kLanes vectors: lane j of vector i becomes lane i of vector j.
[[gnu::always_inline]] inline void transpose_lanes(Words* a) {
#if defined(__AVX512F__)
  Words b[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = (Words)_mm512_unpacklo_epi32((__m512i)a[r], (__m512i)a[r + 1]);
    b[r + 1] = (Words)_mm512_unpackhi_epi32((__m512i)a[r], (__m512i)a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4)  // a[r + w]: words w, 4 + w, 8 + w, 12 + w of rows r .. r + 3
    for (int h = 0; h < 2; ++h) {
      a[r + 2 * h] = (Words)_mm512_unpacklo_epi64((__m512i)b[r + h], (__m512i)b[r + 2 + h]);
      a[r + 2 * h + 1] = (Words)_mm512_unpackhi_epi64((__m512i)b[r + h], (__m512i)b[r + 2 + h]);
    }
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i p = (__m512i)a[w], q = (__m512i)a[4 + w], r = (__m512i)a[8 + w], s = (__m512i)a[12 + w];
    const __m512i x = _mm512_shuffle_i32x4(p, q, 0x88), y = _mm512_shuffle_i32x4(p, q, 0xDD);
    const __m512i u = _mm512_shuffle_i32x4(r, s, 0x88), v = _mm512_shuffle_i32x4(r, s, 0xDD);
    a[w] = (Words)_mm512_shuffle_i32x4(x, u, 0x88);
    a[8 + w] = (Words)_mm512_shuffle_i32x4(x, u, 0xDD);
    a[4 + w] = (Words)_mm512_shuffle_i32x4(y, v, 0x88);
    a[12 + w] = (Words)_mm512_shuffle_i32x4(y, v, 0xDD);
  }
#elif defined(__AVX2__)
  Words b[8];
  for (int r = 0; r < 8; r += 2) {
    b[r] = (Words)_mm256_unpacklo_epi32((__m256i)a[r], (__m256i)a[r + 1]);
    b[r + 1] = (Words)_mm256_unpackhi_epi32((__m256i)a[r], (__m256i)a[r + 1]);
  }
  for (int r = 0; r < 8; r += 4)
    for (int h = 0; h < 2; ++h) {
      a[r + 2 * h] = (Words)_mm256_unpacklo_epi64((__m256i)b[r + h], (__m256i)b[r + 2 + h]);
      a[r + 2 * h + 1] = (Words)_mm256_unpackhi_epi64((__m256i)b[r + h], (__m256i)b[r + 2 + h]);
    }
  for (int w = 0; w < 4; ++w) {
    const __m256i p = (__m256i)a[w], q = (__m256i)a[4 + w];
    a[w] = (Words)_mm256_permute2x128_si256(p, q, 0x20);
    a[4 + w] = (Words)_mm256_permute2x128_si256(p, q, 0x31);
  }
#else
  for (int i = 1; i < kLanes; ++i)
    for (int j = 0; j < i; ++j) {
      const uint32_t t = a[i][j];
      a[i][j] = a[j][i];
      a[j][i] = t;
    }
#endif
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

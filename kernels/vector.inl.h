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

// 1 / v for estimates: the first is right to 2^-11 of itself, the second to 2^-20.
inline Floats coarse_reciprocal(Floats v) {
#if defined(__AVX512F__)
  return (Floats)_mm512_rcp14_ps((__m512)v);
#elif defined(__AVX2__)
  return (Floats)_mm256_rcp_ps((__m256)v);
#else
  return 1.0f / v;
#endif
}
inline Floats reciprocal(Floats v) {
#if defined(__AVX2__)
  const Floats r = coarse_reciprocal(v);
  return plus_product(r, r, less_product(spread(1.0f), v, r));
#else
  return 1.0f / v;
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

// Bit i: whether lane i of a is at most that of b.
inline uint32_t at_most(Floats a, Floats b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ);
#else
  return lane_bits((Ints)(a <= b));
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

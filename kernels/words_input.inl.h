// Blocks of 32 as they lie in memory, of any 16- or 32-bit type, for the kernels that work on 16-bit lanes.

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
typedef int16_t Shorts __attribute__((vector_size(64)));

// `use` made for the type of the rows, with the first of sixteen blocks, from element `at` on.
template <typename Use>
inline bool with_group(const Rows& rows, int64_t at, Use use) {
  const char* group = static_cast<const char*>(rows.x) + at * input_width(rows.input_type);
  if (rows.input_type == kFloat16) return use.template operator()<kFloat16>(group);
  if (rows.input_type == kBfloat16) return use.template operator()<kBfloat16>(group);
  return use.template operator()<kFloat32>(group);
}

template <int32_t kType>
inline const char* block_input(const char* group, int b) {
  return group + b * 32 * input_width(kType);
}

// Groups are read in bursts: ask for a part of the one after the next while codes are made, or memory idles. (Asking
// for all of it at once stalls processors that look ahead themselves.)
template <int32_t kType>
[[gnu::always_inline]] inline void prefetch_block(const char* block) {
  constexpr int64_t kAhead = 2 * kGroup * 32 * input_width(kType);
  __builtin_prefetch(block + kAhead);
  if (kType == kFloat32) __builtin_prefetch(block + kAhead + 64);
}

// The block as float32: elements 0 .. 15 and 16 .. 31, but of bfloat16 the halves of every eight.
struct BlockFloats {
  __m512 p, q;
};

template <int32_t kType>
[[gnu::always_inline]] inline BlockFloats block_floats(const char* x) {
  if (kType == kFloat32) return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 64)};
  if (kType == kFloat16)
    return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x)),
            _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(x + 32)))};
  const __m512i words = _mm512_loadu_si512(x), zero = _mm512_setzero_si512();
  return {(__m512)_mm512_unpacklo_epi16(zero, words), (__m512)_mm512_unpackhi_epi16(zero, words)};
}

// How many elements of blocks are zero.
template <int32_t kType>
inline int64_t count_zeros(const char* x, int blocks) {
  int64_t n = 0;
  for (int b = 0; b < blocks; ++b) {
    const BlockFloats v = block_floats<kType>(block_input<kType>(x, b));
    n += __builtin_popcount(lane_bits((Ints)((Floats)v.p == 0.0f)));
    n += __builtin_popcount(lane_bits((Ints)((Floats)v.q == 0.0f)));
  }
  return n;
}

// Subtracts 1 where the mask holds; the lanes of such counts added up, in 32 bits.
inline void count_words(__m512i* minus, __mmask32 which) {
  *minus = _mm512_mask_add_epi16(*minus, which, *minus, _mm512_set1_epi16(-1));
}
inline Ints word_total(__m512i minus) { return (Ints)_mm512_madd_epi16(minus, _mm512_set1_epi16(1)); }

// float32 bits of the 16-bit numbers in the low halves.
template <int32_t kType>
inline Ints widened(__m512i words) {
  if (kType == kFloat16) return (Ints)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
  return (Ints)_mm512_slli_epi32(words, 16);
}

// The larger words, as unsigned or as signed numbers.
[[gnu::always_inline]] inline Ints larger_words(Ints a, Ints b) {
  return (Ints)_mm512_max_epu16((__m512i)a, (__m512i)b);
}
[[gnu::always_inline]] inline Ints larger_signed_words(Ints a, Ints b) {
  return (Ints)_mm512_max_epi16((__m512i)a, (__m512i)b);
}

// Of sixteen vectors, one for each block and four combined by `larger`: the largest word of each, in the low halves.
template <typename Larger>
[[gnu::always_inline]] inline __m512i largest_words(const Ints* fours, Larger larger) {
  Ints top[16 / kLanes];
  combine_fours(fours, top, larger);
  return (__m512i)larger((Ints)_mm512_srli_epi32((__m512i)top[0], 16), top[0]);
}
#endif

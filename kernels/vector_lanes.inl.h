// Moves between the lanes of many vectors.

#if defined(__AVX512F__) || defined(__AVX2__)
// Four vectors to one: in each 128 bits, a lane of each.
template <typename Combine>
[[gnu::always_inline]] inline Ints combine_four(const Ints* v, Combine combine) {
  Ints pairs[2];
#if defined(__AVX512F__)
  for (int j = 0; j < 2; ++j) {
    const __m512i a = (__m512i)v[2 * j], b = (__m512i)v[2 * j + 1];
    pairs[j] = combine((Ints)_mm512_unpacklo_epi32(a, b), (Ints)_mm512_unpackhi_epi32(a, b));
  }
  const __m512i a = (__m512i)pairs[0], b = (__m512i)pairs[1];
  return combine((Ints)_mm512_unpacklo_epi64(a, b), (Ints)_mm512_unpackhi_epi64(a, b));
#else
  for (int j = 0; j < 2; ++j) {
    const __m256i a = (__m256i)v[2 * j], b = (__m256i)v[2 * j + 1];
    pairs[j] = combine((Ints)_mm256_unpacklo_epi32(a, b), (Ints)_mm256_unpackhi_epi32(a, b));
  }
  const __m256i a = (__m256i)pairs[0], b = (__m256i)pairs[1];
  return combine((Ints)_mm256_unpacklo_epi64(a, b), (Ints)_mm256_unpackhi_epi64(a, b));
#endif
}

// Four such vectors to sixteen numbers.
template <typename T, typename Combine>
[[gnu::always_inline]] inline void combine_fours(const Ints* fours, T* out, Combine combine) {
  Ints half[2];
  for (int i = 0; i < 2; ++i) {
#if defined(__AVX512F__)
    const __m512i a = (__m512i)fours[2 * i], b = (__m512i)fours[2 * i + 1];
    half[i] = combine((Ints)_mm512_shuffle_i32x4(a, b, 0x44), (Ints)_mm512_shuffle_i32x4(a, b, 0xEE));
  }
  const __m512i a = (__m512i)half[0], b = (__m512i)half[1];
  store(out, combine((Ints)_mm512_shuffle_i32x4(a, b, 0x88), (Ints)_mm512_shuffle_i32x4(a, b, 0xDD)));
#else
    const __m256i a = (__m256i)fours[2 * i], b = (__m256i)fours[2 * i + 1];
    half[i] =
        combine((Ints)_mm256_permute2x128_si256(a, b, 0x20), (Ints)_mm256_permute2x128_si256(a, b, 0x31));
    store(out + 8 * i, half[i]);
  }
#endif
}
#endif

// Sixteen vectors to sixteen numbers: the lanes of each combined, in no order that callers may rely on.
// They may be floats: all loads and stores copy bytes.
template <typename Vector, typename T, typename Combine>
[[gnu::always_inline]] inline void combine_lanes(const Vector* vectors, T* out, Combine combine) {
  Ints v[16];
  for (int i = 0; i < 16; ++i) v[i] = load<Ints>(vectors + i);
#if defined(__AVX512F__) || defined(__AVX2__)
  Ints fours[4];
  for (int i = 0; i < 4; ++i) fours[i] = combine_four(v + 4 * i, combine);
  combine_fours(fours, out, combine);
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

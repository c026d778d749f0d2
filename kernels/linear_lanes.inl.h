// Sixteen lanes of float32 to one sum: halved, 8 + 4 + 2 + 1.

inline float add_lanes(float* lane) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

#if defined(__AVX512F__)
// Sixteen rows of 16 words: afterwards lane r of vector q is word q of row r.
[[gnu::always_inline]] inline void transpose_words(__m512i* a) {
  __m512i b[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4)  // a[r + w]: words w, 4 + w, 8 + w, 12 + w of rows r .. r + 3
    for (int h = 0; h < 2; ++h) {
      a[r + 2 * h] = _mm512_unpacklo_epi64(b[r + h], b[r + 2 + h]);
      a[r + 2 * h + 1] = _mm512_unpackhi_epi64(b[r + h], b[r + 2 + h]);
    }
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i x = _mm512_shuffle_i32x4(a[w], a[4 + w], 0x88), y = _mm512_shuffle_i32x4(a[w], a[4 + w], 0xDD);
    const __m512i u = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0x88);
    const __m512i v = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0xDD);
    a[w] = _mm512_shuffle_i32x4(x, u, 0x88);
    a[8 + w] = _mm512_shuffle_i32x4(x, u, 0xDD);
    a[4 + w] = _mm512_shuffle_i32x4(y, v, 0x88);
    a[12 + w] = _mm512_shuffle_i32x4(y, v, 0xDD);
  }
}

// Lane j of sixteen sums in vector j.
[[gnu::always_inline]] inline __m512 halve_lanes(const __m512i* lanes) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) v[j] = _mm512_castsi512_ps(lanes[j]);
#pragma GCC unroll 4
  for (int half = 8; half; half /= 2)
#pragma GCC unroll 8
    for (int j = 0; j < half; ++j) v[j] = _mm512_add_ps(v[j], v[j + half]);
  return v[0];
}

// `count` sums, the lanes of one after those of the other.
inline void add_all_lanes(float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; n += 16) {
    const int64_t left = count - n < 16 ? count - n : 16;
    __m512i v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      v[r] = r < left ? _mm512_loadu_si512(lanes + (n + r) * 16) : _mm512_setzero_si512();
    transpose_words(v);
    _mm512_mask_storeu_ps(out + n, static_cast<__mmask16>((1u << left) - 1), halve_lanes(v));
  }
}
#else
inline void add_all_lanes(float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; ++n) out[n] = add_lanes(lanes + n * kLanes);
}
#endif

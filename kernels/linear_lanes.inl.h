// Sixteen lanes of float32 to one sum: halved, 8 + 4 + 2 + 1.

inline float add_lanes(float* lane) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

#if defined(__AVX512F__)
// Lanes halved for two vectors at once, their halves side by side: 16 lanes each to 8, 8 to 4; 4 to 2, 2 to 1.
[[gnu::always_inline]] inline __m512 halve_16(__m512 p, __m512 q) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xEE));
}
[[gnu::always_inline]] inline __m512 halve_8(__m512 p, __m512 q) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xDD));
}
[[gnu::always_inline]] inline __m512 halve_4(__m512 p, __m512 q) {
  const __m512d a = _mm512_castps_pd(p), b = _mm512_castps_pd(q);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}
[[gnu::always_inline]] inline __m512 halve_2(__m512 p, __m512 q) {
  return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xDD));
}

// Lane j of sixteen sums in vector j.
[[gnu::always_inline]] inline __m512 halve_lanes(const Words* lanes) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) v[j] = (__m512)lanes[j];
#pragma GCC unroll 4
  for (int half = 8; half; half /= 2)
#pragma GCC unroll 8
    for (int j = 0; j < half; ++j) v[j] = _mm512_add_ps(v[j], v[j + half]);
  return v[0];
}

// `count` times sixteen lanes, one after the other, to sums; sixteen at a time are read and written.
inline void add_all_lanes(const float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; n += 16) {
    __m512 quads[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // in the order that leaves the sums in theirs
      const float* p = lanes + (n + i) * 16;
      const __m512 first = halve_16(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 64));
      quads[i] = halve_8(first, halve_16(_mm512_loadu_ps(p + 128), _mm512_loadu_ps(p + 192)));
    }
    _mm512_storeu_ps(out + n, halve_2(halve_4(quads[0], quads[1]), halve_4(quads[2], quads[3])));
  }
}
#else
inline void add_all_lanes(float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; ++n) out[n] = add_lanes(lanes + n * kLanes);
}
#endif

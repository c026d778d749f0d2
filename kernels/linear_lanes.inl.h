// Sixteen lanes of float32 to one sum: halved, 8 + 4 + 2 + 1.

inline float add_lanes(float* lane) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

// The lanes of output n, where those of kRowsW outputs lie one after the other in each tile.
inline float* lanes_of(float* lanes, int64_t n) { return lanes + n / kRowsW * kTileLanes + n % kRowsW * kLanes; }

#if defined(__AVX512F__)
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

inline void add_all_lanes(float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; n += 16) {
    const int64_t left = count - n < 16 ? count - n : 16;
    Words v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) v[r] = r < left ? load<Words>(lanes_of(lanes, n + r)) : Words{};
    transpose_lanes(v);
    _mm512_mask_storeu_ps(out + n, static_cast<__mmask16>((1u << left) - 1), halve_lanes(v));
  }
}
#else
inline void add_all_lanes(float* lanes, int64_t count, float* out) {
  for (int64_t n = 0; n < count; ++n) out[n] = add_lanes(lanes_of(lanes, n));
}
#endif

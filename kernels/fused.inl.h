// a * b + c with one rounding: the same bits whether the processor has an instruction for it or not.

#if defined(__AVX512F__)
inline Floats fused(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__AVX2__)
inline Floats fused(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#elif defined(__aarch64__)
inline Floats fused(Floats a, Floats b, Floats c) {
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
// In float64 the product is exact, and sum + rest is exactly a * b + c. Rounding the sum to odd keeps what it takes
// to round it once more, to float32: it is halfway between two of those only if a * b + c is.
inline float fused(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, sum = product + c, part = sum - product;
  const double rest = (product - (sum - part)) + (c - part);  // NaN where the sum is NaN or infinite
  uint64_t bits = bits_of(sum);
  if ((rest > 0 || rest < 0) && bits % 2 == 0) bits += (rest > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(double_of(bits));
}

[[gnu::noinline]] inline Floats fused_one_by_one(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kLanes; ++i) c[i] = fused(a[i], b[i], c[i]);
  return c;
}

inline Doubles low_doubles(Floats v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), Doubles); }
inline Doubles high_doubles(Floats v) { return low_doubles(__builtin_shufflevector(v, v, 2, 3, 2, 3)); }

// A sum rounded to the nearest float64 serves as well, unless it ends in 100..0, where float32 has a half, or is so
// small that float32 has fewer bits for it.
inline Floats fused(Floats a, Floats b, Floats c) {
  typedef float Two __attribute__((vector_size(8)));
  const Doubles low = low_doubles(a) * low_doubles(b) + low_doubles(c);
  const Doubles high = high_doubles(a) * high_doubles(b) + high_doubles(c);
  const Ints ends = __builtin_shufflevector((Ints)low, (Ints)high, 0, 2, 4, 6) & 0x1FFFFFFF;
  const Ints tops = __builtin_shufflevector((Ints)low, (Ints)high, 1, 3, 5, 7) & 0x7FFFFFFF;
  const Longs doubtful = (Longs)((ends == 0x10000000) | (tops < (1023 - 126) << 20));
  if (doubtful[0] | doubtful[1]) return fused_one_by_one(a, b, c);
  return __builtin_shufflevector(__builtin_convertvector(low, Two), __builtin_convertvector(high, Two), 0, 1, 2, 3);
}
#endif

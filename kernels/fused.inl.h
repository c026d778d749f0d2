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
inline Doubles fused_to_odd(Doubles a, Doubles b, Doubles c) {
  const Doubles product = a * b, sum = product + c, part = sum - product;
  const Doubles rest = (product - (sum - part)) + (c - part);  // NaN where the sum is NaN or infinite
  const Longs more = (Longs)(rest > 0), inexact = more | (Longs)(rest < 0);
  const Longs even = ((Longs)sum & 1) - 1, away = (more ^ (Longs)(sum > 0)) | 1;  // all ones or zeros; 1 or -1
  return (Doubles)((Longs)sum + (away & inexact & even));
}

inline Doubles low_doubles(Floats v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), Doubles); }
inline Doubles high_doubles(Floats v) { return low_doubles(__builtin_shufflevector(v, v, 2, 3, 2, 3)); }

inline Floats fused(Floats a, Floats b, Floats c) {
  typedef float Two __attribute__((vector_size(8)));
  const Doubles low = fused_to_odd(low_doubles(a), low_doubles(b), low_doubles(c));
  const Doubles high = fused_to_odd(high_doubles(a), high_doubles(b), high_doubles(c));
  return __builtin_shufflevector(__builtin_convertvector(low, Two), __builtin_convertvector(high, Two), 0, 1, 2, 3);
}
#endif

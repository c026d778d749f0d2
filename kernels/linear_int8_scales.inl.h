// What weight rows hold per block (scales, minimums, zero points), as a float32 per segment.

inline bool small_zero_points(const LinearSpec& spec, int64_t first, int64_t count) {
  return spec.near || are_near(static_cast<const int32_t*>(spec.offsets) + first, count);
}

// The blocks of a weight. What a row has per segment is laid out as it is added: the segments 4 s + j of the four
// quarters, which meet in step s, lie at 16 s + 4 j + quarter.
struct BlockPlaces {
  int64_t blocks, segments;  // of a row
  int64_t quarter;           // of a row, in sixteen segments
  int64_t floats;            // room for a row laid out
  int shift;                 // a block has 2**shift segments
  explicit BlockPlaces(const LinearSpec& spec)
      : blocks((spec.length + spec.block_size - 1) / spec.block_size), segments((spec.length + 31) / 32),
        quarter((segments + 63) / 64), floats(quarter * 64),
        shift(__builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32))) {}
};

#if defined(__AVX512VNNI__)
// Where what lies at 16 s + 4 j + q comes from, if sixteen of each quarter lie one after the other.
template <typename T>
struct QuarterOrder {
  alignas(64) T from[64];
  constexpr QuarterOrder() : from{} {
    for (int i = 0; i < 64; ++i) from[i] = static_cast<T>(i % 4 * 16 + i / 16 * 4 + i / 4 % 4);
  }
};

// Sixteen words of each quarter, laid out: moved while they are small.
inline void sixteen_words(const void* from, int64_t quarter, __m512i* two) {
  static constexpr QuarterOrder<uint16_t> order;
  const auto quarters = [&](int64_t q) {
    const uint16_t *p = static_cast<const uint16_t*>(from) + q * quarter, *next = p + quarter;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)), 1);
  };
  const __m512i low = quarters(0), high = quarters(2);
  for (int k = 0; k < 2; ++k)
    two[k] = _mm512_permutex2var_epi16(low, _mm512_load_si512(order.from + 32 * k), high);
}

// Sixteen from block b on; the masked form reads only where the mask has ones.
struct LoadE8m0 {
  const uint8_t* from;
  __m512 operator()(int64_t b, __mmask16 which) const {
    return e8m0_lanes({_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(which, from + b))}).v;
  }
  void quarters(int64_t b, int64_t quarter, WideFloat* x) const {
    static constexpr QuarterOrder<uint8_t> order;
    const auto part = [&](int64_t q) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b + q * quarter));
    };
    __m512i v = _mm512_inserti32x4(_mm512_castsi128_si512(part(0)), part(1), 1);
    v = _mm512_inserti32x4(_mm512_inserti32x4(v, part(2), 2), part(3), 3);
    v = _mm512_permutexvar_epi8(_mm512_load_si512(order.from), v);
    const __m128i parts[4] = {_mm512_castsi512_si128(v), _mm512_extracti32x4_epi32(v, 1),
                              _mm512_extracti32x4_epi32(v, 2), _mm512_extracti32x4_epi32(v, 3)};
    for (int k = 0; k < 4; ++k) x[k].v = e8m0_lanes({_mm512_cvtepu8_epi32(parts[k])}).v;
  }
};
struct LoadHalf {
  const uint16_t* from;
  __m512 operator()(int64_t b, __mmask16 which) const {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, from + b));
  }
  void quarters(int64_t b, int64_t quarter, WideFloat* x) const {
    __m512i two[2];
    sixteen_words(from + b, quarter, two);
    for (int k = 0; k < 2; ++k) {
      x[2 * k].v = _mm512_cvtph_ps(_mm512_castsi512_si256(two[k]));
      x[2 * k + 1].v = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two[k], 1));
    }
  }
};
struct LoadBfloat16 {
  const uint16_t* from;
  __m512 operator()(int64_t b, __mmask16 which) const {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, from + b));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};
struct LoadFloat {
  const float* from;
  __m512 operator()(int64_t b, __mmask16 which) const { return _mm512_maskz_loadu_ps(which, from + b); }
};
struct LoadZeroPoint {
  const int32_t* from;
  int offset;  // of stored codes
  __m512 operator()(int64_t b, __mmask16 which) const {
    const __m512i z = _mm512_maskz_loadu_epi32(which, from + b);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(z, _mm512_set1_epi32(offset)));
  }
};
struct LoadNear {
  const int16_t* from;
  int offset;
  __m512 operator()(int64_t b, __mmask16 which) const {
    const __m512i z = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(which, from + b));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(z, _mm512_set1_epi32(offset)));
  }
  void quarters(int64_t b, int64_t quarter, WideFloat* x) const {
    __m512i two[2];
    sixteen_words(from + b, quarter, two);
    for (int k = 0; k < 2; ++k) {
      two[k] = _mm512_add_epi16(two[k], _mm512_set1_epi16(static_cast<int16_t>(offset)));
      x[2 * k].v = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(two[k])));
      x[2 * k + 1].v = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(two[k], 1)));
    }
  }
};

// Segments t .. t + 15 of a row, those before `end`, in the order of `lanes`, and the blocks that they lie in.
struct SixteenSegments {
  int64_t first;    // block of the row
  __mmask16 used;   // blocks
  __mmask16 there;  // segments
  __m512i from;     // block of each segment
  SixteenSegments(const BlockPlaces& at, int64_t t, int64_t end, __m512i lanes) : first(t >> at.shift) {
    const int64_t last = (end - t < 16 ? end : t + 16) - 1;
    used = static_cast<__mmask16>((2u << ((last >> at.shift) - first)) - 1);
    there = _mm512_cmple_epi32_mask(lanes, _mm512_set1_epi32(static_cast<int>(last - t)));
    const __m512i begin = _mm512_set1_epi32(static_cast<int>(t & ((1 << at.shift) - 1)));
    from = _mm512_srl_epi32(_mm512_add_epi32(lanes, begin), _mm_cvtsi32_si128(at.shift));
  }
  __m512i spread(__m512 v) const { return _mm512_maskz_permutexvar_epi32(there, from, _mm512_castps_si512(v)); }
};

// Sixteen segments from t on, 4 k + j at 4 j + k, times `by`; zero past the last.
template <typename Load>
inline __m512 sixteen_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load, __m512 by) {
  const __m512i lanes = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  if (t >= at.segments) return _mm512_setzero_ps();
  if (at.shift == 0 && t + 16 <= at.segments)
    return _mm512_permutexvar_ps(lanes, _mm512_mul_ps(load(row + t, 0xFFFF), by));
  const SixteenSegments part(at, t, at.segments, lanes);
  return _mm512_castsi512_ps(part.spread(_mm512_mul_ps(load(row + part.first, part.used), by)));
}

// Rows, times `step`, in the order of BlockPlaces; zero past the last segment.
template <typename Load>
inline void spread_rows(const BlockPlaces& at, int64_t count, Load load, float step, float* to) {
  const __m512 by = _mm512_set1_ps(step);
  for (int64_t n = 0; n < count; ++n)
    for (int64_t b = 0; b < at.quarter; ++b, to += 64) {
      WideFloat x[4];
      if constexpr (requires { load.quarters(0, 0, x); })
        if (at.shift == 0 && (3 * at.quarter + b + 1) * 16 <= at.segments) {
          load.quarters(n * at.blocks + b * 16, at.quarter * 16, x);
          for (int k = 0; k < 4; ++k) wide_store(to + k * 16, {_mm512_mul_ps(x[k].v, by)});
          continue;
        }
      for (int64_t q = 0; q < 4; ++q)
        x[q].v = sixteen_segments(at, n * at.blocks, (q * at.quarter + b) * 16, load, by);
      wide_transpose(x);
      for (int k = 0; k < 4; ++k) wide_store(to + k * 16, x[k]);
    }
}

#else  // AVX2: eight at a time, or one
struct LoadE8m0 {
  const uint8_t* from;
  float one(int64_t b) const { return e8m0_value(from[b]); }
  __m256 eight(int64_t b) const {
    return e8m0_half(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + b))));
  }
};
struct LoadHalf {
  const uint16_t* from;
  float one(int64_t b) const { return half_to_float(from[b]); }
  __m256 eight(int64_t b) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
  }
};
struct LoadBfloat16 {
  const uint16_t* from;
  float one(int64_t b) const { return float_of(static_cast<uint32_t>(from[b]) << 16); }
  __m256 eight(int64_t b) const {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
struct LoadFloat {
  const float* from;
  float one(int64_t b) const { return from[b]; }
  __m256 eight(int64_t b) const { return _mm256_loadu_ps(from + b); }
};
struct LoadZeroPoint {
  const int32_t* from;
  int offset;
  float one(int64_t b) const { return static_cast<float>(from[b] + offset); }
  __m256 eight(int64_t b) const {
    const __m256i z = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + b));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(z, _mm256_set1_epi32(offset)));
  }
};
struct LoadNear {
  const int16_t* from;
  int offset;
  float one(int64_t b) const { return static_cast<float>(from[b] + offset); }
  __m256 eight(int64_t b) const {
    const __m256i z = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(z, _mm256_set1_epi32(offset)));
  }
};

// Sixteen segments from t on; zero past the last.
template <typename Load>
inline void sixteen_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load, float* v) {
  if (at.shift == 0 && t + 16 <= at.segments) {
    _mm256_storeu_ps(v, load.eight(row + t));
    _mm256_storeu_ps(v + 8, load.eight(row + t + 8));
    return;
  }
  for (int64_t i = 0; i < 16; ++i) v[i] = t + i < at.segments ? load.one(row + ((t + i) >> at.shift)) : 0;
}

// Rows, times `step`, in the order of BlockPlaces; zero past the last segment.
template <typename Load>
inline void spread_rows(const BlockPlaces& at, int64_t count, Load load, float step, float* to) {
  for (int64_t n = 0; n < count; ++n)
    for (int64_t b = 0; b < at.quarter; ++b) {
      float v[4][16];
      for (int64_t q = 0; q < 4; ++q)
        sixteen_segments(at, n * at.blocks, (q * at.quarter + b) * 16, load, v[q]);
      for (int k = 0; k < 4; ++k, to += 16) {
        __m128 x[4];
        for (int q = 0; q < 4; ++q) x[q] = _mm_mul_ps(_mm_loadu_ps(v[q] + 4 * k), _mm_set1_ps(step));
        _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
        for (int j = 0; j < 4; ++j) _mm_store_ps(to + 4 * j, x[j]);
      }
    }
}
#endif

// Calls `use` with what loads scales (or minimums) of the type that the weight has, from block `first` on.
template <typename Use>
inline void with_scales(const LinearSpec& spec, const void* from, int64_t first, Use use) {
  if (spec.family == 0)
    use(LoadE8m0{static_cast<const uint8_t*>(from) + first});
  else if (spec.scale_type == kFloat16)
    use(LoadHalf{static_cast<const uint16_t*>(from) + first});
  else if (spec.scale_type == kBfloat16)
    use(LoadBfloat16{static_cast<const uint16_t*>(from) + first});
  else
    use(LoadFloat{static_cast<const float*>(from) + first});
}

// As above, with what loads zero points, moved as far as stored codes are.
template <typename Use>
inline void with_zero_points(const LinearSpec& spec, int64_t first, Use use) {
  const int offset = stored_offset(spec);
  if (spec.near)
    use(LoadNear{spec.near + first, offset});
  else
    use(LoadZeroPoint{static_cast<const int32_t*>(spec.offsets) + first, offset});
}

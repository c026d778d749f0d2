// What weight rows hold per block (scales, minimums, zero points), as a float32 per segment.

inline bool small_zero_points(const LinearSpec& spec, int64_t first, int64_t count) {
  return spec.near || are_near(static_cast<const int32_t*>(spec.offsets) + first, count);
}

// The blocks of a weight.
struct BlockPlaces {
  int64_t blocks, segments;  // of a row
  int64_t steps;             // of a row, in sixteen segments
  int shift;                 // a block has 2**shift segments
#if defined(__AVX512VNNI__)
  __mmask16 used;        // blocks that sixteen whole segments lie in
  __m512i turned;        // and the block of segment 4 i + j at lane 4 j + i
  __m256i turned_short;  // the same in 16 bits
#else
  __m256i turned[2];  // the block of segment 4 i + j at lane 4 j + i, of at most eight blocks
#endif
  explicit BlockPlaces(const LinearSpec& spec)
      : blocks((spec.length + spec.block_size - 1) / spec.block_size), segments((spec.length + 31) / 32),
        steps((segments + 15) / 16),
        shift(__builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32))) {
#if defined(__AVX512VNNI__)
    used = static_cast<__mmask16>((1u << (shift < 4 ? 16 >> shift : 1)) - 1);
    const __m512i lanes = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    turned = _mm512_srl_epi32(lanes, _mm_cvtsi32_si128(shift));
    turned_short = _mm512_cvtepi32_epi16(turned);
#else
    const __m256i lanes = _mm256_set_epi32(13, 9, 5, 1, 12, 8, 4, 0);
    turned[0] = _mm256_srl_epi32(lanes, _mm_cvtsi32_si128(shift));
    turned[1] = _mm256_srl_epi32(_mm256_add_epi32(lanes, _mm256_set1_epi32(2)), _mm_cvtsi32_si128(shift));
#endif
  }
};

#if defined(__AVX512VNNI__)
// Loads sixteen from block b on, read only where the mask has ones; some also those of sixteen whole segments, turned
// as BlockPlaces says, quicker than that. Scales come times `step`, which is 1 but for MX.
struct LoadE8m0 {
  static constexpr bool kMx = true;
  const uint8_t* from;
  explicit LoadE8m0(const void* scales) : from(static_cast<const uint8_t*>(scales)) {}
  __m512 operator()(int64_t b, __mmask16 which, float step) const {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(which, from + b));
    return _mm512_mul_ps(e8m0_lanes({e}).v, _mm512_set1_ps(step));
  }
};
// Where all are numbers and stay normal times the step, 2**-less.
struct LoadNormalE8m0 : LoadE8m0 {
  using LoadE8m0::LoadE8m0;
  static int less(float step) { return 127 - static_cast<int>(bits_of(step) >> 23); }
  __m512 turned(const BlockPlaces& at, int64_t b, float step) const {
    __m128i e = _mm_maskz_loadu_epi8(at.used, from + b);
    e = _mm_sub_epi8(e, _mm_set1_epi8(static_cast<char>(less(step))));
    const __m512i bytes = _mm512_maskz_permutexvar_epi8(0x1111111111111111, at.turned, _mm512_castsi128_si512(e));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 23));
  }
};
struct LoadHalf {
  static constexpr bool kMx = false;
  const uint16_t* from;
  explicit LoadHalf(const void* scales) : from(static_cast<const uint16_t*>(scales)) {}
  __m512 operator()(int64_t b, __mmask16 which, float) const {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, from + b));
  }
  __m512 turned(const BlockPlaces& at, int64_t b, float) const {
    return _mm512_cvtph_ps(_mm256_permutexvar_epi16(at.turned_short, _mm256_maskz_loadu_epi16(at.used, from + b)));
  }
};
struct LoadBfloat16 {
  static constexpr bool kMx = false;
  const uint16_t* from;
  explicit LoadBfloat16(const void* scales) : from(static_cast<const uint16_t*>(scales)) {}
  __m512 operator()(int64_t b, __mmask16 which, float) const {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, from + b));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};
struct LoadFloat {
  static constexpr bool kMx = false;
  const float* from;
  explicit LoadFloat(const void* scales) : from(static_cast<const float*>(scales)) {}
  __m512 operator()(int64_t b, __mmask16 which, float) const { return _mm512_maskz_loadu_ps(which, from + b); }
};
struct LoadZeroPoint {
  const int32_t* from;
  int offset;  // of stored codes
  __m512 operator()(int64_t b, __mmask16 which, float) const {
    const __m512i z = _mm512_maskz_loadu_epi32(which, from + b);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(z, _mm512_set1_epi32(offset)));
  }
};
struct LoadNear {
  const int16_t* from;
  int offset;
  __m512 operator()(int64_t b, __mmask16 which, float) const {
    return of(_mm256_maskz_loadu_epi16(which, from + b));
  }
  __m512 turned(const BlockPlaces& at, int64_t b, float) const {
    return of(_mm256_permutexvar_epi16(at.turned_short, _mm256_maskz_loadu_epi16(at.used, from + b)));
  }
  __m512 of(__m256i z) const {
    const __m256i moved = _mm256_add_epi16(z, _mm256_set1_epi16(static_cast<int16_t>(offset)));
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(moved));
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

// Segments t .. t + 15 of the row whose first block is `row`, times `step`; zero past the last; 4 i + j at 4 j + i.
template <typename Load>
[[gnu::always_inline]] inline WideFloat some_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load,
                                                      float step) {
  if (t >= at.segments) return {_mm512_setzero_ps()};
  const __m512i lanes = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const SixteenSegments part(at, t, at.segments, lanes);
  return {_mm512_castsi512_ps(part.spread(load(row + part.first, part.used, step)))};
}
// As above, all there.
template <typename Load>
[[gnu::always_inline]] inline WideFloat sixteen_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load,
                                                         float step) {
  const int64_t b = row + (t >> at.shift);
  if constexpr (requires { load.turned(at, b, step); }) return {load.turned(at, b, step)};
  return {_mm512_permutexvar_ps(at.turned, load(b, at.used, step))};
}

#else  // AVX2: eight at a time, or one
struct LoadE8m0 {
  static constexpr bool kMx = true;
  const uint8_t* from;
  explicit LoadE8m0(const void* scales) : from(static_cast<const uint8_t*>(scales)) {}
  float one(int64_t b) const { return e8m0_value(from[b]); }
  __m256 eight(int64_t b) const {
    return e8m0_half(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + b))));
  }
};
struct LoadHalf {
  static constexpr bool kMx = false;
  const uint16_t* from;
  explicit LoadHalf(const void* scales) : from(static_cast<const uint16_t*>(scales)) {}
  float one(int64_t b) const { return half_to_float(from[b]); }
  __m256 eight(int64_t b) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
  }
};
struct LoadBfloat16 {
  static constexpr bool kMx = false;
  const uint16_t* from;
  explicit LoadBfloat16(const void* scales) : from(static_cast<const uint16_t*>(scales)) {}
  float one(int64_t b) const { return float_of(static_cast<uint32_t>(from[b]) << 16); }
  __m256 eight(int64_t b) const {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};
struct LoadFloat {
  static constexpr bool kMx = false;
  const float* from;
  explicit LoadFloat(const void* scales) : from(static_cast<const float*>(scales)) {}
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

// Segments t .. t + 15 of the row whose first block is `row`, times `step`; zero past the last; 4 i + j at 4 j + i.
template <typename Load>
[[gnu::noinline]] WideFloat some_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load, float step) {
  float v[16];
  for (int64_t i = 0; i < 16; ++i) v[i] = t + i < at.segments ? load.one(row + ((t + i) >> at.shift)) * step : 0;
  return wide_turned(wide_floats(v));
}
// As above, all there.
template <typename Load>
[[gnu::always_inline]] inline WideFloat sixteen_segments(const BlockPlaces& at, int64_t row, int64_t t, Load load,
                                                         float step) {
  const int64_t b = row + (t >> at.shift);
  const __m256 by = _mm256_set1_ps(step);
  if (at.shift == 0) return wide_turned({_mm256_mul_ps(load.eight(b), by), _mm256_mul_ps(load.eight(b + 8), by)});
  __m256 v = {};
  switch (at.shift) {
    case 1: v = load.eight(b); break;
    case 2: v = _mm256_setr_ps(load.one(b), load.one(b + 1), load.one(b + 2), load.one(b + 3), 0, 0, 0, 0); break;
    case 3: v = _mm256_setr_ps(load.one(b), load.one(b + 1), 0, 0, 0, 0, 0, 0); break;
    default: v = _mm256_set1_ps(load.one(b));
  }
  v = _mm256_mul_ps(v, by);
  return {_mm256_permutevar8x32_ps(v, at.turned[0]), _mm256_permutevar8x32_ps(v, at.turned[1])};
}
#endif

// Weight rows as the loops below read them.
struct WeightRows {
  const LinearSpec& spec;
  const BlockPlaces& at;
  const uint8_t* codes;  // of row `first`
  int64_t first, count;  // at most kFewWeights, or kOneRowWeights
  int64_t row_bytes;     // from row to row of codes
  Storing stored;
};

// Calls `use` with what loads scales of the type that the weight has.
template <typename Use>
inline void with_scale_type(const LinearSpec& spec, Use use) {
  if (spec.family == 0)
    use(LoadE8m0(spec.scales));
  else if (spec.scale_type == kFloat16)
    use(LoadHalf(spec.scales));
  else if (spec.scale_type == kBfloat16)
    use(LoadBfloat16(spec.scales));
  else
    use(LoadFloat(spec.scales));
}
// As above, with what suits the scales of weight rows.
template <typename Use>
inline void with_scales(const WeightRows& w, Use use) {
#if defined(__AVX512VNNI__)
  const uint8_t* const first = static_cast<const uint8_t*>(w.spec.scales) + w.first * w.at.blocks;
  if (w.spec.family == 0 && (w.spec.normal || are_normal(first, w.count * w.at.blocks, w.spec.step)))
    return use(LoadNormalE8m0(w.spec.scales));
#endif
  with_scale_type(w.spec, use);
}

// Calls `use` with what loads zero points, moved as far as stored codes are.
template <typename Use>
inline void with_zero_points(const LinearSpec& spec, Use use) {
  const int offset = stored_offset(spec);
  if (spec.near)
    use(LoadNear{spec.near, offset});
  else
    use(LoadZeroPoint{static_cast<const int32_t*>(spec.offsets), offset});
}

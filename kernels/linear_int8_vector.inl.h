// Four weight rows at a time, 128 elements a step. A Wide is 64 bytes in four parts of 16: part j belongs to
// block j of the step. Dot products leave four integers per block and row; adding them across four rows at once
// transposes them to (block, row), which is how scales, sums and results lie.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define BLOCKSCALE_MANY 1
constexpr int kMostRows = 8;      // activation rows at a time
constexpr int kSignedOffset = 128, kUnsignedOffset = 0;  // what is added to codes to make them unsigned
struct Wide {
  __m512i v;
};
struct WideFloat {
  __m512 v;
};
inline Wide wide_load(const void* p) { return {_mm512_loadu_si512(p)}; }
inline Wide wide_xor(Wide x, int c) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(static_cast<char>(c)))}; }
inline Wide wide_low(Wide x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
inline Wide wide_high(Wide x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
inline Wide wide_table(const int8_t* sixteen) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)))};
}
inline Wide wide_lookup(Wide table, Wide x) { return {_mm512_shuffle_epi8(table.v, x.v)}; }
inline void wide_halves(const uint8_t* p, Wide* first, Wide* second) {
  const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
  first->v = _mm512_shuffle_i32x4(a, b, 0x88);
  second->v = _mm512_shuffle_i32x4(a, b, 0xDD);
}
inline Wide wide_dot(Wide w0, Wide a0, Wide w1, Wide a1) {
  return {_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w0.v, a0.v), w1.v, a1.v)};
}
inline Wide wide_pairs(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi32(x.v, y.v), _mm512_unpackhi_epi32(x.v, y.v))};
}
inline Wide wide_quads(Wide x, Wide y) {
  return {_mm512_add_epi32(_mm512_unpacklo_epi64(x.v, y.v), _mm512_unpackhi_epi64(x.v, y.v))};
}
inline WideFloat wide_float(Wide x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline WideFloat wide_floats(const float* p) { return {_mm512_loadu_ps(p)}; }
inline WideFloat wide_spread(const float* p) {  // p[j] to all of part j
  const __m512 x = _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  return {_mm512_permutevar_ps(x, _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0))};
}
inline WideFloat wide_constant(float c) { return {_mm512_set1_ps(c)}; }
inline WideFloat wide_zero() { return {_mm512_setzero_ps()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline WideFloat operator+(WideFloat x, WideFloat y) { return {_mm512_add_ps(x.v, y.v)}; }
inline WideFloat operator-(WideFloat x, WideFloat y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline __m128 wide_total(WideFloat x) {  // (part 0 + part 2) + (part 1 + part 3)
  const __m256 low = _mm512_castps512_ps256(x.v), high = _mm512_extractf32x8_ps(x.v, 1);
  const __m256 sum = _mm256_add_ps(low, high);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

#else  // AVX2: two halves; signed codes
constexpr int kMostRows = 2;
constexpr int kSignedOffset = 0, kUnsignedOffset = -128;
struct Wide {
  __m256i a, b;
};
struct WideFloat {
  __m256 a, b;
};
inline __m256i half_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Wide wide_load(const void* p) { return {half_load(p), half_load(static_cast<const char*>(p) + 32)}; }
inline Wide wide_xor(Wide x, int c) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(c));
  return {_mm256_xor_si256(x.a, mask), _mm256_xor_si256(x.b, mask)};
}
inline Wide wide_low(Wide x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline Wide wide_high(Wide x) { return wide_low({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
inline Wide wide_table(const int8_t* sixteen) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
  return {t, t};
}
inline Wide wide_lookup(Wide table, Wide x) {
  return {_mm256_shuffle_epi8(table.a, x.a), _mm256_shuffle_epi8(table.b, x.b)};
}
inline void wide_halves(const uint8_t* p, Wide* first, Wide* second) {
  const __m256i a = half_load(p), b = half_load(p + 32), c = half_load(p + 64), d = half_load(p + 96);
  *first = {_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(c, d, 0x20)};
  *second = {_mm256_permute2x128_si256(a, b, 0x31), _mm256_permute2x128_si256(c, d, 0x31)};
}
// |w| <= 128 and |a| <= 127, so that pairs of products fit 16 bits.
inline __m256i half_dot(__m256i w, __m256i a) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
inline Wide wide_dot(Wide w0, Wide a0, Wide w1, Wide a1) {
  return {_mm256_add_epi32(half_dot(w0.a, a0.a), half_dot(w1.a, a1.a)),
          _mm256_add_epi32(half_dot(w0.b, a0.b), half_dot(w1.b, a1.b))};
}
inline __m256i half_pairs(__m256i x, __m256i y) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
}
inline __m256i half_quads(__m256i x, __m256i y) {
  return _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
}
inline Wide wide_pairs(Wide x, Wide y) { return {half_pairs(x.a, y.a), half_pairs(x.b, y.b)}; }
inline Wide wide_quads(Wide x, Wide y) { return {half_quads(x.a, y.a), half_quads(x.b, y.b)}; }
inline WideFloat wide_float(Wide x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline WideFloat wide_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline WideFloat wide_spread(const float* p) {
  const __m256 x = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  return {_mm256_permutevar_ps(x, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0)),
          _mm256_permutevar_ps(x, _mm256_set_epi32(3, 3, 3, 3, 2, 2, 2, 2))};
}
inline WideFloat wide_constant(float c) { return {_mm256_set1_ps(c), _mm256_set1_ps(c)}; }
inline WideFloat wide_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline WideFloat operator*(WideFloat x, WideFloat y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline WideFloat operator+(WideFloat x, WideFloat y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline WideFloat operator-(WideFloat x, WideFloat y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline __m128 wide_total(WideFloat x) {
  const __m256 sum = _mm256_add_ps(x.a, x.b);
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}
#endif

// Four weight rows as the loops below read them.
struct WeightGroup {
  const uint8_t* row[4];  // packed codes
  int64_t ahead;          // bytes to the rows to ask memory for
  const float* scales;    // (steps, 16): block of the step, row
  const float* shifts;    // (steps, 16): what is subtracted from stored codes, or null: `shift` for all
  const float* minimums;  // (steps, 16), or null
  float shift;
  int8_t table[16];       // stored value of a 4-bit code
  int flip;               // 8-bit codes: stored value = code ^ flip
};

inline void stored_codes(const WeightGroup& g, Int8Order order, Wide table, int64_t step, int j, Wide* w0, Wide* w1) {
  if (order == kEvenOdd) {
    const Wide x = wide_load(g.row[j] + step * 64);
    *w0 = wide_lookup(table, wide_low(x)), *w1 = wide_lookup(table, wide_high(x));
  } else {
    wide_halves(g.row[j] + step * 128, w0, w1);
    *w0 = wide_xor(*w0, g.flip), *w1 = wide_xor(*w1, g.flip);
  }
}

// kRows activation rows, steps [begin, end), added to sums (kRows of 16 floats, `stride` apart).
template <int kRows, Int8Order kOrder, bool kShifts, bool kMinimums>
inline void int8_steps(const WeightGroup& g, const Int8Activations& a, int64_t r, int64_t steps, float* out,
                       int64_t out_stride, int64_t count) {
  WideFloat sum[kRows];
  for (int i = 0; i < kRows; ++i) sum[i] = wide_zero();
  const Wide table = wide_table(g.table);
  const WideFloat fixed = wide_constant(g.shift);
  for (int64_t t = 0; t < steps; ++t) {
    Wide w[4][2];
    for (int j = 0; j < 4; ++j) {
      constexpr int kStepBytes = kOrder == kEvenOdd ? 64 : 128;
      for (int b = 0; b < kStepBytes; b += 64) __builtin_prefetch(g.row[j] + g.ahead + t * kStepBytes + b);
      stored_codes(g, kOrder, table, t, j, &w[j][0], &w[j][1]);
    }
    const WideFloat sw = wide_floats(g.scales + t * 16);
    const WideFloat shift = kShifts ? wide_floats(g.shifts + t * 16) : fixed;
    for (int i = 0; i < kRows; ++i) {
      const int8_t* x = a.codes + (r + i) * a.stride + t * 128;
      const Wide a0 = wide_load(x), a1 = wide_load(x + 64);
      Wide dot[4];
      for (int j = 0; j < 4; ++j) dot[j] = wide_dot(w[j][0], a0, w[j][1], a1);
      const Wide exact = wide_quads(wide_pairs(dot[0], dot[1]), wide_pairs(dot[2], dot[3]));
      const WideFloat total = wide_spread(a.sums + (r + i) * a.segments + t * 4);
      const WideFloat sa = wide_spread(a.scales + (r + i) * a.segments + t * 4);
      // integers below 2**24: exact
      sum[i] = sum[i] + (sa * sw) * (wide_float(exact) - shift * total);
      if (kMinimums) sum[i] = sum[i] + (sa * wide_floats(g.minimums + t * 16)) * total;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float four[4];
    _mm_storeu_ps(four, wide_total(sum[i]));
    for (int64_t j = 0; j < count; ++j) out[(r + i) * out_stride + j] = four[j];
  }
}

template <Int8Order kOrder, bool kShifts, bool kMinimums>
inline void int8_all_rows(const WeightGroup& g, const Int8Activations& a, int64_t steps, float* out,
                          int64_t out_stride, int64_t count) {
  int64_t r = 0;
  if constexpr (kMostRows >= 8)
    for (; r + 8 <= a.rows; r += 8)
      int8_steps<8, kOrder, kShifts, kMinimums>(g, a, r, steps, out, out_stride, count);
  if constexpr (kMostRows >= 4)
    for (; r + 4 <= a.rows; r += 4)
      int8_steps<4, kOrder, kShifts, kMinimums>(g, a, r, steps, out, out_stride, count);
  for (; r + 2 <= a.rows; r += 2)
    int8_steps<2, kOrder, kShifts, kMinimums>(g, a, r, steps, out, out_stride, count);
  for (; r < a.rows; ++r) int8_steps<1, kOrder, kShifts, kMinimums>(g, a, r, steps, out, out_stride, count);
}

// Scales of four rows, (block, row), times `step`; places past the last segment become 0.
struct BlockPlaces {
  int64_t block[4];  // index of the first block of each row
  int64_t blocks, segments, padded, per_block;  // per_block: segments of a block
};

inline int64_t spread_e8m0(const uint8_t* s, const BlockPlaces& at, float step, float* out) {
  int64_t t = 0;
  if (at.per_block != 1) return 0;
  for (; t + 16 <= at.blocks; t += 16) {
    __m128i x[4];
    for (int j = 0; j < 4; ++j) x[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + at.block[j] + t));
    const __m128i a = _mm_unpacklo_epi8(x[0], x[1]), b = _mm_unpacklo_epi8(x[2], x[3]);
    const __m128i c = _mm_unpackhi_epi8(x[0], x[1]), d = _mm_unpackhi_epi8(x[2], x[3]);
    const __m128i y[4] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(c, d),
                          _mm_unpackhi_epi16(c, d)};
    for (int j = 0; j < 8; ++j) {
      const __m256i e = _mm256_cvtepu8_epi32(j & 1 ? _mm_srli_si128(y[j / 2], 8) : y[j / 2]);
      // 0 is 2**-127, a subnormal, and 255 is NaN: both want the top bit of the mantissa
      const __m256i ends = _mm256_or_si256(_mm256_cmpeq_epi32(e, _mm256_setzero_si256()),
                                           _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
      const __m256i bits = _mm256_or_si256(_mm256_slli_epi32(e, 23),
                                           _mm256_and_si256(ends, _mm256_set1_epi32(0x400000)));
      _mm256_storeu_ps(out + t * 4 + j * 8, _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(step)));
    }
  }
  return t;
}

inline int64_t spread_half(const uint16_t* s, const BlockPlaces& at, float step, float* out) {
  int64_t t = 0;
  if (at.per_block != 1) return 0;
  for (; t + 8 <= at.blocks; t += 8) {
    __m128i x[4];
    for (int j = 0; j < 4; ++j) x[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + at.block[j] + t));
    const __m128i a = _mm_unpacklo_epi16(x[0], x[1]), b = _mm_unpacklo_epi16(x[2], x[3]);
    const __m128i c = _mm_unpackhi_epi16(x[0], x[1]), d = _mm_unpackhi_epi16(x[2], x[3]);
    const __m128i y[4] = {_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b), _mm_unpacklo_epi32(c, d),
                          _mm_unpackhi_epi32(c, d)};
    for (int j = 0; j < 4; ++j)
      _mm256_storeu_ps(out + t * 4 + j * 8, _mm256_mul_ps(_mm256_cvtph_ps(y[j]), _mm256_set1_ps(step)));
  }
  return t;
}

template <typename Load>
inline void spread_rest(const BlockPlaces& at, int64_t t, Load load, float* out) {
  for (; t < at.segments; ++t)
    for (int j = 0; j < 4; ++j) out[t * 4 + j] = load(at.block[j] + t / at.per_block);
  for (; t < at.padded; ++t)
    for (int j = 0; j < 4; ++j) out[t * 4 + j] = 0;
}

inline void spread_scales(const LinearSpec& spec, const BlockPlaces& at, const void* from, float step, float* out) {
  int64_t t = 0;
  if (spec.family == 0) {
    const uint8_t* s = static_cast<const uint8_t*>(from);
    t = spread_e8m0(s, at, step, out);
    spread_rest(at, t, [=](int64_t b) { return e8m0_value(s[b]) * step; }, out);
    return;
  }
  if (spec.scale_type == kFloat16) t = spread_half(static_cast<const uint16_t*>(from), at, step, out);
  spread_rest(at, t, [&](int64_t b) { return load_scale(spec.scale_type, from, b) * step; }, out);
}

// Zero points of four rows as floats; false if one is so large that sums might not be exact in float32.
inline bool spread_zero_points(const BlockPlaces& at, const int32_t* z, int offset, float* out) {
  constexpr int32_t kLimit = 1024;  // (2**11 + 128) * 127 * 32 < 2**24
  int32_t most = 0;
  for (int j = 0; j < 4; ++j)
    for (int64_t b = 0; b < at.blocks; ++b) {
      const int32_t v = z[at.block[j] + b];
      const int32_t size = v < -kLimit || v > kLimit ? kLimit + 1 : v < 0 ? -v : v;
      most = size > most ? size : most;
    }
  if (most > kLimit) return false;
  spread_rest(at, 0, [=](int64_t b) { return static_cast<float>(z[b] + offset); }, out);
  return true;
}

struct GroupScratch {
  Scratch<float> scales, shifts, minimums;
  Scratch<uint8_t> codes;  // four rows, padded to whole steps
  GroupScratch(int64_t padded, int64_t row_bytes)
      : scales(padded * 4), shifts(padded * 4), minimums(padded * 4), codes(row_bytes * 4) {}
  bool ok() const { return scales.data && shifts.data && minimums.data && codes.data; }
};

// Rows whose last step is not whole, or whose codes are no nibbles or bytes, are copied first.
inline void group_rows(const LinearSpec& spec, Int8Order order, int64_t n, int64_t count, int64_t steps,
                       uint8_t* buffer, uint8_t* scratch, WeightGroup* g) {
  const bool table = spec.bits == 8 ? spec.kind == LinearKind::kTable : spec.bits != 4;
  const int64_t step_bytes = order == kEvenOdd ? 64 : 128, bytes = steps * step_bytes;
  for (int j = 0; j < 4; ++j) {
    const int64_t r = n + (j < count ? j : count - 1);
    const uint8_t* row = spec.packed + r * spec.row_bytes;
    g->row[j] = row;
    if (!table && spec.row_bytes >= bytes) continue;
    uint8_t* copy = buffer + j * bytes;
    if (table) {
      unpack(row, spec.length, spec.bits, scratch);
      for (int64_t k = 0; k < spec.length; ++k) copy[k] = static_cast<uint8_t>(spec.integers[scratch[k]]);
    } else {
      memcpy(copy, row, static_cast<size_t>(spec.row_bytes));
    }
    g->row[j] = copy;
  }
}

template <Int8Order kOrder>
inline void int8_dispatch(const LinearSpec& spec, const WeightGroup& g, const Int8Activations& a, int64_t steps,
                          float* out, int64_t out_stride, int64_t count) {
  if (spec.offset == 0) int8_all_rows<kOrder, false, false>(g, a, steps, out, out_stride, count);
  if (spec.offset == 1) int8_all_rows<kOrder, true, false>(g, a, steps, out, out_stride, count);
  if (spec.offset == 2) int8_all_rows<kOrder, false, true>(g, a, steps, out, out_stride, count);
}

inline bool int8_groups(const LinearSpec& spec, const Int8Activations& a, Int8Order order, int64_t n_begin,
                        int64_t n_end, uint8_t* codes, int16_t* integers, float* out, int64_t out_stride) {
  const int64_t segments = (spec.length + 31) / 32, steps = (segments + 3) / 4;
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  GroupScratch scratch(steps * 4, steps * 128);
  if (!scratch.ok()) return false;
  const bool is_unsigned = spec.kind == LinearKind::kUint8;
  const int offset = is_unsigned ? kUnsignedOffset : kSignedOffset;
  WeightGroup g{};
  g.scales = scratch.scales.data, g.minimums = scratch.minimums.data, g.shifts = scratch.shifts.data;
  g.shift = static_cast<float>(offset);
  g.flip = offset & 128;
  g.ahead = 16 * spec.row_bytes;  // some 200 ns: the time memory takes
  for (int c = 0; c < 16 && spec.bits == 4; ++c) g.table[c] = static_cast<int8_t>(spec.integers[c] + offset);
  for (int64_t n = n_begin; n < n_end; n += 4) {
    const int64_t count = n_end - n < 4 ? n_end - n : 4;
    BlockPlaces at{{}, blocks, segments, steps * 4, spec.block_size / 32};
    for (int j = 0; j < 4; ++j) at.block[j] = (n + (j < count ? j : count - 1)) * blocks;
    if (spec.offset == 1 && !spread_zero_points(at, static_cast<const int32_t*>(spec.offsets), offset,
                                                scratch.shifts.data)) {
      for (int64_t j = n; j < n + count; ++j) int8_row(spec, a, order, j, codes, integers, out, out_stride);
      continue;
    }
    group_rows(spec, order, n, count, steps, scratch.codes.data, codes, &g);
    spread_scales(spec, at, spec.scales, spec.step, scratch.scales.data);
    if (spec.offset == 2) spread_scales(spec, at, spec.offsets, 1.0f, scratch.minimums.data);
    if (order == kEvenOdd)
      int8_dispatch<kEvenOdd>(spec, g, a, steps, out + n, out_stride, count);
    else
      int8_dispatch<kHalves>(spec, g, a, steps, out + n, out_stride, count);
  }
  return true;
}

// Few activation rows: four weight rows at a time, 128 elements a step; part j of a Wide belongs to block j of the
// step. Dot products leave four integers per block and row; adding them across four rows at once transposes them to
// (block, row), which is how scales, sums and results lie.

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
    *w0 = wide_low(table, x), *w1 = wide_high(table, x);
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

// Zero points beyond it might give sums that are not exact in float32: (2**11 + 128) * 127 * 32 < 2**24.
constexpr int32_t kZeroPointLimit = 1024;

// Zero points of four rows as floats; false if one is too large.
inline bool spread_zero_points(const BlockPlaces& at, const int32_t* z, int offset, float* out) {
  int32_t most = 0;
  for (int j = 0; j < 4; ++j)
    for (int64_t b = 0; b < at.blocks; ++b) {
      const int32_t v = z[at.block[j] + b];
      const int32_t size = v < -kZeroPointLimit || v > kZeroPointLimit ? kZeroPointLimit + 1 : v < 0 ? -v : v;
      most = size > most ? size : most;
    }
  if (most > kZeroPointLimit) return false;
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

// Few activation rows: one weight row after the other, in the order of memory, sixteen segments together.
// Part j of a Wide belongs to segment j of 128 elements; dot products leave four integers in it. Adding them across
// four vectors at once leaves segment 4 k + j at lane k of part j, which is how scales, sums and terms lie. The terms
// of a row are added at its end, in the order of docs/linear.md.

constexpr int64_t kAhead = 8192;     // bytes ahead of which memory is asked for

// Weight rows as the loops below read them; floats lie as spread_rows says, `floats` per row.
struct WeightRows {
  const uint8_t* codes;
  int64_t row_bytes, quarter, floats;  // as in BlockPlaces
  float *scales, *shifts, *minimums;
  int8_t table[16];  // stored value of a 4-bit code
  int flip;          // 8-bit codes: stored value = code ^ flip
  const uint8_t* next_scales;  // of the rows that come next: asked for row by row
  int64_t next_bytes;          // of a row
};

// Activations, scales and sums laid out like those of a weight row.
struct FewRows {
  Int8Activations a;
  const float *scales, *sums;
  const int32_t* corrections;  // offset * sum of codes: what stored codes that lie `offset` too high add
  float* terms;                // of kMostRows outputs, two rows each; zeros past the last segment
};

template <Int8Order kOrder>
inline void stored_codes(const uint8_t* p, Wide table, int flip, Wide* c) {
  __builtin_prefetch(p + kAhead);
  if constexpr (kOrder == kEvenOdd) {
    const Wide x = wide_load_once(p);
    c[0] = wide_low(table, x), c[1] = wide_high(table, x);
  } else {
    __builtin_prefetch(p + kAhead + 64);
    wide_halves(p, &c[0], &c[1]);
    c[0] = wide_xor(c[0], flip), c[1] = wide_xor(c[1], flip);
  }
}

// Weight row n, kRows activation rows from r on: the terms of up to four steps of 128 elements.
template <int kRows, Int8Order kOrder, bool kShifts, bool kMinimums>
[[gnu::always_inline]] inline void int8_sixteen(const WeightRows& w, Wide table, const FewRows& rows, int64_t n,
                                                int64_t r, int64_t step, int64_t steps, float* terms) {
  constexpr int64_t kStepBytes = kOrder == kEvenOdd ? 64 : 128;
  const int64_t place = n * w.floats + step * 4;
  Wide c[4][2];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k)
    if (k < steps) stored_codes<kOrder>(w.codes + n * w.row_bytes + (step + k) * kStepBytes, table, w.flip, c[k]);
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const int8_t* x = rows.a.codes + (r + i) * rows.a.stride + step * 128;
    Wide dot[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      dot[k] = wide_zeros();
      if (k < steps) dot[k] = wide_dot(c[k][0], wide_load(x + k * 128), c[k][1], wide_load(x + k * 128 + 64));
    }
    Wide stored = wide_quads(wide_pairs(dot[0], dot[1]), wide_pairs(dot[2], dot[3]));
    const int64_t at = (r + i) * w.floats + step * 4;
    if (!kShifts) stored = wide_minus(stored, wide_load(rows.corrections + at));
    WideFloat exact = wide_float(stored);  // integers below 2**24: exact
    const WideFloat sa = wide_floats(rows.scales + at);
    if (kShifts) exact = exact - wide_floats(w.shifts + place) * wide_floats(rows.sums + at);
    float* to = terms + i * 2 * w.floats + step * 4;
    wide_store(to, (sa * wide_floats(w.scales + place)) * exact);
    if (kMinimums)
      wide_store(to + w.floats, (sa * wide_floats(w.minimums + place)) * wide_floats(rows.sums + at));
  }
}

// The lanes of a row from its terms, those of quarter k at lane k of each part: ascending within a lane.
template <bool kMinimums>
inline WideFloat add_terms(const float* terms, int64_t quarter, int64_t floats) {
  WideFloat sum = wide_zero();
  for (int64_t b = 0; b < quarter; ++b) {
    WideFloat x[4], m[4];
    for (int k = 0; k < 4; ++k) {
      x[k] = wide_floats(terms + (k * quarter + b) * 16);
      if (kMinimums) m[k] = wide_floats(terms + floats + (k * quarter + b) * 16);
    }
    wide_transpose(x);
    if (kMinimums) wide_transpose(m);
    for (int k = 0; k < 4; ++k) {
      sum = sum + x[k];
      if (kMinimums) sum = sum + m[k];
    }
  }
  return sum;
}

template <int kRows, Int8Order kOrder, bool kShifts, bool kMinimums>
inline void int8_steps(const WeightRows& weights, int64_t count, const FewRows& activations, int64_t r, int64_t steps,
                       float* out, int64_t out_stride) {
  const WeightRows w = weights;  // copies: the compiler knows that nothing writes to them
  const FewRows rows = activations;
  const Wide table = wide_table(w.table);
  alignas(64) float sums[kRows][kFewWeights * kLanes];
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < w.next_bytes; b += 64) __builtin_prefetch(w.next_scales + n * w.next_bytes + b);
    int64_t step = 0;
    for (; step + 4 <= steps; step += 4)
      int8_sixteen<kRows, kOrder, kShifts, kMinimums>(w, table, rows, n, r, step, 4, rows.terms);
    if (step < steps)
      int8_sixteen<kRows, kOrder, kShifts, kMinimums>(w, table, rows, n, r, step, steps - step, rows.terms);
    for (int i = 0; i < kRows; ++i)
      wide_store(sums[i] + n * kLanes, add_terms<kMinimums>(rows.terms + i * 2 * w.floats, w.quarter, w.floats));
  }
  for (int i = 0; i < kRows; ++i) add_wide_lanes(sums[i], count, out + (r + i) * out_stride);
}

template <Int8Order kOrder, bool kShifts, bool kMinimums>
inline void int8_all_rows(const WeightRows& w, int64_t count, const FewRows& rows, int64_t steps, float* out,
                          int64_t out_stride) {
  int64_t r = 0;
  if constexpr (kMostRows >= 4)
    for (; r + 4 <= rows.a.rows; r += 4)
      int8_steps<4, kOrder, kShifts, kMinimums>(w, count, rows, r, steps, out, out_stride);
  for (; r + 2 <= rows.a.rows; r += 2)
    int8_steps<2, kOrder, kShifts, kMinimums>(w, count, rows, r, steps, out, out_stride);
  for (; r < rows.a.rows; ++r)
    int8_steps<1, kOrder, kShifts, kMinimums>(w, count, rows, r, steps, out, out_stride);
}

template <Int8Order kOrder>
inline void int8_dispatch(const LinearSpec& spec, const WeightRows& w, int64_t count, const FewRows& rows,
                          int64_t steps, float* out, int64_t out_stride) {
  if (spec.offset == 0) int8_all_rows<kOrder, false, false>(w, count, rows, steps, out, out_stride);
  if (spec.offset == 1) int8_all_rows<kOrder, true, false>(w, count, rows, steps, out, out_stride);
  if (spec.offset == 2) int8_all_rows<kOrder, false, true>(w, count, rows, steps, out, out_stride);
}

struct FewScratch {
  const BlockPlaces& at;
  Lined memory;
  Scratch<uint8_t> codes;  // padded to whole steps
  FewScratch(const BlockPlaces& places, const Int8Activations& a, int64_t bytes)
      : at(places), memory((3 * (kFewWeights + a.rows) + 2 * kMostRows) * at.floats), codes(kFewWeights * bytes) {}
  bool ok() const { return memory.data && codes.data; }

  FewRows rows(const Int8Activations& a, int offset) {
    float *terms = memory.data + 3 * kFewWeights * at.floats, *scales = terms + 2 * kMostRows * at.floats;
    float* sums = scales + a.rows * at.floats;
    int32_t* corrections = reinterpret_cast<int32_t*>(sums + a.rows * at.floats);
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t t = 0; t < a.segments; ++t) {
        const int64_t to = r * at.floats + t / 16 * 16 + t % 4 * 4 + t / 4 % 4;
        scales[to] = a.scales[r * a.segments + t], sums[to] = a.sums[r * a.segments + t];
        corrections[to] = offset * static_cast<int32_t>(sums[to]);
      }
    return {a, scales, sums, corrections, terms};
  }
};

// Codes of rows n .. n + count - 1, copied first if their last step is not whole or they are no nibbles or bytes.
inline void few_codes(const LinearSpec& spec, int64_t n, int64_t count, int64_t bytes, uint8_t* copy, uint8_t* codes,
                      WeightRows* w) {
  const bool table = spec.bits == 8 ? spec.kind == LinearKind::kTable : spec.bits != 4;
  const uint8_t* row = spec.packed + n * spec.row_bytes;
  w->codes = row, w->row_bytes = spec.row_bytes;
  if (!table && spec.row_bytes >= bytes) return;
  w->codes = copy, w->row_bytes = bytes;
  for (int64_t i = 0; i < count; ++i, row += spec.row_bytes, copy += bytes) {
    if (!table) {
      memcpy(copy, row, static_cast<size_t>(spec.row_bytes));
      continue;
    }
    unpack(row, spec.length, spec.bits, codes);
    for (int64_t k = 0; k < spec.length; ++k) copy[k] = static_cast<uint8_t>(spec.integers[codes[k]]);
  }
}

inline bool int8_few(const LinearSpec& spec, const Int8Activations& a, Int8Order order, int64_t n_begin,
                     int64_t n_end, uint8_t* codes, int16_t* integers, float* out, int64_t out_stride) {
  const BlockPlaces at(spec);
  const int64_t steps = (at.segments + 3) / 4, bytes = steps * (order == kEvenOdd ? 64 : 128);
  FewScratch scratch(at, a, bytes);
  if (!scratch.ok()) return false;
  const int offset = spec.kind == LinearKind::kUint8 ? kUnsignedOffset : kSignedOffset;
  const FewRows rows = scratch.rows(a, offset);
  const int64_t part = kFewWeights * at.floats;
  float* memory = scratch.memory.data;
  WeightRows w{nullptr, 0, at.quarter, at.floats, memory, memory + part, memory + 2 * part, {}, offset & 128, {}, 0};
  const int64_t scale_size = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  for (int c = 0; c < 16 && spec.bits == 4; ++c) w.table[c] = static_cast<int8_t>(spec.integers[c] + offset);
  for (int64_t n = n_begin, count = 0; n < n_end; n += count) {
    const int64_t first = n * at.blocks;
    count = n_end - n < kFewWeights ? n_end - n : kFewWeights;
    if (spec.offset == 1 && !small_zero_points(spec, first, count * at.blocks)) {
      count = 1;
      if (!small_zero_points(spec, first, at.blocks)) {
        int8_row(spec, a, order, n, codes, integers, out, out_stride);
        continue;
      }
    }
    w.next_scales = static_cast<const uint8_t*>(spec.scales) + (first + kFewWeights * at.blocks) * scale_size;
    w.next_bytes = n + 2 * kFewWeights <= n_end ? at.blocks * scale_size : 0;
    few_codes(spec, n, count, bytes, scratch.codes.data, codes, &w);
    with_scales(spec, spec.scales, first, [&](auto load) { spread_rows(at, count, load, spec.step, w.scales); });
    if (spec.offset == 1)
      spread_rows(at, count, LoadZeroPoint{static_cast<const int32_t*>(spec.offsets) + first, offset}, 1.0f,
                  w.shifts);
    if (spec.offset == 2)
      with_scales(spec, spec.offsets, first, [&](auto load) { spread_rows(at, count, load, 1.0f, w.minimums); });
    if (order == kEvenOdd)
      int8_dispatch<kEvenOdd>(spec, w, count, rows, steps, out + n, out_stride);
    else
      int8_dispatch<kHalves>(spec, w, count, rows, steps, out + n, out_stride);
  }
  return true;
}

// Few activation rows: one weight row after the other. The four quarters of K, whose sums go to lanes of their own, are
// read side by side, 128 elements of each in a step. Part j of a Wide belongs to segment j of these; dot products leave
// four integers in it, and adding them across the quarters leaves that of quarter q at lane q of part j: where the
// lanes of docs/linear.md are, so that steps are added as they come.

// How far ahead of a weight row's codes memory is asked for, into the second cache: more requests can be under way than
// to the first. Rows are asked for from begin to end, but their last quarter is needed at once.
inline int64_t bytes_ahead(int64_t row_bytes) { return row_bytes < 30720 ? 4096 + 2 * row_bytes : row_bytes + 34816; }

// Weight rows as the loops below read them; floats lie as BlockPlaces says, `floats` per row.
struct WeightRows {
  const uint8_t* codes;
  int64_t row_bytes, floats, ahead;
  float *scales, *shifts, *minimums;
  Storing stored;
  const uint8_t *next_scales, *next_offsets;  // of the rows that come next: asked for row by row
  int64_t scale_bytes, offset_bytes;          // of a row; 0 if none comes
};

// Activations, scales and sums laid out like those of a weight row.
struct FewRows {
  Int8Activations a;
  const float *scales, *sums;
  const int32_t* corrections;  // offset * sum of codes: what stored codes that lie `offset` too high add
  int64_t steps, quarter;      // of 128 elements: of a row, of a quarter
};

// Weight row n, kRows activation rows from r on: a step of the first `quarters` quarters.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::always_inline]] inline void int8_step(const WeightRows& w, const FewRows& rows, int64_t n, int64_t r,
                                             int64_t step, int64_t quarters, WideFloat* sum) {
  constexpr int64_t kStepBytes = kCodes == kBytes ? 128 : 64;
  const int64_t place = n * w.floats + step * 16;
  const uint8_t* codes = w.codes + n * w.row_bytes;
  Wide c[4][2];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q)
    if (q < quarters) {
      for (int b = 0; b < kStepBytes; b += 64)  // in the order of memory, a few at a time
        __builtin_prefetch(codes + w.ahead + (step * 4 + q) * kStepBytes + b, 0, 2);
      const uint8_t* p = codes + (q * rows.quarter + step) * kStepBytes;
      if constexpr (kCodes == kBytes) {
        wide_halves(p, &c[q][0], &c[q][1]);
        c[q][0] = wide_xor(c[q][0], w.stored.flip), c[q][1] = wide_xor(c[q][1], w.stored.flip);
      } else {
        stored_nibbles<kCodes>(wide_load_once(p), w.stored, c[q]);
      }
    }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const int8_t* x = rows.a.codes + (r + i) * rows.a.stride + step * 128;
    Wide dot[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      dot[q] = wide_zeros();
      if (q >= quarters) continue;
      const Wide first = wide_load(x + q * rows.quarter * 128), second = wide_load(x + q * rows.quarter * 128 + 64);
      dot[q] = kCodes == kBytes ? wide_dot(c[q][0], first, c[q][1], second)
                                : wide_dot_few_bits(c[q][0], first, c[q][1], second);
    }
    // stored nibbles are at most 15, looked up ones 24: sums of 8 products of them fit 16 bits, of 16 those of 15
    Wide stored = wide_sums<kCodes == kNibbles ? 2 : kCodes == kLookup ? 1 : 0>(dot);
    const int64_t at = (r + i) * w.floats + step * 16;
    if (!kShifts) stored = wide_minus(stored, wide_load(rows.corrections + at));
    WideFloat exact = wide_float(stored);  // integers below 2**24: exact
    const WideFloat sa = wide_floats(rows.scales + at);
    if (kShifts) exact = exact - wide_floats(w.shifts + place) * wide_floats(rows.sums + at);
    sum[i] = sum[i] + (sa * wide_floats(w.scales + place)) * exact;
    if (kMinimums) sum[i] = sum[i] + (sa * wide_floats(w.minimums + place)) * wide_floats(rows.sums + at);
  }
}

template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::noinline]] void int8_steps(const WeightRows& weights, int64_t count, const FewRows& activations, int64_t r,
                                  float* out, int64_t out_stride) {  // registers of its own
  const WeightRows w = weights;  // copies: the compiler knows that nothing writes to them
  const FewRows rows = activations;
  alignas(64) float sums[kRows][kFewWeights * kLanes];
  if (count < kFewWeights) memset(sums, 0, sizeof sums);
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < w.scale_bytes; b += 64) __builtin_prefetch(w.next_scales + n * w.scale_bytes + b);
    for (int64_t b = 0; b < w.offset_bytes; b += 64) __builtin_prefetch(w.next_offsets + n * w.offset_bytes + b);
    WideFloat sum[kRows];
    for (int i = 0; i < kRows; ++i) sum[i] = wide_zero();
    int64_t step = 0;
    for (; 3 * rows.quarter + step < rows.steps; ++step)
      int8_step<kRows, kCodes, kShifts, kMinimums>(w, rows, n, r, step, 4, sum);
    for (; step < rows.quarter && step < rows.steps; ++step)
      int8_step<kRows, kCodes, kShifts, kMinimums>(w, rows, n, r, step,
                                                   (rows.steps - step + rows.quarter - 1) / rows.quarter, sum);
    for (int i = 0; i < kRows; ++i) wide_store(sums[i] + n * kLanes, sum[i]);
  }
  for (int i = 0; i < kRows; ++i) add_wide_lanes(sums[i], count, out + (r + i) * out_stride);
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums>
inline void int8_all_rows(const WeightRows& w, int64_t count, const FewRows& rows, float* out, int64_t out_stride) {
  int64_t r = 0;
  if constexpr (kMostRows >= 4)
    for (; r + 4 <= rows.a.rows; r += 4)
      int8_steps<4, kCodes, kShifts, kMinimums>(w, count, rows, r, out, out_stride);
  for (; r + 2 <= rows.a.rows; r += 2) int8_steps<2, kCodes, kShifts, kMinimums>(w, count, rows, r, out, out_stride);
  for (; r < rows.a.rows; ++r) int8_steps<1, kCodes, kShifts, kMinimums>(w, count, rows, r, out, out_stride);
}

template <StoredCodes kCodes>
inline void int8_dispatch(const LinearSpec& spec, const WeightRows& w, int64_t count, const FewRows& rows, float* out,
                          int64_t out_stride) {
  if (spec.offset == 0) int8_all_rows<kCodes, false, false>(w, count, rows, out, out_stride);
  if (spec.offset == 1) int8_all_rows<kCodes, true, false>(w, count, rows, out, out_stride);
  if (spec.offset == 2) int8_all_rows<kCodes, false, true>(w, count, rows, out, out_stride);
}

struct FewScratch {
  const BlockPlaces& at;
  Lined memory;
  Scratch<uint8_t> codes;  // padded to whole steps, where they cannot be read as they lie
  FewScratch(const LinearSpec& spec, const BlockPlaces& places, const Int8Activations& a, int64_t bytes)
      : at(places), memory(3 * (kFewWeights + a.rows) * at.floats),
        codes(is_table(spec) || spec.row_bytes < bytes ? kFewWeights * bytes : 1) {}
  bool ok() const { return memory.data && codes.data; }

  FewRows rows(const Int8Activations& a, int offset) {
    float *scales = memory.data + 3 * kFewWeights * at.floats, *sums = scales + a.rows * at.floats;
    int32_t* corrections = reinterpret_cast<int32_t*>(sums + a.rows * at.floats);
    const int64_t steps = 4 * at.quarter, found = (at.segments + 3) / 4;  // steps of a quarter, of a row
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t s = 0; s < found; ++s)
        for (int64_t j = 0, to = r * at.floats + s % steps * 16 + s / steps; j < 4 && s * 4 + j < at.segments; ++j) {
          const int64_t from = r * a.segments + s * 4 + j, place = to + j * 4;
          scales[place] = a.scales[from], sums[place] = a.sums[from];
          corrections[place] = offset * static_cast<int32_t>(sums[place]);
        }
    return {a, scales, sums, corrections, (at.segments + 3) / 4, 4 * at.quarter};
  }
};

// Codes of rows n .. n + count - 1, copied first if their last step is not whole or they are no nibbles or bytes.
inline void few_codes(const LinearSpec& spec, int64_t n, int64_t count, int64_t bytes, uint8_t* copy, uint8_t* codes,
                      WeightRows* w) {
  const bool table = is_table(spec);
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
  FewScratch scratch(spec, at, a, bytes);
  if (!scratch.ok()) return false;
  const FewRows rows = scratch.rows(a, stored_offset(spec));
  const int64_t part = kFewWeights * at.floats;
  float* memory = scratch.memory.data;
  float *const scales = memory, *const shifts = memory + part, *const minimums = memory + 2 * part;
  WeightRows w{nullptr, 0, at.floats, bytes_ahead(bytes), scales, shifts, minimums, Storing(spec), {}, {}, 0, 0};
  const int64_t scale_size = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  const int64_t offset_size = spec.offset == 0 ? 0 : spec.offset == 2 ? scale_size : spec.near ? 2 : 4;
  const uint8_t* offsets = static_cast<const uint8_t*>(spec.near ? spec.near : spec.offsets);
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
    const int64_t next = first + kFewWeights * at.blocks, next_blocks = n + 2 * kFewWeights <= n_end ? at.blocks : 0;
    w.next_scales = static_cast<const uint8_t*>(spec.scales) + next * scale_size;
    w.next_offsets = offsets + next * offset_size;
    w.scale_bytes = next_blocks * scale_size, w.offset_bytes = next_blocks * offset_size;
    few_codes(spec, n, count, bytes, scratch.codes.data, codes, &w);
    with_scales(spec, spec.scales, first, [&](auto load) { spread_rows(at, count, load, spec.step, w.scales); });
    if (spec.offset == 1)
      with_zero_points(spec, first, [&](auto load) { spread_rows(at, count, load, 1.0f, w.shifts); });
    if (spec.offset == 2)
      with_scales(spec, spec.offsets, first, [&](auto load) { spread_rows(at, count, load, 1.0f, w.minimums); });
    switch (stored_codes_of(spec)) {
      case kNibbles: int8_dispatch<kNibbles>(spec, w, count, rows, out + n, out_stride); break;
      case kLookup: int8_dispatch<kLookup>(spec, w, count, rows, out + n, out_stride); break;
      case kBytes: int8_dispatch<kBytes>(spec, w, count, rows, out + n, out_stride); break;
    }
  }
  return true;
}

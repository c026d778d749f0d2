// A few activation rows: the four Wides of a step are those of the four quarters (docs/linear.md), so that steps are
// added as they come.

// Room for what kFewWeights weight rows have for their segments.
constexpr int64_t kGroupFloats = 3 * kFewWeights;

// What `load` loads for the segments of weight rows, times `step`, to `to`, a row every three rows of floats.
template <typename Load>
[[gnu::noinline]] void spread_rows(const WeightRows& w, Load load, float step, int64_t floats, float* to) {
  const BlockPlaces at = w.at;  // a copy: the compiler knows that nothing writes to it
  const int64_t quarter = at.quarter * 16;
  for (int64_t i = 0; i < w.count; ++i, to += 3 * floats) {
    const int64_t first = (w.first + i) * at.blocks;
    for (int64_t t = 0; t < quarter; t += 16) {
      WideFloat x[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)
        x[q] = q * quarter + t + 16 <= at.segments ? sixteen_segments(at, first, q * quarter + t, load, step)
                                                   : some_segments(at, first, q * quarter + t, load, step);
      wide_transpose(x);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) wide_store(to + 4 * t + 16 * k, x[k]);
    }
  }
}

// What weight rows have for their segments to rows.memory: scales, which `load` loads, shifts, minimums of a row.
template <bool kShifts, bool kMinimums, typename Load>
inline void spread_blocks(const WeightRows& w, Load load, const FewRows& rows) {
  spread_rows(w, load, w.spec.step, rows.floats, rows.memory);
  if (kShifts)
    with_zero_points(w.spec, [&](auto zeros) {
      spread_rows(w, zeros, 1.0f, rows.floats, rows.memory + rows.floats);
    });
  if (kMinimums) spread_rows(w, Load(w.spec.offsets), 1.0f, rows.floats, rows.memory + 2 * rows.floats);
}

// kRows activation rows from r on, after spread_blocks. kAsk: asks for codes, and for the blocks of the next group.
template <int kRows, bool kAsk, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::noinline]] void int8_rows(const WeightRows& weights, const FewRows& activations, int64_t r, float* out,
                                 int64_t out_stride) {  // registers of its own
  const LinearSpec spec = weights.spec;  // copies: the compiler knows that nothing writes to them
  const Storing stored = weights.stored;
  const FewRows rows = activations;
  const int64_t blocks = weights.at.blocks;
  const int64_t steps = weights.at.quarter * 4, wides = (weights.at.segments + 3) / 4;  // of a quarter, of a row
  alignas(64) float sums[kRows][kFewWeights * kLanes];
  if (weights.count < kFewWeights) memset(sums, 0, sizeof sums);
  for (int64_t i = 0; i < weights.count; ++i) {
    const uint8_t* const row = weights.codes + i * weights.row_bytes;
    const float* const scales = rows.memory + i * 3 * rows.floats;
    if (kAsk) ask_for_blocks(spec, (weights.first + kFewWeights + i) * blocks, blocks);
    WideFloat sum[kRows];
    for (int j = 0; j < kRows; ++j) sum[j] = wide_zero();
    const auto add_step = [&](int64_t step, int64_t count) {
      StepFloats has;
      WideFloat x[kRows], y[kRows];
      has.scales = wide_floats(scales + step * 16);
      if (kShifts) has.shifts = wide_floats(scales + rows.floats + step * 16);
      if (kMinimums) has.minimums = wide_floats(scales + 2 * rows.floats + step * 16);
      const int64_t floats = r * rows.floats + step * 16;
      const StepPlaces at{row + step * kWideBytes<kCodes>, rows.a.codes + r * rows.a.stride + step * 128,
                          rows.scales + floats, rows.sums + floats, rows.corrections + floats};
      int8_step<kRows, kAsk, kCodes, kShifts, kMinimums>(stored, at, has, rows.a.stride, rows.floats, steps, count,
                                                         row + step * 4 * kWideBytes<kCodes>, Ahead{}, x, y);
      for (int j = 0; j < kRows; ++j) sum[j] = kMinimums ? sum[j] + x[j] + y[j] : sum[j] + x[j];
    };
    int64_t step = 0;
    for (; 3 * steps + step < wides; ++step) add_step(step, 4);
    for (; step < steps && step < wides; ++step) add_step(step, (wides - step + steps - 1) / steps);
    for (int j = 0; j < kRows; ++j) wide_store(sums[j] + i * kLanes, sum[j]);
  }
  for (int j = 0; j < kRows; ++j)
    add_wide_lanes(sums[j], weights.count, out + (r + j) * out_stride + weights.first);
}

// As above. The first rows ask; the others find what they read near.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums>
inline void int8_next_rows(const WeightRows& w, const FewRows& rows, int64_t r, float* out, int64_t out_stride) {
  if (r == 0)
    int8_rows<kRows, true, kCodes, kShifts, kMinimums>(w, rows, r, out, out_stride);
  else
    int8_rows<kRows, false, kCodes, kShifts, kMinimums>(w, rows, r, out, out_stride);
}

// A few activation rows: the four Wides of a step are those of the four quarters (docs/linear.md), so that steps are
// added as they come.

// Room for what kFewWeights weight rows have for their segments.
constexpr int64_t kGroupFloats = 3 * kFewWeights;

// What weight rows have for their segments, whose scales `load` loads, to rows.memory.
template <bool kShifts, bool kMinimums, typename Load>
[[gnu::noinline]] void spread_blocks(const WeightRows& w, Load load, const FewRows& rows) {
  const BlockPlaces at = w.at;
  for (int64_t i = 0; i < w.count; ++i) {
    const int64_t first = (w.first + i) * at.blocks;
    float* const scales = rows.memory + i * 3 * rows.floats;  // then shifts, minimums
    ask_for_blocks(w.spec, first, at.blocks);
    for (int64_t b = 0; b < at.quarter; ++b) {
      WideFloat s[4], z[4], m[4];
      for (int64_t q = 0; q < 4; ++q) {
        const StepFloats has = floats_of<kShifts, kMinimums>(w.spec, at, load, first, (q * at.quarter + b) * 16);
        s[q] = has.scales;
        if (kShifts) z[q] = has.shifts;
        if (kMinimums) m[q] = has.minimums;
      }
      wide_transpose(s);
      if (kShifts) wide_transpose(z);
      if (kMinimums) wide_transpose(m);
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t place = b * 64 + k * 16;
        wide_store(scales + place, s[k]);
        if (kShifts) wide_store(scales + rows.floats + place, z[k]);
        if (kMinimums) wide_store(scales + 2 * rows.floats + place, m[k]);
      }
    }
  }
}

// kRows activation rows from r on, after spread_blocks.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::noinline]] void int8_rows(const WeightRows& weights, const FewRows& activations, int64_t r, float* out,
                                 int64_t out_stride) {  // registers of its own
  const BlockPlaces at = weights.at;  // copies: the compiler knows that nothing writes to them
  const Storing stored = weights.stored;
  const FewRows rows = activations;
  const int64_t steps = at.quarter * 4, wides = (at.segments + 3) / 4;  // of a quarter, of a row
  alignas(64) float sums[kRows][kFewWeights * kLanes];
  if (weights.count < kFewWeights) memset(sums, 0, sizeof sums);
  for (int64_t i = 0; i < weights.count; ++i) {
    const uint8_t* const row = weights.codes + i * weights.row_bytes;
    const float* const scales = rows.memory + i * 3 * rows.floats;
    WideFloat sum[kRows];
    for (int j = 0; j < kRows; ++j) sum[j] = wide_zero();
    const auto add_step = [&](int64_t step, int64_t count) {
      StepFloats has;
      WideFloat x[kRows], y[kRows];
      has.scales = wide_floats(scales + step * 16);
      if (kShifts) has.shifts = wide_floats(scales + rows.floats + step * 16);
      if (kMinimums) has.minimums = wide_floats(scales + 2 * rows.floats + step * 16);
      int8_step<kRows, kCodes, kShifts, kMinimums>(stored, row, kCodesAhead, has, rows, r, step,
                                                   {step, steps, count}, x, y);
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

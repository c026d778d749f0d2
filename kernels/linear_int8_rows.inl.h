// A few activation rows: steps follow each other, so that weights are read in the order of memory, as fast as memory
// goes.

// How a weight row's numbers per block are loaded.
template <typename Load, typename Zeros>
struct RowLoads {
  Load scales;
  Zeros zeros;  // zero points
  Load minimums;
};

// Activation rows from `first` on meet the steps [begin, end) of weight rows.
struct RowPart {
  int64_t first, begin, end;
};

// What a part adds to the lanes, (kRows, kFewWeights, kLanes), which begin with zeros.
template <int kRows, Asks kAsk, StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load, typename Zeros>
[[gnu::noinline]] void int8_rows(const WeightRows& weights, const RowLoads<Load, Zeros>& how, const FewRows& few,
                                 const RowPart& part, const Ahead& far, float* lanes) {  // registers of its own
  const Storing stored = weights.stored;  // copies: the compiler knows that nothing writes to them
  const BlockPlaces places = weights.at;
  const RowLoads<Load, Zeros> loads = how;
  const FewRows rows = few;
  const Ahead ahead = far;
  const float step = weights.spec.step;
  const int64_t begin = part.begin, whole = part.end * 16 <= places.segments ? part.end : places.segments / 16;
  const int64_t stride = rows.a.stride, floats = rows.floats, row_bytes = weights.row_bytes;
  const int64_t corrections = floats * kCorrections<kCodes>;
  const StepPlaces start{weights.codes + begin * 4 * kWideBytes<kCodes>,
                         rows.a.codes + part.first * stride + begin * 512,
                         rows.scales + part.first * floats + begin * 16, rows.sums + part.first * floats + begin * 16,
                         rows.corrections + part.first * corrections + begin * 16 * kCorrections<kCodes>};
  for (int64_t i = 0; i < weights.count; ++i) {
    const int64_t first = (weights.first + i) * places.blocks;
    StepPlaces at = start;
    at.codes += i * row_bytes;
    WideFloat sum[kRows];
    for (int j = 0; j < kRows; ++j) sum[j] = wide_floats(lanes + (j * kFewWeights + i) * kLanes);
    const auto floats_of = [&](int64_t t, auto get) __attribute__((always_inline)) {
      StepFloats has;
      has.scales = get(t, loads.scales, step);
      if constexpr (kShifts) has.shifts = get(t, loads.zeros, 1.0f);
      if constexpr (kMinimums) has.minimums = get(t, loads.minimums, 1.0f);
      return has;
    };
    const auto all = [&](int64_t t, auto load, float by) __attribute__((always_inline)) {
      return sixteen_segments(places, first, t, load, by);
    };
    const auto add = [&](const StepCodes& codes, const StepFloats& has, int64_t count) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int j = 0; j < kRows; ++j) {
        const StepPlaces of{nullptr, nullptr, at.scales + j * floats, at.sums + j * floats,
                            at.corrections + j * corrections};
        const StepDots dots = step_dots<kCodes>(codes, at.activations + j * stride, count);
        sum[j] = step_sum<kCodes, kShifts, kMinimums>(dots, of, has, sum[j]);
      }
    };
    int64_t s = begin;
    for (; s < whole; ++s) {
      if constexpr (kAsk != kNothing) {
        const int64_t later = first + (s * 16 >> places.shift) + kBlocksAhead;
        ask_for(loads.scales.from + later);
        if constexpr (kShifts) ask_for(loads.zeros.from + later);
        if constexpr (kMinimums) ask_for(loads.minimums.from + later);
      }
      add(step_codes<kAsk == kCodesToo, kCodes>(stored, at.codes, 4, ahead), floats_of(s * 16, all), 4);
      at = {at.codes + 4 * kWideBytes<kCodes>, at.activations + 512, at.scales + 16, at.sums + 16,
            at.corrections + 16 * kCorrections<kCodes>};
    }
    if (s < part.end) {
      const int64_t count = (places.segments - s * 16 + 3) / 4;
      const auto some = [&](int64_t t, auto load, float by) { return some_segments(places, first, t, load, by); };
      add(step_codes<false, kCodes>(stored, at.codes, count, ahead), floats_of(s * 16, some), count);
    }
    for (int j = 0; j < kRows; ++j) wide_store(lanes + (j * kFewWeights + i) * kLanes, sum[j]);
  }
}

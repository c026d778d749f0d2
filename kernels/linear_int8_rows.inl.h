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

// What a weight row has for a step; `get` gets what a load finds.
template <bool kShifts, bool kMinimums, typename Load, typename Zeros, typename Get>
[[gnu::always_inline]] inline StepFloats step_floats(const RowLoads<Load, Zeros>& loads, float step, Get get) {
  StepFloats has;
  has.scales = get(loads.scales, step);
  if constexpr (kShifts) has.shifts = get(loads.zeros, 1.0f);
  if constexpr (kMinimums) has.minimums = get(loads.minimums, 1.0f);
  return has;
}

// What whole steps add to the lanes, (kRows, kFewWeights, kLanes), which the first part sets. kAsk: asks for memory.
template <int kRows, bool kAsk, StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load, typename Zeros>
[[gnu::noinline]] void int8_rows(const WeightRows& weights, const RowLoads<Load, Zeros>& how, const FewRows& few,
                                 const RowPart& part, const Ahead& far, float* lanes) {  // registers of its own
  constexpr int64_t kStepBytes = 4 * kWideBytes<kCodes>;
  const Storing stored = weights.stored;  // copies: the compiler knows that nothing writes to them
  const BlockPlaces places = weights.at;
  const RowLoads<Load, Zeros> loads = how;
  const Ahead ahead = far;
  const float step = weights.spec.step;
  const int64_t begin = part.begin, end = part.end, count = weights.count, blocks = places.blocks;
  const int64_t stride = few.a.stride, row_bytes = weights.row_bytes, rows = few.a.rows;
  const int8_t* const activations = few.a.codes + part.first * stride;
  const StepNumbers* const numbers = few.numbers + part.first;
  const uint8_t* row = weights.codes;
  int64_t first = weights.first * blocks;  // block
  const auto floats_of = [&](int64_t s) __attribute__((always_inline)) {
    const auto get = [&](auto load, float by) __attribute__((always_inline)) {
      return sixteen_segments(places, first, s * 16, load, by);
    };
    return step_floats<kShifts, kMinimums>(loads, step, get);
  };
  const auto codes_of = [&](int64_t s) __attribute__((always_inline)) {
    if constexpr (kAsk) {
      const int64_t later = first + (s * 16 >> places.shift) + kBlocksAhead;
      ask_for(loads.scales.from + later);
      if constexpr (kShifts) ask_for(loads.zeros.from + later);
      if constexpr (kMinimums) ask_for(loads.minimums.from + later);
    }
    return step_codes<kAsk, kCodes>(stored, row + s * kStepBytes, 4, ahead);
  };
  const auto dots_of = [&](const StepCodes& codes, int64_t s, int j) __attribute__((always_inline)) {
    return step_dots<kCodes>(codes, activations + j * stride + s * 512, 4);
  };
  const auto plus = [&](WideFloat sum, const StepDots& dots, const StepFloats& has, int64_t s, int j)
      __attribute__((always_inline)) {
    return step_sum<kCodes, kShifts, kMinimums>(dots, numbers[s * rows + j], has, sum);
  };
  for (int64_t i = 0; i < count; ++i, row += row_bytes, first += blocks) {
    WideFloat sum[kRows] = {};
    if (begin)
      for (int j = 0; j < kRows; ++j) sum[j] = wide_floats(lanes + (j * kFewWeights + i) * kLanes);
    if constexpr (kRows == 1) {  // a step is added up while the next is multiplied
      StepDots dots = dots_of(codes_of(begin), begin, 0);
      int64_t s = begin;
      for (; s + 1 < end; ++s) {
        const StepDots next = dots_of(codes_of(s + 1), s + 1, 0);
        sum[0] = plus(sum[0], dots, floats_of(s), s, 0);
        dots = next;
      }
      sum[0] = plus(sum[0], dots, floats_of(s), s, 0);
    } else {
      for (int64_t s = begin; s < end; ++s) {
        const StepCodes codes = codes_of(s);
        const StepFloats has = floats_of(s);
#pragma GCC unroll 4
        for (int j = 0; j < kRows; ++j) sum[j] = plus(sum[j], dots_of(codes, s, j), has, s, j);
      }
    }
    for (int j = 0; j < kRows; ++j) wide_store(lanes + (j * kFewWeights + i) * kLanes, sum[j]);
  }
}

// What a last step that is not whole adds to them.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load, typename Zeros>
[[gnu::noinline]] void int8_last(const WeightRows& weights, const RowLoads<Load, Zeros>& loads, const FewRows& few,
                                 int64_t first, float* lanes) {
  const int64_t s = weights.at.segments / 16, wides = (weights.at.segments - s * 16 + 3) / 4;
  for (int64_t i = 0; i < weights.count; ++i) {
    const auto get = [&](auto load, float by) {
      return some_segments(weights.at, (weights.first + i) * weights.at.blocks, s * 16, load, by);
    };
    const StepFloats has = step_floats<kShifts, kMinimums>(loads, weights.spec.step, get);
    const uint8_t* const p = weights.codes + i * weights.row_bytes + s * 4 * kWideBytes<kCodes>;
    const StepCodes codes = step_codes<false, kCodes>(weights.stored, p, wides, Ahead{});
    for (int j = 0; j < kRows; ++j) {
      const int64_t r = first + j;
      float* const to = lanes + (j * kFewWeights + i) * kLanes;
      const StepDots dots = step_dots<kCodes>(codes, few.a.codes + r * few.a.stride + s * 512, wides);
      const WideFloat sum = s ? wide_floats(to) : WideFloat{};
      wide_store(to, step_sum<kCodes, kShifts, kMinimums>(dots, few.numbers[s * few.a.rows + r], has, sum));
    }
  }
}

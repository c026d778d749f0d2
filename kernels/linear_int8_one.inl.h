// One activation row: the four Wides of a step follow each other, so that weights are read in the order of memory, as
// fast as memory goes. What segments add is kept for a row; its quarters (docs/linear.md) are then added side by side.

// How a weight row's numbers per block are loaded.
template <typename Load, typename Zeros>
struct RowLoads {
  Load scales;
  Zeros zeros;  // zero points
  Load minimums;
};

// Adds the products of quarters of a row, and then what its minimums add, to its sixteen lanes.
template <bool kMinimums>
[[gnu::always_inline]] inline void add_quarters(const float* products, int64_t quarter, int64_t floats, float* lanes) {
  WideFloat sum = wide_floats(lanes);
  for (int64_t t = 0; t < quarter; t += 16) {
    WideFloat x[4], y[4];
    for (int q = 0; q < 4; ++q) x[q] = wide_floats(products + q * quarter + t);
    wide_transpose(x);
    if (kMinimums) {
      for (int q = 0; q < 4; ++q) y[q] = wide_floats(products + floats + q * quarter + t);
      wide_transpose(y);
    }
    for (int k = 0; k < 4; ++k) sum = kMinimums ? sum + x[k] + y[k] : sum + x[k];
  }
  wide_store(lanes, sum);
}

// The quarters [begin, end) of weight rows to their sixteen lanes. kAsk: asks for codes.
template <bool kAsk, StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load, typename Zeros>
[[gnu::noinline]] void int8_one(const WeightRows& weights, const RowLoads<Load, Zeros>& how, const FewRows& rows,
                                int64_t begin, int64_t end, const Ahead& far, float* lanes) {  // registers of its own
  const Storing stored = weights.stored;  // copies: the compiler knows that nothing writes to them
  const BlockPlaces places = weights.at;
  const RowLoads<Load, Zeros> loads = how;
  const Ahead ahead = far;
  const float step = weights.spec.step;
  const int64_t quarter = places.quarter * 16, floats = rows.floats, row_bytes = weights.row_bytes;
  const int64_t from = begin * quarter, last = end * quarter < places.segments ? end * quarter : places.segments;
  const StepPlaces start{weights.codes + from / 4 * kWideBytes<kCodes>, rows.a.codes + from * 32, rows.scales + from,
                         rows.sums + from, rows.corrections + from};
  float *products = rows.memory, *others = rows.memory + 2 * floats;  // of this row and of the one before
  for (int64_t i = 0; i < weights.count; ++i) {  // the products of a row are added when the next is under way
    const int64_t first = (weights.first + i) * places.blocks;
    StepPlaces at = start;
    at.codes += i * row_bytes;
    int64_t t = from;
    const auto add_step = [&](auto get, int64_t count) __attribute__((always_inline)) {
      StepFloats has;
      WideFloat x, y;
      has.scales = get(loads.scales, step);
      if constexpr (kShifts) has.shifts = get(loads.zeros, 1.0f);
      if constexpr (kMinimums) has.minimums = get(loads.minimums, 1.0f);
      int8_step<1, kAsk, kCodes, kShifts, kMinimums>(stored, at, has, 0, 0, 1, count, at.codes, ahead, &x, &y);
      wide_store(products + t, x);
      if (kMinimums) wide_store(products + floats + t, y);
    };
    for (; t + 16 <= last; t += 16) {
      const int64_t later = first + (t >> places.shift) + kBlocksAhead;
      ask_for(loads.scales.from + later);
      if constexpr (kShifts) ask_for(loads.zeros.from + later);
      if constexpr (kMinimums) ask_for(loads.minimums.from + later);
      add_step([&](auto load, float by) { return sixteen_segments(places, first, t, load, by); }, 4);
      at = {at.codes + 4 * kWideBytes<kCodes>, at.activations + 512, at.scales + 16, at.sums + 16, at.corrections + 16};
    }
    if (t < last)
      add_step([&](auto load, float by) { return some_segments(places, first, t, load, by); }, (last - t + 3) / 4);
    if (i) add_quarters<kMinimums>(others, quarter, floats, lanes + (i - 1) * kLanes);
    float* const swap = products;
    products = others, others = swap;
  }
  add_quarters<kMinimums>(others, quarter, floats, lanes + (weights.count - 1) * kLanes);
}

// All quarters at once, or fewer where the first cache has no room for the activations and the codes that pass by them.
template <StoredCodes kCodes>
inline int64_t quarters_at_once(int64_t elements) {
  constexpr int64_t kRoom = kCodes == kBytes ? 8192 : 16384;
  return elements <= kRoom ? 4 : elements <= 2 * kRoom ? 2 : 1;
}

// Whether processors foresee what is read next: little else is read, and the first cache has room for activations.
template <StoredCodes kCodes, bool kOffsets>
inline bool comes_by_itself(int64_t elements) {
  return elements <= 8192 && (kCodes == kBytes || !kOffsets);
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load>
inline void int8_one_row(const WeightRows& w, Load load, const FewRows& rows, float* out) {
  alignas(64) float lanes[kFewWeights * kLanes] = {};
  const int64_t elements = w.at.segments * 32, once = quarters_at_once<kCodes>(elements);
  const auto add = [&](auto zeros) {
    const RowLoads<Load, decltype(zeros)> loads{load, zeros, Load(w.spec.offsets)};
    if (comes_by_itself<kCodes, kShifts || kMinimums>(elements))
      return int8_one<false, kCodes, kShifts, kMinimums>(w, loads, rows, 0, 4, Ahead{}, lanes);
    // parts of rows do not follow each other: the same of later rows is asked for
    const Ahead ahead = once == 4 ? Ahead{} : Ahead{4 * w.row_bytes, 2 * w.row_bytes};
    for (int64_t q = 0; q < 4; q += once) {
      if (once < 4) memset(rows.memory, 0, sizeof(float) * static_cast<size_t>(4 * rows.floats));
      int8_one<true, kCodes, kShifts, kMinimums>(w, loads, rows, q, q + once, ahead, lanes);
    }
  };
  if constexpr (kShifts)
    with_zero_points(w.spec, add);
  else
    add(LoadNear{nullptr, 0});
  add_wide_lanes(lanes, w.count, out + w.first);
}

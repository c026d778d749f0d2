// One activation row: the four Wides of a step follow each other, so that weights are read in the order of memory, as
// fast as memory goes. What segments add is kept for a row; its quarters (docs/linear.md) are then added side by side.

// The quarters [begin, end) of weight rows, whose scales `load` loads, to their sixteen lanes. Memory is asked for
// `ahead` bytes before it is read, if that is not 0.
template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load>
[[gnu::noinline]] void int8_one(const WeightRows& weights, Load load, const FewRows& activations, int64_t begin,
                                int64_t end, int64_t ahead, float* sums) {  // registers of its own
  const LinearSpec spec = weights.spec;  // copies: the compiler knows that nothing writes to them
  const BlockPlaces at = weights.at;
  const Storing stored = weights.stored;
  const FewRows rows = activations;
  const int64_t quarter = at.quarter * 16, last = end * quarter < at.segments ? end * quarter : at.segments;
  const auto add_quarters = [&](int64_t i) {
    const float* const products = rows.memory + i % 2 * 2 * rows.floats;
    WideFloat sum = wide_floats(sums + i * kLanes);
    for (int64_t t = 0; t < quarter; t += 16) {
      WideFloat x[4], y[4];
      for (int q = 0; q < 4; ++q) x[q] = wide_floats(products + q * quarter + t);
      wide_transpose(x);
      if (kMinimums) {
        for (int q = 0; q < 4; ++q) y[q] = wide_floats(products + rows.floats + q * quarter + t);
        wide_transpose(y);
      }
      for (int k = 0; k < 4; ++k) sum = kMinimums ? sum + x[k] + y[k] : sum + x[k];
    }
    wide_store(sums + i * kLanes, sum);
  };
  for (int64_t i = 0; i < weights.count; ++i) {  // the sums of a row are added when the next is under way
    float* const products = rows.memory + i % 2 * 2 * rows.floats;
    const uint8_t* const row = weights.codes + i * weights.row_bytes;
    const int64_t first = (weights.first + i) * at.blocks;
    ask_for_blocks(spec, first + kBlocksAhead, at.blocks);
    for (int64_t t = begin * quarter; t < last; t += 16) {
      const StepFloats has = floats_of<kShifts, kMinimums>(spec, at, load, first, t);
      WideFloat x, y;
      if (t + 16 <= at.segments)
        int8_step<1, kCodes, kShifts, kMinimums>(stored, row, ahead, has, rows, 0, t / 16, {t / 4, 1, 4}, &x, &y);
      else
        int8_step<1, kCodes, kShifts, kMinimums>(stored, row, ahead, has, rows, 0, t / 16,
                                                 {t / 4, 1, (at.segments - t + 3) / 4}, &x, &y);
      wide_store(products + t, x);
      if (kMinimums) wide_store(products + rows.floats + t, y);
    }
    if (i) add_quarters(i - 1);
  }
  add_quarters(weights.count - 1);
}

// All quarters at once, or fewer where the first cache has no room for the activations and the codes that pass by them.
template <StoredCodes kCodes>
inline int64_t quarters_at_once(int64_t elements) {
  constexpr int64_t kRoom = kCodes == kBytes ? 8192 : 16384;
  return elements <= kRoom ? 4 : elements <= 2 * kRoom ? 2 : 1;
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load>
inline void int8_one_row(const WeightRows& w, Load load, const FewRows& rows, float* out) {
  alignas(64) float sums[kFewWeights * kLanes] = {};
  const int64_t once = quarters_at_once<kCodes>(w.at.segments * 32);
  const size_t products = sizeof(float) * static_cast<size_t>(4 * rows.floats);
  for (int64_t q = 0; q < 4; q += once) {
    if (once < 4) memset(rows.memory, 0, products);
    // parts do not follow each other: the same of the next rows is asked for; whole rows of bytes come fast enough
    const int64_t ahead = once < 4 ? w.count * w.row_bytes : kCodes == kBytes ? 0 : kCodesAhead;
    int8_one<kCodes, kShifts, kMinimums>(w, load, rows, q, q + once, ahead, sums);
  }
  add_wide_lanes(sums, w.count, out + w.first);
}

// Few activation rows: which kernel they get, and its memory.

// Steps at once: all, or fewer where the first cache has no room for one row's codes and what passes by them.
template <StoredCodes kCodes>
inline int64_t steps_at_once(int64_t steps) {
  constexpr int64_t kRoom = kCodes == kBytes ? 16 : 32;  // of 512 elements
  return steps <= kRoom ? steps : steps <= 2 * kRoom ? (steps + 1) / 2 : (steps + 3) / 4;
}

// Whether processors foresee what is read next: rows are long, little else is read, and the first cache has room for
// activations.
template <StoredCodes kCodes, bool kOffsets>
inline bool comes_by_itself(int64_t steps, int64_t row_bytes) {
  return row_bytes >= 2048 && steps > 0 && steps <= 16 && (kCodes == kBytes || !kOffsets);
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Loads>
inline void int8_one_row(const WeightRows& w, const Loads& loads, const FewRows& rows, float* out) {
  alignas(64) float lanes[kOneRowWeights * kLanes];
  const int64_t steps = w.at.segments / 16, once = steps_at_once<kCodes>(steps);
  if (w.count % 16) memset(lanes, 0, sizeof lanes);  // sixteen rows are read
  if (comes_by_itself<kCodes, kShifts || kMinimums>(steps, w.row_bytes)) {
    int8_rows<1, false, kCodes, kShifts, kMinimums>(w, loads, rows, {0, 0, steps}, Ahead{}, lanes);
  } else {
    // parts of rows do not follow each other: the same of later rows is asked for
    const Ahead ahead = once == steps ? Ahead{} : Ahead{4 * w.row_bytes, 2 * w.row_bytes};
    for (int64_t s = 0; s < steps; s += once) {
      const RowPart part{0, s, s + once < steps ? s + once : steps};
      int8_rows<1, true, kCodes, kShifts, kMinimums>(w, loads, rows, part, ahead, lanes);
    }
  }
  if (w.at.segments % 16) int8_last<1, kCodes, kShifts, kMinimums>(w, loads, rows, 0, lanes);
  add_wide_lanes(lanes, w.count, out + w.first);
}

// kRows activation rows from r on. The first rows ask; the others find what they read near.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums, typename Loads>
inline void int8_next_rows(const WeightRows& w, const Loads& loads, const FewRows& rows, int64_t r, float* out,
                           int64_t out_stride) {
  alignas(64) float lanes[kRows][kFewWeights * kLanes];
  const RowPart part{r, 0, w.at.segments / 16};
  if (w.count % 16) memset(lanes, 0, sizeof lanes);
  if (part.end && r == 0)
    int8_rows<kRows, true, kCodes, kShifts, kMinimums>(w, loads, rows, part, Ahead{}, lanes[0]);
  else if (part.end)
    int8_rows<kRows, false, kCodes, kShifts, kMinimums>(w, loads, rows, part, Ahead{}, lanes[0]);
  if (w.at.segments % 16) int8_last<kRows, kCodes, kShifts, kMinimums>(w, loads, rows, r, lanes[0]);
  for (int j = 0; j < kRows; ++j) add_wide_lanes(lanes[j], w.count, out + (r + j) * out_stride + w.first);
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Loads>
inline void int8_loaded(const WeightRows& w, const Loads& loads, const FewRows& rows, float* out, int64_t out_stride) {
  if (rows.a.rows == 1) return int8_one_row<kCodes, kShifts, kMinimums>(w, loads, rows, out);
  int64_t r = 0;
  if constexpr (kMostRows >= 4)
    for (; r + 4 <= rows.a.rows; r += 4)
      int8_next_rows<4, kCodes, kShifts, kMinimums>(w, loads, rows, r, out, out_stride);
  for (; r + 2 <= rows.a.rows; r += 2)
    int8_next_rows<2, kCodes, kShifts, kMinimums>(w, loads, rows, r, out, out_stride);
  if (r < rows.a.rows) int8_next_rows<1, kCodes, kShifts, kMinimums>(w, loads, rows, r, out, out_stride);
}

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load>
inline void int8_all_rows(const WeightRows& w, Load load, const FewRows& rows, float* out, int64_t out_stride) {
  const auto use = [&](auto zeros) {
    const RowLoads<Load, decltype(zeros)> loads{load, zeros, Load(w.spec.offsets)};
    int8_loaded<kCodes, kShifts, kMinimums>(w, loads, rows, out, out_stride);
  };
  if constexpr (kShifts)
    with_zero_points(w.spec, use);
  else
    use(LoadNear{nullptr, 0});
}

template <StoredCodes kCodes>
inline void int8_dispatch(const WeightRows& w, const FewRows& rows, float* out, int64_t out_stride) {
  with_scales(w, [&](auto load) {
    if (w.spec.offset == 0) int8_all_rows<kCodes, false, false>(w, load, rows, out, out_stride);
    if constexpr (!decltype(load)::kMx) {  // MX schemes have no offsets
      if (w.spec.offset == 1) int8_all_rows<kCodes, true, false>(w, load, rows, out, out_stride);
      if (w.spec.offset == 2) int8_all_rows<kCodes, false, true>(w, load, rows, out, out_stride);
    }
  });
}

// Whether rows cannot be read as they lie: they are no nibbles or bytes, or their last step is not whole.
inline bool is_copied(const LinearSpec& spec, int64_t bytes) { return is_table(spec) || spec.row_bytes < bytes; }

struct FewScratch {
  Lined memory;            // numbers of steps
  Scratch<uint8_t> codes;  // copied rows, in whole Wides
  FewScratch(const LinearSpec& spec, const BlockPlaces& at, const Int8Activations& a, int64_t bytes)
      : memory(at.steps * a.rows * static_cast<int64_t>(sizeof(StepNumbers) / sizeof(float))),
        codes(is_copied(spec, bytes) ? kFewWeights * bytes : 1) {}
  bool ok() const { return memory.data && codes.data; }

  FewRows rows(const BlockPlaces& at, const Int8Activations& a, const LinearSpec& spec) {
    StepNumbers* const numbers = reinterpret_cast<StepNumbers*>(memory.data);
    memset(static_cast<void*>(numbers), 0, sizeof(StepNumbers) * static_cast<size_t>(at.steps * a.rows));
    const int offset = stored_offset(spec);
    const bool two = stored_codes_of(spec) == kLookup && kCorrections<kLookup> == 2;
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t t = 0; t < at.segments; ++t) {
        StepNumbers& of = numbers[t / 16 * a.rows + r];
        const int64_t i = t / 4 % 4, j = t % 4, from = r * a.segments + t;
        of.scales[4 * j + i] = a.scales[from], of.sums[4 * j + i] = a.sums[from];
        of.corrections[two ? i / 2 * 16 + 4 * j + i % 2 * 2 : 4 * j + i] = -offset * static_cast<int32_t>(a.sums[from]);
      }
    return {a, numbers};
  }
};

// Codes of the rows, copied first if they must be.
inline void few_codes(int64_t bytes, uint8_t* copy, uint8_t* codes, WeightRows* w) {
  const LinearSpec& spec = w->spec;
  const bool table = is_table(spec);
  const uint8_t* row = spec.packed + w->first * spec.row_bytes;
  w->codes = row, w->row_bytes = spec.row_bytes;
  if (!is_copied(spec, bytes)) return;
  w->codes = copy, w->row_bytes = bytes;
  for (int64_t i = 0; i < w->count; ++i, row += spec.row_bytes, copy += bytes) {
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
  const int64_t bytes = (at.segments + 3) / 4 * (order == kEvenOdd ? 64 : 128);
  FewScratch scratch(spec, at, a, bytes);
  if (!scratch.ok()) return false;
  const FewRows rows = scratch.rows(at, a, spec);
  const bool known = spec.offset != 1 || spec.near;  // that zero points are small
  const int64_t most = a.rows == 1 && known && !is_copied(spec, bytes) ? kOneRowWeights : kFewWeights;
  WeightRows w{spec, at, nullptr, n_begin, 0, 0, Storing(spec)};
  for (; w.first < n_end; w.first += w.count) {
    const int64_t block = w.first * at.blocks;
    w.count = n_end - w.first < most ? n_end - w.first : most;
    if (spec.offset == 1 && !small_zero_points(spec, block, w.count * at.blocks)) {
      w.count = 1;
      if (!small_zero_points(spec, block, at.blocks)) {
        int8_row(spec, a, order, w.first, codes, integers, out, out_stride);
        continue;
      }
    }
    few_codes(bytes, scratch.codes.data, codes, &w);
    switch (stored_codes_of(spec)) {
      case kNibbles: int8_dispatch<kNibbles>(w, rows, out, out_stride); break;
      case kLookup: int8_dispatch<kLookup>(w, rows, out, out_stride); break;
      case kBytes: int8_dispatch<kBytes>(w, rows, out, out_stride); break;
    }
  }
  return true;
}

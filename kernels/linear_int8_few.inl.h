// Few activation rows: which kernel they get, and its memory.

template <StoredCodes kCodes, bool kShifts, bool kMinimums, typename Load>
inline void int8_all_rows(const WeightRows& w, Load load, const FewRows& rows, float* out, int64_t out_stride) {
  if (rows.a.rows == 1) return int8_one_row<kCodes, kShifts, kMinimums>(w, load, rows, out);
  spread_blocks<kShifts, kMinimums>(w, load, rows);
  int64_t r = 0;
  if constexpr (kMostRows >= 4)
    for (; r + 4 <= rows.a.rows; r += 4) int8_next_rows<4, kCodes, kShifts, kMinimums>(w, rows, r, out, out_stride);
  for (; r + 2 <= rows.a.rows; r += 2) int8_next_rows<2, kCodes, kShifts, kMinimums>(w, rows, r, out, out_stride);
  if (r < rows.a.rows) int8_rows<1, false, kCodes, kShifts, kMinimums>(w, rows, r, out, out_stride);
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

struct FewScratch {
  int64_t floats;  // of a row
  Lined memory;
  Scratch<uint8_t> codes;  // padded to whole Wides, where they cannot be read as they lie
  FewScratch(const LinearSpec& spec, const BlockPlaces& at, const Int8Activations& a, int64_t bytes)
      : floats(at.quarter * 64), memory((3 * a.rows + (a.rows == 1 ? 4 : kGroupFloats)) * floats),
        codes(is_table(spec) || spec.row_bytes < bytes ? kFewWeights * bytes : 1) {
    const int64_t zeros = 3 * a.rows + (a.rows == 1 ? 4 : 0);
    if (memory.data) memset(memory.data, 0, sizeof(float) * static_cast<size_t>(zeros * floats));
  }
  bool ok() const { return memory.data && codes.data; }

  FewRows rows(const BlockPlaces& at, const Int8Activations& a, int offset) {
    float *scales = memory.data, *sums = scales + a.rows * floats, *free = sums + 2 * a.rows * floats;
    int32_t* corrections = reinterpret_cast<int32_t*>(sums + a.rows * floats);
    const int64_t steps = at.quarter * 4;  // of a quarter; one row: four Wides after the other
    for (int64_t r = 0; r < a.rows; ++r)
      for (int64_t t = 0; t < at.segments; ++t) {
        const int64_t wide = t / 4, step = a.rows == 1 ? wide / 4 : wide % steps;
        const int64_t lane = t % 4 * 4 + (a.rows == 1 ? wide % 4 : wide / steps);
        const int64_t from = r * a.segments + t, to = r * floats + step * 16 + lane;
        scales[to] = a.scales[from], sums[to] = a.sums[from];
        corrections[to] = offset * static_cast<int32_t>(sums[to]);
      }
    return {a, floats, scales, sums, corrections, free};
  }
};

// Codes of the rows, copied first if their last step is not whole or they are no nibbles or bytes.
inline void few_codes(int64_t bytes, uint8_t* copy, uint8_t* codes, WeightRows* w) {
  const LinearSpec& spec = w->spec;
  const bool table = is_table(spec);
  const uint8_t* row = spec.packed + w->first * spec.row_bytes;
  w->codes = row, w->row_bytes = spec.row_bytes;
  if (!table && spec.row_bytes >= bytes) return;
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
  const FewRows rows = scratch.rows(at, a, stored_offset(spec));
  WeightRows w{spec, at, nullptr, n_begin, 0, 0, Storing(spec)};
  for (; w.first < n_end; w.first += w.count) {
    const int64_t block = w.first * at.blocks;
    w.count = n_end - w.first < kFewWeights ? n_end - w.first : kFewWeights;
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

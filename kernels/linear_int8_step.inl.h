// A step of a few activation rows: sixteen segments, in four Wides of codes. Part j of a Wide belongs to segment j of
// its four. Dot products leave four integers there; what adds them leaves segment j of Wide i at lane 4 j + i. All that
// belongs to segments lies so.

// How far ahead of what is read memory is asked for, into the second cache: bytes of codes, blocks.
constexpr int64_t kCodesAhead = 12288, kBlocksAhead = 512;

// Weight rows as the loops below read them.
struct WeightRows {
  const LinearSpec& spec;
  const BlockPlaces& at;
  const uint8_t* codes;  // of row `first`
  int64_t first, count;  // at most kFewWeights
  int64_t row_bytes;     // from row to row of codes
  Storing stored;
};

// Activations, and for each row sixteen floats a step.
struct FewRows {
  Int8Activations a;
  int64_t floats;
  const float *scales, *sums;
  const int32_t* corrections;  // offset * sum of codes: what stored codes that lie `offset` too high add
  float* memory;               // one row: for four rows of floats, zeros at first; more: for those of kFewWeights rows
};

// What a weight row has for each segment of a step.
struct StepFloats {
  WideFloat scales, shifts, minimums;
};

// The Wides of a step: `first`, first + apart ...
struct StepWides {
  int64_t first, apart, count;
};

// kRows activation rows from r on, and a weight row whose codes are at `row`: what a step adds, and its minimums add.
template <int kRows, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::always_inline]] inline void int8_step(const Storing& stored, const uint8_t* row, int64_t ahead,
                                             const StepFloats& has, const FewRows& rows, int64_t r, int64_t step,
                                             const StepWides& wides, WideFloat* products, WideFloat* minimums) {
  constexpr int64_t kWideBytes = kCodes == kBytes ? 128 : 64;
  Wide c[4][2];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q)
    if (q < wides.count) {
      for (int b = 0; ahead && b < kWideBytes; b += 64)  // in the order of memory, a few at a time
        __builtin_prefetch(row + ahead + (step * 4 + q) * kWideBytes + b, 0, 2);
      const uint8_t* p = row + (wides.first + q * wides.apart) * kWideBytes;
      if constexpr (kCodes == kBytes) {
        wide_halves(p, &c[q][0], &c[q][1]);
        c[q][0] = wide_xor(c[q][0], stored.flip), c[q][1] = wide_xor(c[q][1], stored.flip);
      } else {
        stored_nibbles<kCodes>(wide_load_once(p), stored, c[q]);
      }
    }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const int8_t* x = rows.a.codes + (r + i) * rows.a.stride + wides.first * 128;
    Wide dot[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      dot[q] = wide_zeros();
      if (q >= wides.count) continue;
      const Wide first = wide_load(x + q * wides.apart * 128), second = wide_load(x + q * wides.apart * 128 + 64);
      dot[q] = kCodes == kBytes ? wide_dot(c[q][0], first, c[q][1], second)
                                : wide_dot_few_bits(c[q][0], first, c[q][1], second);
    }
    // stored nibbles are at most 15, looked up ones 24: sums of 8 products of them fit 16 bits, of 16 those of 15
    Wide sum = wide_sums<kCodes == kNibbles ? 2 : kCodes == kLookup ? 1 : 0>(dot);
    const int64_t place = (r + i) * rows.floats + step * 16;
    if (!kShifts) sum = wide_minus(sum, wide_load(rows.corrections + place));
    WideFloat exact = wide_float(sum);  // integers below 2**24: exact
    const WideFloat sa = wide_floats(rows.scales + place);
    if (kShifts) exact = exact - has.shifts * wide_floats(rows.sums + place);
    products[i] = (sa * has.scales) * exact;
    if (kMinimums) minimums[i] = (sa * has.minimums) * wide_floats(rows.sums + place);
  }
}

// Asks for the scales and the like of `count` blocks.
[[gnu::always_inline]] inline void ask_for_blocks(const LinearSpec& spec, int64_t first, int64_t count) {
  const int64_t scale_size = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  const uint8_t* p = static_cast<const uint8_t*>(spec.scales) + first * scale_size;
  for (int64_t b = 0; b < count * scale_size; b += 64) __builtin_prefetch(p + b, 0, 2);
  if (spec.offset == 0) return;
  const int64_t size = spec.offset == 2 ? scale_size : spec.near ? 2 : 4;
  p = static_cast<const uint8_t*>(spec.near ? static_cast<const void*>(spec.near) : spec.offsets) + first * size;
  for (int64_t b = 0; b < count * size; b += 64) __builtin_prefetch(p + b, 0, 2);
}

// What a weight row, whose first block is `first`, has for the segments t .. t + 15.
template <bool kShifts, bool kMinimums, typename Load>
[[gnu::always_inline]] inline StepFloats floats_of(const LinearSpec& spec, const BlockPlaces& at, Load load,
                                                   int64_t first, int64_t t) {
  StepFloats has;
  has.scales = sixteen_segments(at, first, t, load, spec.step);
  if (kShifts) with_zero_points(spec, [&](auto zeros) { has.shifts = sixteen_segments(at, first, t, zeros, 1.0f); });
  if (kMinimums) has.minimums = sixteen_segments(at, first, t, Load(spec.offsets), 1.0f);
  return has;
}

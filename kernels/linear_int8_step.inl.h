// A step of a few activation rows: sixteen segments, in four Wides of codes. Part j of a Wide belongs to segment j of
// its four. Dot products leave four integers there; what adds them leaves segment j of Wide i at lane 4 j + i. All that
// belongs to segments lies so.

// How far ahead of what is read memory is asked for, into the second cache: bytes of codes, blocks. Codes are asked for
// again halfway: processors forget what is asked for while too much is under way.
constexpr int64_t kCodesAhead = 12288, kBlocksAhead = 1024;
struct Ahead {
  int64_t bytes = kCodesAhead, again = kCodesAhead / 2;
};

template <StoredCodes kCodes>
constexpr int64_t kWideBytes = kCodes == kBytes ? 128 : 64;

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

// Where a step's numbers lie: its first Wide of codes, the first activation row's codes and floats.
struct StepPlaces {
  const uint8_t* codes;
  const int8_t* activations;
  const float *scales, *sums;
  const int32_t* corrections;
};

// Asks for a line of memory. Compilers leave assembly where it is, and prefetches they gather.
inline void ask_for(const void* p) { __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(p))); }

// kRows activation rows, `stride` codes and `floats` floats apart, and a weight row, in `count` of four Wides that are
// `apart` from each other: what a step adds, and its minimums add. kAsk: asks for as much memory after `later`.
template <int kRows, bool kAsk, StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::always_inline]] inline void int8_step(const Storing& stored, const StepPlaces& at, const StepFloats& has,
                                             int64_t stride, int64_t floats, int64_t apart, int64_t count,
                                             const uint8_t* later, const Ahead& ahead, WideFloat* products,
                                             WideFloat* minimums) {
  Wide c[4][2];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q)
    if (q < count) {
      for (int64_t b = q * kWideBytes<kCodes>; kAsk && b < (q + 1) * kWideBytes<kCodes>; b += 64)
        ask_for(later + ahead.bytes + b), ask_for(later + ahead.again + b);
      const uint8_t* p = at.codes + q * apart * kWideBytes<kCodes>;
      if constexpr (kCodes == kBytes) {
        wide_halves(p, &c[q][0], &c[q][1]);
        c[q][0] = wide_xor(c[q][0], stored.flip), c[q][1] = wide_xor(c[q][1], stored.flip);
      } else {
        stored_nibbles<kCodes>(wide_load_once(p), stored, c[q]);
      }
    }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const int8_t* x = at.activations + i * stride;
    Wide dot[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      dot[q] = wide_zeros();
      if (q >= count) continue;
      const Wide first = wide_load(x + q * apart * 128), second = wide_load(x + q * apart * 128 + 64);
      dot[q] = kCodes == kBytes ? wide_dot(c[q][0], first, c[q][1], second)
                                : wide_dot_few_bits(c[q][0], first, c[q][1], second);
    }
    // stored nibbles are at most 15, looked up ones 24: sums of 8 products of them fit 16 bits, of 16 those of 15
    Wide sum = wide_sums<kCodes == kNibbles ? 2 : kCodes == kLookup ? 1 : 0>(dot);
    if (!kShifts) sum = wide_minus(sum, wide_load(at.corrections + i * floats));
    WideFloat exact = wide_float(sum);  // integers below 2**24: exact
    const WideFloat sa = wide_floats(at.scales + i * floats);
    if (kShifts) exact = exact - has.shifts * wide_floats(at.sums + i * floats);
    products[i] = (sa * has.scales) * exact;
    if (kMinimums) minimums[i] = (sa * has.minimums) * wide_floats(at.sums + i * floats);
  }
}

// Asks for the scales and the like of `count` blocks.
[[gnu::always_inline]] inline void ask_for_blocks(const LinearSpec& spec, int64_t first, int64_t count) {
  const int64_t scale_size = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  const uint8_t* p = static_cast<const uint8_t*>(spec.scales) + first * scale_size;
  for (int64_t b = 0; b < count * scale_size; b += 64) ask_for(p + b);
  if (spec.offset == 0) return;
  const int64_t size = spec.offset == 2 ? scale_size : spec.near ? 2 : 4;
  p = static_cast<const uint8_t*>(spec.near ? static_cast<const void*>(spec.near) : spec.offsets) + first * size;
  for (int64_t b = 0; b < count * size; b += 64) ask_for(p + b);
}

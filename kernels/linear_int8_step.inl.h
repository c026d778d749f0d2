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

// What an activation row has for the segments of a step.
struct alignas(64) StepNumbers {
  float scales[16], sums[16];
  int32_t corrections[32];  // what stored codes that lie too high add, negative: as wide_sums_from wants them
};

// Activations, and the numbers of their steps, (steps, rows).
struct FewRows {
  Int8Activations a;
  const StepNumbers* numbers;
};

// What a weight row has for each segment of a step.
struct StepFloats {
  WideFloat scales, shifts, minimums;
};

// Asks for a line of memory. Compilers leave assembly where it is, and prefetches they gather.
inline void ask_for(const void* p) { __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(p))); }

struct StepCodes {
  Wide c[4][2];
};

// The stored codes of the first `count` Wides at p.
template <bool kAsk, StoredCodes kCodes>
[[gnu::always_inline]] inline StepCodes step_codes(const Storing& stored, const uint8_t* p, int64_t count,
                                                   const Ahead& ahead) {
  StepCodes codes;
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q, p += kWideBytes<kCodes>) {
    if (q >= count) continue;
    for (int64_t b = 0; kAsk && b < kWideBytes<kCodes>; b += 64)
      ask_for(p + ahead.bytes + b), ask_for(p + ahead.again + b);
    if constexpr (kCodes == kBytes) {
      wide_halves(p, &codes.c[q][0], &codes.c[q][1]);
      codes.c[q][0] = wide_xor(codes.c[q][0], stored.flip), codes.c[q][1] = wide_xor(codes.c[q][1], stored.flip);
    } else {
      stored_nibbles<kCodes>(wide_load_once(p), stored, codes.c[q]);
    }
  }
  return codes;
}

struct StepDots {
  Wide dot[4];
};

// Dot products with an activation row's codes at x.
template <StoredCodes kCodes>
[[gnu::always_inline]] inline StepDots step_dots(const StepCodes& codes, const int8_t* x, int64_t count) {
  StepDots dots;
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    dots.dot[q] = wide_zeros();
    if (q >= count) continue;
    const Wide first = wide_load(x + q * 128), second = wide_load(x + q * 128 + 64);
    dots.dot[q] = kCodes == kBytes ? wide_dot(codes.c[q][0], first, codes.c[q][1], second)
                                   : wide_dot_few_bits(codes.c[q][0], first, codes.c[q][1], second);
  }
  return dots;
}

// The sum, and what an activation row and the segments of a weight row add to it.
template <StoredCodes kCodes, bool kShifts, bool kMinimums>
[[gnu::always_inline]] inline WideFloat step_sum(const StepDots& dots, const StepNumbers& of, const StepFloats& has,
                                                 WideFloat sum) {
  const Wide total = kShifts ? wide_sums<kCodes>(dots.dot) : wide_sums_from<kCodes>(dots.dot, of.corrections);
  WideFloat exact = wide_float(total);  // integers below 2**24: exact, with shifts too
  if (kShifts) exact = wide_minus_product(exact, has.shifts, wide_floats(of.sums));
  const WideFloat scales = wide_floats(of.scales);
  sum = wide_fused(scales * has.scales, exact, sum);
  return kMinimums ? wide_fused(scales * has.minimums, wide_floats(of.sums), sum) : sum;
}

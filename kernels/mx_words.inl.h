// E2M1 in blocks of 32 on 16-bit lanes, then on bytes, where instructions look them up in tables (AVX-512 with BW and
// VBMI): the bits and counts of the other path (mx_run). Units that compare and saturate are the busiest here, so
// what can be is counted by minima and sums.
//
// A float32 is cut to its upper word and one bit that says whether anything lies below, which keeps every
// comparison with a number of seven bits after the leading one. Without its sign, twice that word is a `level`: a
// piecewise linear logarithm, 256 an octave, in which scaling by a power of two is a subtraction. bfloat16 is such a
// word, and float16 another: 1024 an octave, down to its smallest normal number, below which blocks that go through
// here have only zeros. Levels are counted from one eighth of a unit (2**e). E2M1's rounding thresholds,
// 1/4 3/4 5/4 7/4 5/2 7/2 5, are multiples of a step, a quarter of an octave, from there: 4 10 13 15 17 19 21. What
// lies on one goes to the even code, that is, up where the bit of two steps is set in the level. So a step less one is
// added, and one more where that bit is set, before the division by a step drops the rest.

#include "words_input.inl.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
template <int32_t kType>
struct Levels {
  static constexpr int kOctave = kType == kFloat16 ? 1024 : 256, kStepBits = kType == kFloat16 ? 8 : 6;
  static constexpr int kStep = 1 << kStepBits;
  static constexpr int kFirst = 3 + (kType == kFloat16 ? 127 - 15 : 0);  // scale byte of which the levels begin at 0
  static constexpr int kLimit = 22 * kStep + kStep - 1;                  // of 6 units, the largest value
  // Scale bytes, at least: a quarter of a unit is normal, also for the exponent below.
  static constexpr int kLeastByte = kType == kFloat16 ? kFirst + 2 : 24;
};

// What to subtract from the levels of a block, in both halves of a lane; at least one.
template <int32_t kType>
inline Words level_base(Ints byte) {
  using L = Levels<kType>;
  const Words base = (Words)((byte - L::kFirst) * L::kOctave - (L::kStep - 1));
  return base | base << 16;
}

// A block: words with signs, and levels before anything is subtracted.
struct WordBlock {
  __m512i upper, magnitude;
};

constexpr Shorts kLowWords = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                              32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};

template <int32_t kType>
[[gnu::always_inline]] inline WordBlock word_block(const char* x) {
  const __m512i a = _mm512_loadu_si512(x);
  if (kType == kBfloat16) return {a, _mm512_add_epi16(a, a)};
  if (kType == kFloat16) return {a, _mm512_and_si512(a, _mm512_set1_epi16(0x7FFF))};
  const __m512i b = _mm512_loadu_si512(x + 64);
  const __m512i upper = _mm512_permutex2var_epi16(a, (__m512i)(kLowWords + 1), b);
  const __m512i lower = _mm512_permutex2var_epi16(a, (__m512i)kLowWords, b);
  const __m512i inexact = _mm512_min_epu16(lower, _mm512_set1_epi16(1));
  return {upper, _mm512_or_si512(_mm512_add_epi16(upper, upper), inexact)};
}

inline __m512i block_levels(__m512i magnitude, uint32_t base) {
  return _mm512_subs_epu16(magnitude, _mm512_set1_epi32(static_cast<int32_t>(base)));
}

// Which of the 28 intervals between multiples of a step a level lies in, halves to even.
template <int32_t kType>
inline __m512i block_intervals(__m512i levels) {
  using L = Levels<kType>;
  const __mmask32 odd = _mm512_test_epi16_mask(levels, _mm512_set1_epi16(2 * L::kStep));
  return _mm512_srli_epi16(_mm512_mask_sub_epi16(levels, odd, levels, _mm512_set1_epi16(-1)), L::kStepBits);
}

// What a group's codes are counted by: lanes of words, of bytes.
struct WordCounts {
  __m512i saturated = {};                 // minus the number, in each word
  __m512i others = {};                    // codes that are not 0, in each byte
  __m512i least = _mm512_set1_epi32(-1);  // magnitude, in each word
};

// Bytes by interval. Those of the second table are negative where the code is 1 or 3.
struct ByteTables {
  alignas(64) int8_t codes[64], tells[64];
};

constexpr ByteTables byte_tables() {
  constexpr int8_t first[32] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3,
                                4, 4, 5, 5, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
  ByteTables t = {};
  for (int n = 0; n < 64; ++n) {
    t.codes[n] = n < 32 ? first[n] : int8_t{7};
    t.tells[n] = t.codes[n] == 1 || t.codes[n] == 3 ? int8_t{-1} : int8_t{0};
  }
  return t;
}
constexpr ByteTables kByteTables = byte_tables();

// Two blocks, as two codes in each word: eight bytes of intervals of one block, eight of the other, in each 128 bits.
// telling: bits of bytes with the code 1 or 3.
template <int32_t kType, bool kMse>
[[gnu::always_inline]] inline __m512i code_pair(const char* x, const char* y, const uint32_t* base,
                                                WordCounts* counts, uint64_t* telling) {
  __m512i interval[2], upper[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const WordBlock block = word_block<kType>(h ? y : x);
    const __m512i levels = block_levels(block.magnitude, base[h]);
    count_words(&counts->saturated, _mm512_cmpgt_epu16_mask(levels, _mm512_set1_epi16(Levels<kType>::kLimit)));
    counts->least = _mm512_min_epu16(counts->least, block.magnitude);
    interval[h] = block_intervals<kType>(levels), upper[h] = block.upper;
  }
  const __m512i bytes = _mm512_packus_epi16(interval[0], interval[1]);
  const __m512i code = _mm512_permutexvar_epi8(bytes, _mm512_load_si512(kByteTables.codes));
  if (kMse)
    *telling = _mm512_movepi8_mask(_mm512_permutexvar_epi8(bytes, _mm512_load_si512(kByteTables.tells)));
  counts->others = _mm512_add_epi8(counts->others, _mm512_min_epu8(code, _mm512_set1_epi8(1)));
  const __m512i sign = _mm512_srli_epi16(_mm512_packs_epi16(upper[0], upper[1]), 4);
  const __m512i nibbles = _mm512_ternarylogic_epi32(_mm512_set1_epi8(8), sign, code, 0xCA);
  return _mm512_maddubs_epi16(nibbles, _mm512_set1_epi16(1 | 16 << 8));
}

// A whole group of blocks of 32, packed. False, and no counts, if `mse` cannot tell from the codes of a block that
// no larger exponent serves as well.
template <int32_t kType, bool kMse>
inline bool code_group_words(const MxGroup& g, const char* x, uint8_t* packed, MxCounts* counts) {
  uint32_t base[kGroup];
  uint64_t telling[kGroup / 2];
  store(base, level_base<kType>(load<Ints>(g.byte)));
  WordCounts found;
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  for (int b = 0; b < kGroup; b += 4) {
    __m512i pairs[2];
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
      const char *first = block_input<kType>(x, b + j), *second = block_input<kType>(x, b + j + 1);
      prefetch_block<kType>(first), prefetch_block<kType>(second);
      pairs[j / 2] = code_pair<kType, kMse>(first, second, base + b + j, &found, telling + (b + j) / 2);
    }
    const __m512i bytes = _mm512_packus_epi16(pairs[0], pairs[1]);
    _mm512_storeu_si512(packed + b * 16, _mm512_permutexvar_epi32(order, bytes));
  }
  if (kMse) {
    constexpr uint64_t kFirst = 0x00FF00FF00FF00FF;  // bytes of a pair's first block
    for (int b = 0; b < kGroup; b += 2)
      if ((!(telling[b / 2] & kFirst) && g.amax[b]) || (!(telling[b / 2] & ~kFirst) && g.amax[b + 1])) return false;
  }
  counts->saturated += word_total(found.saturated);
  const __m512i others = _mm512_sad_epu8(found.others, _mm512_setzero_si512());  // of 64 codes in each 64 bits
  counts->zeroed += (Ints)_mm512_sub_epi32(others, _mm512_set1_epi64(64));
  if (_mm512_testn_epi16_mask(found.least, found.least))
    counts->zeroed[0] += static_cast<int32_t>(count_zeros<kType>(x, kGroup));
  return true;
}

// By how much the squared error of a block grows from e0 to e0 + 1 or e0 - 1 (see choose_mse), in units of 4**e0
// times 2**15; to be summed over all lanes. An element y that goes from the value v to w adds
// (w - v) (w + v - 2y). The second factor is below 4 wherever the first is not 0, so 16 bits hold it, whatever
// w + v is modulo 8. Rounding y to 2**-14 makes that factor wrong by 2**-14 at most, and w - v is at most 2.
constexpr float kGrowthUnit = 0x1p-15f, kWordDoubt = 32 * 2 * 0x1p-14f + 1e-6f;

struct GrowthTables {
  alignas(64) int16_t change[32], both[32];  // 4 (w - v); 2**13 (w + v) modulo 2**16
};

template <int32_t kType>
inline Ints growth_words(const char* x, uint32_t base, float down, const GrowthTables& tables) {
  const __m512i interval = block_intervals<kType>(block_levels(word_block<kType>(x).magnitude, base));
  const BlockFloats v = block_floats<kType>(x);
  const Floats fine = spread(down * 0x1p14f);
  const __m512i a = _mm512_cvtps_epi32((__m512)(magnitude((Floats)v.p) * fine));
  const __m512i b = _mm512_cvtps_epi32((__m512)(magnitude((Floats)v.q) * fine));
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  const __m512i y = kType == kBfloat16 ? _mm512_packus_epi32(_mm512_and_si512(a, low), _mm512_and_si512(b, low))
                                       : _mm512_permutex2var_epi16(a, (__m512i)kLowWords, b);
  const __m512i both = _mm512_permutexvar_epi16(interval, _mm512_load_si512(tables.both));
  const __m512i change = _mm512_permutexvar_epi16(interval, _mm512_load_si512(tables.change));
  return (Ints)_mm512_madd_epi16(change, _mm512_sub_epi16(both, y));
}

// Twice the value at an exponent of each interval, counted from those of the exponent one below it.
constexpr int kTwice[36] = {0, 0, 0, 0,  0,  0,  0,  0,  0,  1,  1,  1,  1,  1,  1,  2,  2,  2,
                            3, 3, 4, 4,  6,  6,  8,  8,  12, 12, 12, 12, 12, 12, 12, 12, 12, 12};

constexpr GrowthTables growth_tables(bool up) {
  GrowthTables t = {};
  for (int n = 0; n < 32; ++n) {
    const int here = 2 * kTwice[n + 4], there = up ? 4 * kTwice[n] : n + 8 < 36 ? kTwice[n + 8] : 12;
    t.change[n] = static_cast<int16_t>(there - here);
    t.both[n] = static_cast<int16_t>(static_cast<uint16_t>((there + here) << 11));
  }
  return t;
}

constexpr GrowthTables kGrowthUp = growth_tables(true), kGrowthDown = growth_tables(false);

// See group_growth.
template <int32_t kType>
inline float growth_of_words(const char* x, const MxGroup& g, uint32_t rivals, uint32_t up, float* growth) {
  uint32_t base[kGroup];
  store(base, level_base<kType>(load<Ints>(g.byte)));
  Ints sums[kGroup] = {};
  for (uint32_t rest = rivals; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    sums[b] = growth_words<kType>(block_input<kType>(x, b), base[b], g.down[b], up >> b & 1 ? kGrowthUp : kGrowthDown);
  }
  int32_t totals[kGroup];
  combine_lanes(sums, totals, [](Ints a, Ints b) { return a + b; });
  store(growth, to_floats(load<Ints>(totals)) * kGrowthUnit);
  return kWordDoubt;
}

template <int32_t kType>
inline void choose_mse_words(const MxVectors& v, const char* x, MxGroup* g) {
  choose_rivals(
      v, kGroup, 32, g,
      [&](uint32_t rivals, uint32_t up, float* growth) { return growth_of_words<kType>(x, *g, rivals, up, growth); },
      [&](int b, bool up) {
        float room[32];
        return error_growth_sum(as_floats(kType, block_input<kType>(x, b), 32, room), 32, g->down[b], up);
      });
}

// The largest magnitudes of sixteen blocks, as bits of float32.
template <int32_t kType>
[[gnu::always_inline]] inline void group_amax_words(const char* x, int32_t* amax) {
  const auto larger = [](Ints a, Ints b) { return kType == kFloat32 ? maximum(a, b) : larger_words(a, b); };
  Ints fours[4];  // four blocks at a time: registers are few
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Ints top[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const char* block = block_input<kType>(x, 4 * i + j);
      if (kType == kFloat32) {
        const BlockFloats v = block_floats<kType>(block);
        top[j] = maximum((Ints)magnitude((Floats)v.p), (Ints)magnitude((Floats)v.q));
      } else {
        top[j] = (Ints)_mm512_and_si512(_mm512_loadu_si512(block), _mm512_set1_epi16(0x7FFF));
      }
    }
    fours[i] = combine_four(top, larger);
  }
  if (kType == kFloat32)
    combine_fours(fours, amax, larger);
  else
    store(amax, widened<kType>(largest_words(fours, larger)));
}

// A group from input to output; false, and nothing counted, if it is left to the other path.
template <int32_t kType>
inline bool words_group_of(const MxVectors& v, const char* x, bool mse, uint8_t* packed, uint8_t* scales,
                           MxCounts* counts, int64_t* saturated_blocks) {
  MxGroup g;
  MxCounts found;
  group_amax_words<kType>(x, g.amax);
  group_scales(v, &g, &found);
  if (kType == kFloat16 && any((load<Ints>(g.byte) < Levels<kType>::kLeastByte) & (load<Ints>(g.amax) != 0)))
    return false;
  if (mse && !g.special) choose_mse_words<kType>(v, x, &g);
  if (g.special) return false;
  const bool coded = mse ? code_group_words<kType, true>(g, x, packed, &found)
                         : code_group_words<kType, false>(g, x, packed, &found);
  if (!coded) return false;
  store_scale_bytes(g, kGroup, scales);
  counts->saturated += found.saturated;
  counts->zeroed += found.zeroed;
  counts->zero_blocks += found.zero_blocks;
  *saturated_blocks += count_saturated_blocks(v, g);
  return true;
}

inline bool words_group(const MxVectors& v, const Rows& rows, int64_t at, bool mse, uint8_t* packed, uint8_t* scales,
                        MxCounts* counts, int64_t* saturated_blocks) {
  return with_group(rows, at, [&]<int32_t kType>(const char* x) {
    return words_group_of<kType>(v, x, mse, packed, scales, counts, saturated_blocks);
  });
}
#else
inline bool words_group(const MxVectors&, const Rows&, int64_t, bool, uint8_t*, uint8_t*, MxCounts*, int64_t*) {
  return false;
}
#endif

// MX quantizing of float32, float16 and bfloat16 in float32 vectors: the bits of mx_block (mx.inl.h), faster.
//
// Why float32 does: such input is float32, scaling by a power of two is exact where nothing underflows, and
// what underflows (below 2**-126 where the least element value is 2**-16) rounds to zero either way. Blocks
// whose scale is near the ends of its range, and those with non-finite values, are left to mx_block.

constexpr int64_t kGroup = 16;          // blocks looked at together
constexpr int64_t kLargestBlock = 256;  // of the fast kernels

struct MxVectors {
  uint32_t threshold;  // the bracket of the exponent: significand field > threshold (2**23: never)
  int32_t emax;
  float limit, least;  // largest value; smallest normal value
  int32_t shift;       // 23 - mantissa bits
  int32_t sign_shift;  // from the sign of a float32 to that of the code
  uint32_t mask;       // of a code
};

inline MxVectors mx_vectors(const MxSpec& spec) {
  MxVectors v;
  v.threshold = spec.rule == 0 ? static_cast<uint32_t>((spec.threshold - 1.0) * 0x1p23) : 1u << 23;
  v.emax = spec.emax;
  v.limit = static_cast<float>(spec.max);
  v.least = static_cast<float>(pow2(1 - spec.bias));
  v.shift = 23 - spec.mantissa_bits;
  v.sign_shift = 32 - spec.bits;
  v.mask = (1u << spec.bits) - 1;
  return v;
}

// What a group of blocks looks like before coding. Blocks past the end are zeros.
struct MxGroup {
  int32_t amax[kGroup];  // bits of the largest magnitude
  int32_t byte[kGroup];  // scale byte
  float down[kGroup];    // 2**-e
  int32_t odd[kGroup];   // all ones: the block is for mx_block
  uint32_t special;      // bit b: the same
};

struct MxCounts {
  Ints saturated = {}, zeroed = {}, zero_blocks = {};
};

// `n` (at most 16) blocks of `size` floats.
[[gnu::always_inline]] inline void group_amax(const float* x, int64_t n, int64_t size, int32_t* amax) {
  Ints top[kGroup];
  for (int64_t b = 0; b < kGroup; ++b) {
    Words m = {};
    if (b < n)
      for (int64_t i = 0; i < size; i += kLanes)
        m = (Words)maximum((Ints)m, (Ints)(load<Words>(x + b * size + i) & 0x7FFFFFFFu));
    top[b] = (Ints)m;
  }
  largest_lanes(top, amax);
}

[[gnu::always_inline]] inline void group_scales(const MxVectors& v, MxGroup* g, MxCounts* counts) {
  Ints odd = {};
  for (int b = 0; b < kGroup; b += kLanes) {
    const Words u = load<Words>(g->amax + b);
    const Ints above = (Ints)((u & 0x7FFFFFu) > v.threshold), zero = (Ints)(u == 0u);
    const Ints byte = (Ints)(u >> 23) - v.emax - above;
    const Ints ordinary = (byte >= 24) & (byte <= 230);  // 2**-e and its neighbours are normal floats
    const Ints used = (Ints)select(ordinary, (Words)byte, spread(127u));
    const Floats down = (Floats)((254 - used) << 23);
    counts->zero_blocks += zero;
    store(g->byte + b, used);
    store(g->down + b, down);
    odd |= ~(ordinary | zero);
    store(g->odd + b, ~(ordinary | zero));
  }
  g->special = 0;
  for (int b = 0; any(odd) && b < kGroup; ++b) g->special |= static_cast<uint32_t>(g->odd[b] & 1) << b;
}

// Magnitudes to codes without sign; y is at most the limit.
inline Words code_floats(const MxVectors& v, Floats y) {
  const Words k = (Words)maximum(y, spread(v.least)) & 0x7F800000u;
  const Words magic = k + (static_cast<uint32_t>(v.shift) << 23);  // a float whose ulp is that of the code
  const Words whole = (Words)(y + (Floats)magic) - magic;
  return whole + ((k - bits_of(v.least)) >> v.shift);
}

inline Words code_integers(const MxVectors& v, Floats y) {
  const float magic = float_of(static_cast<uint32_t>(v.shift + 127) << 23);
  return (Words)(y + magic) - bits_of(magic);
}

// E2M1. On [0, 2) its values are 0.5 apart, then 1, then 2, and the code is the least of the three roundings,
// 2y, 2 + y and 4 + y/2, because these are concave in y; halves go to even in each. Adding 2**23 rounds.
inline Words code_e2m1(Floats y) {
  constexpr float kOne = 0x1p23f;  // ulp 1, low byte 0
  const Floats fine = exact_product_plus(y, 2.0f, kOne), coarse = exact_product_plus(y, 0.5f, kOne + 4);
  return (Words)minimum(minimum(fine, y + (kOne + 2)), minimum(coarse, spread(kOne + 7)));
}

enum ElementKind { kInteger, kFloating, kE2m1 };

// Codes of one vector, in the low bits of each lane, and the lanes that saturate or become zero.
template <ElementKind kKind>
inline Words code_vector(const MxVectors& v, const float* x, float down, MxCounts* counts) {
  const Words u = load<Words>(x), a = u & 0x7FFFFFFFu;
  const Floats y = (Floats)a * down;
  count(&counts->saturated, (Ints)(y > v.limit));
  if (kKind == kE2m1) {
    const Words code = code_e2m1(y);
    count(&counts->zeroed, (Ints)(code == 0x4B000000u) & (Ints)(a != 0u));
    return merge(7, code, u >> 28);
  }
  const Floats capped = minimum(y, spread(v.limit));
  const Words code = kKind == kFloating ? code_floats(v, capped) : code_integers(v, capped);
  count(&counts->zeroed, (Ints)(code == 0u) & (Ints)(a != 0u));
  if (kKind == kFloating) return merge(v.mask >> 1, code, u >> v.sign_shift);
  const Words sign = (Words)((Ints)u >> 31);
  return ((code ^ sign) - sign) & v.mask;
}

// Codes of the group, a byte each. Blocks that are special are left out.
template <int kSize, ElementKind kKind>
inline void code_group(const MxVectors& v, const MxGroup& g, const float* x, int64_t n, int64_t size,
                       uint8_t* codes, MxCounts* counts) {
  if (kSize == 32 && n == kGroup && !g.special) {
    for (int64_t i = 0; i < kGroup * kSize; i += 4 * kLanes) {
      Words quad[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t at = i + j * kLanes;
        quad[j] = code_vector<kKind>(v, x + at, g.down[at / 32], counts);
      }
      store_bytes4(codes + i, quad);
    }
    return;
  }
  for (int64_t b = 0; b < n; ++b) {
    if (g.special >> b & 1) continue;
    for (int64_t i = b * size; i < (b + 1) * size; i += kLanes)
      store_bytes(codes + i, code_vector<kKind>(v, x + i, g.down[b], counts));
  }
}

// ---- `mse` for E2M1, blocks of at most 64
//
// In units of 2**e0, amax = a in [4, 8) and E2M1 has the values 0 .5 1 1.5 2 3 4 6. Then:
//  * a <= 6: the values at e0 + 1 that are at most 6 are among those at e0, so going up loses nothing only if
//  no
//    element is nearest to .5 or 1.5, that is, has code 1 or 3. Where one has, its error grows by at least
//    the distance of two float32 numbers near .25, 2**-26, which the float64 sum of rules.md still sees.
//  * The same from e0 + 1 to e0 + 2 (amax is then below 4 units).
//  * a > 6: e0 and e0 + 1 are compared by sums; e0 - 1 clamps at 3, costs 6a - 27 > 9 at the maximum
//    and gains at most 1/16 at each other element (those below 1): it never wins for 64 elements.
//  * a <= 6: e0 and e0 - 1 are compared where e0 - 1 can win at all: it costs at least 2a - 7 (3 from a = 5 on) at
//    the maximum and gains at most 1/16 per element.
//  * e0 - 2 clamps at 1.5, costs at least 6.25 and gains at most 1/16 per element.
// What a sum in float32 cannot decide, and blocks without codes 1 and 3, are left to mx_block.

// Value of a code that code_e2m1 returned.
inline Floats value_e2m1(Words code) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, .5f, 1, 1.5f, 2, 3, 4, 6);
  return (Floats)_mm512_permutexvar_ps((__m512i)code, values);
#elif defined(__AVX2__)
  const __m256 values = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
  return (Floats)_mm256_permutevar8x32_ps(values, (__m256i)code);
#else
  // codes 0 .. 3: half the code; from 4 on: exponent and mantissa
  const Words q = code & 7u;
  const Floats small = to_floats((Ints)q) * 0.5f;
  return select((Ints)(q < 4u), small, (Floats)((q << 22) + (126u << 23)));
#endif
}

// Groups are read in bursts: ask for a part of the one after the next while codes are made, or memory idles. (Asking
// for all of it at once stalls processors that look ahead themselves.)
constexpr int64_t kAhead = 2;
[[gnu::always_inline]] inline void prefetch_block(const float* block) {
  __builtin_prefetch(block + kAhead * kGroup * 32);
  __builtin_prefetch(block + kAhead * kGroup * 32 + 16);
}

#include "mx_words.inl.h"

// How much the squared error grows from e0 to e0 + step, in units of 4**e0. The terms are below 8, so the
// float32 sum, in any order, is within doubt(size).
constexpr float doubt(int64_t size) { return static_cast<float>(size * (size + 4)) * 8 * 0x1p-24f; }

inline Floats error_growth(const float* x, int64_t size, float down, bool up) {
  const float step = up ? 2.0f : 0.5f, inverse = up ? 0.5f : 2.0f;
  Floats sum = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats y = (Floats)(load<Words>(x + i) & 0x7FFFFFFFu) * down;
    const Floats here = value_e2m1(code_e2m1(y)), there = value_e2m1(code_e2m1(y * inverse)) * step;
    sum += (there - here) * ((here + there) - (y + y));
  }
  return sum;
}

// The growth of the blocks in `rivals`, to e0 + 1 for those in `up`, else to e0 - 1; 0 for the others. Returns by
// how much it may be wrong.
template <int kSize>
inline float group_growth(const float* x, int64_t size, const MxGroup& g, uint32_t rivals, uint32_t up,
                          float* growth) {
#if defined(__AVX512BW__)
  if (kSize == 32) return growth_of_words(x, g, rivals, up, growth);
#endif
  Floats sums[kGroup] = {};
  for (uint32_t rest = rivals; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    sums[b] = error_growth(x + b * size, size, g.down[b], up >> b & 1);
  }
  sum_lanes(sums, growth);
  return doubt(size);
}

inline float error_growth_sum(const float* x, int64_t size, float down, bool up) {
  const Floats sum = error_growth(x, size, down, up);
  float all = 0;
  for (int i = 0; i < kLanes; ++i) all += sum[i];
  return all;
}

// Final exponents of the blocks that have more than one candidate; those in doubt become special. Without branches
// on what came out: which blocks these are is as good as random.
template <int kSize>
inline void choose_mse(const MxVectors& v, const float* x, int64_t n, int64_t size, MxGroup* g) {
  if (kSize) size = kSize;
  Ints is_up[kGroup / kLanes], is_low[kGroup / kLanes];
  uint32_t up = 0, low = 0, doubtful = 0;
  const float reach = 7.0f + static_cast<float>(size - 1) / 16 + 0.01f;  // e0 - 1 may win if 2a < reach
  for (int i = 0; i < kGroup / kLanes; ++i) {
    const Floats a = load<Floats>((const float*)g->amax + i * kLanes) * load<Floats>(g->down + i * kLanes);
    is_up[i] = (Ints)(a > v.limit);
    is_low[i] = (Ints)(a + a < reach) & (Ints)(a > 0.0f);
    up |= lane_bits(is_up[i]) << i * kLanes;
    low |= lane_bits(is_low[i]) << i * kLanes;
  }
  const uint32_t rivals = (up | low) & ((1u << n) - 1) & ~g->special;
  float growth[kGroup];
  const float wrong = group_growth<kSize>(x, size, *g, rivals, up, growth);
  for (int b = 0; b < kGroup; b += kLanes)
    doubtful |= lane_bits((Ints)(magnitude(load<Floats>(growth + b)) < wrong)) << b;
  for (uint32_t rest = doubtful & rivals; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    growth[b] = error_growth_sum(x + b * size, size, g->down[b], up >> b & 1);
    g->special |= static_cast<uint32_t>(absolute(growth[b]) < doubt(size)) << b;
  }
  for (int i = 0; i < kGroup / kLanes; ++i) {
    const Ints better = (Ints)(load<Floats>(growth + i * kLanes) < 0.0f);
    const Ints byte = load<Ints>(g->byte + i * kLanes) - (better & is_up[i]) + (better & is_low[i]);
    store(g->byte + i * kLanes, byte);
    store(g->down + i * kLanes, (Floats)((254 - byte) << 23));
  }
}

// `mse` of every other element type and size, in float64.
inline void choose_mse_exact(const MxSpec& spec, const float* x, int64_t n, int64_t size, double* wide,
                             MxGroup* g) {
  for (int64_t b = 0; b < n; ++b) {
    if ((g->special >> b & 1) || g->amax[b] == 0) continue;
    for (int64_t i = 0; i < size; ++i) wide[i] = x[b * size + i];
    const double amax = float_of(static_cast<uint32_t>(g->amax[b]));
    const int byte = best_exponent(spec, wide, size, amax, g->byte[b] - 127, spec.min_byte - 127, 127) + 127;
    const bool ordinary = byte >= 24 && byte <= 230;
    g->special |= static_cast<uint32_t>(!ordinary) << b;
    g->byte[b] = ordinary ? byte : 127;
    g->down[b] = float_of(static_cast<uint32_t>(254 - g->byte[b]) << 23);
  }
}

// Blocks of which mx_block must say whether a larger exponent loses nothing; their counts are taken back.
template <int kSize, ElementKind kKind>
inline void recheck_mse(const MxVectors& v, const float* x, int64_t n, int64_t size, const uint8_t* codes,
                        MxGroup* g, MxCounts* counts) {
  if (kSize) size = kSize;
  for (int64_t b = 0; b < n; ++b) {
    if ((g->special >> b & 1) || g->amax[b] == 0 || has_code_1_or_3(codes + b * size, size)) continue;
    MxCounts taken;
    for (int64_t i = 0; i < size; i += kLanes) code_vector<kKind>(v, x + b * size + i, g->down[b], &taken);
    counts->saturated -= taken.saturated;
    counts->zeroed -= taken.zeroed;
    g->special |= 1u << b;
  }
}

inline int64_t count_saturated_blocks(const MxVectors& v, const MxGroup& g) {
  uint32_t mask = 0;
  for (int b = 0; b < kGroup; b += kLanes)
    mask |= lane_bits((Ints)(load<Floats>((const float*)(g.amax + b)) * load<Floats>(g.down + b) > v.limit))
            << b;
  return __builtin_popcount(mask & ~g.special);
}

inline void store_scale_bytes(const MxGroup& g, int64_t n, uint8_t* out) {
  uint8_t bytes[kGroup];
  for (int b = 0; b < kGroup; b += kLanes) store_bytes(bytes + b, load<Words>(g.byte + b));
  memcpy(out, bytes, static_cast<size_t>(n));
}

inline void pack_fast(const uint8_t* codes, int64_t n, int bits, uint8_t* out) {
  if (bits == 4)
    pack_nibbles(codes, n, out);
  else if (bits == 6)
    pack_sixes(codes, n, out);
  else
    memcpy(out, codes, static_cast<size_t>(n));
}

struct FastScratch {
  float x[kGroup * kLargestBlock];
  double wide[kLargestBlock];
  uint8_t codes[kGroup * kLargestBlock];
};

// The group's input as floats: where it lies, or widened into the scratch space.
inline const float* group_floats(const Rows& rows, int64_t at, int64_t n, float* out) {
  if (rows.input_type == kFloat32) return static_cast<const float*>(rows.x) + at;
  const uint16_t* p = static_cast<const uint16_t*>(rows.x) + at;
  if (rows.input_type == kFloat16)
    for (int64_t i = 0; i < n; i += kLanes) store(out + i, widen_half(p + i));
  else
    for (int64_t i = 0; i < n; i += kLanes) store(out + i, widen_bfloat16(p + i));
  return out;
}

template <int kSize, ElementKind kKind>
inline void mx_run(const Rows& rows, const MxSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                   uint8_t* scales, FastScratch* scratch, int64_t* events) {
  const MxVectors v = mx_vectors(spec);
  const int64_t size = kSize ? kSize : rows.block_size;
  MxCounts counts;
  int64_t saturated_blocks = 0;
  int64_t missing = 0;  // blocks of zeros beyond the end
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t n = first + kGroup < blocks ? kGroup : blocks - first;
    const float* x = group_floats(rows, at + first * size, n * size, scratch->x);
    MxGroup g;
    group_amax(x, n, size, g.amax);
    group_scales(v, &g, &counts);
    missing += kGroup - n;
    const bool mse = kKind == kE2m1 && spec.rule == 1 && size <= 64;
    if (mse)
      choose_mse<kSize>(v, x, n, size, &g);
    else if (spec.rule == 1)
      choose_mse_exact(spec, x, n, size, scratch->wide, &g);
    uint8_t* out = packed + packed_bytes(first * size, spec.bits);
    if (kSize == 32 && kKind == kE2m1 && n == kGroup && !g.special && code_group_words(mse, &g, x, out, &counts)) {
      saturated_blocks += count_saturated_blocks(v, g);
      store_scale_bytes(g, n, scales + first);
      continue;
    }
    code_group<kSize, kKind>(v, g, x, n, size, scratch->codes, &counts);
    if (mse) recheck_mse<kSize, kKind>(v, x, n, size, scratch->codes, &g, &counts);
    saturated_blocks += count_saturated_blocks(v, g);
    store_scale_bytes(g, n, scales + first);
    for (uint32_t rest = g.special; rest; rest &= rest - 1) {
      const int b = __builtin_ctz(rest);
      for (int64_t i = 0; i < size; ++i) scratch->wide[i] = x[b * size + i];
      memset(scratch->codes + b * size, 0, static_cast<uint32_t>(size));
      mx_block(spec, scratch->wide, size, scratch->codes + b * size, scales + first + b, events);
    }
    pack_fast(scratch->codes, n * size, spec.bits, out);
  }
  events[kSaturated] += count_lanes(counts.saturated);
  events[kZeroed] += count_lanes(counts.zeroed);
  events[kSaturatedBlocks] += saturated_blocks;
  events[kZeroBlocks] += count_lanes(counts.zero_blocks) - missing;
}

inline bool mx_is_fast(const Rows& rows, const MxSpec& spec) {
  return rows.input_type != kFloat64 && rows.block_size % 16 == 0 && rows.block_size <= kLargestBlock &&
         spec.min_byte < 24;
}

inline void mx_blocks(const Rows& rows, const MxSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                      uint8_t* scales, FastScratch* scratch, int64_t* events) {
  const bool usual = rows.block_size == 32;
  auto* run = usual ? mx_run<32, kInteger> : mx_run<0, kInteger>;
  if (spec.is_float) run = usual ? mx_run<32, kFloating> : mx_run<0, kFloating>;
  if (spec.is_float && spec.bits == 4) run = usual ? mx_run<32, kE2m1> : mx_run<0, kE2m1>;
  run(rows, spec, at, blocks, packed, scales, scratch, events);
}

bool quantize_mx(const Rows& rows, const MxSpec& spec, uint8_t* packed, int64_t row_bytes, uint8_t* scales,
                 int64_t* events) {
  const int64_t size = rows.block_size, whole = rows.length / size;
  const int64_t per_row = (rows.length + size - 1) / size;
  if (!mx_is_fast(rows, spec) || !whole)
    return quantize_mx_plain(rows, spec, packed, row_bytes, scales, events);
  Scratch<FastScratch> scratch(1);
  if (!scratch.data) return false;
  if (whole == per_row) {  // rows of whole blocks lie one after the other
    const int64_t first = rows.row_begin * whole;
    mx_blocks(rows, spec, first * size, (rows.row_end - rows.row_begin) * whole,
              packed + rows.row_begin * row_bytes, scales + first, scratch.data, events);
    return true;
  }
  for (int64_t r = rows.row_begin; r < rows.row_end; ++r) {
    mx_blocks(rows, spec, r * rows.length, whole, packed + r * row_bytes, scales + r * per_row, scratch.data,
              events);
    // The partial block as a row of its own.
    const int64_t done = whole * size, width = rows.input_type == kFloat32 ? 4 : 2;
    const Rows tail{static_cast<const uint8_t*>(rows.x) + (r * rows.length + done) * width,
                    rows.input_type,
                    0,
                    1,
                    rows.length - done,
                    size};
    const int64_t begin = packed_bytes(done, spec.bits);
    if (!quantize_mx_plain(tail, spec, packed + r * row_bytes + begin, row_bytes - begin,
                           scales + r * per_row + whole, events))
      return false;
  }
  return true;
}

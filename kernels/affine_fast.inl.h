// The plain affine rules in float32 vectors: the bits of affine_block (affine_kernel.inl.h), faster.
//
// `ggml` is defined in float32, so it is the same arithmetic on many lanes. `absmax` and `minmax` divide in
// float64; here a float32 product with 1/s decides, and a block in which one is too near a half to be sure is
// left to affine_block, like the blocks with non-finite values and with scales that are replaced.

enum AffineKind { kQ8_0, kQ4_0, kQ4_1, kPlain };

struct AffineGroup {
  int32_t low[kGroup], high[kGroup];  // ordered bits of the ends, or of the largest magnitude
  float inverse[kGroup];              // 1 / d
  float scale[kGroup];                // as stored
  float shift[kGroup];                // q4_1: minimum; plain: zero point
  float base[kGroup];                 // q4_1: minimum as stored
  uint32_t special;
};

struct AffineCounts {
  Ints saturated = {}, zeroed = {};
  int64_t saturated_blocks = 0, zero_blocks = 0;
};

// Floats as integers of the same order, and back: NaNs come out beyond the infinities.
inline Ints ordered(Words u) { return (Ints)(u ^ ((Words)((Ints)u >> 31) & 0x7FFFFFFFu)); }
inline float from_ordered(int32_t v) { return float_of(static_cast<uint32_t>(v ^ (v >> 31 & 0x7FFFFFFF))); }

inline void group_ends(const float* x, int64_t n, int64_t size, AffineGroup* g) {
  Ints low[kGroup], high[kGroup];
  for (int64_t b = 0; b < kGroup; ++b) {
    low[b] = high[b] = Ints{};
    if (b >= n) continue;
    Ints lo = ordered(load<Words>(x + b * size)), hi = lo;
    for (int64_t i = kLanes; i < size; i += kLanes) {
      const Ints v = ordered(load<Words>(x + b * size + i));
      lo = minimum(lo, v);
      hi = maximum(hi, v);
    }
    low[b] = ~lo;
    high[b] = hi;
  }
  largest_lanes(low, g->low);
  largest_lanes(high, g->high);
  for (int b = 0; b < kGroup; ++b) g->low[b] = ~g->low[b];
}

// The first element of magnitude `amax`, as ggml breaks the tie.
inline float first_extreme(const float* x, float amax) {
  while (x[0] != amax && x[0] != -amax) ++x;
  return x[0];
}

inline bool is_finite_bits(int32_t magnitude) { return magnitude < 0x7F800000; }

inline Floats from_ordered(Ints v) { return (Floats)((Words)v ^ ((Words)(v >> 31) & 0x7FFFFFFFu)); }

// Scales of the `ggml` presets.
template <AffineKind kKind>
inline void ggml_scales(const float* x, int64_t n, int64_t size, AffineGroup* g, uint16_t* scales,
                        uint16_t* offsets) {
  const Ints infinity = spread(0x7F800000);
  uint32_t special = 0, tied = 0;
  float wanted[kGroup];
  for (int b = 0; b < kGroup; b += kLanes) {
    const Ints high = load<Ints>(g->high + b), low = load<Ints>(g->low + b);
    const Floats hi = from_ordered(high), lo = from_ordered(low);
    Ints odd = high >= infinity;  // NaN and infinities
    Floats d = {};
    if (kKind == kQ8_0) d = hi / 127.0f;
    if (kKind == kQ4_0) {
      odd |= low <= ~infinity;
      tied |= lane_bits((Ints)(hi == -lo)) << b;
      d = select((Ints)(hi < -lo), lo, hi) * -0.125f;
    }
    if (kKind == kQ4_1) {
      odd |= (low <= ~infinity) | (Ints)(lo == 0.0f);  // the sign of a zero minimum is that of the first zero
      d = (hi - lo) / 15.0f;
      store(g->shift + b, lo);
      store_half(offsets + b, lo);
      const Floats base = widen_half(offsets + b);
      store(g->base + b, base);
      odd |= (Ints)(((Words)base & 0x7FFFFFFFu) >= 0x7F800000u);
    }
    store(wanted + b, d);
    special |= lane_bits(odd) << b;
  }
  for (uint32_t rest = tied & ~special & ((1u << n) - 1); rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    wanted[b] = first_extreme(x + b * size, float_of(static_cast<uint32_t>(g->high[b]))) / -8.0f;
  }
  for (int b = 0; b < kGroup; b += kLanes) {
    const Floats d = load<Floats>(wanted + b);
    store_half(scales + b, d);
    const Floats s = widen_half(scales + b);
    store(g->scale + b, s);
    store(g->inverse + b, 1.0f / d);
    const Words a = (Words)s & 0x7FFFFFFFu;
    special |= lane_bits((Ints)(a == 0u) | (Ints)(a >= 0x7F800000u)) << b;
  }
  g->special = special & ((1u << n) - 1);
}

// Scales and zero points of `absmax` and `minmax`, exact; what is unusual is left to affine_block.
inline void plain_scales(const AffineSpec& spec, const ScaleGrid& grid, int64_t n, AffineGroup* g,
                         AffineCounts* counts) {
  g->special = 0;
  for (int64_t b = 0; b < n; ++b) {
    int64_t unusual[kEventCount] = {};
    Choice c;
    bool finite = true, zero;
    if (spec.rule == 0) {
      finite = is_finite_bits(g->high[b]);
      zero = g->high[b] == 0;
      if (finite && !zero)
        c = stored_scale(grid, static_cast<double>(float_of(static_cast<uint32_t>(g->high[b]))) / spec.qmax,
                         unusual);
    } else {
      const float lo = from_ordered(g->low[b]), hi = from_ordered(g->high[b]);
      finite = lo >= -0x1.fffffep127f && hi <= 0x1.fffffep127f;
      zero = lo == 0 && hi == 0;
      if (finite) c = minmax_between(spec, grid, lo, hi, unusual);
    }
    const bool odd = !finite || c.overflow || unusual[kScalesRaised] || c.s < 0x1p-100 || c.s > 0x1p100 ||
                     c.shift > 0x1p20 || c.shift < -0x1p20;
    g->special |= static_cast<uint32_t>(odd) << b;
    g->scale[b] = static_cast<float>(c.s);
    g->inverse[b] = 1.0f / g->scale[b];
    g->shift[b] = static_cast<float>(c.shift);
    counts->zero_blocks += !odd && zero;
  }
}

// Codes of one vector, in the low bits of each lane.
template <AffineKind kKind>
inline Words affine_vector(const AffineSpec& spec, const AffineGroup& g, int64_t b, const float* p,
                           Ints* saturated, Ints* zeroed, Ints* unsure) {
  const Floats x = load<Floats>(p);
  const Ints live = (Ints)(x != 0.0f);
  if (kKind == kQ8_0) {
    // Halves away from zero: adding the largest float below a half, never the half itself.
    const Floats v = x * g.inverse[b];
    const Words half = merge(0x80000000u, (Words)v, spread(bits_of(0x1.fffffep-2f)));
    const Ints q = truncate(v + (Floats)half);
    *zeroed += (q == 0) & live;
    return (Words)q & 0xFFu;
  }
  if (kKind == kQ4_0) {
    const Ints q = truncate(x * g.inverse[b] + 8.5f);
    const Ints over = q > 15;
    *saturated += over;
    *zeroed += (q == 8) & live;
    return ((Words)minimum(q, spread(15)) - 8u) & 15u;
  }
  if (kKind == kQ4_1) {
    const Ints q = truncate((x - g.shift[b]) * g.inverse[b] + 0.5f), capped = minimum(q, spread(15));
    *saturated += q > 15;
    *zeroed += (Ints)(to_floats(capped) * g.scale[b] + g.base[b] == 0.0f) & live;
    return (Words)capped;
  }
  // v is within 300 * 2**-23 < 2**-14 of x / s, whose float64 rounding changes nothing there.
  const Floats v = x * g.inverse[b];
  const Ints nearest = round_nearest(v);
  const Floats off = v - to_floats(nearest);
  const Floats size = (Floats)((Words)off & 0x7FFFFFFFu);
  const Floats far = (Floats)((Words)v & 0x7FFFFFFFu);
  *unsure |= (Ints)(size > 0.5f - 0x1p-14f) | (Ints)(far > 300.0f);
  const Ints shift = truncate(spread(g.shift[b])), wanted = nearest + shift;
  const Ints q = maximum(minimum(wanted, spread(spec.qmax)), spread(spec.qmin));
  *saturated += q != wanted;
  *zeroed += (q == shift) & live;
  return (Words)q & ((1u << spec.bits) - 1);
}

// Codes of the group, a byte each; blocks that turn out to be unsure become special.
template <AffineKind kKind, int kSize>
inline void affine_group(const AffineSpec& spec, AffineGroup* g, const float* x, int64_t n, int64_t size,
                         uint8_t* codes, AffineCounts* counts) {
  if (kSize) size = kSize;
  for (int64_t b = 0; b < n; ++b) {
    if (g->special >> b & 1) continue;
    Ints saturated = {}, zeroed = {}, unsure = {};
    if (kSize == 32) {
      Words v[32 / kLanes];
      for (int i = 0; i < 32 / kLanes; ++i)
        v[i] = affine_vector<kKind>(spec, *g, b, x + b * 32 + i * kLanes, &saturated, &zeroed, &unsure);
      store_block32(codes + b * 32, v);
    } else {
      for (int64_t i = b * size; i < (b + 1) * size; i += kLanes)
        store_bytes(codes + i, affine_vector<kKind>(spec, *g, b, x + i, &saturated, &zeroed, &unsure));
    }
    if (kKind == kPlain && any(unsure)) {
      g->special |= 1u << b;
      counts->zero_blocks -= g->low[b] == 0 && g->high[b] == 0;
      continue;
    }
    counts->saturated += saturated;
    counts->zeroed += zeroed;
    if (kKind != kQ8_0) counts->saturated_blocks += any(saturated);
  }
}

struct AffineOutputs {
  uint8_t* packed;
  void *scales, *offsets;
};

// Codes of a group whose scales are chosen. `block`: its first, in the outputs; `packed` begins with it.
template <AffineKind kKind, int kSize>
inline void finish_group(const AffineSpec& spec, const ScaleGrid& grid, AffineGroup* g, const float* x, int64_t n,
                         int64_t size, int64_t block, const AffineOutputs& out, AffineScratch& plain,
                         FastScratch* scratch, AffineCounts* counts, int64_t* events) {
  affine_group<kKind, kSize>(spec, g, x, n, size, scratch->codes, counts);
  for (uint32_t rest = g->special; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    for (int64_t i = 0; i < size; ++i) scratch->wide[i] = x[b * size + i];
    uint8_t* codes = scratch->codes + b * size;
    memset(codes, 0, static_cast<uint32_t>(size));
    affine_block(spec, grid, scratch->wide, nullptr, size, plain, codes, out.scales, out.offsets, block + b, events);
    for (int64_t i = 0; i < size; ++i) codes[i] &= static_cast<uint8_t>((1u << spec.bits) - 1);
  }
  pack_fast(scratch->codes, n * size, spec.bits, out.packed);
}

inline void add_counts(const AffineCounts& counts, int64_t* events) {
  events[kSaturated] += count_lanes(counts.saturated);
  events[kZeroed] += count_lanes(counts.zeroed);
  events[kSaturatedBlocks] += counts.saturated_blocks;
  events[kZeroBlocks] += counts.zero_blocks;
}

template <AffineKind kKind, int kSize>
inline bool affine_run(const Rows& rows, const AffineSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                       void* scales, void* offsets, int64_t first_block, FastScratch* scratch,
                       int64_t* events) {
  const int64_t size = kSize ? kSize : rows.block_size;
  const ScaleGrid grid = scale_grid(spec.scale_type);
  AffineScratch plain(spec, size);
  if (!plain.ok()) return false;
  AffineCounts counts;
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t n = first + kGroup < blocks ? kGroup : blocks - first, block = first_block + first;
    const float* x = group_floats(rows, at + first * size, n * size, scratch->x);
    prefetch_ahead(rows, at + first * size, kGroup * size);
    AffineGroup g;
    if (kKind == kQ8_0 || (kKind == kPlain && spec.rule == 0))
      group_amax(x, n, size, g.high);
    else
      group_ends(x, n, size, &g);
    if (kKind == kPlain) {
      plain_scales(spec, grid, n, &g, &counts);
      for (int64_t b = 0; b < n; ++b) {
        if (g.special >> b & 1) continue;
        store_scale(spec.scale_type, scales, block + b, static_cast<double>(g.scale[b]));
        if (spec.offset == 1) static_cast<int32_t*>(offsets)[block + b] = static_cast<int32_t>(g.shift[b]);
      }
    } else {
      uint16_t halves[kGroup], minimums[kGroup];
      ggml_scales<kKind>(x, n, size, &g, halves, minimums);
      memcpy(static_cast<uint16_t*>(scales) + block, halves, static_cast<size_t>(n) * 2);
      if (kKind == kQ4_1)
        memcpy(static_cast<uint16_t*>(offsets) + block, minimums, static_cast<size_t>(n) * 2);
    }
    const AffineOutputs out = {packed + packed_bytes(first * size, spec.bits), scales, offsets};
    finish_group<kKind, kSize>(spec, grid, &g, x, n, size, block, out, plain, scratch, &counts, events);
  }
  add_counts(counts, events);
  return true;
}

#include "optimal_group.inl.h"
#include "optimal_blocks.inl.h"
#include "optimal_signed.inl.h"
#include "optimal_zero.inl.h"
#include "optimal_run.inl.h"

inline bool affine_is_fast(const Rows& rows, const AffineSpec& spec, const double* importance) {
  const bool served = spec.rule == 2 || spec.rule == 1 || (spec.rule == 0 && spec.qmin < 0) ||
                      (optimal_group_serves(spec) && !importance);
  return served && rows.input_type != kFloat64 && spec.bits >= 4 && rows.block_size % 16 == 0 &&
         rows.block_size <= kLargestBlock;
}

inline bool affine_blocks(const Rows& rows, const AffineSpec& spec, int64_t at, int64_t blocks,
                          uint8_t* packed, void* scales, void* offsets, int64_t first_block,
                          FastScratch* scratch, int64_t* events) {
  const bool usual = rows.block_size == 32;
  auto* run = usual ? affine_run<kPlain, 32> : affine_run<kPlain, 0>;
  if (spec.rule == 3) run = usual ? optimal_run<32> : optimal_run<0>;
  if (spec.rule == 2) {
    if (spec.bits == 8)
      run = usual ? affine_run<kQ8_0, 32> : affine_run<kQ8_0, 0>;
    else if (spec.offset == 2)
      run = usual ? affine_run<kQ4_1, 32> : affine_run<kQ4_1, 0>;
    else
      run = usual ? affine_run<kQ4_0, 32> : affine_run<kQ4_0, 0>;
  }
  return run(rows, spec, at, blocks, packed, scales, offsets, first_block, scratch, events);
}

bool quantize_affine(const Rows& rows, const AffineSpec& spec, const double* importance, uint8_t* packed,
                     int64_t row_bytes, void* scales, void* offsets, int64_t* events) {
  const int64_t size = rows.block_size, whole = rows.length / size;
  const int64_t per_row = (rows.length + size - 1) / size;
  if (!affine_is_fast(rows, spec, importance) || whole != per_row || !whole)
    return quantize_affine_plain(rows, spec, importance, packed, row_bytes, scales, offsets, events);
  Scratch<FastScratch> scratch(1);
  if (!scratch.data) return false;
  const int64_t first = rows.row_begin * whole;  // rows of whole blocks lie one after the other
  return affine_blocks(rows, spec, first * size, (rows.row_end - rows.row_begin) * whole,
                       packed + rows.row_begin * row_bytes, scales, offsets, first, scratch.data, events);
}

// The plain affine rules in float32 vectors: the bits of affine_block (affine_kernel.inl.h), faster.
//
// `ggml` is defined in float32, so it is the same arithmetic on many lanes. `absmax` and `minmax` divide in
// float64; here a float32 product with 1/s decides, and a block in which one is too near a half to be sure is
// left to affine_block, like the blocks with non-finite values and with scales that are replaced.

#include "affine_scales.inl.h"

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
    count(zeroed, (q == 0) & live);
    return (Words)q & 0xFFu;
  }
  if (kKind == kQ4_0) {
    const Ints q = truncate(x * g.inverse[b] + 8.5f);
    count(saturated, q > 15);
    count(zeroed, (q == 8) & live);
    return (Words)minimum(q, spread(15)) ^ 8u;  // - 8, in four bits
  }
  if (kKind == kQ4_1) {
    const Ints q = truncate((x - g.shift[b]) * g.inverse[b] + 0.5f), capped = minimum(q, spread(15));
    count(saturated, q > 15);
    count(zeroed, (Ints)(to_floats(capped) * g.scale[b] + g.base[b] == 0.0f) & live);
    return (Words)capped;
  }
  // v is within 300 * 2**-23 < 2**-14 of x / s, whose float64 rounding changes nothing there.
  const Floats v = x * g.inverse[b];
  const Ints nearest = round_nearest(v);
  *unsure |= (Ints)(magnitude(v - to_floats(nearest)) > 0.5f - 0x1p-14f);
  const Ints shift = truncate(spread(g.shift[b])), wanted = nearest + shift;
  const Ints q = maximum(minimum(wanted, spread(spec.qmax)), spread(spec.qmin));
  count(saturated, q != wanted);
  count(zeroed, (q == shift) & live);
  return (Words)q & ((1u << spec.bits) - 1);
}

// Blocks in which an element saturates, from their ends: what decides it is monotone.
template <AffineKind kKind>
inline int count_saturated(const AffineSpec& spec, const AffineGroup& g) {
  if (kKind == kQ8_0) return 0;
  int count = 0;
  for (int b = 0; b < kGroup; b += kLanes) {
    const Floats inverse = load<Floats>(g.inverse + b);
    const Floats high = from_ordered(load<Ints>(g.high + b));
    const Floats low = kKind == kPlain && spec.rule == 0 ? -high : from_ordered(load<Ints>(g.low + b));
    const Floats one = low * inverse, other = high * inverse;
    Ints over;
    if (kKind == kQ4_0) over = truncate(maximum(one, other) + 8.5f) > 15;
    if (kKind == kQ4_1) over = truncate((high - low) * inverse + 0.5f) > 15;
    if (kKind == kPlain) {
      const Ints shift = truncate(load<Floats>(g.shift + b));
      over = (round_nearest(one) + shift < spec.qmin) | (round_nearest(other) + shift > spec.qmax);
    }
    count += __builtin_popcount(lane_bits(over));
  }
  return count;
}

// Codes of a whole group of blocks of 32 of which none is special; false if one is unsure.
template <AffineKind kKind>
inline bool whole_group(const AffineSpec& spec, const AffineGroup& g, const float* x, uint8_t* codes,
                        AffineCounts* counts) {
  Ints saturated = {}, zeroed = {}, unsure = {};
  for (int64_t i = 0; i < kGroup * 32; i += 4 * kLanes) {
    Words quad[4];
    for (int j = 0; j < 4; ++j) {
      const int64_t at = i + j * kLanes;
      quad[j] = affine_vector<kKind>(spec, g, at / 32, x + at, &saturated, &zeroed, &unsure);
    }
    store_bytes4(codes + i, quad);
  }
  if (kKind == kPlain && any(unsure)) return false;
  counts->saturated += saturated;
  counts->zeroed += zeroed;
  counts->saturated_blocks += count_saturated<kKind>(spec, g);
  return true;
}

// Codes of the group, a byte each; blocks that turn out to be unsure become special.
template <AffineKind kKind, int kSize>
inline void affine_group(const AffineSpec& spec, AffineGroup* g, const float* x, int64_t n, int64_t size,
                         uint8_t* codes, AffineCounts* counts) {
  if (kSize) size = kSize;
  // without ends, or with those of magnitudes only, saturated blocks must be counted one by one
  const bool has_ends = kKind != kPlain || spec.rule == 1 || (spec.rule == 0 && spec.qmin == -spec.qmax);
  if (kSize == 32 && has_ends && n == kGroup && !g->special && whole_group<kKind>(spec, *g, x, codes, counts))
    return;
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

#include "affine_words.inl.h"
#include "plain_words.inl.h"
#include "clipped_words.inl.h"

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
    const AffineOutputs out = {packed + packed_bytes(first * size, spec.bits), scales, offsets};
    uint16_t* halves = static_cast<uint16_t*>(scales) + block;
    uint16_t* minimums = offsets ? static_cast<uint16_t*>(offsets) + block : nullptr;
    if (kKind != kPlain && kSize == 32 && n == kGroup &&
        affine_words<kKind>(spec, rows, at + first * size, out.packed, halves, minimums, &counts))
      continue;
    if (kKind == kPlain && n == kGroup && plain_words(spec, grid, rows, at + first * size, out, block, &counts))
      continue;
    const float* x = group_floats(rows, at + first * size, n * size, scratch->x);
    AffineGroup g;
    if (kKind == kQ8_0 || (kKind == kPlain && spec.rule == 0))
      group_amax(x, n, size, g.high);
    else
      group_ends(x, n, size, &g);
    if (kKind == kPlain) {
      plain_scales(spec, grid, n, &g, &counts);
      store_parameters(spec, g, n, scales, offsets, block);
    } else {
      uint16_t d[kGroup], m[kGroup];
      ggml_scales<kKind>(n, &g, d, m, [&](int b) { return first_extreme(x + b * size, g.high[b]); });
      memcpy(halves, d, static_cast<size_t>(n) * 2);
      if (kKind == kQ4_1) memcpy(minimums, m, static_cast<size_t>(n) * 2);
    }
    finish_group<kKind, kSize>(spec, grid, &g, x, n, size, block, out, plain, scratch, &counts, events);
  }
  add_counts(counts, events);
  return true;
}

#include "optimal_lanes.inl.h"
#include "optimal_group.inl.h"
#include "optimal_blocks.inl.h"
#include "optimal_screen.inl.h"
#include "optimal_fit.inl.h"
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

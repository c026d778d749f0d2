// The rule `optimal` with zero points, on the search of optimal_group.inl.h.
//
//  - From `fit` up some zero point clips nothing: there the codes are all the integers, whatever the zero point.
//    A scale whose half clips nothing, with a zero point in range, is no better than its half.
//  - Below, every zero point clips something. What lies beyond the ends may not cost more than the best error
//    found, so the ends of a zero point's codes must reach `top` and `bottom`: this bounds scales and zero points.
// A winner alone gets its zero point by the order of ties; several are judged by the defined float64 error.

namespace group_search {

constexpr int kFreeSeeds = 10, kClippedSeeds = 4, kZeroPoints = 40;
constexpr float kFree[kFreeSeeds - 1] = {1, 1.05f, 1.1f, 1.15f, 1.21f, 1.28f, 1.38f, 1.52f, 1.75f};  // of `fit`

// Ends of the blocks of a set, and what the codes must reach.
struct ZeroBlocks {
  Floats low, high, fit, last, top, bottom;
  Ints live;
};

struct ZeroSearch : Search<true> {
  using Search::Search;

  // Scales from `fit` up. Returns the first one.
  Floats begin(int set, const ZeroBlocks& b) {
    const Floats* x = m.x + set;
    const Ints block = lane_numbers() + set * kLanes, beyond = spread(2 << mantissa_shift);
    const Ends free = {spread(-kNoEnd), spread(kNoEnd)};
    Scales seeds[kFreeSeeds];
    for (int j = 0; j < kFreeSeeds - 1; ++j) seeds[j].s = (Floats)((Ints)storable(b.fit * kFree[j]) + beyond);
    seeds[kFreeSeeds - 1].s = (Floats)((Ints)storable(maximum(b.last, seeds[kFreeSeeds - 2].s)) + beyond);
    for (int j = 0; j < kFreeSeeds - 1; j += 3) all_errors<3, false, true>(x, n, free, seeds + j);
    all_errors<1, false, true>(x, n, free, seeds + kFreeSeeds - 1);
    const Scales least = least_of(seeds, kFreeSeeds);
    Scales fitted;
    fitted.s = maximum(fitted_to(set, least), seeds[0].s);
    all_errors<1, false>(x, n, free, &fitted);
    const Scales both[] = {least, fitted};
    start(set, least_of(both, 2));
    note(fitted, block, is_near(fitted, block) & b.live);
    note_all(seeds, kFreeSeeds, block, b.live);
    for (int j = 0; j < kFreeSeeds - 1; ++j)
      sieve(&m.lists[0], block, (Ints)seeds[j].s, (Ints)seeds[j + 1].s, seeds[j].error, seeds[j + 1].error,
            energy_top[set], limit_at_zero[set], per_scale[set], b.live);
    return seeds[0].s;
  }

  // The values that the codes of a winner below `first` must reach: what lies beyond costs more than the best
  // error. Newton's steps on a convex falling function never pass the root; the last that proves it counts.
  void reach(int set, Floats first, ZeroBlocks* b) const {
    const Floats most = (limit_at_zero[set] + per_scale[set] * first) * (1 + 0x1p-12f);
    Floats radius;  // the end alone would cost more
    for (int j = 0; j < kLanes; ++j) radius[j] = __builtin_sqrtf(most[j]) * (1 + 0x1p-10f);
    b->top = b->high - radius, b->bottom = b->low + radius;
    Floats h = b->top, l = b->bottom;
    for (int step = 0; step < 3; ++step) {
      Floats cost[2] = {}, slope[2] = {};
      for (int64_t i = 0; i < n; ++i) {
        const Floats v = m.x[i * kSets + set];
        const Floats over = maximum(v - h, Floats{}), under = maximum(l - v, Floats{});
        cost[0] = plus_product(cost[0], over, over), slope[0] += over;
        cost[1] = plus_product(cost[1], under, under), slope[1] += under;
      }
      const Ints holds[2] = {(Ints)(cost[0] * (1 - 0x1p-12f) > most), (Ints)(cost[1] * (1 - 0x1p-12f) > most)};
      b->top = select(holds[0], h, b->top), b->bottom = select(holds[1], l, b->bottom);
      h += select(holds[0], (cost[0] * (1 - 0x1p-11f) - most) / (2 * slope[0]), Floats{});
      l -= select(holds[1], (cost[1] * (1 - 0x1p-11f) - most) / (2 * slope[1]), Floats{});
    }
  }

  // Scales of the zero point z that reach far enough, below `first`.
  Ints scales_of(const ZeroBlocks& b, Floats first, Floats least, Floats z, Floats* from, Floats* to) const {
    const Floats hi = ends.hi - z, lo = ends.lo - z, up = b.top / hi, down = b.bottom / lo;
    const Floats none = Floats{}, never = first * 2.0f;
    *from = maximum(least, select((Ints)(hi > 0.0f), up, none));
    *from = maximum(*from, select((Ints)(lo < 0.0f), down, none));
    const Ints short_above = (Ints)(hi == 0.0f) & (Ints)(b.top > 0.0f);
    const Ints short_below = (Ints)(lo == 0.0f) & (Ints)(b.bottom < 0.0f);
    *from = select(short_above | short_below, never, *from);
    *to = minimum(first, select((Ints)(hi < 0.0f), up, first));
    *to = minimum(*to, select((Ints)(lo > 0.0f), down, first));
    *from = *from * (1 - 0x1p-14f), *to = *to * (1 + 0x1p-14f);
    return b.live & (Ints)(*from <= *to) & (Ints)(*from < first);
  }

  template <int kMany>
  void clipped(int set, Floats z, Ints a, Ints b, Ints valid) {
    const Ints block = lane_numbers() + set * kLanes;
    const Ints word = block | ((truncate(z) + kNoShift) << 8);
    Scales seeds[kMany];
    const Ints grain = ~spread((1 << mantissa_shift) - 1);
    for (int j = 0; j < kMany; ++j) seeds[j].s = (Floats)((a + (b - a) / (kMany - 1) * j) & grain);
    seeds[kMany - 1].s = (Floats)b;
    all_errors<kMany, true>(m.x + set, n, {ends.lo - z, ends.hi - z}, seeds);
    note_all(seeds, kMany, word, valid);
    set_limit();
    for (int j = 0; j < kMany - 1; ++j)
      sieve(&m.lists[0], word, (Ints)seeds[j].s, (Ints)seeds[j + 1].s, seeds[j].error, seeds[j + 1].error,
            energy_top[set], limit_at_zero[set], per_scale[set], valid);
  }

  // Scales below `first`, zero point by zero point. Blocks with too many of them stop being live.
  void below(int set, Floats first, float cap, ZeroBlocks* b) {
    reach(set, first, b);
    const Floats least = (b->top - b->bottom) / (ends.hi - ends.lo);
    // The zero points that reach far enough at a scale lie between two monotone functions of it.
    const Floats last = maximum(ends.hi - b->top / first, ends.hi - b->top / least);
    const Floats begin = minimum(ends.lo - b->bottom / first, ends.lo - b->bottom / least);
    Floats z = rounded(begin - 0.51f);
    const Ints usual = (Ints)(least > first * 0.25f) & (Ints)(z >= -cap) & (Ints)(last + 1.0f <= cap) &
                       (Ints)(last - z < static_cast<float>(kZeroPoints));
    b->live &= usual;
    for (int count = 0; count < kZeroPoints; ++count, z += 1.0f) {
      if (!any(b->live & (Ints)(z <= last + 0.01f))) return;
      Floats from, to;
      const Ints valid = scales_of(*b, first, least, select(b->live, z, Floats{}), &from, &to);
      if (!any(valid)) continue;
      from = select(valid, from, first), to = select(valid, to, first);
      const Ints one = spread(1 << mantissa_shift);
      const Ints a = (Ints)storable(from), end = minimum((Ints)storable(to) + one, (Ints)first);
      const Floats shift = select(b->live, z, Floats{});
      if (any((Ints)(to > from * 1.05f)))
        clipped<kClippedSeeds>(set, shift, a, end, valid);
      else
        clipped<2>(set, shift, a, end, valid);
    }
  }
};

inline ZeroBlocks zero_blocks(const AffineSpec& spec, const Choices& c, int64_t blocks, int set) {
  ZeroBlocks b;
  const Floats low = load<Floats>(c.low + set * kLanes), high = load<Floats>(c.high + set * kLanes);
  const float span = static_cast<float>(spec.qmax - spec.qmin);
  // No scale is subnormal, and float32 sees the spread of the values.
  b.live = usual_lanes(low, high, blocks, set) & (Ints)(high - low >= 0x1p-7f) &
           (Ints)(high - low >= 0.25f * maximum(high, -low));
  b.low = select(b.live, low, spread(-1.0f)), b.high = select(b.live, high, spread(1.0f));
  b.fit = (b.high - b.low) * ((1 + 0x1p-18f) / span);
  b.last = (maximum(b.high, Floats{}) - minimum(b.low, Floats{})) * (2 * (1 + 0x1p-18f) / (span - 1));
  return b;
}

// The winners of a set: scale 0 where affine_block must decide.
inline void conclude_zero(const AffineSpec& spec, const float* x, int set, const ZeroSearch& search,
                          const ZeroBlocks& b, const Ties& ties, double* wide, Choices* c) {
  const Kinds kinds(ties, set, search.mantissa_shift);
  const Floats s = load<Floats>(ties.least + set * kLanes), t = load<Floats>(ties.greatest + set * kLanes);
  Ints open;
  const Ends ends = search.ends_of(load<Ints>(ties.word + set * kLanes));
  const Floats better = better_of(search.m.x + set, search.n, ends, s, t, &open);
  const Ints known = (Ints)(search.limit_at_zero[set] < 0.5f * search.energy[set]);
  const uint32_t clear = lane_bits(kinds.one | (kinds.neighbours & ~open));
  const uint32_t live = lane_bits(b.live & known & ~kinds.none);
  for (int j = 0; j < kLanes; ++j) {
    const int block = set * kLanes + j;
    c->scale[block] = c->zero[block] = 0;
    if (!(live >> j & 1)) continue;
    Judge judge{spec, wide, nullptr, search.n, zero_point_cap(spec), c->high[block], c->low[block]};
    double scale = better[j], low, high, z = ((ties.word[block] >> 8) & 0xFFFF) - kNoShift;
    const bool fits = judge.zero_points(scale, &low, &high);
    if (!(clear >> j & 1) || (fits && judge.ends_are_free(scale))) {
      for (int64_t i = 0; i < search.n; ++i) wide[i] = x[block * search.n + i];
      const Optimum best = clear >> j & 1 ? judge.best(scale) : judged(judge, search.m, block, 1);
      scale = best.s, z = best.z;
    } else if (fits) {
      z = judge.preferred(low, high);
    }
    c->scale[block] = static_cast<float>(scale);
    c->zero[block] = static_cast<float>(z);
  }
}

// Best scales and zero points of up to kBlocks blocks.
inline void choose_zero(const AffineSpec& spec, const ScaleGrid& grid, const float* x, int64_t n, int64_t blocks,
                        Memory& m, double* wide, Choices* c) {
  ZeroSearch search(spec, grid, n, m);
  ZeroBlocks b[kSets];
  for (int set = 0; set < kSets; ++set) {
    b[set] = zero_blocks(spec, *c, blocks, set);
    b[set].live = set_blocks(set, spread(1.0f), b[set].live, &search);
    const Floats first = search.begin(set, b[set]);
    search.below(set, first, static_cast<float>(zero_point_cap(spec)), &b[set]);
  }
  search.split_all();
  search.drop_found();
  if (search.given_up) m.found = 0;
  const Ties ties(m);
  for (int set = 0; set < kSets; ++set) conclude_zero(spec, x, set, search, b[set], ties, wide, c);
}

}  // namespace group_search

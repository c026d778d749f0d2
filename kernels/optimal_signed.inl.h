// The rule `optimal` without zero points, on the search of optimal_group.inl.h.
//
// A block is first turned over, if need be, so that its largest magnitude is negative and can have the code qmin.
//  - Near scales (codes qmin .. qmax) and far scales (of the other sign: -qmax .. -qmin) give the same codes from
//    `join` up, where no code lies beyond +-qmax; there only the near ones are looked at.
//  - A scale whose half clips nothing is no better than its half, which bounds both from above.
//  - What lies beyond the ends of the codes costs more and more as scales fall, which bounds them from below.
// Two neighbouring scales that remain are compared by the sums of the codes that they share; what that leaves
// open, the defined float64 error decides.

namespace group_search {

constexpr int kNearSeeds = 12, kJoin = 5, kFarSeeds = 4, kSeeds = kNearSeeds + kFarSeeds;

// Multiples of `join`. The last near one is replaced by where the search ends.
constexpr float kNear[kNearSeeds] = {.76f, .81f, .86f, .91f, .955f, 1, 1.04f, 1.1f, 1.17f, 1.27f, 1.43f, 2};
constexpr float kFar[kFarSeeds] = {.82f, .88f, .94f, 1};

struct SignedSearch : Search<false> {
  using Search::Search;

  // What lies beyond the ends of the codes costs, at two scales and below.
  void clip_costs(const Floats* x, const Floats* s, Floats* costs) const {
    Floats bottom[2], top[2], sum[2] = {};
    for (int j = 0; j < 2; ++j) {
      bottom[j] = minimum(s[j] * ends.lo, s[j] * ends.hi);
      top[j] = maximum(s[j] * ends.lo, s[j] * ends.hi);
    }
    for (int64_t i = 0; i < n; ++i)
      for (int j = 0; j < 2; ++j) {
        const Floats v = x[i * kSets], d = maximum(maximum(v - top[j], bottom[j] - v), Floats{});
        sum[j] = plus_product(sum[j], d, d);
      }
    for (int j = 0; j < 2; ++j) costs[j] = sum[j] * (1 - 0x1p-12f);
  }

  // From the lowest scales known, near and far, down to where nothing can win.
  void extend(int set, Scales* lowest, bool far, Ints live) {
    const Floats* x = m.x + set;
    const Ints block = lane_numbers() + set * kLanes;
    Ints open[2] = {live, far ? live : Ints{}};
    for (int tries = 0; tries < 40; ++tries) {
      const Floats s[2] = {lowest[0].s, lowest[1].s};
      Floats costs[2];
      clip_costs(x, s, costs);
      for (int j = 0; j < 2; ++j)
        open[j] &= (Ints)(costs[j] <= plus_product(limit_at_zero[set], per_scale[set], magnitude(s[j])));
      if (!any(open[0] | open[1])) return;
      for (int j = 0; j < 2; ++j) {
        Scales next;
        next.s = (Floats)((Words)storable(magnitude(s[j]) * 0.85f) | sign_of(s[j]));
        all_errors<1, true>(x, n, ends, &next);
        note(next, block, is_near(next, block) & open[j]);
        sieve(&m.lists[0], block | (Ints)sign_of(s[j]), (Ints)magnitude(next.s), (Ints)magnitude(s[j]),
              next.error, lowest[j].error, next.squares, limit_at_zero[set], per_scale[set], open[j]);
        lowest[j] = next;
      }
    }
    given_up = true;
  }

  void evaluate_seeds(const Floats* x, bool far, Scales* seeds) const {
    all_errors<3, true>(x, n, ends, seeds);
    all_errors<2, true>(x, n, ends, seeds + 3);
    for (int j = kJoin; j < kNearSeeds - 1; j += 3) all_errors<3, false>(x, n, ends, seeds + j);
    all_errors<1, false>(x, n, ends, seeds + kNearSeeds - 1);
    if (!far) return;
    all_errors<3, true>(x, n, ends, seeds + kNearSeeds);
    seeds[kSeeds - 1] = seeds[kJoin];
    seeds[kSeeds - 1].s = -seeds[kJoin].s;
  }

  // Seeds and first intervals of a set. `join` and `last`: see above. Lanes that are not live count for nothing.
  void begin(int set, Floats join, Floats last, bool far, Ints live) {
    const Floats* x = m.x + set;
    const Ints block = lane_numbers() + set * kLanes, beyond = spread(2 << mantissa_shift);
    Scales seeds[kSeeds];
    for (int j = 0; j < kNearSeeds; ++j) seeds[j].s = storable(join * kNear[j]);
    seeds[kJoin].s = (Floats)((Ints)seeds[kJoin].s + beyond);  // no code beyond +-qmax
    seeds[kNearSeeds - 1].s = (Floats)((Ints)storable(maximum(last, seeds[kNearSeeds - 2].s)) + beyond);
    for (int j = 0; j < kFarSeeds - 1; ++j) seeds[kNearSeeds + j].s = -storable(join * kFar[j]);
    const int count = far ? kSeeds : kNearSeeds;
    evaluate_seeds(x, far, seeds);
    const Scales least = least_of(seeds, count);
    Scales fitted;
    fitted.s = fitted_to(set, least);
    all_errors<1, true>(x, n, ends, &fitted);
    start(set, least, fitted, block, live);
    note_all(seeds, count - far, block, live);
    for (int j = 0; j < count - 1; ++j) {
      if (j == kNearSeeds - 1) continue;
      const Scales &a = seeds[j], &b = seeds[j + 1];
      sieve(&m.lists[0], block | (Ints)sign_of(a.s), (Ints)magnitude(a.s), (Ints)magnitude(b.s), a.error, b.error,
            a.squares, limit_at_zero[set], per_scale[set], live);
    }
    Scales lowest[2] = {seeds[0], seeds[far ? kNearSeeds : 0]};
    extend(set, lowest, far, live);
  }
};

// Least and largest magnitude of the ends of the blocks, the larger turned to the negative side.
struct SignedBlocks {
  Floats turn, top, bottom;
  Ints live;
};

inline SignedBlocks signed_blocks(const Choices& c, int64_t blocks, int set, bool full) {
  SignedBlocks b;
  const Floats low = load<Floats>(c.low + set * kLanes), high = load<Floats>(c.high + set * kLanes);
  const Floats larger = maximum(high, -low);
  b.live = usual_lanes(low, high, blocks, set) & (Ints)(larger >= 0x1p-8f);  // no scale is subnormal
  b.bottom = select(b.live, larger, spread(1.0f));
  b.top = select(b.live, minimum(high, -low), spread(1.0f));
  b.turn = full ? select((Ints)(high > -low), spread(-1.0f), spread(1.0f)) : spread(1.0f);
  return b;
}

// The winners of a set: 0 where affine_block must decide.
inline void conclude_signed(const AffineSpec& spec, const float* x, int set, const SignedSearch& search,
                            const SignedBlocks& b, const Ties& ties, double* wide, Choices* c) {
  alignas(64) float winners[kLanes], turn[kLanes];
  const Floats s = load<Floats>(ties.least + set * kLanes), t = load<Floats>(ties.greatest + set * kLanes);
  const Kinds kinds(ties, set, search.mantissa_shift);
  Ints open;
  const Floats better = better_of(search.m.x + set, search.n, search.ends, s, t, &open);
  store(winners, select(b.live & ~kinds.none, better, Floats{}));
  store(turn, b.turn);
  const Ints unclear = ~kinds.none & ~(Ints)(s == t) & ~(kinds.neighbours & ~open);
  for (uint32_t rest = lane_bits(b.live & unclear); rest; rest &= rest - 1) {
    const int j = __builtin_ctz(rest), block = set * kLanes + j;
    for (int64_t i = 0; i < search.n; ++i) wide[i] = x[block * search.n + i];
    const Judge judge{spec, wide, nullptr, search.n, zero_point_cap(spec), c->high[block], c->low[block]};
    winners[j] = static_cast<float>(judged(judge, search.m, block, turn[j]).s) * turn[j];
  }
  const Floats best = load<Floats>(winners), size = magnitude(best);
  const Floats qmax = search.ends.hi, reach = b.bottom * (1 + 0x1p-20f);
  const Ints either = (Ints)(size * (qmax + 0.5f) > reach) | (search.ends.lo == -qmax);  // both signs give the same
  const Ints known = (Ints)(search.limit_at_zero[set] < 0.5f * search.energy[set]);
  store(c->scale + set * kLanes, select(known, select(either, size, best * b.turn), Floats{}));
  store(c->zero + set * kLanes, Floats{});
}

// Best scales of up to kBlocks blocks.
inline void choose_signed(const AffineSpec& spec, const ScaleGrid& grid, const float* x, int64_t n, int64_t blocks,
                          Memory& m, double* wide, Choices* c) {
  const bool full = spec.qmin < -spec.qmax;
  const float near_end = 1 / (0.5f - static_cast<float>(spec.qmin));
  const float far_end = 1 / (static_cast<float>(spec.qmax) + 0.5f);
  SignedSearch search(spec, grid, n, m);
  SignedBlocks b[kSets];
  for (int set = 0; set < kSets; ++set) {
    b[set] = signed_blocks(*c, blocks, set, full);
    set_blocks(x, blocks, set, b[set].turn, b[set].live, &search);
    const Floats join = b[set].bottom * far_end, fit = maximum(b[set].top * far_end, b[set].bottom * near_end);
    search.begin(set, join, fit * (2 * (1 + 0x1p-18f)), full, b[set].live);
  }
  search.split_all();
  search.drop_found();
  if (search.given_up) m.found = 0;
  const Ties ties(m);
  for (int set = 0; set < kSets; ++set) conclude_signed(spec, x, set, search, b[set], ties, wide, c);
}

}  // namespace group_search

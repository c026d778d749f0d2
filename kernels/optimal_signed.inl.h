// The rule `optimal` without zero points, on the search of optimal_group.inl.h.
//
// A block is first turned over, if need be, so that its largest magnitude is negative and can have the code qmin.
//  - Near scales (codes qmin .. qmax) and far scales (of the other sign: -qmax .. -qmin) give the same codes from
//    `join` up, where no code lies beyond +-qmax; there only the near ones are looked at.
//  - A scale whose half clips nothing is no better than its half: none from the first seed up, 2 / 7.25 of the
//    largest magnitude.
//  - What lies beyond the ends of the codes costs more and more as scales fall, which bounds them from below.
// All blocks look at the same seeds first, roughly (optimal_screen.inl.h). The best one leads to a scale and those
// near it with the same codes (optimal_fit.inl.h), and so to a first limit; then the intervals between seeds that may
// reach it are searched.
// Two neighbouring scales that remain are compared by the sums of the codes that they share; what that leaves
// open, the defined float64 error decides.

namespace group_search {

// Seeds amax / s = k / 8 (optimal_screen.inl.h). At the first kUnclipped no code is clipped, and from the last of
// these up both signs give the same. The next kClipped are the likeliest; at kOneSided of them no code is below -8.
constexpr int kUnclipped = 8, kClipped = 8, kFirst = kUnclipped + kClipped, kOneSided = 4;
constexpr uint8_t kNearSeeds[] = {29, 36, 42, 47, 51, 54, 57, 60, 62, 63,  64,  65,
                                  66, 67, 69, 71, 74, 77, 82, 90, 104, 120, 136, kLastSeed};
constexpr uint8_t kFarSeeds[] = {60, 62, 65, 69, 74, 80, 88, 100, kLastSeed};
constexpr Seeds kNear(kNearSeeds, kUnclipped);
constexpr Seeds kFar(kFarSeeds, 1);

// A set of blocks.
struct SignedSet {
  int number;
  Floats amax, most, slope;  // the limit and |x|^2 less the limit, both in units of amax^2
  Floats begin;              // scales from amax / begin up are of no interest
  Ints live;
};

struct SignedSearch : Search<false> {
  Cells cells;

  using Search::Search;

  // Seeds are no storable scales: their last bit is set.
  static Floats scales(Floats amax, const Seed& s) { return (Floats)((Words)(amax * s.scale) | 1u); }

  // Blocks where a scale between two seeds may reach the limit L. D - |x|^2 / s^2 is concave in 1 / s (Minorant), so
  // where g = D - L / s^2 > 0 at both, that takes sqrt(g) + sqrt(h) <= sqrt(|x|^2 - L) (1 / s - 1 / t).
  static uint32_t may_win(const SignedSet& b, float step, Floats g, Floats h) {
    const Floats less = minimum(g, h), sum = 3 * less + maximum(g, h);  // at most (sqrt(g) + sqrt(h))^2
    return at_most(minimum(sum, less * 0x1p60f), b.slope * (step * step * (1 + 0x1p-10f)));
  }

  // The intervals between two seeds of the blocks of `lanes`. `d`, `e`: D there, lower bounds.
  [[gnu::always_inline]] void add(const SignedSet& set, const Seed& p, const Seed& q, Floats d, Floats e,
                                  uint32_t lanes, int32_t far) {
    Intervals& list = m.lists[1];
    const int count = __builtin_popcount(lanes), at = list.count + count > kRoom ? 0 : list.count;
    given_up |= list.count + count > kRoom;
    const Floats from = scales(set.amax, q), to = scales(set.amax, p);
    keep_lanes(list.block + at, (lane_numbers() + set.number * kLanes) | far, lanes);
    keep_lanes(list.a + at, (Ints)from, lanes);
    keep_lanes(list.b + at, (Ints)to, lanes);
    keep_lanes(list.error_a + at, (Ints)(from * from * maximum(e, Floats{})), lanes);
    keep_lanes(list.error_b + at, (Ints)(to * to * maximum(d, Floats{})), lanes);
    list.count = at + count;
  }

  // Where what lies beyond the ends of the codes costs more in squares of X, it costs more than the limit:
  // (sqrt(found) - 1.02 sqrt(n))^2 >= found (1 - 1/64) - 67 n.
  Floats most_cost(const SignedSet& b) const { return b.most * (1.016f * kUnit * kUnit) + static_cast<float>(n) * 69; }

  // From the first of the seeds to smaller scales, down to where nothing can win. Returns the blocks with no end.
  Ints extend(SignedSet b, const Screen& screen, const Seed* seeds, const Seed* last, bool far, Floats bound) {
    const Floats most = most_cost(b);
    for (; any(b.live) && last - seeds > 2; seeds += 2) {
      Floats found[2], costs[2];
      screen.clipped_distances<2, true>(seeds + 1, found, costs);
      for (int j = 0; j < 2; ++j) {
        const Seed &p = seeds[j], &q = seeds[j + 1];
        const Floats next = found[j] * q.factor - q.lost * static_cast<float>(n);
        const Floats g = bound - b.most * p.squared, h = next - b.most * q.squared;
        const uint32_t lanes = lane_bits(b.live) & at_most(b.begin, spread(q.u));
        const uint32_t may = lanes & may_win(b, q.u - p.u, g, h);
        if (may) add(b, p, q, bound, next, may, far ? INT32_MIN : 0);
        bound = next;
        b.live &= (Ints)(costs[j] <= most);
      }
    }
    return b.live;
  }

  // Seeds and first intervals of a set. Returns the blocks that the search can do.
  Ints begin(int set, Floats amax, Floats top_end, bool far, Ints live) {
    const Floats* x = m.x + set;
    const Floats unit = kUnit / amax;
    for (int64_t i = 0; i < n; i += 2) {
      const Words low = (Words)plus_product(spread(0x1.8p23f), x[i * kSets], unit);
      const Words high = (Words)plus_product(spread(0x1.8p23f), x[(i + 1) * kSets], unit);
      m.pairs[i / 2] = merge(0xFFFFu, low, high << 16);
    }
    const int bottom = static_cast<int>(-ends.lo[0]), top = static_cast<int>(ends.hi[0]);
    const Screen screen = {m.pairs, n, bottom, top}, mirrored = {m.pairs, n, top, bottom};
    Floats d[kFirst], costs[kClipped];
    for (int j = 0; j < kUnclipped; j += 4) {
      screen.distances<4>(kNear.at + j, d + j);
      m.ask();
    }
    for (int j = 0; j < kClipped; j += 4) {
      const Seed* seeds = kNear.at + kUnclipped + j;
      if (j < kOneSided && bottom == 8)
        screen.clipped_distances<4, false>(seeds, d + kUnclipped + j, costs + j);
      else
        screen.clipped_distances<4, true>(seeds, d + kUnclipped + j, costs + j);
      m.ask();
    }
    Floats least = spread(0x1p100f), at = {};
    for (int j = 0; j < kFirst; ++j) {
      const float s = kNear.at[j].scale;
      const Floats error = d[j] * (s * s);
      at = (Ints)(error < least) ? spread(s) : at;
      least = minimum(error, least);
    }
    m.ask();
    first_cell(set, at * amax, live);
    m.ask();
    const Floats inverse = 1.0f / (amax * amax);
    SignedSet b;
    b.number = set, b.amax = amax, b.live = live, b.begin = Floats{};
    b.most = limit_at_zero[set] * inverse * (1 + 0x1p-18f);
    b.slope = energy_top[set] * inverse - b.most;
    add_first(b, d);
    m.ask();
    Ints open = {};
    if (far) {
      SignedSet other = b;
      other.amax = amax * (1 + 0x1p-20f);  // its first seed is not below the last that makes no difference
      other.begin = 7.499f * amax / maximum(top_end, amax * 0.01f);
      other.live = live & far_matters(set, amax, top_end);
      open = extend(other, mirrored, kFar.at, kFar.at + sizeof kFarSeeds, true, d[kUnclipped - 1]);
    }
    b.live = live & (Ints)(costs[kClipped - 1] <= most_cost(b));
    open |= extend(b, screen, kNear.at + kFirst - 1, kNear.at + sizeof kNearSeeds, false, d[kFirst - 1]);
    return live & ~open;
  }

  // Intervals between the first seeds, other than those inside the cell. D becomes its lower bounds.
  void add_first(const SignedSet& b, Floats* d) {
    const Floats inverse = 1.0f / b.amax;
    const Floats lo = cells.lo[b.number] * inverse * (1 + 0x1p-20f), hi = cells.hi[b.number] * inverse * (1 - 0x1p-20f);
    const uint32_t live = lane_bits(b.live);
    Floats g = {};
#pragma GCC unroll 16
    for (int j = 0; j < kFirst; ++j) {
      const Seed& q = kNear.at[j];
      d[j] = d[j] * q.factor - q.lost * static_cast<float>(n);
      const Floats h = d[j] - b.most * q.squared;
      if (j) {
        const Seed& p = kNear.at[j - 1];
        const uint32_t outside = at_most(spread(q.scale), lo) | at_most(hi, spread(p.scale));
        const uint32_t may = may_win(b, q.u - p.u, g, h) & outside & live;
        if (may) add(b, p, q, d[j - 1], d[j], may, 0);
      }
      g = h;
    }
  }

  // A far scale is better than the near one only if an element of the other sign lies beyond qmax + 1/2.
  // At the greatest such scale the largest element alone may cost too much.
  Ints far_matters(int set, Floats amax, Floats top_end) const {
    const Floats beyond = amax - (top_end * (1 + 0x1p-18f)) * (ends.hi / (ends.hi + 0.5f));
    return (Ints)(beyond * beyond * (1 - 0x1p-12f) <= limit_at_zero[set]);
  }

  // The best scale of the codes of s, and those with the same codes as that: their best makes the first limit.
  void first_cell(int set, Floats s, Ints live) {
    const Floats* x = m.x + set;
    const Ints block = lane_numbers() + set * kLanes;
    Scales best;
    best.s = s;
    all_errors<1, true, true>(x, n, ends, &best);
    s = fitted_to(set, best);
    m.ask();
    const Fit fit(x, n, ends, s);
    const Floats lo = fit.lo(s), hi = fit.hi(s);
    const Inside inside((Ints)lo, (Ints)hi, mantissa_shift);
    const Ints some = (Ints)(fit.grow > 0.0f) & (Ints)(fit.fall > 0.0f) & (inside.first <= inside.last);
    const Floats vertex = s + fit.product / fit.squares;
    const Ints nearest = (Ints)nearest_storable(vertex);
    Scales first;
    first.s = some ? (Floats)maximum(minimum(nearest, inside.last), inside.first) : s;
    const Floats step = first.s - s;
    start(set, {first.s, fit.at(step) + fit.unsure(step, relative), fit.squares});
    first.error = fit.at_least(step, relative);
    keep(first, block, live);
    cells.lo[set] = some ? lo : spread(0x1p-126f), cells.hi[set] = some ? hi : spread(0x1p-126f);
    cells.error_lo[set] = fit.at_least(lo - s, relative), cells.error_hi[set] = fit.at_least(hi - s, relative);
    // On a parabola the storable scale nearest the vertex is the best, with the next one if the vertex, which is
    // known to `relative`, lies in the middle.
    const Ints one = spread(1 << mantissa_shift);
    Scales other;
    other.s = (Floats)((Ints)(vertex > first.s) ? (Ints)first.s + one : (Ints)first.s - one);
    const Ints tied = some & live & ((Ints)other.s >= inside.first) & ((Ints)other.s <= inside.last) &
                      (Ints)(magnitude(vertex - 0.5f * (other.s + first.s)) <= 2 * relative * s);
    if (!any(tied)) return;
    other.error = fit.at_least(other.s - s, relative);
    keep(other, block, tied);
  }

  // What of the intervals between seeds lies beyond the cells.
  void trim() {
    const Intervals& from = m.lists[1];
    for (int at = 0; at < from.count; at += kLanes) {
      const Ints block = load<Ints>(from.block + at), a = load<Ints>(from.a + at), b = load<Ints>(from.b + at);
      const Ints valid = lane_numbers() < from.count - at, far = block >> 31;
      const Floats ea = load<Floats>(from.error_a + at), eb = load<Floats>(from.error_b + at);
      const Ints lo = (Ints)pick(cells.lo, block) & ~far, hi = (Ints)pick(cells.hi, block) & ~far;
      const Ints cut = (b > lo) & (a < hi);
      const Floats limit = pick(limit_at_zero, block), room = pick(per_scale, block), top = pick(energy_top, block);
      const Ints end = cut ? lo : b;
      const Floats error = cut ? pick(cells.error_lo, block) : eb;
      sieve(&m.lists[0], block, a, end, ea, error, top, limit, room, valid & (a < end));
      if (!any(cut & (hi < b))) continue;
      sieve(&m.lists[0], block, hi, b, pick(cells.error_hi, block), eb, top, limit, room, valid & cut & (hi < b));
    }
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
  Ints open = {};
  Floats better = s;
  if (any(kinds.neighbours & b.live)) better = better_of(search.m.x + set, search.n, search.ends, s, t, &open);
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
  const Floats qmax = search.ends.hi;  // products with a storable scale are exact
  const Ints either = (Ints)(size * (qmax + 0.5f) >= b.bottom) | (search.ends.lo == -qmax);  // both signs: the same
  const Ints known = (Ints)(search.limit_at_zero[set] < 0.5f * search.energy[set]);
  store(c->scale + set * kLanes, select(known, select(either, size, best * b.turn), Floats{}));
  store(c->zero + set * kLanes, Floats{});
}

// Best scales of up to kBlocks blocks.
inline void choose_signed(const AffineSpec& spec, const ScaleGrid& grid, const float* x, int64_t n, int64_t blocks,
                          Memory& m, double* wide, Choices* c) {
  const bool full = spec.qmin < -spec.qmax;
  SignedSearch search(spec, grid, n, m);
  SignedBlocks b[kSets];
  for (int set = 0; set < kSets; ++set) {
    b[set] = signed_blocks(*c, blocks, set, full);
    const Ints live = set_blocks(set, b[set].turn, b[set].live, &search);
    b[set].live = search.begin(set, b[set].bottom, b[set].top, full, live);
  }
  search.trim();
  search.split_all();
  search.drop_found();
  if (search.given_up) m.found = 0;
  const Ties ties(m);
  for (int set = 0; set < kSets; ++set) conclude_signed(spec, x, set, search, b[set], ties, wide, c);
}

}  // namespace group_search

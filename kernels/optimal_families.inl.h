// The rule `optimal`: which scales the search of optimal_grid.inl.h has to look at.

namespace grid_search {

// Scales without a zero point: s k with k in qmin .. qmax, for each sign.
inline void search_symmetric(GridSearch& g, const AffineSpec& spec, float lo, float hi) {
  static const float kSteps[] = {.76f,  .84f,  .89f,  .93f,  .97f, 1.01f, 1.05f, 1.09f,
                                 1.14f, 1.19f, 1.25f, 1.32f, 1.42f, 1.55f, 1.75f};
  const double amax = static_cast<double>(hi > -lo ? hi : -lo) * (1 + 0x1p-20) * g.per_unit;
  int first[2] = {};
  int64_t first_index[2] = {};
  for (int side = 0; side < (spec.positive ? 1 : 2); ++side) {
    const double top = side ? -lo : hi, bottom = side ? -hi : lo;
    double center = top / spec.qmax, last = top / (spec.qmax - 0.5);
    if (spec.qmin < 0) {
      center = bottom / spec.qmin > center ? bottom / spec.qmin : center;
      last = bottom / (spec.qmin + 0.5) > last ? bottom / (spec.qmin + 0.5) : last;
    }
    if (!(center > 0)) continue;  // only zeros
    last *= 2 * (1 + 0x1p-20) * g.per_unit;
    const double halves = 2 * pow2(g.grid.least_exponent);  // below, the half may not be storable
    if (last < halves) last = halves;
    if (last > 2 * amax) last = 2 * amax;  // above, every code is 0
    if (last < g.grid.smallest()) continue;
    const int family = g.add_family(side ? -1 : 1, spec.qmin, spec.qmax, 0);
    const int64_t end = g.storable(last) + (last < g.grid.max);
    int64_t previous = 0;
    first[family] = g.entries;
    if (g.seed_around(family, g.storable(center * g.per_unit), end)) {
      first_index[family] = g.o.index[first[family]];
      continue;
    }
    for (const float step : kSteps) {
      int64_t index = g.storable(center * step * g.per_unit);
      if (index >= end) break;
      if (index == previous) continue;
      g.add_new(family, index, true);
      if (!previous) first_index[family] = index;
      previous = index;
    }
    if (!previous) first_index[family] = end;
    g.add_new(family, end, false);
  }
  g.evaluate();
  float e[2], q[2];
  for (int f = 0; f < g.families; ++f) e[f] = g.o.e[first[f]], q[f] = g.o.q[first[f]];
  if (!g.give_up) g.sieve();
  for (int f = 0; f < g.families && !g.give_up; ++f) {
    // Downwards, until what lies beyond the last code costs more than the best.
    const Family family = g.o.families[f];
    int64_t index = first_index[f];
    for (; index > 1; index = g.storable(scale_at(g.grid, index) * 0.85)) {
      const float s = family.sign * g.scale(index);
      const float one = s * family.hi, other = s * family.lo;
      if (g.clip_cost(one > other ? one : other, one > other ? other : one) > g.limit(family.sign * s)) break;
    }
    if (index == first_index[f]) continue;
    g.add_new(f, index, true);
    g.add_known(f, first_index[f], false, e[f], q[f]);
  }
  if (!g.give_up && g.entries) g.sweep();
}

// Scales with a zero point. From `fit` up some zero point clips nothing: one family without ends serves them
// all. Below, each zero point whose ends can reach both ends of the data is searched alone.
inline void search_zero_points(GridSearch& g, const AffineSpec& spec, float low, float high, double cap) {
  static const float kSteps[] = {1.05f, 1.1f, 1.15f, 1.21f, 1.28f, 1.38f, 1.52f, 1.75f};
  const double lo = low - absolute(low) * 0x1p-22, hi = high + absolute(high) * 0x1p-22;
  const double amax = hi > -lo ? hi : -lo, span = spec.qmax - spec.qmin;
  double fit = (hi - lo) / span;
  if (hi / (spec.qmax + cap) > fit) fit = hi / (spec.qmax + cap);
  if (-lo / (cap - spec.qmin) > fit) fit = -lo / (cap - spec.qmin);
  fit *= 1 + 0x1p-20;
  double last = 2 * (1 + 0x1p-20) * ((hi > 0 ? hi : 0) - (lo < 0 ? lo : 0)) / (span - 1);
  const double halves = 2 * pow2(g.grid.least_exponent) * g.unit;
  if (last < halves) last = halves;
  if (last > 2 * amax) last = 2 * amax;
  if (last < fit) last = fit;
  const double max = g.grid.max * g.unit;
  if (fit >= max || last * g.per_unit < g.grid.smallest()) {
    g.give_up = true;  // scales that overflow or underflow: not worth more code
    return;
  }
  const int64_t begin = g.storable(fit * g.per_unit) + 1, end = g.storable(last * g.per_unit) + (last < max);
  const int lattice = g.add_family(1, -0x1p14, 0x1p14, 0);
  int64_t previous = begin;
  for (const float step : kSteps) {
    const int64_t index = g.storable(fit * step * g.per_unit);
    if (index <= previous) continue;
    if (index >= end) break;
    g.add_new(lattice, previous, true);
    previous = index;
  }
  g.add_new(lattice, previous, end > previous);
  if (end > previous) g.add_new(lattice, end, false);
  g.sweep();
  if (g.give_up) return;

  const float most = g.limit(static_cast<float>(fit)) * (1 + 0x1p-16f);
  const double top = g.reach(high, most, high - low, 1), bottom = -g.reach(-low, most, high - low, -1);
  if (top < -GridSearch::HUGE_REACH / 2 || bottom > GridSearch::HUGE_REACH / 2) {
    g.give_up = true;
    return;
  }
  const double room = 1e-6, fit_end = scale_at(g.grid, begin) * g.unit;
  // s (qmax - z) >= top and s (qmin - z) <= bottom, for some s up to `fit_end`
  double z_last = cap, z_first = -cap;
  if (top > 0) z_last = spec.qmax - top / fit_end;
  else if (top > bottom) z_last = (bottom * spec.qmax - top * spec.qmin) / (bottom - top);
  if (bottom < 0) z_first = spec.qmin - bottom / fit_end;
  else if (top > bottom) z_first = (top * spec.qmin - bottom * spec.qmax) / (top - bottom);
  z_first = __builtin_ceil(clip(z_first - room * (1 + absolute(z_first)), -cap, cap));
  z_last = __builtin_floor(clip(z_last + room * (1 + absolute(z_last)), -cap, cap));
  for (double z = z_first; z <= z_last && !g.give_up; z += 1) {
    const double code_top = spec.qmax - z, code_bottom = spec.qmin - z;
    double from = 0, to = fit_end;
    if (top > 0) from = code_top > 0 ? top / code_top : 2 * fit_end;
    else if (code_top < 0 && top / code_top < to) to = top / code_top;
    if (bottom < 0) {
      const double least = code_bottom < 0 ? bottom / code_bottom : 2 * fit_end;
      from = least > from ? least : from;
    } else if (code_bottom > 0 && bottom / code_bottom < to) {
      to = bottom / code_bottom;
    }
    from *= 1 - room;
    to *= 1 + room;
    if (from > to) continue;
    const int64_t a = g.storable(from * g.per_unit);
    int64_t b = g.storable(to * g.per_unit) + 1;
    if (b > begin) b = begin;
    if (a >= begin) continue;
    const int family = g.add_family(1, code_bottom, code_top, z);
    const int pieces = static_cast<int>((to - from) / (0.04 * to)) + 1;
    if (!g.give_up) g.seed(family, a, b, pieces < 16 ? pieces : 16);
  }
  if (!g.give_up && g.entries) g.sweep();
}

}  // namespace grid_search

// The rule `optimal` for one block, by the search of optimal_grid.inl.h.

namespace grid_search {

// Least and greatest element, sum w |x| and sum w x x, nearly.
inline void extremes(const float* x, const float* w, int64_t n, float* lo, float* hi, double* sum, double* squares) {
  Floats low, high;
  load(x, low), load(x, high);
  *sum = *squares = 0;
  for (int64_t from = 0; from < n; from += kChunk) {
    Floats part = {}, square = {};
    const int64_t to = from + kChunk < n ? from + kChunk : n;
    for (int64_t i = from; i < to; i += kLanes) {
      Floats v, f;
      load(x + i, v), load(w + i, f);
      low = low < v ? low : v;
      high = high > v ? high : v;
      part += f * (v > 0 ? v : -v);
    square += f * v * v;
    }
    *sum += sum_lanes(part);
    *squares += sum_lanes(square);
  }
  *lo = low[0], *hi = high[0];
  for (int j = 1; j < kLanes; ++j) {
    *lo = low[j] < *lo ? low[j] : *lo;
    *hi = high[j] > *hi ? high[j] : *hi;
  }
}

struct GridMemory {
  Scratch<float> x, w;
  Scratch<GridScratch> search;
  explicit GridMemory(int64_t n) : x(n + 16), w(n + 16), search(1) {}
  bool ok() const { return x.data && w.data && search.data; }
};

// The block in float32, in `unit`s, elements of no importance left out. Returns how many are left.
inline int64_t narrow_block(const double* x, const double* w, int64_t n, double unit, double weight_unit, float* xs,
                            float* ws, bool* inexact) {
  int64_t m = 0, rounded = 0;
  for (int64_t i = 0; w && i < n; ++i) {
    if (w[i] == 0) continue;
    const double v = x[i] * unit;
    xs[m] = static_cast<float>(v);
    ws[m] = static_cast<float>(w[i] * weight_unit);
    rounded += static_cast<double>(xs[m++]) != v;
  }
  for (int64_t i = 0; !w && i < n; ++i) {
    const double v = x[i] * unit;
    const float f = static_cast<float>(v);
    xs[i] = f;
    ws[i] = 1;
    rounded += static_cast<double>(f) != v;
  }
  *inexact = rounded != 0;
  return w ? m : n;
}

// How many elements have some part in the energy.
inline int64_t count_active(const float* x, const float* w, int64_t n, float energy) {
  Ints sum = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats v, f;
    load(x + i, v), load(w + i, f);
    sum -= f * v * v > energy * (0x1p-7f / static_cast<float>(n));
  }
  int64_t count = 0;
  for (int j = 0; j < kLanes; ++j) count += sum[j];
  return count;
}

// False if the search gave up: then nothing is known.
inline bool choose_on_grid(const AffineSpec& spec, const ScaleGrid& grid, const double* x, const double* w, int64_t n,
                           GridMemory& memory, Choice* c) {
  // Elements of the wrong sign cost the same under every scale and may outweigh all else beyond the sight of
  // float32, even float64: one path only, so that all instruction sets give the same.
  if (spec.offset != 1 && spec.qmin == 0) return false;
  double unit = 1, weight_unit = 1, most = 0;
  for (int64_t i = 0; w && i < n; ++i) most = w[i] > most ? w[i] : most;
  if (w) {
    if (most < 0x1p-500 || most > 0x1p500) return false;
    weight_unit = pow2(-exponent_of(most));
  }
  float *xs = memory.x.data, *ws = memory.w.data;
  float lo = 0, hi = 0;
  double sum = 0, energy = 0;
  bool inexact = false;
  int64_t m = 0;
  for (int tries = 0;; ++tries) {
    m = narrow_block(x, w, n, unit, weight_unit, xs, ws, &inexact);
    for (int64_t i = m; i < m + 16; ++i) xs[i] = xs[0], ws[i] = 0;
    extremes(xs, ws, m, &lo, &hi, &sum, &energy);
    // Weights that are lost in float32 then cost less than `fixed`.
    if (energy > 0x1p-40 && energy < 0x1p40 && (!w || (hi < 0x1p10f && lo > -0x1p10f))) break;
    const double squares = block_energy(x, nullptr, n);
    if (tries || !(squares > 0x1p-900) || !(squares < 0x1p300)) return false;
    unit = pow2(-(exponent_of(squares) / 2 + 1));
  }
  if (w ? block_energy(x, nullptr, n) > 0.8 * grid.max * grid.max
        : (hi > -lo ? hi : -lo) > 0.9 * grid.max * unit)
    return false;  // the plain rule may refuse
  // A walk over few breakpoints is faster.
  if (kLanes == 4 && count_active(xs, ws, m, static_cast<float>(energy)) <= m / 4) return false;
  GridSearch g{{xs, ws, m, w != nullptr}, grid, *memory.search.data, false, unit, 1 / unit, static_cast<float>(energy)};
  g.best = g.energy * (1 + 0x1p-16f);
  g.best_scale = 0;
  g.relative = static_cast<float>((m < kChunk ? m : kChunk) + 8) * 0x1p-24f + (inexact ? 0x1p-20f : 0);
  g.per_scale = static_cast<float>(sum * 0x1.04p-22);
  g.fixed = g.energy * (0x1p-60f + (inexact ? 0x1.1p-27f : 0));
  const double cap = zero_point_cap(spec);
  if (spec.offset == 1) search_zero_points(g, spec, lo, hi, cap);
  else search_symmetric(g, spec, lo, hi);
  if (g.give_up) return false;
  g.run(spec.bits == 8 || n > 256 ? 8192 : 2048);
  if (g.give_up) return false;
  g.drop_candidates();
  Judge judge{spec, x, w, n, cap, 0, 0};
  bool first = true;
  for (int64_t i = 0; i < n; ++i) {
    if (spec.offset != 1) break;
    if (w && w[i] == 0) continue;
    if (first || x[i] > judge.hi) judge.hi = x[i];
    if (first || x[i] < judge.lo) judge.lo = x[i];
    first = false;
  }
  if (g.candidates == 1) {
    const GridCandidate& only = g.o.candidates[0];
    if (g.limit(only.s) < g.energy * (1 - 0x1p-10f)) {
      const Family& family = g.o.families[only.family];
      c->s = family.sign * scale_at(grid, only.index);
      double low, high;
      c->shift = family.z;
      if (spec.offset != 1) return true;
      const bool fits = judge.zero_points(c->s, &low, &high);
      if (w || (fits && judge.ends_are_free(c->s))) c->shift = judge.best(c->s).z;
      else if (fits) c->shift = judge.preferred(low, high);
      return true;
    }
  }
  const double to_zero = block_energy(x, w, n);
  Optimum best = {to_zero, 1, 0, true};
  bool any = false;
  for (int j = 0; j < g.candidates; ++j) {
    const GridCandidate& one = g.o.candidates[j];
    const Optimum found = judge.best(g.o.families[one.family].sign * scale_at(grid, one.index));
    if (found.err < to_zero && (!any || precedes(found, best))) {
      best = found;
      any = true;
    }
  }
  if (any) {
    c->s = best.s;
    c->shift = best.z;
  }
  return true;
}

}  // namespace grid_search

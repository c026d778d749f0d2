// The rule `optimal`: the storable scale (and zero point) of least squared error (docs/rules.md).
// Scales of 16 bits are searched in optimal_grid.inl.h; float32 scales, and blocks it leaves, as follows.
//
// Walk u = 1/s upwards. The lattice codes k_i = rint(x_i * u) change only at u = (k + 1/2) / |x_i|; between two
// such points the error is a parabola in s, least at A / Q with A = sum w x k, Q = sum w k k, where it saves
// A * A / Q of sum w x x. Running sums give that saving nearly; every scale whose saving comes near the best
// is then judged by the defined float64 error. Nothing that could win is left out:
//  - from above, a scale whose half clips nothing (zero point in range) is no better than its half;
//  - from below, each element alone may cost at most the best error so far: |x_i - x_i'| <= sqrt(best / w_i).

// clang-format off: each builds on those before it
#include "optimal_lists.inl.h"
#include "optimal_bounds.inl.h"
// clang-format on

struct Search : Bounds {
  double sign;      // of the scales
  double* k;        // lattice codes
  Windows windows;
  double energy;        // sum w x x
  double best_saving;
  double tolerance = 0; // of savings
  double a = 0, q = 0;  // sums of the current code vector (zero points: unclipped)
  List<Candidate> found{};
  List<Breakpoint> points{}, spare{};

  bool failed() const { return found.failed || points.failed || spare.failed; }

  double error(double s, double z) const {
    ErrorSum sum;
    for (int64_t i = 0; i < n; ++i) {
      const double code = clip(round_even(x[i] / s) + z, spec.qmin, spec.qmax);
      const double d = x[i] - s * (code - z);
      sum.add(i, weight(i) * (d * d));
    }
    return sum.total();
  }

  // The best zero point for a scale, ties in order.
  Optimum judge(double s) const {
    if (!has_zero_point()) return {error(s, 0), sign * s, 0, true};
    const double from = spec.qmin - round_even(x[lowest] / s);  // zero points that clip nothing
    const double to = spec.qmax - round_even(x[highest] / s);
    if (from <= to) {
      double low = clip(from, -cap, cap), high = clip(to, -cap, cap);
      const double inside_low = low > spec.qmin ? low : spec.qmin;
      const double inside_high = high < spec.qmax ? high : spec.qmax;
      const bool inside = inside_low <= inside_high;
      const double z = inside ? clip(0, inside_low, inside_high) : clip(0, low, high);
      Optimum best = {error(s, z), s, z, inside};
      // One step further clips the last codes by one, which costs nothing where x / s is a half.
      for (int side = 0; side < 2; ++side) {
        const double next = side ? to + 1 : from - 1;
        if (absolute(next) > cap) continue;
        Optimum o = {best.err, s, next, next >= spec.qmin && next <= spec.qmax};
        if (!precedes(o, best)) continue;
        o.err = error(s, next);
        if (precedes(o, best)) best = o;
      }
      return best;
    }
    const double low = clip(to, -cap, cap), high = clip(from, -cap, cap);
    Optimum best = {0, s, 0, false};
    for (double z = low; z <= high; z += 1) {
      const Optimum o = {error(s, z), s, z, z >= spec.qmin && z <= spec.qmax};
      if (z == low || precedes(o, best)) best = o;
    }
    return best;
  }

  // A code vector with these sums: keep the storable neighbours of its best scale if they come near the best.
  void consider(double sum_a, double sum_q) {
    if (!(sum_a > 0) || !(sum_q > 0) || sum_a * sum_a < (best_saving - tolerance) * sum_q) return;
    double s = sum_a / sum_q;
    if (s > grid.max) s = grid.max;
    const double below = grid.below(s);
    const double above = below + grid.step(below > 0 ? below : grid.smallest());
    for (int side = 0; side < 2; ++side) {
      const double t = side ? above : below;
      if (t == 0 || t > grid.max) continue;
      const double saving = t * (2 * sum_a - t * sum_q);
      if (saving < best_saving - tolerance) continue;
      if (saving > best_saving) best_saving = saving;
      found.push({t, saving});
    }
  }

  void start_sums(double start, double stop) {
    double expected = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double limit = code_limit(i), code = round_even(x[i] * start);
      k[i] = weight(i) == 0 ? 0 : has_zero_point() ? clip(code, -limit, limit) : clip(code, spec.qmin, spec.qmax);
      a += weight(i) * x[i] * k[i];
      q += weight(i) * k[i] * k[i];
      const double last = absolute(x[i]) * stop;
      expected += (last < limit ? last : limit) + 1;
    }
    tolerance = energy * (expected + 64) * 0x1p-50;
    if (!has_zero_point()) return;
    const double from = first_shift(start) < first_shift(stop) ? first_shift(start) : first_shift(stop);
    const double to = last_shift(start) > last_shift(stop) ? last_shift(start) : last_shift(stop);
    windows.first = static_cast<int64_t>(from);
    windows.count = to < from ? 0 : static_cast<int64_t>(to - from) + 1;
    for (int64_t j = 0; j < windows.count; ++j) {
      const double shift = static_cast<double>(windows.first + j);
      windows.a[j] = windows.q[j] = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double code = clip(k[i], spec.qmin + shift, spec.qmax + shift);
        windows.a[j] += weight(i) * x[i] * code;
        windows.q[j] += weight(i) * code * code;
      }
    }
  }

  // Element i moves to the next code away from zero.
  void advance(int64_t i) {
    const double old = k[i], next = old + (x[i] < 0 ? -1 : 1);
    k[i] = next;
    const double more_a = weight(i) * absolute(x[i]), more_q = weight(i) * (2 * absolute(old) + 1);
    a += more_a;
    q += more_q;
    if (!windows.count) return;
    const double low = old < next ? old : next, high = old < next ? next : old;
    if (high - spec.qmax > static_cast<double>(windows.first + windows.count - 1) ||
        low - spec.qmin < static_cast<double>(windows.first))
      return;
    const int64_t from = windows.clamp(high - spec.qmax), to = windows.clamp(low - spec.qmin);
    for (int64_t j = from; j <= to; ++j) {
      windows.a[j] += more_a;
      windows.q[j] += more_q;
    }
  }

  // The current code vector is best for scales down to 1 / u.
  void settle(double u) {
    const double low = k[lowest], high = k[highest];
    const bool clipped = has_zero_point() &&
                         (high - low > span() || spec.qmin - low > cap || spec.qmax - high < -cap);
    if (!clipped) {
      consider(a, q);
    } else if (windows.count) {
      const int64_t from = windows.clamp(first_shift(u)), to = windows.clamp(last_shift(u));
      for (int64_t j = from; j <= to; ++j) consider(windows.a[j], windows.q[j]);
    }
    const double bound = (energy - best_saving) + tolerance;
    if (bound < best_error) best_error = bound;
  }

  double count_points(double to) const {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double limit = code_limit(i), last = absolute(x[i]) * to + 1;
      const double more = (last < limit ? last : limit) - absolute(k[i]);
      if (weight(i) != 0 && more > 0) total += more;
    }
    return total;
  }

  // Breakpoints up to `to` that have not been passed, in order.
  const Breakpoint* collect(double to) {
    points.n = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (weight(i) == 0 || x[i] == 0) continue;
      const double magnitude = absolute(x[i]), limit = code_limit(i);
      for (double code = absolute(k[i]); code < limit; code += 1) {
        const double u = (code + 0.5) / magnitude;
        if (u > to) break;
        points.push({u, i});
      }
    }
    spare.n = 0;
    while (spare.n < points.n && !spare.failed) spare.push({0, 0});
    if (failed()) return nullptr;
    sort_breakpoints(points.data, spare.data, points.n);
    bool odd = false;
    for (int64_t width = 1; width < points.n; width *= 2) odd = !odd;
    return odd ? spare.data : points.data;
  }

  void walk() {
    bound_values();
    double low_scale = least_scale(), known_error = best_error;
    const double start = 1 / greatest_scale(), stop = 1 / low_scale;
    if (!(start < stop)) return;
    start_sums(start, stop);
    for (double from = start, to; from < stop; from = to) {
      to = stop;  // pieces of bounded size, so that long blocks need little memory
      for (int tries = 0; tries < 60 && count_points(to) > 65536 + 2 * static_cast<double>(n); ++tries)
        to = from + (to - from) / (to > 4 * from ? to / from : 2);
      const Breakpoint* p = collect(to);
      if (!p && points.n) return;
      const int64_t count = points.n;
      settle(count ? p[0].u : to);
      for (int64_t j = 0; j < count; ++j) {
        advance(p[j].i);
        // Equal elements move together: in between, the twin of an extreme would lie outside the codes.
        if (j + 1 < count && p[j + 1].u == p[j].u) continue;
        settle(j + 1 < count ? p[j + 1].u : to);
        if (best_error < known_error * 0.98) {
          known_error = best_error;
          bound_values();
          low_scale = least_scale();
        }
        if (p[j].u * low_scale > 1) return;
      }
      if (to * low_scale > 1) return;
    }
  }
};

// Judge every distinct candidate that came near the best saving.
inline void judge_candidates(Search& search, Optimum* best) {
  Candidate* c = search.found.data;
  int64_t kept = 0;
  for (int64_t j = 0; j < search.found.n; ++j) {
    if (c[j].saving < search.best_saving - search.tolerance) continue;
    const double s = c[j].s;
    bool seen = false;
    for (int64_t i = 0; i < kept && !seen; ++i) seen = c[i].s == s;
    if (seen) continue;
    c[kept++].s = s;
    const Optimum o = search.judge(s);
    if (precedes(o, *best)) *best = o;
  }
}

inline double block_energy(const double* x, const double* w, int64_t n) {
  ErrorSum sum;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) sum.lane[j] += w ? w[i + j] * (x[i + j] * x[i + j]) : x[i + j] * x[i + j];
  for (; i < n; ++i) sum.add(i, (w ? w[i] : 1.0) * (x[i] * x[i]));
  return sum.total();
}

inline double zero_point_cap(const AffineSpec& spec) { return 16.0 * (1 << spec.bits); }

#include "optimal_grid.inl.h"
#include "optimal_judge.inl.h"
#include "optimal_families.inl.h"
#include "optimal_choose.inl.h"

struct OptimalScratch {
  Scratch<double> k, negative, window_a, window_q;
  grid_search::GridMemory grid;
  OptimalScratch(int64_t n, int64_t shifts)
      : k(n), negative(n), window_a(shifts), window_q(shifts), grid(n) {}
  bool ok() const { return k.data && negative.data && window_a.data && window_q.data && grid.ok(); }
};

// False if memory ran out.
inline bool choose_optimal(const AffineSpec& spec, const ScaleGrid& grid, const double* x, const double* w,
                           int64_t n, OptimalScratch& scratch, Choice* c) {
  int64_t unused[kEventCount] = {};
  *c = Choice();
  if (grid.mantissa_bits < 23) {
    if (grid_search::choose_on_grid(spec, grid, x, w, n, scratch.grid, c)) return true;
    *c = Choice();
  }
  const double energy = block_energy(x, w, n);
  const Choice plain = choose_plain(spec, grid, x, n, unused);
  c->overflow = plain.overflow;
  if (plain.overflow || !(energy > 0)) return true;
  Optimum best = {energy, 1, 0, true};
  double saving = 0;
  const int sides = spec.offset == 1 || spec.positive ? 1 : 2;
  for (int side = 0; side < sides; ++side) {
    for (int64_t i = 0; i < n; ++i) scratch.negative.data[i] = -x[i];
    const double* v = side ? scratch.negative.data : x;
    Search search{{spec, grid, v, w, n, zero_point_cap(spec), best.err}, side ? -1.0 : 1.0, scratch.k.data,
                  {scratch.window_a.data, scratch.window_q.data}, energy, saving};
    search.find_extremes();
    const Optimum first = search.judge(plain.s);
    if (first.err < energy && precedes(first, best)) best = first;
    search.best_error = best.err;
    if (energy - best.err > saving) search.best_saving = energy - best.err;
    search.walk();
    if (search.failed()) return false;
    saving = search.best_saving;
    Optimum found = best;
    judge_candidates(search, &found);
    if (found.err < energy && precedes(found, best)) best = found;
  }
  if (best.err < energy) {
    c->s = best.s;
    c->shift = best.z;
  }
  return true;
}

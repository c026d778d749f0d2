// The rule `optimal`: the error as docs/rules.md defines it, and the best zero point of a scale.

namespace grid_search {

// The defined error and order of ties, for scales of either sign.
struct Judge {
  const AffineSpec& spec;
  const double *x, *w;
  int64_t n;
  double cap, hi, lo;  // extremes of the elements that count

  double error(double s, double z) const {
    double lane[16] = {};
    int64_t i = 0;
    const double qmin = spec.qmin, qmax = spec.qmax;
    for (; i + 16 <= n; i += 16)
      for (int j = 0; j < 16; ++j) {
        const double code = clip(round_even(x[i + j] / s) + z, qmin, qmax), d = x[i + j] - s * (code - z);
        lane[j] += w ? w[i + j] * (d * d) : d * d;
      }
    for (; i < n; ++i) {
      const double code = clip(round_even(x[i] / s) + z, qmin, qmax), d = x[i] - s * (code - z);
      lane[i & 15] += w ? w[i] * (d * d) : d * d;
    }
    for (int half = 8; half; half /= 2)
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    return lane[0];
  }

  // The zero points that clip nothing, or those between which the best one lies.
  bool zero_points(double s, double* low, double* high) const {
    const double from = spec.qmin - round_even(lo / s), to = spec.qmax - round_even(hi / s);
    *low = clip(from < to ? from : to, -cap, cap);
    *high = clip(from < to ? to : from, -cap, cap);
    return from <= to;
  }
  static bool inside(const AffineSpec& spec, double z) { return z >= spec.qmin && z <= spec.qmax; }

  // The first in the order of ties.
  double preferred(double low, double high) const {
    const double a = low > spec.qmin ? low : spec.qmin, b = high < spec.qmax ? high : spec.qmax;
    return a <= b ? clip(0, a, b) : clip(0, low, high);
  }

  // Whether a zero point one step further may cost nothing: it clips the last codes by one, and x / s is a half,
  // or float64 does not see what so light an element costs.
  bool step_is_free(double end) const { return w || is_half(end); }
  bool ends_are_free(double s) const { return step_is_free(lo / s) || step_is_free(hi / s); }
  static bool is_half(double v) { return absolute(v - round_even(v)) == 0.5; }

  // Of the zero points that clip nothing and those one step beyond, the first in the order of ties.
  Optimum stepped(Optimum found) const {
    for (int side = 0; side < 2; ++side) {
      const double s = found.s, end = side ? hi / s : lo / s;
      const double next = side ? spec.qmax - round_even(end) + 1 : spec.qmin - round_even(end) - 1;
      if (!step_is_free(end) || absolute(next) > cap) continue;
      const Optimum other = {error(s, next), s, next, inside(spec, next)};
      if (precedes(other, found)) found = other;
    }
    return found;
  }

  Optimum best(double s) const {
    if (spec.offset != 1) return {error(s, 0), s, 0, true};
    double low, high;
    if (zero_points(s, &low, &high)) {
      const double z = preferred(low, high);
      return stepped({error(s, z), s, z, inside(spec, z)});
    }
    Optimum found = {error(s, low), s, low, inside(spec, low)};
    for (double z = low + 1; z <= high; z += 1) {
      const Optimum other = {error(s, z), s, z, inside(spec, z)};
      if (precedes(other, found)) found = other;
    }
    return found;
  }
};

}  // namespace grid_search

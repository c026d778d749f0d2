// The rule `optimal`: which scales and codes can still win, see optimal.inl.h.

struct Bounds {
  const AffineSpec& spec;
  const ScaleGrid grid;
  const double* x;  // the block, or its negative for negative scales
  const double* w;  // importance, or null for 1
  int64_t n;
  double cap;         // largest |z| looked at
  double best_error;  // an upper bound of what can be reached
  double top = 0, bottom = 0;         // values that the codes must reach, see `bound_values`
  int64_t highest = -1, lowest = -1;  // extreme elements of positive weight

  double weight(int64_t i) const { return w ? w[i] : 1.0; }
  bool has_zero_point() const { return spec.offset == 1; }
  double span() const { return spec.qmax - spec.qmin; }

  // Below this value no better scale can have its last code: the H with sum w max(0, x - H)^2 = best error,
  // approached from below. Newton's steps on a convex falling function never pass the root. `flip` mirrors
  // the block.
  double value_bound(double flip) const {
    double h = 0;
    bool first = true;
    for (int64_t i = 0; i < n; ++i) {
      if (weight(i) == 0) continue;
      const double alone = flip * x[i] - __builtin_sqrt(best_error / weight(i));
      if (first || alone > h) h = alone;
      first = false;
    }
    for (int step = 0; step < 40; ++step) {
      double cost = 0, slope = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double over = flip * x[i] - h;
        if (over <= 0) continue;
        cost += weight(i) * over * over;
        slope += 2 * weight(i) * over;
      }
      if (!(cost > best_error * 1.02) || !(slope > 0)) break;
      h += (cost - best_error) / slope;
    }
    return h - 1e-9 * absolute(h);
  }

  void bound_values() {
    top = value_bound(1);
    bottom = -value_bound(-1);
  }

  double least_scale() const {
    double s;
    if (has_zero_point()) {
      s = (top - bottom) / span();
      const double up = top / (spec.qmax + cap), down = -bottom / (cap - spec.qmin);
      s = up > s ? up : s;
      s = down > s ? down : s;
    } else {
      s = top / spec.qmax;
      if (spec.qmin < 0 && -bottom / -spec.qmin > s) s = -bottom / -spec.qmin;
    }
    s *= 1 - 1e-9;
    return s > grid.smallest() ? s : grid.smallest();
  }

  double greatest_scale() const {
    const double hi = x[highest] > 0 ? x[highest] : 0, lo = x[lowest] < 0 ? x[lowest] : 0;
    double s;
    if (has_zero_point()) {
      s = (hi - lo) / (span() - 1);
    } else {
      s = hi / (spec.qmax - 0.5);
      if (spec.qmin < 0 && -lo / (-spec.qmin - 0.5) > s) s = -lo / (-spec.qmin - 0.5);
    }
    const double halves = 2 * pow2(grid.least_exponent);  // below, the half of a scale may not be storable
    s *= 2 * (1 + 1e-9);
    return s > halves ? s : halves;
  }

  // Codes beyond this are clipped whatever the zero point.
  double code_limit(int64_t i) const {
    if (has_zero_point()) return cap + (spec.qmax > -spec.qmin ? spec.qmax : -spec.qmin);
    return x[i] > 0 ? spec.qmax : -spec.qmin;
  }

  void find_extremes() {
    for (int64_t i = 0; i < n; ++i) {
      if (weight(i) == 0) continue;
      if (highest < 0 || x[i] > x[highest]) highest = i;
      if (lowest < 0 || x[i] < x[lowest]) lowest = i;
    }
  }

  // Smallest and largest shift whose window reaches top and bottom at 1/s = u.
  double first_shift(double u) const { return clip(round_even(top * u) - spec.qmax - 2, -cap, cap); }
  double last_shift(double u) const { return clip(round_even(bottom * u) - spec.qmin + 2, -cap, cap); }
};

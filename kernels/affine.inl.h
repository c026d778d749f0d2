// Affine schemes: plain rules, codes (docs/rules.md, "Affine schemes"). The search is in optimal.inl.h.

// The scales that a type can store: positive multiples of 2**(k - mantissa_bits).
struct ScaleGrid {
  int mantissa_bits, least_exponent;
  double max;
  double smallest() const { return pow2(least_exponent - mantissa_bits); }
  double step(double s) const {
    int k = exponent_of(s);
    return pow2((k < least_exponent ? least_exponent : k) - mantissa_bits);
  }
  // Nearest storable number, halves to even; may exceed max.
  double nearest(double s) const {
    if (s == 0) return 0;
    const double q = step(s);
    return round_even(s / q) * q;
  }
  double below(double s) const {
    const double q = step(s);
    double n = round_even(s / q);
    if (n * q > s) n -= 1;
    return n * q;
  }
};

inline ScaleGrid scale_grid(int32_t type) {
  if (type == kFloat16) return {10, -14, 65504.0};
  if (type == kBfloat16) return {7, -126, 0x1.fep127};
  return {23, -126, 0x1.fffffep127};
}

inline void store_scale(int32_t type, void* scales, int64_t block, double s) {
  const float f = static_cast<float>(s);  // exact: s is on the grid of the type
  if (type == kFloat32)
    static_cast<float*>(scales)[block] = f;
  else if (type == kFloat16)
    static_cast<uint16_t*>(scales)[block] = float_to_half(f);
  else
    static_cast<uint16_t*>(scales)[block] = static_cast<uint16_t>(bits_of(f) >> 16);
}

// Scale and offset of a block. `shift` is the zero point (an integer).
struct Choice {
  double s = 1, shift = 0;
  bool overflow = false;
};

inline double clip(double v, double low, double high) { return v < low ? low : v > high ? high : v; }

// Round a wanted scale to the grid; zero becomes the smallest scale and is counted.
inline Choice stored_scale(const ScaleGrid& grid, double wanted, int64_t* events) {
  Choice c;
  c.s = grid.nearest(wanted);
  if (c.s > grid.max) c.overflow = true;
  if (c.s == 0) {
    c.s = grid.smallest();
    events[kScalesRaised] += 1;
  }
  return c;
}

inline Choice choose_absmax(const AffineSpec& spec, const ScaleGrid& grid, const double* x, int64_t n,
                            int64_t* events) {
  double top = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double a = spec.qmin < 0 ? absolute(x[i]) : x[i];
    top = a > top ? a : top;
  }
  if (top == 0) return Choice();
  return stored_scale(grid, top / spec.qmax, events);
}

inline Choice minmax_between(const AffineSpec& spec, const ScaleGrid& grid, double lo, double hi,
                             int64_t* events) {
  if (spec.include_zero) {
    lo = lo < 0 ? lo : 0;
    hi = hi > 0 ? hi : 0;
  }
  const double far = absolute(lo) > absolute(hi) ? absolute(lo) : absolute(hi);
  if (far == 0) return Choice();
  double wanted = hi == lo ? far : (hi - lo) / (spec.qmax - spec.qmin);
  wanted = wanted < far * 0x1p-30 ? far * 0x1p-30 : wanted;
  Choice c = stored_scale(grid, wanted, events);
  c.shift = round_even(spec.qmin - lo / c.s);
  if (spec.include_zero) c.shift = clip(c.shift, spec.qmin, spec.qmax);
  return c;
}

inline Choice choose_minmax(const AffineSpec& spec, const ScaleGrid& grid, const double* x, int64_t n,
                            int64_t* events) {
  double lo = x[0], hi = x[0];
  for (int64_t i = 0; i < n; ++i) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  return minmax_between(spec, grid, lo, hi, events);
}

// Codes from the stored scale; counts what was clipped and what became zero. False if a value would decode to
// infinity in float32: a scale rounded up near the end of that type.
inline bool affine_codes(const AffineSpec& spec, const double* x, int64_t n, const Choice& c, uint8_t* codes,
                         int64_t* events) {
  int64_t saturated = 0, zeroed = 0;
  double reach = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double wanted = round_even(x[i] / c.s) + c.shift;
    const double q = clip(wanted, spec.qmin, spec.qmax), steps = absolute(q - c.shift);
    reach = steps > reach ? steps : reach;
    saturated += q != wanted;
    zeroed += q == c.shift && x[i] != 0;
    codes[i] = static_cast<uint8_t>(static_cast<int64_t>(q));
  }
  events[kSaturated] += saturated;
  events[kSaturatedBlocks] += saturated != 0;
  events[kZeroed] += zeroed;
  return absolute(c.s) * static_cast<float>(reach) < 0x1.ffffffp127;
}

// The gguf package's Q8_0, Q4_0 and Q4_1, in its float32 arithmetic. Returns false if the stored scale would
// be zero: the caller then takes the scale in `c` and the usual codes.
inline bool ggml_codes(const AffineSpec& spec, const float* x, int64_t n, const ScaleGrid& grid, Choice* c,
                       float* minimum, uint8_t* codes, int64_t* saturated) {
  float amax = 0, extreme = 0, lo = x[0], hi = x[0];
  for (int64_t i = 0; i < n; ++i) {
    const float a = x[i] < 0 ? -x[i] : x[i];
    if (a > amax) {
      amax = a;
      extreme = x[i];
    }
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  const bool q4_1 = spec.offset == 2;
  const float d = spec.bits == 8 ? amax / 127.0f : q4_1 ? (hi - lo) / 15.0f : extreme / -8.0f;
  *minimum = q4_1 ? lo : 0.0f;
  const double magnitude = grid.nearest(absolute(d));
  c->overflow = magnitude > grid.max || absolute(grid.nearest(absolute(*minimum))) > grid.max;
  if (c->overflow) return true;
  c->s = d < 0 ? -magnitude : magnitude;
  if (magnitude == 0) {
    const bool flat = q4_1 ? hi == lo : amax == 0;  // d may be zero for tiny elements too
    const bool negative = !q4_1 && spec.bits == 4 && extreme > 0;
    c->s = flat ? 1 : negative ? -grid.smallest() : grid.smallest();
    return false;
  }
  const float inverse = 1.0f / d;
  for (int64_t i = 0; i < n; ++i) {
    int32_t q;
    if (spec.bits == 8) {
      const float v = x[i] * inverse, a = v < 0 ? -v : v;
      const int32_t whole = static_cast<int32_t>(a);
      const int32_t away = whole + static_cast<int32_t>(2.0f * (a - static_cast<float>(whole)));
      q = v < 0 ? -away : away;
    } else if (q4_1) {
      q = static_cast<int32_t>((x[i] - lo) * inverse + 0.5f);
      *saturated += q > 15;
      q = q > 15 ? 15 : q;
    } else {
      q = static_cast<int32_t>(x[i] * inverse + 8.5f);
      *saturated += q > 15;
      q = (q > 15 ? 15 : q) - 8;
    }
    codes[i] = static_cast<uint8_t>(q);
  }
  return true;
}

inline void ggml_block(const AffineSpec& spec, const ScaleGrid& grid, const double* wide, int64_t n, float* x,
                       uint8_t* codes, void* scales, void* offsets, int64_t block, int64_t* events) {
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(wide[i]);
    any |= x[i] != 0;
  }
  Choice c;
  float minimum = 0;
  int64_t saturated = 0, zeroed = 0;
  const bool done = ggml_codes(spec, x, n, grid, &c, &minimum, codes, &saturated);
  if (c.overflow) {
    events[kScaleOverflow] += 1;
    return;
  }
  store_scale(kFloat16, scales, block, c.s);
  const uint16_t stored_minimum = float_to_half(minimum);
  const double base = spec.offset == 2 ? half_to_float(stored_minimum) : 0;
  if (spec.offset == 2) static_cast<uint16_t*>(offsets)[block] = stored_minimum;
  events[kZeroBlocks] += !any;
  events[kScalesRaised] += !done && any;
  const bool flat = !done && c.s == 1;  // equal elements: the offset says it all
  for (int64_t i = 0; i < n; ++i) {
    if (!done) {
      const double wanted = flat ? 0 : round_even((x[i] - base) / c.s);
      const double q = clip(wanted, spec.qmin, spec.qmax);
      saturated += q != wanted;
      codes[i] = static_cast<uint8_t>(static_cast<int64_t>(q));
    }
    const int32_t q = spec.qmin < 0 ? static_cast<int8_t>(codes[i]) : codes[i];
    zeroed += x[i] != 0 && static_cast<float>(c.s) * static_cast<float>(q) + static_cast<float>(base) == 0;
  }
  events[kSaturated] += saturated;
  events[kSaturatedBlocks] += saturated != 0;
  events[kZeroed] += zeroed;
}

inline Choice choose_plain(const AffineSpec& spec, const ScaleGrid& grid, const double* x, int64_t n,
                           int64_t* events) {
  return spec.offset == 1 ? choose_minmax(spec, grid, x, n, events) : choose_absmax(spec, grid, x, n, events);
}

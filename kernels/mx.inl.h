// MX schemes: choice of the exponent, codes (docs/rules.md, "MX schemes").

// One element: the rounded value and its code. `y` is |x| * 2**-e, at most the limit.
inline double round_float(const MxSpec& spec, double y, uint32_t* code) {
  const int m = spec.mantissa_bits, least = 1 - spec.bias;
  int k = static_cast<int>(bits_of(y) >> 52) - 1023;
  if (k < least) k = least;
  const double q = round_even(y * pow2(m - k));
  *code = static_cast<uint32_t>(static_cast<int64_t>(q)) + (static_cast<uint32_t>(k - least) << m);
  return q * pow2(k - m);
}

inline double round_integer(const MxSpec& spec, double y, uint32_t* code) {
  const double q = round_even(y * pow2(spec.mantissa_bits));
  *code = static_cast<uint32_t>(static_cast<int64_t>(q));
  return q * pow2(-spec.mantissa_bits);
}

// Largest value that may be stored at exponent e: the element's, unless float32 could not hold it.
inline double value_limit(const MxSpec& spec, int e) {
  if (127 - e >= spec.emax) return spec.max;
  const double fits = (2.0 - pow2(-spec.mantissa_bits)) * pow2(127 - e);
  return fits < spec.max ? fits : spec.max;
}

inline double rounded_value(const MxSpec& spec, double magnitude, double limit, uint32_t* code) {
  const double y = magnitude < limit ? magnitude : limit;
  return spec.is_float ? round_float(spec, y, code) : round_integer(spec, y, code);
}

// Squared error of the block at exponent e, in units of 2**e0 squared; sixteen elements at a time, each to
// its lane. Adding a power of two whose ulp is the distance of two element values rounds to the nearest one.
inline double mx_error(const MxSpec& spec, const double* x, int64_t n, int e, int e0) {
  constexpr int kWide = kLanes / 2;
  const double down = pow2(-e), unit = pow2(-e0), up = pow2(e - e0), limit = value_limit(spec, e);
  const int m = spec.mantissa_bits;
  const Doubles least = Doubles{} + (spec.is_float ? pow2(1 - spec.bias) : 1.0);
  const Longs keep = Longs{} + (spec.is_float ? 0x7FF0000000000000 : 0),
              raise = Longs{} + (int64_t{52 - m} << 52);
  const Longs fixed = Longs{} + (spec.is_float ? 0 : int64_t{1023} << 52);
  Doubles lane[16 / kWide] = {};
  const int64_t whole = n & ~int64_t{15};
  for (int64_t i = 0; i < whole; i += 16) {
    for (int j = 0; j < 16 / kWide; ++j) {
      const Doubles a = (Doubles)((Longs)load<Doubles>(x + i + j * kWide) & 0x7FFFFFFFFFFFFFFF);
      const Doubles y = minimum(a * down, Doubles{} + limit);
      const Doubles magic = (Doubles)((((Longs)maximum(y, least) & keep) | fixed) + raise);
      const Doubles d = a * unit - ((y + magic) - magic) * up;
      lane[j] += d * d;
    }
  }
  if (whole == n) {  // ErrorSum::total
    for (int half = 8 / kWide; half; half /= 2)
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    double v[kWide];
    for (int j = 0; j < kWide; ++j) v[j] = lane[0][j];
    for (int half = kWide / 2; half; half /= 2)
      for (int j = 0; j < half; ++j) v[j] += v[j + half];
    return v[0];
  }
  ErrorSum sum;
  for (int j = 0; j < 16 / kWide; ++j) store(sum.lane + j * kWide, lane[j]);
  for (int64_t i = whole; i < n; ++i) {
    uint32_t code;
    const double a = absolute(x[i]);
    const double d = a * unit - rounded_value(spec, a * down, limit, &code) * up;
    sum.add(i, d * d);
  }
  return sum.total();
}

inline int clamp_int(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

// The exponent of least error between `low` and `high`, ties to the larger. Only the exponents that can win
// are tried: e0, e0 + 1 and on while nothing is lost, and below e0 while the clamped maximum alone costs
// less than the best (docs/rules.md, "mse").
inline int best_exponent(const MxSpec& spec, const double* x, int64_t n, double amax, int e0, int low,
                         int high) {
  int best = e0;
  double least = mx_error(spec, x, n, e0, e0);
  for (int e = e0 + 1; e <= high; ++e) {
    const double err = mx_error(spec, x, n, e, e0);
    if (err > least) break;
    least = err;
    best = e;
  }
  for (int e = e0 - 1; e >= low; --e) {
    const double over = amax * pow2(-e0) - spec.max * pow2(e - e0);
    if (over > 0 && over * over >= least) break;
    const double err = mx_error(spec, x, n, e, e0);
    if (err < least) {
      least = err;
      best = e;
    }
  }
  return best;
}

inline void mx_block(const MxSpec& spec, const double* x, int64_t n, uint8_t* codes, uint8_t* scale,
                     int64_t* events) {
  int64_t bad = 0;
  const double amax = scan_amax(x, n, &bad);
  if (bad) {
    events[kNonFinite] += bad;
    events[kNanBlocks] += 1;
    *scale = 255;
    return;
  }
  const int low = spec.min_byte - 127;
  int e = 0;
  if (amax > 0) {
    const int top = exponent_of(amax);
    const int wanted = top - spec.emax + (spec.rule == 0 && significand_of(amax, top) > spec.threshold);
    e = clamp_int(wanted, low, 127);
    events[kScalesClamped] += e != wanted;
    if (spec.rule == 1) e = best_exponent(spec, x, n, amax, e, low, 127);
  } else {
    events[kZeroBlocks] += 1;
  }
  *scale = static_cast<uint8_t>(e + 127);
  const double down = pow2(-e), limit = value_limit(spec, e);
  const uint32_t sign_bit = 1u << (spec.bits - 1), mask = (1u << spec.bits) - 1;
  int64_t saturated = 0, zeroed = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t code;
    const double a = absolute(x[i]), y = a * down;
    const double value = rounded_value(spec, y, limit, &code);
    saturated += y > limit;
    zeroed += value == 0 && a != 0;
    if (is_negative(x[i])) code = spec.is_float ? code | sign_bit : (0u - code) & mask;
    codes[i] = static_cast<uint8_t>(code);
  }
  events[kSaturated] += saturated;
  events[kSaturatedBlocks] += saturated != 0;
  events[kZeroed] += zeroed;
}

inline bool quantize_mx_plain(const Rows& rows, const MxSpec& spec, uint8_t* packed, int64_t row_bytes,
                              uint8_t* scales, int64_t* events) {
  return for_each_block(rows, spec.bits, packed, row_bytes,
                        [&](const double* x, int64_t n, uint8_t* codes, int64_t block) {
                          mx_block(spec, x, n, codes, scales + block, events);
                        });
}

int32_t choose_scale_mse(const double* x, int64_t n, const MxSpec& spec, int32_t span, int32_t headroom) {
  int64_t bad = 0;
  const double amax = scan_amax(x, n, &bad);
  if (amax == 0) return 127;
  const int base = clamp_int(exponent_of(amax) - spec.emax, -127, 127);
  const int low = clamp_int(base - span, -127, 127), high = clamp_int(base + headroom, -127, 127);
  return best_exponent(spec, x, n, amax, base, low, high) + 127;
}

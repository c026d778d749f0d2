// `mse` for E2M1, blocks of at most 64.
//
// In units of 2**e0, amax = a in [4, 8) and E2M1 has the values 0 .5 1 1.5 2 3 4 6. Then:
//  * a <= 6: the values at e0 + 1 that are at most 6 are among those at e0, so going up loses nothing only if no
//    element is nearest to .5 or 1.5, that is, has code 1 or 3. Where one has, its error grows by at least
//    the distance of two float32 numbers near .25, 2**-26, which the float64 sum of rules.md still sees.
//  * The same from e0 + 1 to e0 + 2 (amax is then below 4 units).
//  * a > 6: e0 and e0 + 1 are compared by sums; e0 - 1 clamps at 3, costs 6a - 27 > 9 at the maximum
//    and gains at most 1/16 at each other element (those below 1): it never wins for 64 elements.
//  * a <= 6: e0 and e0 - 1 are compared where e0 - 1 can win at all: it costs at least 2a - 7 (3 from a = 5 on) at
//    the maximum and gains at most 1/16 per element.
//  * e0 - 2 clamps at 1.5, costs at least 6.25 and gains at most 1/16 per element.
// What a sum in float32 cannot decide, and blocks without codes 1 and 3, are left to mx_block.

// Value of a code that code_e2m1 returned.
inline Floats value_e2m1(Words code) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, .5f, 1, 1.5f, 2, 3, 4, 6);
  return (Floats)_mm512_permutexvar_ps((__m512i)code, values);
#elif defined(__AVX2__)
  const __m256 values = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
  return (Floats)_mm256_permutevar8x32_ps(values, (__m256i)code);
#else
  // codes 0 .. 3: half the code; from 4 on: exponent and mantissa
  const Words q = code & 7u;
  const Floats small = to_floats((Ints)q) * 0.5f;
  return select((Ints)(q < 4u), small, (Floats)((q << 22) + (126u << 23)));
#endif
}

// How much the squared error grows from e0 to e0 + step, in units of 4**e0. The terms are below 8, so the
// float32 sum, in any order, is within doubt(size).
constexpr float doubt(int64_t size) { return static_cast<float>(size * (size + 4)) * 8 * 0x1p-24f; }

inline Floats error_growth(const float* x, int64_t size, float down, bool up) {
  const float step = up ? 2.0f : 0.5f, inverse = up ? 0.5f : 2.0f;
  Floats sum = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats y = (Floats)(load<Words>(x + i) & 0x7FFFFFFFu) * down;
    const Floats here = value_e2m1(code_e2m1(y)), there = value_e2m1(code_e2m1(y * inverse)) * step;
    sum += (there - here) * ((here + there) - (y + y));
  }
  return sum;
}

inline float error_growth_sum(const float* x, int64_t size, float down, bool up) {
  const Floats sum = error_growth(x, size, down, up);
  float all = 0;
  for (int i = 0; i < kLanes; ++i) all += sum[i];
  return all;
}

// The growth of the blocks in `rivals`, to e0 + 1 for those in `up`, else to e0 - 1; 0 for the others. Returns by
// how much it may be wrong.
inline float group_growth(const float* x, int64_t size, const MxGroup& g, uint32_t rivals, uint32_t up,
                          float* growth) {
  Floats sums[kGroup] = {};
  for (uint32_t rest = rivals; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    sums[b] = error_growth(x + b * size, size, g.down[b], up >> b & 1);
  }
  sum_lanes(sums, growth);
  return doubt(size);
}

// Final exponents of the blocks that have more than one candidate; those in doubt become special. Without branches
// on what came out: which blocks these are is as good as random. `estimate` is group_growth, or another that serves;
// where its doubt is too large, `again(b, up)` is the float32 sum.
template <typename Estimate, typename Again>
[[gnu::always_inline]] inline void choose_rivals(const MxVectors& v, int64_t n, int64_t size, MxGroup* g,
                                                 Estimate estimate, Again again) {
  Ints is_up[kGroup / kLanes], is_low[kGroup / kLanes];
  uint32_t up = 0, low = 0, doubtful = 0;
  const float reach = 7.0f + static_cast<float>(size - 1) / 16 + 0.01f;  // e0 - 1 may win if 2a < reach
  for (int i = 0; i < kGroup / kLanes; ++i) {
    const Floats a = load<Floats>((const float*)g->amax + i * kLanes) * load<Floats>(g->down + i * kLanes);
    is_up[i] = (Ints)(a > v.limit);
    is_low[i] = (Ints)(a + a < reach) & (Ints)(a > 0.0f);
    up |= lane_bits(is_up[i]) << i * kLanes;
    low |= lane_bits(is_low[i]) << i * kLanes;
  }
  const uint32_t rivals = (up | low) & ((1u << n) - 1) & ~g->special;
  float growth[kGroup];
  const float wrong = estimate(rivals, up, growth);
  for (int b = 0; b < kGroup; b += kLanes)
    doubtful |= lane_bits((Ints)(magnitude(load<Floats>(growth + b)) < wrong)) << b;
  for (uint32_t rest = doubtful & rivals; rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    growth[b] = again(b, up >> b & 1);
    g->special |= static_cast<uint32_t>(absolute(growth[b]) < doubt(size)) << b;
  }
  for (int i = 0; i < kGroup / kLanes; ++i) {
    const Ints better = (Ints)(load<Floats>(growth + i * kLanes) < 0.0f);
    const Ints byte = load<Ints>(g->byte + i * kLanes) - (better & is_up[i]) + (better & is_low[i]);
    store(g->byte + i * kLanes, byte);
    store(g->down + i * kLanes, (Floats)((254 - byte) << 23));
  }
}

template <int kSize>
inline void choose_mse(const MxVectors& v, const float* x, int64_t n, int64_t size, MxGroup* g) {
  if (kSize) size = kSize;
  choose_rivals(
      v, n, size, g,
      [&](uint32_t rivals, uint32_t up, float* growth) { return group_growth(x, size, *g, rivals, up, growth); },
      [&](int b, bool up) { return error_growth_sum(x + b * size, size, g->down[b], up); });
}

// `mse` of every other element type and size, in float64.
inline void choose_mse_exact(const MxSpec& spec, const float* x, int64_t n, int64_t size, double* wide,
                             MxGroup* g) {
  for (int64_t b = 0; b < n; ++b) {
    if ((g->special >> b & 1) || g->amax[b] == 0) continue;
    for (int64_t i = 0; i < size; ++i) wide[i] = x[b * size + i];
    const double amax = float_of(static_cast<uint32_t>(g->amax[b]));
    const int byte = best_exponent(spec, wide, size, amax, g->byte[b] - 127, spec.min_byte - 127, 127) + 127;
    const bool ordinary = byte >= 24 && byte <= 230;
    g->special |= static_cast<uint32_t>(!ordinary) << b;
    g->byte[b] = ordinary ? byte : 127;
    g->down[b] = float_of(static_cast<uint32_t>(254 - g->byte[b]) << 23);
  }
}

// Blocks of which mx_block must say whether a larger exponent loses nothing; their counts are taken back.
template <int kSize, ElementKind kKind>
inline void recheck_mse(const MxVectors& v, const float* x, int64_t n, int64_t size, const uint8_t* codes,
                        MxGroup* g, MxCounts* counts) {
  if (kSize) size = kSize;
  for (int64_t b = 0; b < n; ++b) {
    if ((g->special >> b & 1) || g->amax[b] == 0 || has_code_1_or_3(codes + b * size, size)) continue;
    MxCounts taken;
    for (int64_t i = 0; i < size; i += kLanes) code_vector<kKind>(v, x + b * size + i, g->down[b], &taken);
    counts->saturated -= taken.saturated;
    counts->zeroed -= taken.zeroed;
    g->special |= 1u << b;
  }
}


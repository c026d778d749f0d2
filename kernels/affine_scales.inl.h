// Scales and offsets of a group of blocks under the plain affine rules, on many lanes.

enum AffineKind { kQ8_0, kQ4_0, kQ4_1, kPlain };

struct AffineGroup {
  int32_t low[kGroup], high[kGroup];  // ordered bits of the ends, or of the largest magnitude
  float inverse[kGroup];              // 1 / d
  float scale[kGroup];                // as stored
  float shift[kGroup];                // q4_1: minimum; plain: zero point
  float base[kGroup];                 // q4_1: minimum as stored
  uint32_t special;
};

struct AffineCounts {
  Ints saturated = {}, zeroed = {};
  int64_t saturated_blocks = 0, zero_blocks = 0;
};

// Floats as integers of the same order, and back: NaNs come out beyond the infinities.
inline Ints ordered(Words u) { return (Ints)(u ^ ((Words)((Ints)u >> 31) & 0x7FFFFFFFu)); }
inline float from_ordered(int32_t v) { return float_of(static_cast<uint32_t>(v ^ (v >> 31 & 0x7FFFFFFF))); }

[[gnu::always_inline]] inline void group_ends(const float* x, int64_t n, int64_t size, AffineGroup* g) {
  Ints low[kGroup], high[kGroup];
  for (int64_t b = 0; b < kGroup; ++b) {
    low[b] = high[b] = Ints{};
    if (b >= n) continue;
    Ints lo = ordered(load<Words>(x + b * size)), hi = lo;
    for (int64_t i = kLanes; i < size; i += kLanes) {
      const Ints v = ordered(load<Words>(x + b * size + i));
      lo = minimum(lo, v);
      hi = maximum(hi, v);
    }
    low[b] = ~lo;
    high[b] = hi;
  }
  largest_lanes(low, g->low);
  largest_lanes(high, g->high);
  for (int b = 0; b < kGroup; ++b) g->low[b] = ~g->low[b];
}

// The first of 32 elements that has the magnitude `amax`, which are its bits, as ggml breaks the tie; 0 if none has.
inline float first_extreme(const float* x, int32_t amax) {
  for (int i = 0; i < 32; i += kLanes) {
    const uint32_t found = lane_bits((Ints)(load<Words>(x + i) << 1) == spread(amax << 1));
    if (found) return x[i + __builtin_ctz(found)];
  }
  return 0;
}

inline Floats from_ordered(Ints v) { return (Floats)((Words)v ^ ((Words)(v >> 31) & 0x7FFFFFFFu)); }

// Scales of the `ggml` presets. `first_extreme(b)`: the first element of the block that has its largest magnitude.
template <AffineKind kKind, typename FirstExtreme>
inline void ggml_scales(int64_t n, AffineGroup* g, uint16_t* scales, uint16_t* offsets, FirstExtreme first_extreme) {
  const Ints infinity = spread(0x7F800000);
  uint32_t special = 0, tied = 0;
  float wanted[kGroup];
  for (int b = 0; b < kGroup; b += kLanes) {
    const Ints high = load<Ints>(g->high + b), low = load<Ints>(g->low + b);
    const Floats hi = from_ordered(high), lo = from_ordered(low);
    Ints odd = high >= infinity;  // NaN and infinities
    Floats d = {};
    if (kKind == kQ8_0) d = hi / 127.0f;
    if (kKind == kQ4_0) {
      odd |= (low <= ~infinity) | ((Ints)(hi == 0.0f) & (Ints)(lo == 0.0f));  // no magnitude to look for
      tied |= lane_bits((Ints)(hi == -lo)) << b;
      d = select((Ints)(hi < -lo), lo, hi) * -0.125f;
    }
    if (kKind == kQ4_1) {
      odd |= (low <= ~infinity) | (Ints)(lo == 0.0f);  // the sign of a zero minimum is that of the first zero
      d = (hi - lo) / 15.0f;
      store(g->shift + b, lo);
      store_half(offsets + b, lo);
      const Floats base = widen_half(offsets + b);
      store(g->base + b, base);
      odd |= (Ints)(((Words)base & 0x7FFFFFFFu) >= 0x7F800000u);
    }
    store(wanted + b, d);
    special |= lane_bits(odd) << b;
  }
  for (uint32_t rest = tied & ~special & ((1u << n) - 1); rest; rest &= rest - 1) {
    const int b = __builtin_ctz(rest);
    wanted[b] = first_extreme(b) / -8.0f;
  }
  for (int b = 0; b < kGroup; b += kLanes) {
    const Floats d = load<Floats>(wanted + b);
    store_half(scales + b, d);
    const Floats s = widen_half(scales + b);
    store(g->scale + b, s);
    store(g->inverse + b, 1.0f / d);
    const Words a = (Words)s & 0x7FFFFFFFu;
    special |= lane_bits((Ints)(a == 0u) | (Ints)(a >= 0x7F800000u)) << b;
  }
  g->special = special & ((1u << n) - 1);
}

typedef float Narrow __attribute__((vector_size(2 * kLanes)));  // as many as Doubles

template <int... kLane>
struct LaneList {};
template <int kCount, int... kLane>
struct CountLanes : CountLanes<kCount - 1, kCount - 1, kLane...> {};
template <int... kLane>
struct CountLanes<0, kLane...> {
  using List = LaneList<kLane...>;
};

// Two halves to one vector, in registers: a vector cannot be loaded at once where two have just been stored.
template <int... kLane>
inline Floats join_halves(Narrow a, Narrow b, LaneList<kLane...>) {
  return __builtin_shufflevector(a, b, kLane...);
}
inline Floats join_halves(const Doubles* v) {
  return join_halves(__builtin_convertvector(v[0], Narrow), __builtin_convertvector(v[1], Narrow),
                     CountLanes<kLanes>::List{});
}

inline Doubles select(Longs mask, Doubles x, Doubles y) { return (Doubles)(((Longs)x & mask) | ((Longs)y & ~mask)); }

// Scale and zero point of blocks with these ends, as stored_scale and minmax_between (affine.inl.h) find them. What
// is unusual has a scale of 1 and a zero point of 0; `usual` says so.
struct PlainScales {
  double qmin, qmax, span, least, past_bits, max;
  bool minmax, include_zero;

  PlainScales(const AffineSpec& spec, const ScaleGrid& grid)
      : qmin(spec.qmin), qmax(spec.qmax), span(spec.rule == 0 ? qmax : qmax - qmin),
        least(pow2(grid.least_exponent)), past_bits(pow2(52 - grid.mantissa_bits) * 1.5), max(grid.max),
        minmax(spec.rule == 1), include_zero(spec.include_zero) {}

  [[gnu::always_inline]] void choose(Doubles lo, Doubles hi, Doubles* scale, Doubles* shift, Longs* usual,
                                     Longs* zero) const {
    // comparisons that NaN fails
    const Longs finite = (Longs)(lo >= -0x1.fffffep127) & (Longs)(hi <= 0x1.fffffep127);
    if (include_zero) lo = minimum(lo, Doubles{}), hi = maximum(hi, Doubles{});
    const Doubles far = maximum(-lo, hi);
    Doubles wanted = (minmax ? hi - lo : far) / span;
    if (minmax) wanted = maximum(select((Longs)(hi == lo), far, wanted), far * 0x1p-30);
    // Rounded to the grid by adding 1.5 * 2**52 steps; a step is a power of two.
    const Doubles power = maximum((Doubles)((Longs)wanted & 0x7FF0000000000000), Doubles{} + least);
    const Doubles s = (wanted + power * past_bits) - power * past_bits;
    Doubles z = {};
    if (minmax) {
      z = qmin - lo / s;
      z = (z + 0x1.8p52) - 0x1.8p52;
      if (include_zero) z = minimum(maximum(z, Doubles{} + qmin), Doubles{} + qmax);
    }
    const double most = max < 0x1p100 ? max : 0x1p100;
    *usual = finite & (Longs)(s <= most) & (Longs)(s >= 0x1p-100) & (Longs)(far <= 300 * s);  // see affine_vector
    if (minmax) *usual &= (Longs)(maximum(z, -z) <= 0x1p20);
    *zero = finite & (Longs)(far == 0);
    *scale = select(*usual, s, Doubles{} + 1);
    *shift = (Doubles)((Longs)z & *usual);
  }
};

// What is unusual, except for blocks of zeros, is left to affine_block.
inline void plain_scales(const AffineSpec& spec, const ScaleGrid& grid, int64_t n, AffineGroup* g,
                         AffineCounts* counts) {
  const PlainScales rule(spec, grid);
  uint32_t odd = 0, zero = 0;
  for (int b = 0; b < kGroup; b += kLanes) {
    const Floats high = from_ordered(load<Ints>(g->high + b));
    const Floats low = spec.rule == 0 ? -high : from_ordered(load<Ints>(g->low + b));
    float lows[kLanes], highs[kLanes];
    store(lows, low), store(highs, high);
    Doubles scale[2], shift[2];
    Longs usual[2], zeros[2];
    for (int h = 0; h < 2; ++h) {
      const Doubles lo = __builtin_convertvector(load<Narrow>(lows + h * (kLanes / 2)), Doubles);
      const Doubles hi = __builtin_convertvector(load<Narrow>(highs + h * (kLanes / 2)), Doubles);
      rule.choose(lo, hi, &scale[h], &shift[h], &usual[h], &zeros[h]);
    }
    const Floats s = join_halves(scale);
    store(g->scale + b, s), store(g->shift + b, join_halves(shift)), store(g->inverse + b, 1.0f / s);
    if (!any((Ints)~(usual[0] & usual[1]))) continue;
    for (int i = 0; i < kLanes; ++i) {
      const int h = i / (kLanes / 2), k = i % (kLanes / 2);
      odd |= static_cast<uint32_t>(!usual[h][k] && !zeros[h][k]) << (b + i);
      zero |= static_cast<uint32_t>(zeros[h][k] != 0) << (b + i);
    }
  }
  const uint32_t blocks = (1u << n) - 1;
  g->special = odd & blocks;
  counts->zero_blocks += __builtin_popcount(zero & blocks);
}

// The scales and zero points of a group, in their types. Those of special blocks are stored again by affine_block.
inline void store_parameters(const AffineSpec& spec, const AffineGroup& g, int64_t n, void* scales, void* offsets,
                             int64_t block) {
  for (int64_t b = 0; spec.offset == 1 && b < n; ++b)
    static_cast<int32_t*>(offsets)[block + b] = static_cast<int32_t>(g.shift[b]);
  if (spec.scale_type == kFloat32) {
    memcpy(static_cast<float*>(scales) + block, g.scale, static_cast<size_t>(n) * 4);
    return;
  }
  uint16_t stored[kGroup];
  for (int b = 0; b < kGroup; b += kLanes) {
    const Floats s = load<Floats>(g.scale + b);
    if (spec.scale_type == kFloat16)
      store_half(stored + b, s);
    else
      store_bfloat16(stored + b, s);
  }
  memcpy(static_cast<uint16_t*>(scales) + block, stored, static_cast<size_t>(n) * 2);
}

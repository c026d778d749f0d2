// The rule `optimal` for scales of 16 bits: all storable scales of a block at once, in float32, with proofs.
//
// For codes from lo .. hi let E(s) be the least error of scale s. It is the least of the parabolas
// |x|^2 - 2 A s + Q s^2 of all code vectors, Q = sum w k k.
//
// Between two scales a < b no vector that wins has a larger Q than the one that wins at a: |clip(rint(x / s))|
// falls as s grows. So E(s) - Q(a) s^2 is a least of concave functions, hence concave, hence above its chord:
//     E(s) >= chord(s) - Q(a) (s - a) (b - s).                                                   (minorant)
// An interval whose minorant lies above the best error found holds no winner. The others are split where the
// minorant is least, until none is left. What remains are the scales within float32's error of the best: if
// they are several, the defined float64 error decides.
//
// The error of float32. Data are scaled by powers of two, s * k is exact (11 + 13 bits), so each term errs by
// some 2^-24 of itself and the sum of a chunk of m by m of those: `relative`. A code may be wrong where x / s
// lies within 2^-23 |x / s| of a half, which costs 2^-22 s |x| at most: `per_scale`. Float64 data that are not
// float32 move the error by 2^-23 sqrt(E |x|^2) <= 2^-20 E + 2^-28 |x|^2. What underflows is less
// than 2^-60 of the energy: `fixed`.

namespace grid_search {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPair = 2 * kLanes;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t Masks __attribute__((vector_size(4 * kLanes)));

inline void load(const float* p, Lanes& v) { memcpy(&v, p, sizeof v); }
inline void store(float* p, const Lanes& v) { memcpy(p, &v, sizeof v); }

constexpr int64_t kChunk = 64;
constexpr float kRound = 0x1.8p23f;    // adding and subtracting it rounds to an integer, halves to even

// The multiply-adds may be fused: that only makes the errors smaller.
#if defined(__AVX512F__)
inline void add_product(Lanes& sum, const Lanes& a, const Lanes& b) { sum = _mm512_fmadd_ps(a, b, sum); }
inline Lanes less_product(const Lanes& v, const Lanes& a, const Lanes& b) { return _mm512_fnmadd_ps(a, b, v); }
inline Lanes rounded(const Lanes& v) { return _mm512_roundscale_ps(v, 0); }
#elif defined(__AVX2__) && defined(__FMA__)
inline void add_product(Lanes& sum, const Lanes& a, const Lanes& b) { sum = _mm256_fmadd_ps(a, b, sum); }
inline Lanes less_product(const Lanes& v, const Lanes& a, const Lanes& b) { return _mm256_fnmadd_ps(a, b, v); }
inline Lanes rounded(const Lanes& v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
inline void add_product(Lanes& sum, const Lanes& a, const Lanes& b) { sum += a * b; }
inline Lanes less_product(const Lanes& v, const Lanes& a, const Lanes& b) { return v - a * b; }
inline Lanes rounded(const Lanes& v) { return (v + kRound) - kRound; }
#endif

inline float sum_lanes(const Lanes& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  float sum = 0;
  for (int j = 0; j < kLanes; ++j) sum += v[j];
  return sum;
#endif
}

// One bit for each lane that is not zero.
inline uint32_t lane_bits(const Masks& v) {
#if defined(__AVX512F__)
  __m512i bits;
  memcpy(&bits, &v, sizeof bits);
  return _mm512_test_epi32_mask(bits, bits);
#elif defined(__AVX2__)
  __m256 bits;
  memcpy(&bits, &v, sizeof bits);
  return static_cast<uint32_t>(_mm256_movemask_ps(bits));
#else
  uint32_t bits = 0;
  for (int j = 0; j < kLanes; ++j) bits |= static_cast<uint32_t>(v[j] & 1) << j;
  return bits;
#endif
}

inline float least_lane(const Lanes& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_ps(v);
#else
  float least = v[0];
  for (int j = 1; j < kLanes; ++j) least = v[j] < least ? v[j] : least;
  return least;
#endif
}

// Errors and Q of `width` vectors of scales; `n` at most kChunk. One vector alone takes its elements in two sums.
template <bool weighted, int width>
inline void chunk_errors(const float* x, const float* w, int64_t n, const float* scales, const float* lows,
                         const float* highs, float* errors, float* squares) {
  constexpr int stride = 3 - width;
  Lanes s[width], lo[width], hi[width], u[width], e[2], q[2];
  for (int j = 0; j < width; ++j) {
    load(scales + j * kLanes, s[j]), load(lows + j * kLanes, lo[j]), load(highs + j * kLanes, hi[j]);
    u[j] = 1.0f / s[j];
  }
  e[0] = e[1] = q[0] = q[1] = Lanes{};
  for (int64_t i = 0; i < n; i += stride) {
    for (int j = 0; j < 2; ++j) {
      const int lane = width == 2 ? j : 0;
      const int64_t at = width == 2 ? i : i + j;  // the array ends in elements of no weight
      const Lanes v = x[at] + Lanes{};
      Lanes k = v * u[lane];
      k = k > lo[lane] ? k : lo[lane];
      k = k < hi[lane] ? k : hi[lane];
      k = rounded(k);
      const Lanes d = less_product(v, s[lane], k);
      if (weighted) {
        const Lanes f = w[at] + Lanes{};
        add_product(e[j], d * f, d);
        add_product(q[j], k * f, k);
      } else {
        add_product(e[j], d, d);
        add_product(q[j], k, k);
      }
    }
  }
  if (width == 2) {
    store(errors, e[0]), store(errors + kLanes, e[1]);
    store(squares, q[0]), store(squares + kLanes, q[1]);
  } else {
    store(errors, e[0] + e[1]), store(squares, q[0] + q[1]);
  }
}

template <bool weighted, int width>
inline void all_errors(const float* x, const float* w, int64_t n, const float* scales, const float* lows,
                       const float* highs, float* errors, float* squares) {
  if (n <= kChunk) return chunk_errors<weighted, width>(x, w, n, scales, lows, highs, errors, squares);
  double e[kPair] = {}, q[kPair] = {};
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = n - i < kChunk ? n - i : kChunk;
    chunk_errors<weighted, width>(x + i, w + i, m, scales, lows, highs, errors, squares);
    for (int j = 0; j < width * kLanes; ++j) e[j] += errors[j], q[j] += squares[j];
  }
  for (int j = 0; j < width * kLanes; ++j)
    errors[j] = static_cast<float>(e[j]), squares[j] = static_cast<float>(q[j]);
}

// Storable scales by number, in ascending order.
inline double scale_at(const ScaleGrid& grid, int64_t index) {
  const int m = grid.mantissa_bits;
  if (index < int64_t{1} << m) return static_cast<double>(index) * grid.smallest();
  const uint64_t base = static_cast<uint64_t>(grid.least_exponent + 1022) << 52;
  return double_of(base + (static_cast<uint64_t>(index) << (52 - m)));
}

// The last scale not above s.
inline int64_t index_below(const ScaleGrid& grid, double s) {
  const int m = grid.mantissa_bits;
  if (s >= grid.max) s = grid.max;
  if (s < pow2(grid.least_exponent)) return static_cast<int64_t>(s / grid.smallest());
  const uint64_t base = static_cast<uint64_t>(grid.least_exponent + 1022) << 52;
  return static_cast<int64_t>((bits_of(s) - base) >> (52 - m));
}

// Codes lo .. hi under scales of one sign. With a zero point, lo = qmin - z; or no limit.
struct Family {
  float sign, lo, hi, z;
};

// No winner is known to be missing between the scales a and b, whose errors and sums are known.
struct Interval {
  int32_t a, b, family;
  float error_a, error_b, squares_a, least, at;  // least of the minorant less all roundings, and where
};

struct GridCandidate {
  int32_t index, family;
  float error, s;
};

constexpr int kEntries = 384, kIntervals = 4096, kCandidates = 1024, kFamilies = 72;

struct GridScratch {
  // Scales of one sweep: known ends and new ones, in order. `open`: entry j and j + 1 enclose an interval.
  float s[kEntries + 32], e[kEntries + 32], q[kEntries + 32], open[kEntries + 32];
  float least[kEntries + 32], at[kEntries + 32];
  int32_t index[kEntries], family[kEntries];
  // The new ones again, and where they stand.
  float new_s[kEntries + 32], new_lo[kEntries + 32], new_hi[kEntries + 32], new_e[kEntries + 32], new_q[kEntries + 32];
  int32_t slot[kEntries];
  Interval intervals[kIntervals];
  GridCandidate candidates[kCandidates];
  Family families[kFamilies];
};

struct GridSearch {
  const ScaleGrid& grid;
  GridScratch& o;
  const float *x, *w;  // scaled by powers of two; without elements of no importance
  int64_t n;
  bool weighted, give_up = false;
  double unit, per_unit;  // of x and of scales, and its inverse
  float energy;        // sum w x x
  float best = 0, best_scale = 0, relative = 0, per_scale = 0, fixed = 0;
  int entries = 0, slots = 0, intervals = 0, candidates = 0, families = 0;
  int64_t work = 0;

  // No true error at or below the best is above this in float32.
  float limit(float s) const { return best * (1 + 2 * relative) + per_scale * (s + best_scale) + fixed; }

  float scale(int64_t index) const {
    const float s = index < int64_t{1} << grid.mantissa_bits
                        ? static_cast<float>(index) * static_cast<float>(grid.smallest())
                        : float_of(static_cast<uint32_t>(index << (23 - grid.mantissa_bits)) +
                                   (static_cast<uint32_t>(126 + grid.least_exponent) << 23));
    return unit == 1 ? s : static_cast<float>(s * unit);
  }

  int add(int family, int64_t index, bool open) {
    const int j = entries++;
    o.s[j] = scale(index);
    o.index[j] = static_cast<int32_t>(index);
    o.family[j] = family;
    o.open[j] = open ? 1.0f : 0.0f;
    return j;
  }
  void add_new(int family, int64_t index, bool open) {
    const int j = slots++, at = add(family, index, open);
    const Family& f = o.families[family];
    o.slot[j] = at;
    o.new_s[j] = f.sign * o.s[at];
    o.new_lo[j] = f.lo;
    o.new_hi[j] = f.hi;
  }
  void add_known(int family, int64_t index, bool open, float e, float q) {
    const int j = add(family, index, open);
    o.e[j] = e;
    o.q[j] = q;
  }

  template <int width>
  void errors_from(int from) {
    if (weighted || (width == 1 && n % 2))
      all_errors<true, width>(x, w, n, o.new_s + from, o.new_lo + from, o.new_hi + from, o.new_e + from,
                              o.new_q + from);
    else
      all_errors<false, width>(x, w, n, o.new_s + from, o.new_lo + from, o.new_hi + from, o.new_e + from,
                               o.new_q + from);
  }

  // Errors of the new scales; lower the best; note the scales that come near it.
  void evaluate() {
    for (int j = 0; j < kPair; j += kLanes) {  // whole vectors
      store(o.new_s + slots + j, o.new_s[0] + Lanes{});
      store(o.new_lo + slots + j, o.new_lo[0] + Lanes{});
      store(o.new_hi + slots + j, o.new_hi[0] + Lanes{});
    }
    for (int from = 0; from < slots; from += kPair) {
      if (slots - from > kLanes) errors_from<2>(from);
      else errors_from<1>(from);
    }
    for (int from = 0; from < slots; from += kLanes) {
      Lanes e;
      load(o.new_e + from, e);
      const float least = least_lane(e);
      if (!(least < best)) continue;
      best = least;
      const float s = o.new_s[from + __builtin_ctz(lane_bits(e == least))];
      best_scale = s < 0 ? -s : s;
    }
    const float base = limit(0);
    for (int from = 0; from < slots; from += kLanes) {
      Lanes e, s;
      load(o.new_e + from, e), load(o.new_s + from, s);
      s = s < 0 ? -s : s;
      for (uint32_t bits = lane_bits(e <= base + per_scale * s); bits; bits &= bits - 1) {
        const int j = from + __builtin_ctz(bits);
        if (j >= slots) break;
        if (candidates == kCandidates) drop_candidates();
        if (candidates == kCandidates) {
          give_up = true;
          return;
        }
        const int at = o.slot[j];
        o.candidates[candidates++] = {o.index[at], o.family[at], o.new_e[j], o.s[at]};
      }
    }
    if (slots == entries) {
      memcpy(o.e, o.new_e, static_cast<size_t>(slots) * sizeof(float));
      memcpy(o.q, o.new_q, static_cast<size_t>(slots) * sizeof(float));
    }
    for (int j = 0; slots < entries && j < slots; ++j) {
      o.e[o.slot[j]] = o.new_e[j];
      asm volatile("");  // a scatter would be slower
      o.q[o.slot[j]] = o.new_q[j];
    }
    work += slots;
    slots = 0;
  }

  void drop_candidates() {
    int kept = 0;
    for (int j = 0; j < candidates; ++j)
      if (o.candidates[j].error <= limit(o.candidates[j].s)) o.candidates[kept++] = o.candidates[j];
    candidates = kept;
  }

  // Keep the open intervals whose minorant comes down to the best, at a scale inside.
  void sieve() {
    o.s[entries] = o.e[entries] = o.q[entries] = 1;
    const float step_factor = static_cast<float>(pow2(-grid.mantissa_bits));
    const float least_step = static_cast<float>(grid.smallest() * unit);
    const float scale_room = per_scale * 2, errors_room = relative * 1.25f + 0x1p-20f, base = limit(0);
    for (int j = 0; j < entries; j += kLanes) {
      Lanes a, b, ea, eb, q, open;
      load(o.s + j, a), load(o.s + j + 1, b);
      load(o.e + j, ea), load(o.e + j + 1, eb);
      load(o.q + j, q), load(o.open + j, open);
      Masks exponent;
      memcpy(&exponent, &a, sizeof a);
      exponent &= 0x7F800000;
      Lanes step;
      memcpy(&step, &exponent, sizeof step);
      step *= step_factor;
      step = step > least_step ? step : least_step + 0 * step;
      const Lanes h = (b - a) * open;
      q *= 1 + 0x1p-16f;
      const Lanes middle = 0.5f * h - (eb - ea) / (2 * q * h + 0x1p-120f);
      Lanes t = middle < h - step ? middle : h - step;
      t = t > step ? t : step;
      const Lanes least = ea + q * t * (t - 2 * middle);
      const Lanes bound = least - (scale_room * b + errors_room * (ea + eb));
      const Masks keep = (h > 1.5f * step) & ((bound > base) == 0);
      store(o.least + j, bound);
      store(o.at + j, t + a);
      for (uint32_t bits = lane_bits(keep); bits; bits &= bits - 1) {
        const int i = j + __builtin_ctz(bits);
        if (i + 1 >= entries) break;
        if (intervals == kIntervals) {
          give_up = true;
          return;
        }
        o.intervals[intervals++] = {o.index[i], o.index[i + 1], o.family[i], o.e[i],
                                    o.e[i + 1], o.q[i],         o.least[i],  o.at[i]};
      }
    }
    entries = 0;
  }

  // Split an interval into pieces whose minorants can fall to some way below the best, or at its least.
  void split(const Interval& v) {
    const float a = scale(v.a), b = scale(v.b);
    const int64_t inside = v.b - v.a - 1;
    const float pieces = (b - a) * __builtin_sqrtf(v.squares_a / (0.6f * best + 0x1p-100f));
    int64_t count = pieces < 30 ? static_cast<int64_t>(pieces) : 30;
    if (count > inside) count = inside;
    add_known(v.family, v.a, true, v.error_a, v.squares_a);
    if (count < 2) {
      int64_t middle = index_below(grid, v.at * per_unit);
      if (middle <= v.a) middle = v.a + 1;
      if (middle >= v.b) middle = v.b - 1;
      add_new(v.family, middle, true);
      if (kLanes > 4 && middle + 1 < v.b) add_new(v.family, middle + 1, true);
    } else {
      for (int64_t j = 1; j <= count; ++j) add_new(v.family, v.a + (inside + 1) * j / (count + 1), true);
    }
    add_known(v.family, v.b, false, v.error_b, 0);
  }

  void sweep() {
    evaluate();
    if (!give_up) sieve();
  }

  void run(int64_t most_work) {
    while (intervals && !give_up) {
      while (intervals && slots < 2 * kPair && entries < kEntries - 34) {
        const Interval v = o.intervals[--intervals];
        if (!(v.least > limit(0))) split(v);
      }
      sweep();
      if (work > most_work) give_up = true;
    }
  }

  // What the ends of the codes alone cost: sum w max(0, x - top, bottom - x)^2.
  float clip_cost(float top, float bottom) const {
    double sum = 0;
    for (int64_t from = 0; from < n; from += kChunk) {
      Lanes part = {};
      const int64_t to = from + kChunk < n ? from + kChunk : n;
      for (int64_t i = from; i < to; i += kLanes) {
        Lanes v, f;
        load(x + i, v), load(w + i, f);
        const Lanes over = v - top, under = bottom - v;
        Lanes d = over > under ? over : under;
        d = d > 0 ? d : 0 * d;
        part += f * d * d;
      }
      sum += sum_lanes(part);
    }
    return static_cast<float>(sum * (1 - 0x1p-16));
  }

  // Below what value the last code of a winner cannot lie: an H with sum w max(0, x - H)^2 above `most`.
  // `flip` mirrors the data.
  float reach(float end, float most, float range, float flip) const {
    float radius = weighted ? range : __builtin_sqrtf(most) * (1 + 0x1p-10f);
    alignas(64) float ends[kPair], costs[kPair];
    for (int tries = 0; tries < 3; ++tries) {
      for (int j = 0; j < kPair; ++j) ends[j] = end - radius * static_cast<float>(j + 1) / kPair;
      Lanes h0, h1;
      load(ends, h0), load(ends + kLanes, h1);
      double sums[kPair] = {};
      for (int64_t from = 0; from < n; from += kChunk) {
        const int64_t to = from + kChunk < n ? from + kChunk : n;
        Lanes c0 = {}, c1 = {};
        for (int64_t i = from; i < to; ++i) {
          const float v = flip * x[i], f = w[i];
          Lanes d0 = v - h0, d1 = v - h1;
          d0 = d0 > 0 ? d0 : 0 * d0, d1 = d1 > 0 ? d1 : 0 * d1;
          c0 += d0 * d0 * f, c1 += d1 * d1 * f;
        }
        store(costs, c0), store(costs + kLanes, c1);
        for (int j = 0; j < kPair; ++j) sums[j] += costs[j];
      }
      for (int j = 0; j < kPair; ++j)
        if (sums[j] * (1 - 0x1p-16) > most) {
          if (j > 0 || tries == 2) return ends[j];
          radius /= kPair;  // look more closely
          break;
        }
    }
    return -HUGE_REACH;
  }
  static constexpr float HUGE_REACH = 0x1p60f;

  // Sixteen scales about the one that just fits, and the last; false where numbers of scales are no logarithms.
  bool seed_around(int family, int64_t center, int64_t end) {
    static const int32_t kOffsets[16] = {-405, -258, -172, -107, -45, 15, 72, 127, 194, 257, 330, 410, 518, 647, 827, 827};
    const int shift = 10 - grid.mantissa_bits;
    const int64_t from = center + (kOffsets[0] >> shift), to = center + (kOffsets[15] >> shift);
    if (from < int64_t{1} << grid.mantissa_bits || to >= index_below(grid, grid.max) || unit != 1) return false;
    if (end < to) end = to;
    const Family& f = o.families[family];
    const int at = entries, first = slots;
    for (int j = 0; j < 16; ++j) {
      const int32_t index = j < 15 ? static_cast<int32_t>(center) + (kOffsets[j] >> shift) : static_cast<int32_t>(end);
      const float s = float_of((static_cast<uint32_t>(index) << (23 - grid.mantissa_bits)) +
                               (static_cast<uint32_t>(126 + grid.least_exponent) << 23));
      o.index[at + j] = index;
      o.s[at + j] = s;
      o.family[at + j] = family;
      o.open[at + j] = j < 15 ? 1.0f : 0.0f;
      o.slot[first + j] = at + j;
      o.new_s[first + j] = f.sign * s;
      o.new_lo[first + j] = f.lo;
      o.new_hi[first + j] = f.hi;
    }
    entries += 16;
    slots += 16;
    return true;
  }

  // Scales from a to b, `pieces` intervals of equal ratio nearly.
  void seed(int family, int64_t a, int64_t b, int pieces) {
    if (entries + pieces + 2 > kEntries) sweep();
    int64_t last = a;
    for (int j = 1; j < pieces; ++j) {
      const int64_t next = a + (b - a) * j / pieces;
      if (next <= last || next >= b) continue;
      add_new(family, last, true);
      last = next;
    }
    add_new(family, last, b > last);
    if (b > last) add_new(family, b, false);
  }

  int add_family(float sign, double lo, double hi, double z) {
    if (families == kFamilies) {
      give_up = true;
      return 0;
    }
    o.families[families] = {sign, static_cast<float>(lo), static_cast<float>(hi), static_cast<float>(z)};
    return families++;
  }

  int64_t storable(double s) const {
    const int64_t i = index_below(grid, s);
    return i < 1 ? 1 : i;
  }
};

// Least and greatest element, sum w |x| and sum w x x, nearly.
inline void extremes(const float* x, const float* w, int64_t n, float* lo, float* hi, double* sum, double* squares) {
  Lanes low, high;
  load(x, low), load(x, high);
  *sum = *squares = 0;
  for (int64_t from = 0; from < n; from += kChunk) {
    Lanes part = {}, square = {};
    const int64_t to = from + kChunk < n ? from + kChunk : n;
    for (int64_t i = from; i < to; i += kLanes) {
      Lanes v, f;
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

struct GridMemory {
  Scratch<float> x, w;
  Scratch<GridScratch> search;
  explicit GridMemory(int64_t n) : x(n + 16), w(n + 16), search(1) {}
  bool ok() const { return x.data && w.data && search.data; }
};

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
  Masks sum = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    Lanes v, f;
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
  GridSearch g{grid, *memory.search.data, xs, ws, m, w != nullptr, false, unit, 1 / unit, static_cast<float>(energy)};
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

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

constexpr int kPair = 2 * kLanes;
constexpr int64_t kChunk = 64;

inline void load(const float* p, Floats& v) { v = blockscale::load<Floats>(p); }

inline float least_lane(const Floats& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_ps((__m512)v);
#else
  float least = v[0];
  for (int j = 1; j < kLanes; ++j) least = v[j] < least ? v[j] : least;
  return least;
#endif
}

inline float sum_lanes(const Floats& v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int j = 0; j < kLanes; ++j) sum += v[j];
  return sum;
#endif
}

// Errors and Q of `width` vectors of scales; `n` at most kChunk. One vector alone takes its elements in two sums.
template <bool weighted, int width>
inline void chunk_errors(const float* x, const float* w, int64_t n, const float* scales, const float* lows,
                         const float* highs, float* errors, float* squares) {
  constexpr int stride = 3 - width;
  Floats s[width], lo[width], hi[width], u[width], e[2], q[2];
  for (int j = 0; j < width; ++j) {
    load(scales + j * kLanes, s[j]), load(lows + j * kLanes, lo[j]), load(highs + j * kLanes, hi[j]);
    u[j] = 1.0f / s[j];
  }
  e[0] = e[1] = q[0] = q[1] = Floats{};
  for (int64_t i = 0; i < n; i += stride) {
    for (int j = 0; j < 2; ++j) {
      const int lane = width == 2 ? j : 0;
      const int64_t at = width == 2 ? i : i + j;  // the array ends in elements of no weight
      const Floats v = x[at] + Floats{};
      Floats k = v * u[lane];
      k = k > lo[lane] ? k : lo[lane];
      k = k < hi[lane] ? k : hi[lane];
      k = rounded(k);
      const Floats d = less_product(v, s[lane], k);
      if (weighted) {
        const Floats f = w[at] + Floats{};
        e[j] = plus_product(e[j], d * f, d);
        q[j] = plus_product(q[j], k * f, k);
      } else {
        e[j] = plus_product(e[j], d, d);
        q[j] = plus_product(q[j], k, k);
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
      store(o.new_s + slots + j, o.new_s[0] + Floats{});
      store(o.new_lo + slots + j, o.new_lo[0] + Floats{});
      store(o.new_hi + slots + j, o.new_hi[0] + Floats{});
    }
    for (int from = 0; from < slots; from += kPair) {
      if (slots - from > kLanes) errors_from<2>(from);
      else errors_from<1>(from);
    }
    for (int from = 0; from < slots; from += kLanes) {
      Floats e;
      load(o.new_e + from, e);
      const float least = least_lane(e);
      if (!(least < best)) continue;
      best = least;
      const float s = o.new_s[from + __builtin_ctz(lane_bits(e == least))];
      best_scale = s < 0 ? -s : s;
    }
    const float base = limit(0);
    for (int from = 0; from < slots; from += kLanes) {
      Floats e, s;
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
      Floats a, b, ea, eb, q, open;
      load(o.s + j, a), load(o.s + j + 1, b);
      load(o.e + j, ea), load(o.e + j + 1, eb);
      load(o.q + j, q), load(o.open + j, open);
      Ints exponent;
      memcpy(&exponent, &a, sizeof a);
      exponent &= 0x7F800000;
      Floats step;
      memcpy(&step, &exponent, sizeof step);
      step *= step_factor;
      step = step > least_step ? step : least_step + 0 * step;
      const Floats h = (b - a) * open;
      q *= 1 + 0x1p-16f;
      const Floats middle = 0.5f * h - (eb - ea) / (2 * q * h + 0x1p-120f);
      Floats t = middle < h - step ? middle : h - step;
      t = t > step ? t : step;
      const Floats least = ea + q * t * (t - 2 * middle);
      const Floats bound = least - (scale_room * b + errors_room * (ea + eb));
      const Ints keep = (h > 1.5f * step) & ((bound > base) == 0);
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
      Floats part = {};
      const int64_t to = from + kChunk < n ? from + kChunk : n;
      for (int64_t i = from; i < to; i += kLanes) {
        Floats v, f;
        load(x + i, v), load(w + i, f);
        const Floats over = v - top, under = bottom - v;
        Floats d = over > under ? over : under;
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
      Floats h0, h1;
      load(ends, h0), load(ends + kLanes, h1);
      double sums[kPair] = {};
      for (int64_t from = 0; from < n; from += kChunk) {
        const int64_t to = from + kChunk < n ? from + kChunk : n;
        Floats c0 = {}, c1 = {};
        for (int64_t i = from; i < to; ++i) {
          const float v = flip * x[i], f = w[i];
          Floats d0 = v - h0, d1 = v - h1;
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
    static const int32_t kOffsets[16] = {-405, -258, -172, -107, -45, 15,  72,  127,
                                         194,  257,  330,  410,  518, 647, 827, 827};
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

}  // namespace grid_search

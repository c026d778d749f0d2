// The rule `optimal` on a grid of scales (optimal_grid.inl.h): errors of many scales of a block at once, the numbers of
// scales, and what a search remembers.

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

// A block of the search, scaled by powers of two, without elements of no importance.
struct GridBlock {
  const float *x, *w;
  int64_t n;
  bool weighted;

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
};

}  // namespace grid_search

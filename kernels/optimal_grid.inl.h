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

#include "optimal_errors.inl.h"

namespace grid_search {

struct GridSearch : GridBlock {
  const ScaleGrid& grid;
  GridScratch& o;
  bool give_up = false;
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

// The rule `optimal` for codes of 4 bits and scales of 16, many blocks at once: a lane for each.
//
// The same proofs as in optimal_grid.inl.h (minorant, limits of float32), arranged otherwise: all blocks evaluate
// the same seeds (optimal_signed.inl.h, optimal_zero.inl.h); the intervals that may hold a better scale go to one
// list for all blocks and are split until none is left.

namespace group_search {

constexpr int kSets = 2, kBlocks = kSets * kLanes;  // vectors of blocks
constexpr int kRoom = 1024;   // intervals at a time
constexpr int kFound = 1024;  // scales near the best
constexpr int kRounds = 40;

// Lane j of the result: number index[j] of the kBlocks in v; higher bits of an index mean nothing.
inline Floats pick(const Floats* v, Ints index) {
#if defined(__AVX512F__)
  return (Floats)_mm512_permutex2var_ps((__m512)v[0], (__m512i)index, (__m512)v[1]);
#elif defined(__AVX2__)
  const __m256 a = _mm256_permutevar8x32_ps((__m256)v[0], (__m256i)index);
  const __m256 b = _mm256_permutevar8x32_ps((__m256)v[1], (__m256i)index);
  return (Floats)_mm256_blendv_ps(a, b, (__m256)(index << 28));
#else
  Floats picked;
  for (int i = 0; i < kLanes; ++i) picked[i] = v[(index[i] & kLanes) != 0][index[i] & (kLanes - 1)];
  return picked;
#endif
}

inline Words sign_of(Floats v) { return (Words)v & 0x80000000u; }
inline Ints lane_numbers() {
  Ints numbers;
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

// The kept lanes of v, put together at p.
inline void keep_lanes(void* p, Ints v, Ints mask) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(_mm512_movepi32_mask((__m512i)mask), (__m512i)v));
#else
  int32_t* out = static_cast<int32_t*>(p);
  for (uint32_t rest = lane_bits(mask); rest; rest &= rest - 1) *out++ = v[__builtin_ctz(rest)];
#endif
}

// Scales, their errors and sums of squared codes, a lane for each.
struct Scales {
  Floats s, error, squares;
};

// Codes qmin and qmax.
struct Ends {
  Floats lo, hi;
};

struct Sums {
  Floats error = {}, squares = {};
  [[gnu::always_inline]] void add(const Ends& ends, bool clips, Floats v, Floats s, Floats inverse) {
    Floats k = v * inverse;
    if (clips) k = minimum(maximum(k, ends.lo), ends.hi);
    k = rounded(k);
    const Floats d = less_product(v, s, k);
    error = plus_product(error, d, d);
    squares = plus_product(squares, k, k);
  }
};

// One vector of blocks, `kMany` scales for each. `kClips`: codes may lie beyond the ends.
template <int kMany, bool kClips>
inline void all_errors(const Floats* x, int64_t n, const Ends& ends, Scales* out) {
  Floats inverse[kMany];
  Sums sums[kMany], more;
  for (int j = 0; j < kMany; ++j) inverse[j] = 1.0f / out[j].s;
  for (int64_t i = 0; i < n; i += 2) {
    const Floats v = x[i * kSets], u = x[(i + 1) * kSets];
    for (int j = 0; j < kMany; ++j) {
      sums[j].add(ends, kClips, v, out[j].s, inverse[j]);
      (kMany == 1 ? more : sums[j]).add(ends, kClips, u, out[j].s, inverse[j]);
    }
  }
  for (int j = 0; j < kMany; ++j) out[j].error = sums[j].error, out[j].squares = sums[j].squares;
  if (kMany == 1) out->error += more.error, out->squares += more.squares;
}

// Scales of any blocks: `block` numbers them.
template <int kMany>
inline void picked_errors(const Floats* x, int64_t n, const Ends* ends, const Ints* block, Scales* out) {
  Floats inverse[kMany];
  Sums sums[kMany][2];
  for (int j = 0; j < kMany; ++j) inverse[j] = 1.0f / out[j].s;
  for (int64_t i = 0; i < n; i += 2)
    for (int j = 0; j < kMany; ++j)
      for (int k = 0; k < 2; ++k)
        sums[j][k].add(ends[j], true, pick(x + (i + k) * kSets, block[j]), out[j].s, inverse[j]);
  for (int j = 0; j < kMany; ++j) {
    out[j].error = sums[j][0].error + sums[j][1].error;
    out[j].squares = sums[j][0].squares + sums[j][1].squares;
  }
}

// A block and what belongs to a scale of it, in one word: the number in the lowest bits, the high bit for far
// scales, from bit 8 up the zero point plus kNoShift; nothing there if no code is clipped.
constexpr int kNoShift = 512;
constexpr float kNoEnd = 0x1p20f;

// Intervals between scales whose errors are known. `a` and `b`: bits of magnitudes.
struct Intervals {
  int32_t block[kRoom + 16], a[kRoom + 16], b[kRoom + 16];
  float error_a[kRoom + 16], error_b[kRoom + 16], squares[kRoom + 16], at[kRoom + 16];
  int count;
};

struct Memory {
  Floats x[kLargestBlock * kSets];  // element i of the blocks of set j: x[i * kSets + j]
  float floats[kBlocks * kLargestBlock];
  float best[kBlocks], best_scale[kBlocks];  // errors of the blocks, and the magnitudes of their scales
  Intervals lists[2];
  // Scales whose errors come near the best.
  int32_t found_block[kFound + 16];
  float found_scale[kFound + 16], found_error[kFound + 16];
  int found;
};

// Its memory, with vectors where they belong.
struct Room {
  Scratch<uint8_t> bytes;
  Room() : bytes(sizeof(Memory) + alignof(Memory)) {}
  Memory& memory() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(bytes.data) + alignof(Memory) - 1;
    return *reinterpret_cast<Memory*>(at / alignof(Memory) * alignof(Memory));
  }
};

// `kZero`: codes are clipped according to the zero point of the interval.
template <bool kZero>
struct Search {
  Memory& m;
  int64_t n;
  int mantissa_shift;  // bits of a float below the scale's last
  float relative;
  Ends ends;
  Floats energy[kSets], per_scale[kSets], fixed[kSets];
  Floats best[kSets], limit_at_zero[kSets];  // least errors; limit of errors, to which per_scale * s is added
  bool given_up = false;

  Search(const AffineSpec& spec, const ScaleGrid& grid, int64_t count, Memory& memory)
      : m(memory), n(count), mantissa_shift(23 - grid.mantissa_bits) {
    relative = static_cast<float>(n + 8) * 0x1p-24f;
    ends = {spread(static_cast<float>(spec.qmin)), spread(static_cast<float>(spec.qmax))};
    m.found = m.lists[0].count = 0;
    for (int i = 0; i < kBlocks; ++i) m.best[i] = m.best_scale[i] = 1;
    for (int j = 0; j < kSets; ++j) energy[j] = per_scale[j] = fixed[j] = spread(1.0f);
  }

  Ends ends_of(Ints block) const {
    if (!kZero) return ends;
    const Ints code = (block >> 8) & 0xFFFF, free = code == 0;
    const Floats z = to_floats(code - kNoShift);
    return {select(free, spread(-kNoEnd), ends.lo - z), select(free, spread(kNoEnd), ends.hi - z)};
  }

  Floats storable(Floats s) const { return (Floats)((Words)s >> mantissa_shift << mantissa_shift); }

  // No true error at or below that of scale s is above this in float32, less per_scale times the other scale.
  Floats limit(Floats error, Floats s, Floats room) const { return error * (1 + 2 * relative) + room * s; }

  void set_limit() {
    for (int j = 0; j < kSets; ++j) {
      const Floats s = load<Floats>(m.best_scale + j * kLanes);
      best[j] = load<Floats>(m.best + j * kLanes);
      limit_at_zero[j] = limit(best[j], s, per_scale[j]) + fixed[j];
    }
  }

  Ints is_near(const Scales& v, Ints block) const {
    return (Ints)(v.error <= plus_product(pick(limit_at_zero, block), pick(per_scale, block), magnitude(v.s)));
  }

  void lower(const Scales& v, Ints block, Ints better) {
    alignas(64) float errors[kLanes], scales[kLanes];
    alignas(64) int32_t blocks[kLanes];
    store(errors, v.error), store(scales, magnitude(v.s)), store(blocks, block & (kBlocks - 1));
    for (uint32_t rest = lane_bits(better); rest; rest &= rest - 1) {
      const int i = __builtin_ctz(rest), b = blocks[i];
      m.best_scale[b] = errors[i] < m.best[b] ? scales[i] : m.best_scale[b];
      m.best[b] = errors[i] < m.best[b] ? errors[i] : m.best[b];
    }
  }

  // Note the scales that come near the best.
  void note(const Scales& v, Ints block, Ints near) {
    const int count = __builtin_popcount(lane_bits(near));
    if (!count) return;
    if (m.found + count > kFound) drop_found();
    if (m.found + count > kFound) {
      given_up = true;
      return;
    }
    keep_lanes(m.found_block + m.found, block, near);
    keep_lanes(m.found_scale + m.found, (Ints)v.s, near);
    keep_lanes(m.found_error + m.found, (Ints)v.error, near);
    const Ints better = near & (Ints)(v.error < pick(best, block));
    if (any(better)) lower(v, block, better);
    m.found += count;
  }

  void note_all(const Scales* seeds, int count, Ints block, Ints live) {
    Ints near = {};
    for (int j = 0; j < count; ++j) near |= is_near(seeds[j], block) & live;
    for (int j = 0; any(near) && j < count; ++j) note(seeds[j], block, is_near(seeds[j], block) & live);
  }

  static Scales least_of(const Scales* seeds, int count) {
    Scales least = seeds[0];
    for (int j = 1; j < count; ++j) {
      const Ints less = (Ints)(seeds[j].error < least.error);
      least.error = select(less, seeds[j].error, least.error);
      least.s = select(less, seeds[j].s, least.s);
      least.squares = select(less, seeds[j].squares, least.squares);
    }
    return least;
  }

  // The best scale of the codes of a scale: A / Q, from E = |x|^2 - 2 A s + Q s^2.
  Floats fitted_to(int set, const Scales& v) const {
    const Floats s = 0.5f * ((energy[set] - v.error) / (v.s * v.squares) + v.s);
    return storable((Floats)((Words)s + (1u << (mantissa_shift - 1))));
  }

  // The first limit of a set, from the best seed and the scale that fits it.
  void start(int set, const Scales& least, const Scales& fitted, Ints block, Ints live) {
    const Ints less = (Ints)(fitted.error < least.error);
    store(m.best + set * kLanes, select(less, fitted.error, least.error));
    store(m.best_scale + set * kLanes, magnitude(select(less, fitted.s, least.s)));
    set_limit();
    note(fitted, block, is_near(fitted, block) & live);
  }

  void drop_found() {
    int kept = 0;
    set_limit();
    for (int i = 0; i < m.found; i += kLanes) {
      const Ints block = load<Ints>(m.found_block + i);
      const Floats s = load<Floats>(m.found_scale + i), error = load<Floats>(m.found_error + i);
      const Ints keep = is_near({s, error, error}, block) & (lane_numbers() < m.found - i);
      keep_lanes(m.found_block + kept, block, keep);  // never beyond what has been read
      keep_lanes(m.found_scale + kept, (Ints)s, keep);
      keep_lanes(m.found_error + kept, (Ints)error, keep);
      kept += __builtin_popcount(lane_bits(keep));
    }
    m.found = kept;
  }

  // Add the intervals whose minorant comes down to a limit at a scale inside. `limit`, `room`: of the blocks.
  [[gnu::always_inline]] void sieve(Intervals* list, Ints block, Ints a, Ints b, Floats ea, Floats eb, Floats q,
                                    Floats limit, Floats room, Ints valid) {
    const Floats from = (Floats)a, to = (Floats)b, h = to - from, steep = q * (1 + 0x1p-16f);
    const Floats step =
        (Floats)((Words)a & 0x7F800000u) * float_of(static_cast<uint32_t>(104 + mantissa_shift) << 23);
    const Floats middle = 0.5f * h - (eb - ea) / (2 * steep * h + 0x1p-120f);
    const Floats t = maximum(minimum(middle, h - step), step);
    const Floats least = ea + steep * t * (t - 2 * middle);
    const Floats errors = 2 * room * to + (relative * 1.25f + 0x1p-20f) * (ea + eb);
    const Ints inside = (b - a) > spread(1 << mantissa_shift);
    const Ints keep = (Ints)(least - errors <= limit) & inside & valid;
    const int count = __builtin_popcount(lane_bits(keep)), at = list->count;
    if (!count) return;
    if (at + count > kRoom) {
      given_up = true;
      return;
    }
    keep_lanes(list->block + at, block, keep);
    keep_lanes(list->a + at, a, keep);
    keep_lanes(list->b + at, b, keep);
    keep_lanes(list->error_a + at, (Ints)ea, keep);
    keep_lanes(list->error_b + at, (Ints)eb, keep);
    keep_lanes(list->squares + at, (Ints)q, keep);
    keep_lanes(list->at + at, (Ints)(from + t), keep);
    list->count = at + count;
  }

  // Split intervals where their minorants are least; what may still hold the best goes to the other list.
  template <int kMany>
  void split(const Intervals& from, int at, Intervals* to) {
    Ints valid[kMany], block[kMany], a[kMany], b[kMany], middle[kMany];
    Scales v[kMany];
    Ends of[kMany];
    const Ints one = spread(1 << mantissa_shift);
    for (int j = 0; j < kMany; ++j, at += kLanes) {
      valid[j] = lane_numbers() < from.count - at;
      block[j] = load<Ints>(from.block + at);
      a[j] = load<Ints>(from.a + at), b[j] = load<Ints>(from.b + at);
      middle[j] = maximum(minimum((Ints)storable(load<Floats>(from.at + at)), b[j] - one), a[j] + one);
      const Words bits = (Words)middle[j] | ((Words)block[j] & 0x80000000u);
      v[j].s = (Floats)select(valid[j], bits, (Words)spread(1.0f));
      of[j] = ends_of(block[j]);
    }
    picked_errors<kMany>(m.x, n, of, block, v);
    set_limit();
    at -= kMany * kLanes;
    for (int j = 0; j < kMany; ++j, at += kLanes) {
      const Floats ea = load<Floats>(from.error_a + at), eb = load<Floats>(from.error_b + at);
      const Floats q = load<Floats>(from.squares + at), room = pick(per_scale, block[j]);
      const Floats own = limit(v[j].error, (Floats)middle[j], room) + pick(fixed, block[j]);
      const Floats least = minimum(own, pick(limit_at_zero, block[j]));
      sieve(to, block[j], a[j], middle[j], ea, v[j].error, q, least, room, valid[j]);
      sieve(to, block[j], middle[j], b[j], v[j].error, eb, v[j].squares, least, room, valid[j]);
      note(v[j], block[j], is_near(v[j], block[j]) & valid[j]);
    }
  }

  void split_all() {
    int now = 0;
    for (int round = 0; m.lists[now].count && !given_up; ++round, now = 1 - now) {
      given_up = round == kRounds;
      const Intervals& from = m.lists[now];
      m.lists[1 - now].count = 0;
      int at = 0;
      for (; at + kLanes < from.count; at += 2 * kLanes) split<2>(from, at, &m.lists[1 - now]);
      if (at < from.count) split<1>(from, at, &m.lists[1 - now]);
    }
  }
};

}  // namespace group_search

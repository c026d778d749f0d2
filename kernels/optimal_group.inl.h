// The rule `optimal` for codes of 4 bits and scales of 16, many blocks at once: a lane for each.
//
// As in optimal_grid.inl.h (whose limits of float32 hold here), intervals between scales that may hold a better one
// are split until none is left; they stand in one list for all blocks. The minorant is another, which needs no sums
// of squares. With u = 1 / s, E(s) = |x|^2 - 2 A s + Q s^2 is u^-2 (|x|^2 u^2 - 2 A u + Q), so E u^2 - |x|^2 u^2 is a
// least of functions linear in u, hence concave, hence above its chord between two scales a < b. Back in s:
//     E(s) >= the parabola through (0, |x|^2), (a, E(a)), (b, E(b)),                             (Minorant)
// which is E where no code changes. It grows with E(a) and E(b), so lower bounds of them will do: an error of E(a)
// counts s (b - s) / (a (b - a)) times, 1.6 times at most as b <= 5 a, and one of E(b) at most once.

namespace group_search {

constexpr int kRoom = 1024;   // intervals at a time
constexpr int kFound = 1024;  // scales near the best
constexpr int kRounds = 40;

// A block and what belongs to a scale of it, in one word: the number in the lowest bits, the high bit for far
// scales, from bit 8 up the zero point plus kNoShift; nothing there if no code is clipped.
constexpr int kNoShift = 512;
constexpr float kNoEnd = 0x1p20f;

// Intervals between scales whose errors, or lower bounds of them, are known. `a` and `b`: bits of magnitudes.
struct Intervals {
  int32_t block[kRoom + 16], a[kRoom + 16], b[kRoom + 16];
  float error_a[kRoom + 16], error_b[kRoom + 16];
  int count;
};

struct Memory {
  Floats x[kLargestBlock * kSets];  // element i of the blocks of set j: x[i * kSets + j]
  Words pairs[kLargestBlock / 2];
  float floats[kBlocks * kLargestBlock];
  float best[kBlocks], best_scale[kBlocks];  // errors of the blocks, and the magnitudes of their scales
  Intervals lists[2];
  // Scales whose errors come near the best.
  int32_t found_block[kFound + 16];
  float found_scale[kFound + 16], found_error[kFound + 16];
  int found;

  // The blocks that come next are asked for in parts: all at once, that would take as long as it saves.
  static constexpr int kParts = 16;
  const char* next;
  int64_t part;  // bytes
  [[gnu::always_inline]] void ask() {
    for (int64_t i = 0; i < part; i += 64) __builtin_prefetch(next + i);
    next += part;
  }
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

// The storable scales between a and b (bits), which need not be storable themselves.
struct Inside {
  Ints first, last;
  Inside(Ints a, Ints b, int shift)
      : first((a + spread(1 << shift)) >> shift << shift), last((b - spread(1)) >> shift << shift) {}
};

// Where the parabola of the top comment is least inside, and its value. `top`: |x|^2 or more, enough so that the
// rounding of the products with it does not count.
struct Minorant {
  Floats at, least;
  [[gnu::always_inline]] Minorant(const Inside& inside, Floats a, Floats b, Floats ea, Floats eb, Floats top) {
    const Floats h = b - a, product = a * b, inverse = reciprocal(h * product), rise = eb - ea;
    const Floats bend = maximum(inverse * h * h * (rise * a + (top - ea) * h), spread(0x1p-100f));
    const Floats middle = h * (0.5f - 0.5f * rise * coarse_reciprocal(bend));
    at = minimum(maximum(a + middle, (Floats)inside.first), (Floats)inside.last);
    const Floats unit = inverse * product, part = (at - a) * unit, rest = (b - at) * unit;
    least = ea + part * (rise - bend * rest);
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
  Floats energy[kSets], energy_top[kSets];  // squared length of the data, and an upper bound of it
  Floats per_scale[kSets], fixed[kSets];
  Floats best[kSets], limit_at_zero[kSets];  // least errors; limit of errors, to which per_scale * s is added
  bool given_up = false, stale = true;  // stale: the limits do not follow from the errors in memory

  Search(const AffineSpec& spec, const ScaleGrid& grid, int64_t count, Memory& memory)
      : m(memory), n(count), mantissa_shift(23 - grid.mantissa_bits) {
    relative = static_cast<float>(n + 8) * 0x1p-24f;
    ends = {spread(static_cast<float>(spec.qmin)), spread(static_cast<float>(spec.qmax))};
    m.found = m.lists[0].count = m.lists[1].count = 0;
    for (int i = 0; i < kBlocks; ++i) m.best[i] = m.best_scale[i] = 1;
    for (int j = 0; j < kSets; ++j) energy[j] = energy_top[j] = per_scale[j] = fixed[j] = spread(1.0f);
  }

  Ends ends_of(Ints block) const {
    if (!kZero) return ends;
    const Ints code = (block >> 8) & 0xFFFF, free = code == 0;
    const Floats z = to_floats(code - kNoShift);
    return {select(free, spread(-kNoEnd), ends.lo - z), select(free, spread(kNoEnd), ends.hi - z)};
  }

  Floats storable(Floats s) const { return (Floats)((Words)s >> mantissa_shift << mantissa_shift); }
  Floats nearest_storable(Floats s) const { return storable((Floats)((Words)s + (1u << (mantissa_shift - 1)))); }

  // No true error at or below that of scale s is above this in float32, less per_scale times the other scale.
  Floats limit(Floats error, Floats s, Floats room) const { return error * (1 + 2 * relative) + room * s; }

  void set_limit() {
    if (!stale) return;
    stale = false;
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
    stale = true;
    for (uint32_t rest = lane_bits(better); rest; rest &= rest - 1) {
      const int i = __builtin_ctz(rest), b = blocks[i];
      m.best_scale[b] = errors[i] < m.best[b] ? scales[i] : m.best_scale[b];
      m.best[b] = errors[i] < m.best[b] ? errors[i] : m.best[b];
    }
  }

  // Scales of which `error` bounds the errors from below.
  void keep(const Scales& v, Ints block, Ints lanes) {
    const int count = __builtin_popcount(lane_bits(lanes));
    if (m.found + count > kFound) drop_found();
    if (m.found + count > kFound) {
      given_up = true;
      return;
    }
    keep_lanes(m.found_block + m.found, block, lanes);
    keep_lanes(m.found_scale + m.found, (Ints)v.s, lanes);
    keep_lanes(m.found_error + m.found, (Ints)v.error, lanes);
    m.found += count;
  }

  // Note the scales that come near the best.
  void note(const Scales& v, Ints block, Ints near) {
    if (!any(near)) return;
    keep(v, block, near);
    const Ints better = near & (Ints)(v.error < pick(best, block));
    if (any(better)) lower(v, block, better);
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
    return nearest_storable(s);
  }

  // The first limit of a set; `error`: an upper bound.
  void start(int set, const Scales& first) {
    store(m.best + set * kLanes, first.error);
    store(m.best_scale + set * kLanes, magnitude(first.s));
    stale = true;
    set_limit();
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

  // Add the intervals whose minorant comes down to a limit at a storable scale inside. `room`: of the blocks.
  [[gnu::always_inline]] void sieve(Intervals* list, Ints block, Ints a, Ints b, Floats ea, Floats eb, Floats top,
                                    Floats limit, Floats room, Ints valid) {
    const Inside inside(a, b, mantissa_shift);
    const Minorant low(inside, (Floats)a, (Floats)b, ea, eb, top);
    const Floats errors = 2 * room * (Floats)b + (relative * 1.6f + 0x1p-20f) * (ea + eb);
    const Ints keep = (Ints)(low.least - errors <= limit) & (inside.first <= inside.last) & valid;
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
    list->count = at + count;
  }

  // Split intervals where their minorants are least; what may still hold the best goes to the other list.
  template <int kMany>
  void split(const Intervals& from, int at, Intervals* to) {
    Ints valid[kMany], block[kMany], a[kMany], b[kMany], middle[kMany];
    Floats ea[kMany], eb[kMany], top[kMany];
    Scales v[kMany];
    Ends of[kMany];
    for (int j = 0; j < kMany; ++j, at += kLanes) {
      valid[j] = lane_numbers() < from.count - at;
      block[j] = load<Ints>(from.block + at);
      a[j] = load<Ints>(from.a + at), b[j] = load<Ints>(from.b + at);
      ea[j] = load<Floats>(from.error_a + at), eb[j] = load<Floats>(from.error_b + at);
      top[j] = pick(energy_top, block[j]);
      const Inside inside(a[j], b[j], mantissa_shift);
      const Minorant low(inside, (Floats)a[j], (Floats)b[j], ea[j], eb[j], top[j]);
      middle[j] = maximum((Ints)storable(low.at), inside.first);
      const Words bits = (Words)middle[j] | ((Words)block[j] & 0x80000000u);
      v[j].s = (Floats)select(valid[j], bits, (Words)spread(1.0f));
      of[j] = ends_of(block[j]);
    }
    picked_errors<kMany>(m.x, n, of, block, v);
    set_limit();
    for (int j = 0; j < kMany; ++j) {
      const Floats room = pick(per_scale, block[j]);
      const Floats own = limit(v[j].error, (Floats)middle[j], room) + pick(fixed, block[j]);
      const Floats least = minimum(own, pick(limit_at_zero, block[j]));
      sieve(to, block[j], a[j], middle[j], ea[j], v[j].error, top[j], least, room, valid[j]);
      sieve(to, block[j], middle[j], b[j], v[j].error, eb[j], top[j], least, room, valid[j]);
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

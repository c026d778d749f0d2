// The rule `optimal` for int4: from blocks to vectors for the search of optimal_group.inl.h, and from the scales
// that it leaves to the winner of each block.

namespace group_search {

// kLanes blocks of n elements, at the given places, to n vectors of set `out`.
inline void turn_blocks(const float* x, int64_t n, const int64_t* rows, Floats* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats columns[kLanes];
#if defined(__AVX2__)
    Floats r[kLanes], t[kLanes], q[kLanes];
    for (int j = 0; j < kLanes; ++j) r[j] = load<Floats>(x + rows[j] * n + i);
#if defined(__AVX512F__)
    for (int j = 0; j < kLanes; j += 2) {
      t[j] = (Floats)_mm512_unpacklo_ps((__m512)r[j], (__m512)r[j + 1]);
      t[j + 1] = (Floats)_mm512_unpackhi_ps((__m512)r[j], (__m512)r[j + 1]);
    }
    for (int j = 0; j < kLanes; j += 4)
      for (int k = 0; k < 2; ++k) {
        q[j + 2 * k] = (Floats)_mm512_unpacklo_pd((__m512d)t[j + k], (__m512d)t[j + 2 + k]);
        q[j + 2 * k + 1] = (Floats)_mm512_unpackhi_pd((__m512d)t[j + k], (__m512d)t[j + 2 + k]);
      }
    for (int c = 0; c < 4; ++c) {
      const __m512 a = (__m512)q[c], b = (__m512)q[4 + c], d = (__m512)q[8 + c], e = (__m512)q[12 + c];
      const __m512 even = _mm512_shuffle_f32x4(a, b, 0x88), odd = _mm512_shuffle_f32x4(a, b, 0xDD);
      const __m512 even2 = _mm512_shuffle_f32x4(d, e, 0x88), odd2 = _mm512_shuffle_f32x4(d, e, 0xDD);
      columns[c] = (Floats)_mm512_shuffle_f32x4(even, even2, 0x88);
      columns[4 + c] = (Floats)_mm512_shuffle_f32x4(odd, odd2, 0x88);
      columns[8 + c] = (Floats)_mm512_shuffle_f32x4(even, even2, 0xDD);
      columns[12 + c] = (Floats)_mm512_shuffle_f32x4(odd, odd2, 0xDD);
    }
#else
    for (int j = 0; j < kLanes; j += 2) {
      t[j] = (Floats)_mm256_unpacklo_ps((__m256)r[j], (__m256)r[j + 1]);
      t[j + 1] = (Floats)_mm256_unpackhi_ps((__m256)r[j], (__m256)r[j + 1]);
    }
    for (int j = 0; j < kLanes; j += 4)
      for (int k = 0; k < 2; ++k) {
        q[j + 2 * k] = (Floats)_mm256_unpacklo_pd((__m256d)t[j + k], (__m256d)t[j + 2 + k]);
        q[j + 2 * k + 1] = (Floats)_mm256_unpackhi_pd((__m256d)t[j + k], (__m256d)t[j + 2 + k]);
      }
    for (int c = 0; c < 4; ++c) {
      columns[c] = (Floats)_mm256_permute2f128_ps((__m256)q[c], (__m256)q[4 + c], 0x20);
      columns[4 + c] = (Floats)_mm256_permute2f128_ps((__m256)q[c], (__m256)q[4 + c], 0x31);
    }
#endif
#else
    for (int j = 0; j < kLanes; ++j)
      for (int k = 0; k < kLanes; ++k) columns[k][j] = x[rows[j] * n + i + k];
#endif
    for (int j = 0; j < kLanes; ++j) out[(i + j) * kSets] = columns[j];
  }
}

// Which of two scales of a block is better, if both give it the same codes and float32 can see it: E(s) - E(t) is
// (t - s) (2 A - Q (s + t)). Returns the better ones; `open` become the lanes where that is not known.
inline Floats better_of(const Floats* x, int64_t n, const Ends& ends, Floats s, Floats t, Ints* open) {
  const Floats inverse_s = 1.0f / s, inverse_t = 1.0f / t;
  Floats products = {}, squares = {}, farthest = {};
  Words other = {};
  for (int64_t i = 0; i < n; ++i) {
    const Floats v = x[i * kSets];
    const Floats a = minimum(maximum(v * inverse_s, ends.lo), ends.hi);
    const Floats b = minimum(maximum(v * inverse_t, ends.lo), ends.hi);
    const Floats k = rounded(a), l = rounded(b);
    farthest = maximum(farthest, maximum(magnitude(a - k), magnitude(b - l)));
    other |= (Words)k ^ (Words)l;
    products = plus_product(products, v, k);
    squares = plus_product(squares, k, k);
  }
  const Floats slope = (2 * products - squares * (s + t)) * (t - s);  // E(s) - E(t)
  const Floats unsure = magnitude(products * (t - s)) * (static_cast<float>(n + 16) * 0x1p-22f);
  *open = (Ints)(other << 1 != 0) | ~(Ints)(magnitude(slope) > unsure) | ~(Ints)(farthest < 0.5f - 0x1p-18f);
  return select((Ints)(slope > 0.0f), t, s);
}

// Errors of two scales as they are defined, but for the order of the sum; false if a code may be another in float64.
inline bool exact_errors(const AffineSpec& spec, const float* x, int64_t n, const double* s, double* errors) {
  double sums[2][8] = {};
  int64_t near_half = 0;
  for (int64_t i = 0; i < n; i += 8)
    for (int j = 0; j < 2; ++j)
      for (int k = 0; k < 8; ++k) {
        const double v = x[i + k], exact = v / s[j], whole = round_even(exact);
        near_half += absolute(exact - whole) > 0.5 - 0x1p-30;
        const double d = v - s[j] * clip(whole, spec.qmin, spec.qmax);
        sums[j][k] += d * d;
      }
  for (int j = 0; j < 2; ++j) {
    errors[j] = 0;
    for (int k = 0; k < 8; ++k) errors[j] += sums[j][k];
  }
  return !near_half;
}

// The least and the greatest of the scales that float32 could not tell apart, for each block.
struct Ties {
  alignas(64) float least[kBlocks], greatest[kBlocks];
};

inline void find_ties(const Memory& m, Ties* ties) {
  for (int i = 0; i < kBlocks; ++i) ties->least[i] = 0x1p100f, ties->greatest[i] = -0x1p100f;
  for (int i = 0; i < m.found; ++i) {
    const int b = m.found_block[i];
    const float s = m.found_scale[i];
    ties->least[b] = s < ties->least[b] ? s : ties->least[b];
    ties->greatest[b] = s > ties->greatest[b] ? s : ties->greatest[b];
  }
}

// The best of all scales that were found for a block; 0 if float64 sees no difference.
inline float decide(const AffineSpec& spec, const Memory& m, const float* x, int64_t n, float turn, int block) {
  float winner = 0;
  for (int i = 0; i < m.found; ++i) {
    const float s = m.found_scale[i];
    if (m.found_block[i] != block || s == winner) continue;
    if (winner == 0) {
      winner = s;
      continue;
    }
    const double pair[2] = {static_cast<double>(winner * turn), static_cast<double>(s * turn)};
    double errors[2];
    if (!exact_errors(spec, x, n, pair, errors)) return 0;
    if (absolute(errors[0] - errors[1]) <= 0x1p-44 * errors[0]) return 0;
    if (errors[1] < errors[0]) winner = s;
  }
  return winner;
}

// What is known of a set of blocks before the search.
struct Block {
  Floats turn, top, bottom;  // 1 or -1; largest and smallest magnitude of the ends, when turned
  Ints live;
};

// Least and greatest elements of the blocks, as group_ends gives them, and the scales found: 0 if none.
struct Choices {
  float low[kBlocks], high[kBlocks], scale[kBlocks];
};

inline Block prepare(const AffineSpec& spec, const float* x, int64_t n, int64_t blocks, int set, const Choices& c,
                     Search* search) {
  int64_t rows[kLanes];
  const int64_t first = set * kLanes;
  for (int j = 0; j < kLanes; ++j) rows[j] = first + j < blocks ? first + j : 0;
  Block b;
  const Floats low = load<Floats>(c.low + first), high = load<Floats>(c.high + first);
  const Floats larger = maximum(high, -low);
  // All scales in question are normal numbers of their type, float32 neither overflows nor underflows.
  b.live = (Ints)(low >= -0x1p12f) & (Ints)(high <= 0x1p12f) & (Ints)(larger >= 0x1p-8f) &
           (lane_numbers() < static_cast<int32_t>(blocks - first));
  b.bottom = select(b.live, larger, spread(1.0f));
  b.top = select(b.live, minimum(high, -low), spread(1.0f));
  b.turn = spread(1.0f);
  if (spec.qmin < -spec.qmax) b.turn = select((Ints)(high > -low), -b.turn, b.turn);
  Floats* out = search->m.x + set;
  turn_blocks(x, n, rows, out);
  Floats energy = {}, sum = {};
  for (int64_t i = 0; i < n; ++i) {
    const Floats v = select(b.live, out[i * kSets] * b.turn, spread(1.0f));
    out[i * kSets] = v;
    energy = plus_product(energy, v, v);
    sum += magnitude(v);
  }
  search->energy[set] = energy;
  search->per_scale[set] = sum * 0x1.04p-22f;
  search->fixed[set] = energy * 0x1p-60f;
  return b;
}

// The winners of a set: 0 where affine_block must decide.
inline void conclude(const AffineSpec& spec, const float* x, int64_t n, int set, const Search& search, const Block& b,
                     const Ties& ties, Choices* c) {
  alignas(64) float winners[kLanes], turn[kLanes];
  const Floats s = load<Floats>(ties.least + set * kLanes), t = load<Floats>(ties.greatest + set * kLanes);
  const Ints one = (Ints)(s == t), none = (Ints)(s > t);
  const Words step = (Words)t - (Words)s, unit = spread(1u << search.mantissa_shift);
  const Ints neighbours = ((Ints)(step == unit) | (Ints)(step == -unit)) & ~none;  // no other scale lies between
  Ints open;
  const Floats better = better_of(search.m.x + set, n, search.ends, s, t, &open);
  store(winners, select(b.live & ~none, better, Floats{}));
  store(turn, b.turn);
  for (uint32_t rest = lane_bits(b.live & ~none & ~one & ~(neighbours & ~open)); rest; rest &= rest - 1) {
    const int j = __builtin_ctz(rest), block = set * kLanes + j;
    winners[j] = decide(spec, search.m, x + block * n, n, turn[j], block);
  }
  const Floats best = load<Floats>(winners), size = magnitude(best);
  const Floats qmax = search.ends.hi, reach = b.bottom * (1 + 0x1p-20f);
  const Ints either = (Ints)(size * (qmax + 0.5f) > reach) | (search.ends.lo == -qmax);  // both signs give the same
  const Ints known = (Ints)(search.limit_at_zero[set] < 0.5f * search.energy[set]);
  store(c->scale + set * kLanes, select(known, select(either, size, best * b.turn), Floats{}));
}

// Best scales of up to kBlocks blocks.
inline void choose(const AffineSpec& spec, const ScaleGrid& grid, const float* x, int64_t n, int64_t blocks, Memory& m,
                   Choices* c) {
  const float qmax = static_cast<float>(spec.qmax), qmin = static_cast<float>(spec.qmin);
  Search search{m, n, 23 - grid.mantissa_bits, static_cast<float>(n + 8) * 0x1p-24f, {spread(qmin), spread(qmax)},
                {}, {}, {}, {}, {}};
  m.found = m.lists[0].count = 0;
  for (int i = 0; i < kBlocks; ++i) m.best[i] = m.best_scale[i] = 1;
  Block b[kSets];
  for (int set = 0; set < kSets; ++set) {
    b[set] = prepare(spec, x, n, blocks, set, *c, &search);
    const Floats join = b[set].bottom * (1 / (qmax + 0.5f));
    const Floats fit = maximum(b[set].top * (1 / (qmax + 0.5f)), b[set].bottom * (1 / (0.5f - qmin)));
    search.begin(set, join, fit * (2 * (1 + 0x1p-18f)), qmin < -qmax, b[set].live);
  }
  search.split_all();
  search.drop_found();
  if (search.given_up) m.found = 0;
  Ties ties;
  find_ties(m, &ties);
  for (int set = 0; set < kSets; ++set) conclude(spec, x, n, set, search, b[set], ties, c);
}

}  // namespace group_search

// The rule `optimal` where optimal_group.inl.h serves.
template <int kSize>
inline bool optimal_run(const Rows& rows, const AffineSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                        void* scales, void* offsets, int64_t first_block, FastScratch* scratch, int64_t* events) {
  using namespace group_search;
  const int64_t size = kSize ? kSize : rows.block_size;
  const ScaleGrid grid = scale_grid(spec.scale_type);
  AffineScratch plain(spec, size);
  Room room;
  if (!plain.ok() || !room.bytes.data) return false;
  Memory& memory = room.memory();
  AffineCounts counts;
  for (int64_t first = 0; first < blocks; first += kBlocks) {
    const int64_t n = first + kBlocks < blocks ? kBlocks : blocks - first;
    const float* x = group_floats(rows, at + first * size, n * size, memory.floats);
    prefetch_ahead(rows, at + first * size, kBlocks * size);
    Choices choices = {};
    for (int64_t b = 0; b < n; b += kGroup) {
      AffineGroup g;
      const int64_t m = b + kGroup < n ? kGroup : n - b;
      group_ends(x + b * size, m, size, &g);
      for (int64_t i = 0; i < m; ++i) {
        choices.low[b + i] = from_ordered(g.low[i]);
        choices.high[b + i] = from_ordered(g.high[i]);
      }
    }
    choose(spec, grid, x, size, n, memory, &choices);
    for (int64_t b = 0; b < n; b += kGroup) {
      const int64_t m = b + kGroup < n ? kGroup : n - b, block = first_block + first + b;
      AffineGroup g;
      g.special = 0;
      for (int64_t i = 0; i < m; ++i) {
        g.scale[i] = choices.scale[b + i];
        g.inverse[i] = 1.0f / g.scale[i];
        g.shift[i] = 0;
        g.special |= static_cast<uint32_t>(g.scale[i] == 0) << i;
        if (g.scale[i] != 0) store_scale(spec.scale_type, scales, block + i, static_cast<double>(g.scale[i]));
      }
      const AffineOutputs out = {packed + packed_bytes((first + b) * size, spec.bits), scales, offsets};
      finish_group<kPlain, kSize>(spec, grid, &g, x + b * size, m, size, block, out, plain, scratch, &counts, events);
    }
  }
  add_counts(counts, events);
  return true;
}

inline bool optimal_group_serves(const AffineSpec& spec) {
  return spec.rule == 3 && spec.bits == 4 && spec.offset == 0 && spec.qmin < 0 && !spec.positive &&
         spec.scale_type != kFloat32;
}

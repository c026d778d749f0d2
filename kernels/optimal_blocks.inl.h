// From blocks to vectors for the search of optimal_group.inl.h, and what the scales that it leaves have in common.

namespace group_search {

using grid_search::Judge;

// kLanes blocks of n elements, at the given places, to n vectors of set `out`.
inline void turn_blocks(const float* x, int64_t n, const int64_t* rows, Floats* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Words block[kLanes];
    for (int j = 0; j < kLanes; ++j) block[j] = load<Words>(x + rows[j] * n + i);
    transpose_lanes(block);
    for (int j = 0; j < kLanes; ++j) out[(i + j) * kSets] = (Floats)block[j];
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
  *open = (Ints)(other << 1 != 0) | ~(Ints)(magnitude(slope) > unsure) | ~(Ints)(farthest < 0.5f - 0x1p-14f);
  return select((Ints)(slope > 0.0f), t, s);
}

// Least and greatest elements of the blocks; the scales found, 0 if none, and zero points.
struct Choices {
  float low[kBlocks], high[kBlocks], scale[kBlocks], zero[kBlocks];
};

// The least and the greatest of the scales that float32 could not tell apart, for each block, with the word of one
// of them and whether others have another.
struct Ties {
  alignas(64) float least[kBlocks], greatest[kBlocks];
  alignas(64) int32_t word[kBlocks], mixed[kBlocks];

  explicit Ties(const Memory& m) {
    for (int i = 0; i < kBlocks; ++i) {
      least[i] = 0x1p100f, greatest[i] = -0x1p100f;
      word[i] = -1, mixed[i] = 0;
    }
    for (int i = 0; i < m.found; ++i) {
      const int b = m.found_block[i] & (kBlocks - 1);
      const float s = m.found_scale[i];
      least[b] = s < least[b] ? s : least[b];
      greatest[b] = s > greatest[b] ? s : greatest[b];
      mixed[b] |= word[b] != -1 && word[b] != m.found_block[i];
      word[b] = m.found_block[i];
    }
  }
};

// Ties of a set: lanes with no scale, with one, and with two between which no other lies.
struct Kinds {
  Ints none, one, neighbours;
  Kinds(const Ties& ties, int set, int mantissa_shift) {
    const Floats s = load<Floats>(ties.least + set * kLanes), t = load<Floats>(ties.greatest + set * kLanes);
    const Words step = (Words)t - (Words)s, unit = spread(1u << mantissa_shift);
    const Ints same = load<Ints>(ties.mixed + set * kLanes) == 0;
    none = (Ints)(s > t);
    one = (Ints)(s == t) & same;
    neighbours = ((Ints)(step == unit) | (Ints)(step == -unit)) & same;
  }
};

// Turns the blocks to vectors and finds their ends. NaN may get lost; it shows in the sums of set_blocks.
inline void find_ends(const float* x, int64_t n, int64_t blocks, Memory& m, Choices* c) {
  for (int set = 0; set < kSets; ++set) {
    int64_t rows[kLanes];
    for (int j = 0; j < kLanes; ++j) rows[j] = set * kLanes + j < blocks ? set * kLanes + j : 0;
    turn_blocks(x, n, rows, m.x + set);
    Floats low = m.x[set], high = low;
    for (int64_t i = 1; i < n; ++i) {
      const Floats v = m.x[i * kSets + set];
      low = minimum(low, v), high = maximum(high, v);
    }
    store(c->low + set * kLanes, low), store(c->high + set * kLanes, high);
  }
}

// A set of blocks as the search wants them, turned over where `turn` is -1; ones where they are not live. Returns the
// live ones that hold no NaN.
template <bool kZero>
inline Ints set_blocks(int set, Floats turn, Ints live, Search<kZero>* search) {
  Floats* x = search->m.x + set;
  Floats energy = {}, sum = {};
  for (int64_t i = 0; i < search->n; ++i) {
    const Floats v = select(live, x[i * kSets] * turn, spread(1.0f));
    x[i * kSets] = v;
    energy = plus_product(energy, v, v);
    sum += magnitude(v);
  }
  search->energy[set] = energy;
  search->energy_top[set] = energy * (1 + 0x1p-12f);
  search->per_scale[set] = sum * 0x1.04p-22f;
  search->fixed[set] = energy * 0x1p-60f;
  const Ints usual = live & (Ints)(energy == energy);
  return any(live & ~usual) ? set_blocks(set, spread(1.0f), usual, search) : live;
}

// The best of all scales that were found for a block, by the defined error; `turn`: of the block.
inline Optimum judged(const Judge& judge, const Memory& m, int block, double turn) {
  Optimum best = {0, 0, 0, false};
  for (int i = 0; i < m.found; ++i) {
    if ((m.found_block[i] & (kBlocks - 1)) != block) continue;
    const Optimum one = judge.best(m.found_scale[i] * turn);
    if (best.s == 0 || precedes(one, best)) best = one;
  }
  return best;
}

inline Ints usual_lanes(Floats low, Floats high, int64_t blocks, int set) {
  return (Ints)(low >= -0x1p12f) & (Ints)(high <= 0x1p12f) &
         (lane_numbers() < static_cast<int32_t>(blocks - set * kLanes));
}

}  // namespace group_search

// Errors of scales for the search of optimal_group.inl.h: blocks in lanes, a scale or some for each.

namespace group_search {

constexpr int kSets = 2, kBlocks = kSets * kLanes;  // vectors of blocks

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
inline void keep_lanes(void* p, Ints v, uint32_t lanes) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), (__m512i)v));
#else
  int32_t* out = static_cast<int32_t*>(p);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) *out++ = v[__builtin_ctz(rest)];
#endif
}
inline void keep_lanes(void* p, Ints v, Ints mask) { keep_lanes(p, v, lane_bits(mask)); }

// Scales, their errors and sums of squared codes, a lane for each.
struct Scales {
  Floats s, error, squares;
};

// Codes qmin and qmax.
struct Ends {
  Floats lo, hi;
};

template <bool kSquares>
struct Sums {
  Floats error = {}, squares = {};
  [[gnu::always_inline]] void add(const Ends& ends, bool clips, Floats v, Floats s, Floats inverse) {
    Floats k = v * inverse;
    if (clips) k = minimum(maximum(k, ends.lo), ends.hi);
    k = rounded(k);
    const Floats d = less_product(v, s, k);
    error = plus_product(error, d, d);
    if (kSquares) squares = plus_product(squares, k, k);
  }
};

// One vector of blocks, `kMany` scales for each. `kClips`: codes may lie beyond the ends. `kSquares`: wanted.
template <int kMany, bool kClips, bool kSquares = false>
inline void all_errors(const Floats* x, int64_t n, const Ends& ends, Scales* out) {
  Floats inverse[kMany];
  Sums<kSquares> sums[kMany], more;
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
  Sums<false> sums[kMany][2];
  for (int j = 0; j < kMany; ++j) inverse[j] = 1.0f / out[j].s;
  for (int64_t i = 0; i < n; i += 2)
    for (int j = 0; j < kMany; ++j)
      for (int k = 0; k < 2; ++k)
        sums[j][k].add(ends[j], true, pick(x + (i + k) * kSets, block[j]), out[j].s, inverse[j]);
  for (int j = 0; j < kMany; ++j) out[j].error = sums[j][0].error + sums[j][1].error;
}

}  // namespace group_search

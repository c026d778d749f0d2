// MX quantizing of float32, float16 and bfloat16 in float32 vectors: the bits of mx_block (mx.inl.h), faster.
//
// Why float32 does: such input is float32, scaling by a power of two is exact where nothing underflows, and
// what underflows (below 2**-126 where the least element value is 2**-16) rounds to zero either way. Blocks
// whose scale is near the ends of its range, and those with non-finite values, are left to mx_block.

constexpr int64_t kGroup = 16;          // blocks looked at together
constexpr int64_t kLargestBlock = 256;  // of the fast kernels

struct MxVectors {
  uint32_t threshold;  // the bracket of the exponent: significand field > threshold (2**23: never)
  int32_t emax;
  float limit, least;  // largest value; smallest normal value
  int32_t shift;       // 23 - mantissa bits
  int32_t sign_shift;  // from the sign of a float32 to that of the code
  uint32_t mask;       // of a code
};

inline MxVectors mx_vectors(const MxSpec& spec) {
  MxVectors v;
  v.threshold = spec.rule == 0 ? static_cast<uint32_t>((spec.threshold - 1.0) * 0x1p23) : 1u << 23;
  v.emax = spec.emax;
  v.limit = static_cast<float>(spec.max);
  v.least = static_cast<float>(pow2(1 - spec.bias));
  v.shift = 23 - spec.mantissa_bits;
  v.sign_shift = 32 - spec.bits;
  v.mask = (1u << spec.bits) - 1;
  return v;
}

// What a group of blocks looks like before coding. Blocks past the end are zeros.
struct MxGroup {
  int32_t amax[kGroup];  // bits of the largest magnitude
  int32_t byte[kGroup];  // scale byte
  float down[kGroup];    // 2**-e
  int32_t odd[kGroup];   // all ones: the block is for mx_block
  uint32_t special;      // bit b: the same
};

struct MxCounts {
  Ints saturated = {}, zeroed = {}, zero_blocks = {};
};

// `n` (at most 16) blocks of `size` floats.
[[gnu::always_inline]] inline void group_amax(const float* x, int64_t n, int64_t size, int32_t* amax) {
  Ints top[kGroup];
  for (int64_t b = 0; b < kGroup; ++b) {
    Words m = {};
    if (b < n)
      for (int64_t i = 0; i < size; i += kLanes)
        m = (Words)maximum((Ints)m, (Ints)(load<Words>(x + b * size + i) & 0x7FFFFFFFu));
    top[b] = (Ints)m;
  }
  largest_lanes(top, amax);
}

[[gnu::always_inline]] inline void group_scales(const MxVectors& v, MxGroup* g, MxCounts* counts) {
  Ints odd = {};
  for (int b = 0; b < kGroup; b += kLanes) {
    const Words u = load<Words>(g->amax + b);
    const Ints above = (Ints)((u & 0x7FFFFFu) > v.threshold), zero = (Ints)(u == 0u);
    const Ints byte = (Ints)(u >> 23) - v.emax - above;
    const Ints ordinary = (byte >= 24) & (byte <= 230);  // 2**-e and its neighbours are normal floats
    const Ints used = (Ints)select(ordinary, (Words)byte, spread(127u));
    const Floats down = (Floats)((254 - used) << 23);
    counts->zero_blocks += zero;
    store(g->byte + b, used);
    store(g->down + b, down);
    odd |= ~(ordinary | zero);
    store(g->odd + b, ~(ordinary | zero));
  }
  g->special = 0;
  for (int b = 0; any(odd) && b < kGroup; ++b) g->special |= static_cast<uint32_t>(g->odd[b] & 1) << b;
}

// Magnitudes to codes without sign; y is at most the limit.
inline Words code_floats(const MxVectors& v, Floats y) {
  const Words k = (Words)maximum(y, spread(v.least)) & 0x7F800000u;
  const Words magic = k + (static_cast<uint32_t>(v.shift) << 23);  // a float whose ulp is that of the code
  const Words whole = (Words)(y + (Floats)magic) - magic;
  return whole + ((k - bits_of(v.least)) >> v.shift);
}

inline Words code_integers(const MxVectors& v, Floats y) {
  const float magic = float_of(static_cast<uint32_t>(v.shift + 127) << 23);
  return (Words)(y + magic) - bits_of(magic);
}

// E2M1. On [0, 2) its values are 0.5 apart, then 1, then 2, and the code is the least of the three roundings,
// 2y, 2 + y and 4 + y/2, because these are concave in y; halves go to even in each. Adding 2**23 rounds.
inline Words code_e2m1(Floats y) {
  constexpr float kOne = 0x1p23f;  // ulp 1, low byte 0
  const Floats fine = exact_product_plus(y, 2.0f, kOne), coarse = exact_product_plus(y, 0.5f, kOne + 4);
  return (Words)minimum(minimum(fine, y + (kOne + 2)), minimum(coarse, spread(kOne + 7)));
}

enum ElementKind { kInteger, kFloating, kE2m1 };

// Codes of one vector, in the low bits of each lane, and the lanes that saturate or become zero.
template <ElementKind kKind>
inline Words code_vector(const MxVectors& v, const float* x, float down, MxCounts* counts) {
  const Words u = load<Words>(x), a = u & 0x7FFFFFFFu;
  const Floats y = (Floats)a * down;
  count(&counts->saturated, (Ints)(y > v.limit));
  if (kKind == kE2m1) {
    const Words code = code_e2m1(y);
    count(&counts->zeroed, (Ints)(code == 0x4B000000u) & (Ints)(a != 0u));
    return merge(7, code, u >> 28);
  }
  const Floats capped = minimum(y, spread(v.limit));
  const Words code = kKind == kFloating ? code_floats(v, capped) : code_integers(v, capped);
  count(&counts->zeroed, (Ints)(code == 0u) & (Ints)(a != 0u));
  if (kKind == kFloating) return merge(v.mask >> 1, code, u >> v.sign_shift);
  const Words sign = (Words)((Ints)u >> 31);
  return ((code ^ sign) - sign) & v.mask;
}

// Codes of the group, a byte each. Blocks that are special are left out.
template <int kSize, ElementKind kKind>
inline void code_group(const MxVectors& v, const MxGroup& g, const float* x, int64_t n, int64_t size,
                       uint8_t* codes, MxCounts* counts) {
  if (kSize == 32 && n == kGroup && !g.special) {
    for (int64_t i = 0; i < kGroup * kSize; i += 4 * kLanes) {
      Words quad[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t at = i + j * kLanes;
        quad[j] = code_vector<kKind>(v, x + at, g.down[at / 32], counts);
      }
      store_bytes4(codes + i, quad);
    }
    return;
  }
  for (int64_t b = 0; b < n; ++b) {
    if (g.special >> b & 1) continue;
    for (int64_t i = b * size; i < (b + 1) * size; i += kLanes)
      store_bytes(codes + i, code_vector<kKind>(v, x + i, g.down[b], counts));
  }
}

inline int64_t count_saturated_blocks(const MxVectors& v, const MxGroup& g) {
  uint32_t mask = 0;
  for (int b = 0; b < kGroup; b += kLanes)
    mask |= lane_bits((Ints)(load<Floats>((const float*)(g.amax + b)) * load<Floats>(g.down + b) > v.limit))
            << b;
  return __builtin_popcount(mask & ~g.special);
}

inline void store_scale_bytes(const MxGroup& g, int64_t n, uint8_t* out) {
  uint8_t bytes[kGroup];
  for (int b = 0; b < kGroup; b += kLanes) store_bytes(bytes + b, load<Words>(g.byte + b));
  memcpy(out, bytes, static_cast<size_t>(n));
}

inline void pack_fast(const uint8_t* codes, int64_t n, int bits, uint8_t* out) {
  if (bits == 4)
    pack_nibbles(codes, n, out);
  else if (bits == 6)
    pack_sixes(codes, n, out);
  else
    memcpy(out, codes, static_cast<size_t>(n));
}


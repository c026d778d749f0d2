// Codes with minimums, x = d * q + m, written as s * (k * q - z) in eight bits (docs/rules.md, "Minimums as zero
// points"). The fit of a block needs no more than the sums of its codes and of their squares.

struct MinimumFit {
  static constexpr int kBlocks = 64;  // fitted together: the loops over them are vectors
  static constexpr double kMost = 2147483647.0;
  double d[kBlocks], m[kBlocks], q1[kBlocks], q2[kBlocks];
  double total[kBlocks], best[kBlocks], k[kBlocks], s[kBlocks], z[kBlocks];
};

// The integers on both sides of v; of an integer itself, twice that.
inline double floor_of(double v) {
  const double r = (v + 0x1.8p52) - 0x1.8p52;
  const double down = r - (r > v ? 1.0 : 0.0);
  return v < 0x1p51 && v > -0x1p51 ? down : v;
}

inline double clip_zero_point(double z) {
  z = z < -MinimumFit::kMost ? -MinimumFit::kMost : z;
  return z > MinimumFit::kMost ? MinimumFit::kMost : z;
}

// Takes k and z for every block where they give less error than what is there.
[[gnu::always_inline]] inline void try_zero_point(MinimumFit& f, int i, double n, double k, double z) {
  const double d = f.d[i], m = f.m[i], q1 = f.q1[i], q2 = f.q2[i];
  const double a = d * k * q2 + (m * k - d * z) * q1 - n * m * z;
  const double b = k * k * q2 - 2 * k * z * q1 + n * z * z;
  const double s = static_cast<double>(static_cast<float>(b > 0 ? a / b : d / k));
  const double err = f.total[i] - 2 * s * a + s * s * b;
  const bool better = (err < f.best[i] - 1e-13 * f.total[i]) & (s != 0);
  f.best[i] = better ? err : f.best[i];
  f.k[i] = better ? k : f.k[i];
  f.s[i] = better ? s : f.s[i];
  f.z[i] = better ? z : f.z[i];
}

inline void fit_blocks(MinimumFit& f, double n, int largest_k) {
  for (int i = 0; i < MinimumFit::kBlocks; ++i) {
    const double d = f.d[i], m = f.m[i];
    f.total[i] = d * d * f.q2[i] + 2 * d * m * f.q1[i] + n * m * m;
    f.best[i] = __builtin_inf();
    f.k[i] = 1, f.s[i] = d, f.z[i] = 0;
  }
  for (int k = 1; k <= largest_k; ++k) {
    for (int i = 0; i < MinimumFit::kBlocks; ++i) {
      const double exact = -k * f.m[i] / f.d[i], below = floor_of(exact);
      try_zero_point(f, i, n, k, clip_zero_point(below));
      try_zero_point(f, i, n, k, clip_zero_point(below < exact ? below + 1 : below));
    }
  }
}

inline void unpack_codes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  if (bits == 8) {
    memcpy(codes, packed, static_cast<size_t>(n));
    return;
  }
  for (int64_t i = 0; i < n / 2; ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
}

// Sums of the codes of a block, and whether all are equal.
inline bool sum_codes(const uint8_t* codes, int64_t n, double* q1, double* q2) {
  int64_t sum = 0, squares = 0;
  uint8_t differing = 0;
  for (int64_t at = 0; at < n; at += 1 << 16) {  // small enough for 32 bits
    const int64_t end = at + (1 << 16) < n ? at + (1 << 16) : n;
    uint32_t part = 0, part_squares = 0;
    for (int64_t i = at; i < end; ++i) {
      const uint32_t q = codes[i];
      part += q, part_squares += q * q;
      differing |= codes[i] ^ codes[0];
    }
    sum += part, squares += part_squares;
  }
  *q1 = static_cast<double>(sum), *q2 = static_cast<double>(squares);
  return !differing;
}

// Blocks [begin, end), at most MinimumFit::kBlocks of them.
inline void rewrite_blocks(const MinimumSpec& spec, const uint8_t* packed, const uint16_t* scales,
                           const uint16_t* minimums, int64_t begin, int64_t end, uint8_t* codes, float* new_scales,
                           int32_t* zero_points) {
  MinimumFit f;
  bool constant[MinimumFit::kBlocks];
  const int64_t n = spec.block_size;
  for (int i = 0; i < MinimumFit::kBlocks; ++i) {
    const int64_t block = begin + i < end ? begin + i : end - 1;  // the last one again, for whole vectors
    f.d[i] = half_to_float(scales[block]), f.m[i] = half_to_float(minimums[block]);
    unpack_codes(packed + block * n * spec.bits / 8, n, spec.bits, codes + block * n);
    constant[i] = sum_codes(codes + block * n, n, &f.q1[i], &f.q2[i]);
  }
  fit_blocks(f, static_cast<double>(n), spec.largest_k);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t i = block - begin;
    uint8_t* q = codes + block * n;
    if (constant[i]) {  // its value as the scale, the code one beside the zero point
      const float value = static_cast<float>(f.d[i] * q[0] + f.m[i]);
      new_scales[block] = value == 0 ? 1.0f : value < 0 ? -value : value;
      zero_points[block] = value < 0;
      memset(q, value > 0, static_cast<size_t>(n));
      continue;
    }
    new_scales[block] = static_cast<float>(f.s[i]);
    zero_points[block] = static_cast<int32_t>(f.z[i]);
    const uint8_t k = static_cast<uint8_t>(f.k[i]);
    for (int64_t j = 0; j < n; ++j) q[j] = static_cast<uint8_t>(q[j] * k);
  }
}

inline void rewrite_minimums(const MinimumSpec& spec, const uint8_t* packed, const void* scales,
                             const void* minimums, int64_t begin, int64_t end, uint8_t* codes, float* new_scales,
                             int32_t* zero_points) {
  for (int64_t at = begin; at < end; at += MinimumFit::kBlocks) {
    const int64_t stop = at + MinimumFit::kBlocks < end ? at + MinimumFit::kBlocks : end;
    rewrite_blocks(spec, packed, static_cast<const uint16_t*>(scales), static_cast<const uint16_t*>(minimums), at,
                   stop, codes, new_scales, zero_points);
  }
}

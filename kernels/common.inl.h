// Shared by all kernels: exact widening, rounding, exponents from bits, packing.
// Included inside an anonymous namespace, once per instruction set.

inline uint64_t bits_of(double v) {
  uint64_t u;
  memcpy(&u, &v, 8);
  return u;
}

inline double double_of(uint64_t u) {
  double v;
  memcpy(&v, &u, 8);
  return v;
}

inline uint32_t bits_of(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}

inline float float_of(uint32_t u) {
  float v;
  memcpy(&v, &u, 4);
  return v;
}

// 2**e, -1022 <= e <= 1023.
inline double pow2(int e) { return double_of(static_cast<uint64_t>(e + 1023) << 52); }

// Exponent of a positive finite double, subnormals normalised.
inline int exponent_of(double v) {
  uint64_t u = bits_of(v);
  int field = static_cast<int>(u >> 52) & 0x7FF;
  if (field) return field - 1023;
  return static_cast<int>(bits_of(v * 0x1p54) >> 52) - 1023 - 54;
}

// Significand in [1, 2) of a positive finite double with exponent `e`.
inline double significand_of(double v, int e) {
  if (e < -1022) v *= 0x1p54;
  return double_of((bits_of(v) & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
}

// Halves to even, for any finite double. Adding 1.5 * 2**52 leaves no room for a fraction.
inline double round_even(double v) {
  double r = (v + 0x1.8p52) - 0x1.8p52;
  return (v < 0x1p51 && v > -0x1p51) ? r : v;
}

inline float absolute(float v) { return float_of(bits_of(v) & 0x7FFFFFFFu); }
inline double absolute(double v) { return double_of(bits_of(v) & 0x7FFFFFFFFFFFFFFFull); }
inline bool is_negative(double v) { return bits_of(v) >> 63; }

inline float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t rest = h & 0x7FFFu;
  if (rest < 0x400) return float_of(bits_of(static_cast<float>(rest) * 0x1p-24f) | sign);
  if (rest >= 0x7C00) return float_of(sign | 0x7F800000u | ((rest & 0x3FFu) << 13));
  return float_of(sign | ((rest << 13) + (112u << 23)));
}

// Halves to even. Values from 65520 up become infinity, as IEEE says.
inline uint16_t float_to_half(float f) {
  uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u;
  u &= 0x7FFFFFFFu;
  if (u > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (u >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (u < 0x38800000u) {  // subnormal: 0.5 has an ulp of 2**-24 after adding
    float r = float_of(u) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(r) - 0x3F000000u));
  }
  u += 0xFFFu + ((u >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((u - (112u << 23)) >> 13));
}

inline uint16_t float_to_bfloat16(float f) {
  uint32_t u = bits_of(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

// Widen n elements of the input, starting at element `at`, exactly.
inline void widen(const void* x, int32_t type, int64_t at, int64_t n, double* out) {
  switch (type) {
    case kFloat32: {
      const float* p = static_cast<const float*>(x) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = p[i];
      return;
    }
    case kFloat16: {
      const uint16_t* p = static_cast<const uint16_t*>(x) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(p[i]);
      return;
    }
    case kBfloat16: {
      const uint16_t* p = static_cast<const uint16_t*>(x) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = float_of(static_cast<uint32_t>(p[i]) << 16);
      return;
    }
    default: {
      const double* p = static_cast<const double*>(x) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = p[i];
    }
  }
}

// The float64 sum of squared errors in its fixed order (docs/rules.md, "Arithmetic").
struct ErrorSum {
  double lane[16] = {};
  void add(int64_t i, double term) { lane[i & 15] += term; }
  double total() {
    for (int half = 8; half; half /= 2)
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    return lane[0];
  }
};

// Largest magnitude; `bad` counts NaN, infinities and values beyond float32.
inline double scan_amax(const double* x, int64_t n, int64_t* bad) {
  double amax = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    double a = absolute(x[i]);
    count += !(a <= 0x1.fffffep127);
    amax = a > amax ? a : amax;
  }
  *bad += count;
  return amax;
}

inline int64_t packed_bytes(int64_t count, int bits) {
  return bits == 6 ? 3 * ((count + 3) / 4) : (count * bits + 7) / 8;
}

// Pack n codes (low bits of each byte); n is a multiple of 8, or the rest of the last byte is zero.
inline void pack(const uint8_t* codes, int64_t n, int bits, uint8_t* out) {
  if (bits == 8) {
    memcpy(out, codes, static_cast<size_t>(n));
    return;
  }
  int64_t group = bits == 6 ? 4 : 8 / bits, width = bits == 6 ? 3 : 1;
  for (int64_t i = 0; i < n; i += group) {
    uint32_t word = 0;
    for (int64_t j = 0; j < group && i + j < n; ++j)
      word |= static_cast<uint32_t>(codes[i + j]) << (j * bits);
    for (int64_t k = 0; k < width; ++k) *out++ = static_cast<uint8_t>(word >> (8 * k));
  }
}

inline void unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  if (bits == 8) {
    memcpy(codes, packed, static_cast<size_t>(n));
    return;
  }
  int64_t group = bits == 6 ? 4 : 8 / bits, width = bits == 6 ? 3 : 1;
  uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < n; i += group) {
    uint32_t word = 0;
    for (int64_t k = 0; k < width; ++k) word |= static_cast<uint32_t>(*packed++) << (8 * k);
    for (int64_t j = 0; j < group && i + j < n; ++j)
      codes[i + j] = static_cast<uint8_t>((word >> (j * bits)) & mask);
  }
}

// Memory for one call; `new` would pull in library templates (see variant.cpp).
template <typename T>
struct Scratch {
  T* data;
  explicit Scratch(int64_t n) : data(static_cast<T*>(calloc(static_cast<size_t>(n), sizeof(T)))) {}
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// Walks the blocks of the rows. A chunk is the least number of whole blocks that ends on a byte, so that
// chunks pack one after the other. `quantize(x, n, codes, block_index)` fills n codes.
template <typename Quantize>
inline bool for_each_block(const Rows& rows, int bits, uint8_t* packed, int64_t row_bytes, Quantize quantize) {
  const int64_t size = rows.block_size, chunk = size < 8 ? 8 : size;
  const int64_t blocks = (rows.length + size - 1) / size;
  const int64_t cap = chunk < rows.length ? chunk : (rows.length + 7) / 8 * 8;  // whole axis: no padding
  Scratch<double> x(cap + 8);
  Scratch<uint8_t> codes(cap + 8);
  if (!x.data || !codes.data) return false;
  const int64_t padded = blocks * size;
  for (int64_t r = rows.row_begin; r < rows.row_end; ++r) {
    for (int64_t c = 0; c < rows.length; c += chunk) {
      const int64_t end = c + chunk < rows.length ? c + chunk : rows.length;
      memset(codes.data, 0, static_cast<size_t>(cap + 8));
      widen(rows.x, rows.input_type, r * rows.length + c, end - c, x.data);
      for (int64_t b = c; b < end; b += size) {
        const int64_t n = b + size < end ? size : end - b;
        quantize(x.data + (b - c), n, codes.data + (b - c), r * blocks + b / size);
      }
      const int64_t stored_end = c + chunk < padded ? c + chunk : padded;
      const int64_t at = packed_bytes(c, bits), bytes = packed_bytes(stored_end, bits) - at;
      const int64_t used = packed_bytes(end - c, bits);
      uint8_t* out = packed + r * row_bytes + at;
      pack(codes.data, end - c, bits, out);
      if (bytes > used) memset(out + used, 0, static_cast<size_t>(bytes - used));
    }
  }
  return true;
}

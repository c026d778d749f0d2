// Codes to values (docs/rules.md, "Dequantizing").

inline float load_scale(int32_t type, const void* scales, int64_t block) {
  if (type == kFloat32) return static_cast<const float*>(scales)[block];
  const uint16_t u = static_cast<const uint16_t*>(scales)[block];
  return type == kFloat16 ? half_to_float(u) : float_of(static_cast<uint32_t>(u) << 16);
}

inline float e8m0_value(uint8_t byte) {
  if (byte == 255) return float_of(0x7FC00000u);
  return static_cast<float>(pow2(static_cast<int>(byte) - 127));
}

inline void decode_block(const DecodeSpec& spec, const uint8_t* codes, int64_t n, const void* scales,
                         const void* offsets, int64_t block, float* out) {
  if (spec.family == 0) {
    const float s = e8m0_value(static_cast<const uint8_t*>(scales)[block]);
    for (int64_t i = 0; i < n; ++i) out[i] = spec.values[codes[i]] * s;
    return;
  }
  const float s = load_scale(spec.scale_type, scales, block);
  if (spec.offset == 1) {
    const int64_t z = static_cast<const int32_t*>(offsets)[block];
    for (int64_t i = 0; i < n; ++i)
      out[i] = s * static_cast<float>(static_cast<int64_t>(spec.values[codes[i]]) - z);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = s * spec.values[codes[i]];
  if (spec.offset == 2) {
    const float m = load_scale(spec.scale_type, offsets, block);
    for (int64_t i = 0; i < n; ++i) out[i] += m;
  }
}

// Store n values; returns how many finite ones became infinite.
inline int64_t store_values(int32_t type, const float* values, int64_t n, void* out, int64_t at) {
  if (type == kFloat32) {
    memcpy(static_cast<float*>(out) + at, values, static_cast<size_t>(n) * 4);
    return 0;
  }
  uint16_t* p = static_cast<uint16_t*>(out) + at;
  const uint16_t infinity = type == kFloat16 ? 0x7C00 : 0x7F80;
  int64_t lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    p[i] = type == kFloat16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
    lost += (p[i] & 0x7FFF) == infinity && (bits_of(values[i]) & 0x7F800000u) != 0x7F800000u;
  }
  return lost;
}

int64_t dequantize(const DecodeSpec& spec, const uint8_t* packed, int64_t row_bytes, const void* scales,
                   const void* offsets, int64_t row_begin, int64_t row_end, int64_t length,
                   int64_t block_size, void* out) {
  constexpr int64_t kPiece = 4096;  // values at a time: a multiple of 8, in cache
  uint8_t codes[kPiece];
  float values[kPiece];
  const int64_t blocks = (length + block_size - 1) / block_size;
  int64_t lost = 0;
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      const int64_t n = begin + kPiece < length ? kPiece : length - begin;
      unpack(packed + r * row_bytes + packed_bytes(begin, spec.bits), n, spec.bits, codes);
      for (int64_t i = 0; i < n;) {
        const int64_t b = (begin + i) / block_size, rest = (b + 1) * block_size - (begin + i);
        const int64_t m = rest < n - i ? rest : n - i;
        decode_block(spec, codes + i, m, scales, offsets, r * blocks + b, values + i);
        i += m;
      }
      lost += store_values(spec.output_type, values, n, out, r * length + begin);
    }
  }
  return lost;
}

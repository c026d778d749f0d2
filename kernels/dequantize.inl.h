// Codes to values (docs/rules.md, "Dequantizing").

inline float load_scale(int32_t type, const void* scales, int64_t block) {
  if (type == kFloat32) return static_cast<const float*>(scales)[block];
  const uint16_t u = static_cast<const uint16_t*>(scales)[block];
  return type == kFloat16 ? half_to_float(u) : float_of(static_cast<uint32_t>(u) << 16);
}

// 2**(byte - 127), 255 NaN. 0 is a subnormal and 255 no infinity: both want the top bit of the mantissa.
inline float e8m0_value(uint8_t byte) {
  const uint32_t e = byte, ends = e == 0 || e == 255 ? 0x400000u : 0u;
  return float_of(e << 23 | ends);
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

// Packed weights to float32, a piece of a row at a time, for the matmul; what lies past the row's end decodes to
// anything and meets zeros.

#if defined(__AVX2__)
// The scales of `count` blocks as float32.
inline void read_scales(const LinearSpec& spec, const void* from, int64_t first, int64_t count, float* out) {
  int64_t i = 0;
  if (spec.family == 0) {
    const uint8_t* bytes = static_cast<const uint8_t*>(from) + first;
    for (; i + 16 <= count; i += 16)
      lanes_store(out + i, lanes_mul(e8m0_lanes(load_unsigned_bytes(bytes + i)), spec.unit));
    for (; i < count; ++i) out[i] = e8m0_value(bytes[i]) * spec.unit;
    return;
  }
  if (spec.scale_type == kFloat16) {
    const uint16_t* halves = static_cast<const uint16_t*>(from) + first;
    for (; i + 16 <= count; i += 16)
      lanes_store(out + i, halves_to_float(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves + i))));
  }
  for (; i < count; ++i) out[i] = load_scale(spec.scale_type, from, first + i);
}

// A piece of a row that begins at element `begin`, n elements (the last 16 may go beyond).
template <typename Read, int kOffset>
inline void decode_blocks(const LinearSpec& spec, const uint8_t* packed, int64_t first, int64_t begin, int64_t n,
                          float* out) {
  const int64_t size = spec.block_size;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(size));
  first += begin >> shift;
  const int64_t count = ((begin + n - 1) >> shift) - (begin >> shift) + 1;
  float scales[kChunk / 16], minimums[kChunk / 16];
  read_scales(spec, spec.scales, first, count, scales);
  if (kOffset == 2) read_scales(spec, spec.offsets, first, count, minimums);
  const int32_t* zero_points = kOffset == 1 ? static_cast<const int32_t*>(spec.offsets) + first : nullptr;
  const auto values = [&](int64_t block) {
    return BlockValues<Read, kOffset>(kOffset == 1 ? zero_points[block] : 0, scales[block],
                                      kOffset == 2 ? minimums[block] : 0.0f);
  };
  const auto step = [&](const BlockValues<Read, kOffset>& v, int64_t sixteen) {
    lanes_store(out + sixteen * 16, v.read(packed + sixteen * (2 * Read::kBits)));
  };
  const int64_t sixteens = (n + 15) / 16;
  if (size == 32) {  // the usual size: no loop in the loop
    for (int64_t b = 0; b < sixteens / 2; ++b) {
      Float16Lanes two[2];
      values(b).read_two(packed + b * (4 * Read::kBits), two);
      lanes_store(out + b * 32, two[0]), lanes_store(out + b * 32 + 16, two[1]);
    }
    if (sixteens & 1) step(values(sixteens / 2), sixteens - 1);
    return;
  }
  for (int64_t b = 0, i = 0; b < count; ++b) {  // a piece begins between blocks, or lies within one
    const int64_t end = i + size / 16 < sixteens ? i + size / 16 : sixteens;
    const auto v = values(b);
    for (; i < end; ++i) step(v, i);
  }
}

// One activation row meets four weight rows without a tile: lanes(j) += a * w_j, `blocks` blocks of 32 from `begin`.
template <typename Read, int kOffset>
inline void dot_blocks(const LinearSpec& spec, int64_t r, int64_t begin, int64_t blocks, const float* a,
                       float* lanes) {
  const int64_t row_blocks = (spec.length + 31) / 32;
  float scales[4][kChunk / 32], minimums[4][kChunk / 32];
  const uint8_t* packed[4];
  const int32_t* zero_points[4] = {};
  Float16Lanes sum[4];
  for (int j = 0; j < 4; ++j) {
    const int64_t first = (r + j) * row_blocks + begin / 32;
    read_scales(spec, spec.scales, first, blocks, scales[j]);
    if (kOffset == 2) read_scales(spec, spec.offsets, first, blocks, minimums[j]);
    if (kOffset == 1) zero_points[j] = static_cast<const int32_t*>(spec.offsets) + first;
    packed[j] = spec.packed + (r + j) * spec.row_bytes + begin / 8 * Read::kBits;
    sum[j] = lanes_load(lanes + j * 16);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const Float16Lanes x = lanes_load(a + b * 32), y = lanes_load(a + b * 32 + 16);
    for (int j = 0; j < 4; ++j) {
      const uint8_t* p = packed[j] + b * (4 * Read::kBits);
      __builtin_prefetch(p + 12 * spec.row_bytes);
      const BlockValues<Read, kOffset> values(kOffset == 1 ? zero_points[j][b] : 0, scales[j][b],
                                              kOffset == 2 ? minimums[j][b] : 0.0f);
      Float16Lanes two[2];
      values.read_two(p, two);
      sum[j] = lanes_sum(lanes_sum(sum[j], x, two[0]), y, two[1]);
    }
  }
  for (int j = 0; j < 4; ++j) lanes_store(lanes + j * 16, sum[j]);
}

typedef void (*DecodeBlocks)(const LinearSpec&, const uint8_t*, int64_t, int64_t, int64_t, float*);
typedef void (*DotBlocks)(const LinearSpec&, int64_t, int64_t, int64_t, const float*, float*);
struct Decoder {
  DecodeBlocks decode;
  DotBlocks dot;
};

template <typename Read, int kOffset>
inline Decoder decoder() {
  return {decode_blocks<Read, kOffset>, dot_blocks<Read, kOffset>};
}

template <typename Read>
inline Decoder integer_decoder(const LinearSpec& spec) {
  if (spec.offset == 0) return decoder<Read, 0>();
  return spec.offset == 1 ? decoder<Read, 1>() : decoder<Read, 2>();
}

// The fast decoder of a weight, or nulls.
inline Decoder find_decoder(const LinearSpec& spec) {
  if (spec.block_size < 16) return {};
  switch (spec.kind) {
    case LinearKind::kE2m1: return decoder<ReadE2m1, 0>();
    case LinearKind::kE4m3: return decoder<ReadE4m3, 0>();
    case LinearKind::kE5m2: return decoder<ReadE5m2, 0>();
    case LinearKind::kInt4: return integer_decoder<ReadInt4>(spec);
    case LinearKind::kUint4: return integer_decoder<ReadUint4>(spec);
    case LinearKind::kInt8: return integer_decoder<ReadInt8>(spec);
    case LinearKind::kUint8: return integer_decoder<ReadUint8>(spec);
    default: return {};
  }
}

// Whether code - z fits 32 bits for every zero point of a row.
inline bool zero_points_fit(const LinearSpec& spec, int64_t first, int64_t blocks) {
  const int32_t* z = static_cast<const int32_t*>(spec.offsets) + first;
  int32_t least = 0, most = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    least = z[b] < least ? z[b] : least;
    most = z[b] > most ? z[b] : most;
  }
  return least >= INT32_MIN + 256 && most <= INT32_MAX - 256;
}
#else
typedef void (*DecodeBlocks)(const LinearSpec&, const uint8_t*, int64_t, int64_t, int64_t, float*);
typedef void (*DotBlocks)(const LinearSpec&, int64_t, int64_t, int64_t, const float*, float*);
struct Decoder {
  DecodeBlocks decode;
  DotBlocks dot;
};
inline Decoder find_decoder(const LinearSpec&) { return {}; }
inline bool zero_points_fit(const LinearSpec&, int64_t, int64_t) { return false; }
#endif

// Elements [begin, begin + n) of row r; begin is a multiple of kChunk, or of kChunk / 2, and n is at most that.
inline void decode_piece(const LinearSpec& spec, DecodeBlocks fast, int64_t r, int64_t begin, int64_t n,
                         uint8_t* codes, float* out) {
  const int64_t size = spec.block_size, blocks = (spec.length + size - 1) / size;
  const uint8_t* packed = spec.packed + r * spec.row_bytes + packed_bytes(begin, spec.bits);
  if (spec.family == 2) {
    memcpy(out, packed, static_cast<size_t>(n) * 4);
    return;
  }
  if (fast && (spec.offset != 1 || zero_points_fit(spec, r * blocks + begin / size, (n + size - 1) / size))) {
    fast(spec, packed, r * blocks, begin, n, out);
    return;
  }
  const DecodeSpec plain{spec.bits, spec.family, spec.scale_type, spec.offset, kFloat32, spec.values};
  unpack(packed, n, spec.bits, codes);
  for (int64_t i = 0; i < n;) {
    const int64_t b = (begin + i) / size, rest = (b + 1) * size - (begin + i);
    const int64_t m = rest < n - i ? rest : n - i;
    decode_block(plain, codes + i, m, spec.scales, spec.offsets, r * blocks + b, out + i);
    i += m;
  }
}

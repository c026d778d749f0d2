// Codes of a piece of some thousand values to float32, a block at a time.

constexpr int64_t kPiece = 4096;  // values at a time: whole blocks, or a part of one
constexpr int64_t kPieceBlocks = kPiece / 16;
constexpr int32_t kExactShift = 1 << 22;  // code - zero point is exact in float32 below

// What the codes mean, looked at once per call.
struct Decoder {
  const DecodeSpec* spec;
  bool linear, is_signed;  // value = unit * code
  bool mirrored;           // the highest bit of a code is the sign of its value
  float unit;
  int half_shift;          // value = half_unit * the float16 of the code without sign, shifted; 0: no such thing
  float half_unit;
};

// An eight-bit float to float16: its exponent moved into float16's, which makes E4M3 2**-8 of its value and leaves
// E5M2 as it is. All NaNs become the quiet one.
inline uint16_t half_of_code(int code, int shift) {
  const int magnitude = (code & 0x7F) << shift, nan = shift == 7 ? 0x3F80 : 0x7D00;
  return static_cast<uint16_t>(magnitude >= nan ? 0x7E00 : magnitude | (code & 0x80) << 8);
}

inline void find_halves(const DecodeSpec& spec, Decoder* d) {
  for (int shift = 7; shift <= 8 && spec.bits == 8 && !d->half_shift; ++shift) {
    bool same = true;
    d->half_unit = shift == 7 ? 256.0f : 1.0f;
    for (int i = 0; i < 256; ++i)
      same &= bits_of(spec.values[i]) == bits_of(half_to_float(half_of_code(i, shift)) * d->half_unit);
    d->half_shift = same ? shift : 0;
  }
}

inline Decoder make_decoder(const DecodeSpec& spec) {
  const int n = 1 << spec.bits, half = n / 2;
  Decoder d{&spec, true, spec.values[n - 1] < 0, true, spec.values[1], 0, 0};
  for (int i = 0; i < n; ++i) {
    const float code = static_cast<float>(d.is_signed && i >= half ? i - n : i);
    d.linear &= bits_of(spec.values[i]) == bits_of(code * d.unit);
  }
  for (int i = 0; i < half; ++i)
    d.mirrored &= !is_negative(spec.values[i]) &&
                  bits_of(spec.values[i + half]) == (bits_of(spec.values[i]) | 0x80000000u);
  find_halves(spec, &d);
  return d;
}

// Parameters of the blocks of a piece: value = scale * (v - shift) + add.
struct BlockScales {
  float scale[kPieceBlocks + 16], shift[kPieceBlocks + 16], add[kPieceBlocks + 16];
};

inline void load_scales(int32_t type, const void* from, int64_t at, int64_t n, float* out) {
  if (type == kFloat32) {
    memcpy(out, static_cast<const float*>(from) + at, static_cast<size_t>(n) * 4);
    return;
  }
  const uint16_t* p = static_cast<const uint16_t*>(from) + at;
  int64_t i = 0;
  if (type == kFloat16) {
    for (; i + kLanes <= n; i += kLanes) store(out + i, widen_half(p + i));
    for (; i < n; ++i) out[i] = half_to_float(p[i]);
  } else {
    for (; i < n; ++i) out[i] = float_of(static_cast<uint32_t>(p[i]) << 16);
  }
}

// Parameters of n blocks from block `at` on; false if a zero point is so large that float32 is not exact.
inline bool load_blocks(const DecodeSpec& spec, const void* scales, const void* offsets, int64_t at,
                        int64_t n, BlockScales* out) {
  if (spec.family == 0) {
    const uint8_t* p = static_cast<const uint8_t*>(scales) + at;
    for (int64_t i = 0; i < n; ++i) {
      uint32_t u = static_cast<uint32_t>(p[i]) << 23;
      u = p[i] == 0 ? 0x00400000u : u;  // 2**-127
      out->scale[i] = float_of(p[i] == 255 ? 0x7FC00000u : u);
    }
    return true;
  }
  load_scales(spec.scale_type, scales, at, n, out->scale);
  if (spec.offset == 2) load_scales(spec.scale_type, offsets, at, n, out->add);
  if (spec.offset != 1) return true;
  const int32_t* z = static_cast<const int32_t*>(offsets) + at;
  int32_t far = 0;
  for (int64_t i = 0; i < n; ++i) {
    out->shift[i] = static_cast<float>(z[i]);
    far |= z[i] >= kExactShift || z[i] <= -kExactShift;
  }
  return !far;
}

// The arithmetics of decode_block. `-0 + 0` would lose a sign: nothing is added without need.
template <int kOffset>
inline Floats apply_scale(const BlockScales& blocks, int64_t b, Floats v) {
  if (kOffset == 1) v = v - blocks.shift[b];
  v = v * blocks.scale[b];
  return kOffset == 2 ? v + blocks.add[b] : v;
}

// n codes of four bits through a table of sixteen values.
inline void look_up_16(const Floats* table, const uint8_t* packed, int64_t n, float* out) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < n; i += 16) {  // only the low four bits of an index count
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)(packed + i / 2)));
    const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    _mm512_storeu_ps(out + i, _mm512_permutexvar_ps(index, (__m512)table[0]));
  }
#elif defined(__AVX2__)
  const __m256 low = (__m256)table[0], high = (__m256)table[1];
  for (int64_t i = 0; i < n; i += 8) {
    int32_t word;
    memcpy(&word, packed + i / 2, 4);
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(word));
    const __m256i index = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
    const __m256 a = _mm256_permutevar8x32_ps(low, index), b = _mm256_permutevar8x32_ps(high, index);
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
  }
#else
  float values[16];
  for (int i = 0; i < 16 / kLanes; ++i) store(values + i * kLanes, table[i]);
  for (int64_t i = 0; i < n; i += 2) {
    out[i] = values[packed[i / 2] & 15];
    out[i + 1] = values[packed[i / 2] >> 4];
  }
#endif
}

// kLanes codes of eight bits.
inline Words load_eights(const uint8_t* codes) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)codes));
#else
  Words v;
  for (int i = 0; i < kLanes; ++i) v[i] = codes[i];
  return v;
#endif
}

// kLanes codes of six bits; code i begins at bit 6i.
inline Words load_sixes(const uint8_t* packed) {
#if defined(__AVX512F__)
  const __m512i from = _mm512_setr_epi32(0x0100, 0x0100, 0x0201, 0x0302, 0x0403, 0x0403, 0x0504, 0x0605,
                                         0x0706, 0x0706, 0x0807, 0x0908, 0x0A09, 0x0A09, 0x0B0A, 0x0C0B);
  const __m512i shift = _mm512_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2);
  const __m512i bytes = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(0xFFF, packed));
  const __m512i pairs = _mm512_maskz_permutexvar_epi8(0x3333333333333333ull, from, bytes);
  return (Words)_mm512_and_si512(_mm512_srlv_epi32(pairs, shift), _mm512_set1_epi32(63));
#elif defined(__AVX2__)
  uint32_t low;
  uint16_t high;
  memcpy(&low, packed, 4);
  memcpy(&high, packed + 4, 2);
  const int64_t word = static_cast<int64_t>(low | static_cast<uint64_t>(high) << 32);
  const __m256i from = _mm256_setr_epi8(0, 1, -1, -1, 0, 1, -1, -1, 1, 2, -1, -1, 2, 3, -1, -1, 3, 4, -1, -1,
                                        3, 4, -1, -1, 4, 5, -1, -1, 5, 6, -1, -1);
  const __m256i pairs = _mm256_shuffle_epi8(_mm256_set1_epi64x(word), from);
  const __m256i shift = _mm256_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2);
  return (Words)_mm256_and_si256(_mm256_srlv_epi32(pairs, shift), _mm256_set1_epi32(63));
#else
  const uint32_t w = packed[0] | packed[1] << 8 | packed[2] << 16;
  return Words{w & 63, w >> 6 & 63, w >> 12 & 63, w >> 18};
#endif
}

// kLanes values through the table of the scheme.
inline Floats look_up(const Decoder& d, Words code) {
  const float* values = d.spec->values;
#if defined(__AVX512F__)
  const __m512i index = (__m512i)code;
  if (!d.mirrored) return (Floats)_mm512_i32gather_ps(index, values, 4);
  // Thirty-two magnitudes at a time; an index counts modulo 32.
  __m512 found = _mm512_permutex2var_ps(_mm512_loadu_ps(values), index, _mm512_loadu_ps(values + 16));
  if (d.spec->bits == 8) {
    __m512 row[3];
    for (int i = 0; i < 3; ++i)
      row[i] = _mm512_permutex2var_ps(_mm512_loadu_ps(values + 32 * i + 32), index,
                                      _mm512_loadu_ps(values + 32 * i + 48));
    const __mmask16 odd = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
    const __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
    found = _mm512_mask_mov_ps(found, odd, row[0]);
    found = _mm512_mask_mov_ps(found, upper, _mm512_mask_mov_ps(row[1], odd, row[2]));
  }
  const __m512i sign = _mm512_slli_epi32(index, static_cast<unsigned>(32 - d.spec->bits));
  return (Floats)merge(0x80000000u, (Words)sign, (Words)found);
#elif defined(__AVX2__)
  return (Floats)_mm256_i32gather_ps(values, (__m256i)code, 4);
#else
  Floats v;
  for (int i = 0; i < kLanes; ++i) v[i] = values[code[i]];
  return v;
#endif
}

#if defined(__AVX2__)
// half_of_code of sixteen codes in words.
inline __m256i halves_of_codes(__m256i code, int shift) {
  const __m256i last = _mm256_set1_epi16(shift == 7 ? 0x3F7F : 0x7CFF);  // the last before NaN
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x7F)), shift);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16(INT16_MIN));
  const __m256i nan = _mm256_cmpgt_epi16(magnitude, last);
  return _mm256_blendv_epi8(_mm256_or_si256(magnitude, sign), _mm256_set1_epi16(0x7E00), nan);
}
#endif

// kLanes codes of eight bits, by way of half_of_code.
inline Floats look_up_halves(const Decoder& d, const uint8_t* codes) {
#if defined(__AVX512F__)
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)codes));
  return (Floats)_mm512_cvtph_ps(halves_of_codes(code, d.half_shift)) * d.half_unit;
#elif defined(__AVX2__)
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)codes));
  return (Floats)_mm256_cvtph_ps(_mm256_castsi256_si128(halves_of_codes(code, d.half_shift))) * d.half_unit;
#else
  return look_up(d, load_eights(codes));
#endif
}

inline Floats code_numbers(const Decoder& d, Words code) {
  const Ints plain = (Ints)code, wrapped = (Ints)(code << 24) >> 24;
  return to_floats(d.is_signed ? wrapped : plain) * d.unit;
}

enum CodeKind { kNibbles, kSixes, kNumbers, kHalves, kEights };

// Blocks of `size` values, a multiple of 16.
template <CodeKind kKind, int kOffset>
inline void decode_blocks(const Decoder& d, const BlockScales& blocks, const uint8_t* packed, int64_t n,
                          int64_t size, float* out) {
  const int64_t bytes = packed_bytes(size, d.spec->bits);
  for (int64_t b = 0; b < n; ++b, packed += bytes, out += size) {
    if (kKind == kNibbles) {
      Floats table[16 / kLanes];
      for (int i = 0; i < 16 / kLanes; ++i)
        table[i] = apply_scale<kOffset>(blocks, b, load<Floats>(d.spec->values + i * kLanes));
      look_up_16(table, packed, size, out);
      continue;
    }
    for (int64_t i = 0; i < size; i += kLanes) {
      Floats v;
      if (kKind == kSixes) v = look_up(d, load_sixes(packed + i / 4 * 3));
      if (kKind == kNumbers) v = code_numbers(d, load_eights(packed + i));
      if (kKind == kHalves) v = look_up_halves(d, packed + i);
      if (kKind == kEights) v = look_up(d, load_eights(packed + i));
      store(out + i, apply_scale<kOffset>(blocks, b, v));
    }
  }
}

template <CodeKind kKind>
inline void decode_kind(const Decoder& d, const BlockScales& blocks, const uint8_t* packed, int64_t n,
                        int64_t size, float* out) {
  auto* run = d.spec->offset == 0   ? decode_blocks<kKind, 0>
              : d.spec->offset == 1 ? decode_blocks<kKind, 1>
                                    : decode_blocks<kKind, 2>;
  run(d, blocks, packed, n, size, out);
}

inline void decode_fast(const Decoder& d, const BlockScales& blocks, const uint8_t* packed, int64_t n,
                        int64_t size, float* out) {
  auto* run = d.spec->bits == 4   ? decode_kind<kNibbles>
              : d.spec->bits == 6 ? decode_kind<kSixes>
              : d.linear          ? decode_kind<kNumbers>
              : d.half_shift      ? decode_kind<kHalves>
                                  : decode_kind<kEights>;
  run(d, blocks, packed, n, size, out);
}

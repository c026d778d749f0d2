// Dequantizing in vectors: a piece of some thousand values is decoded in the nearest cache, narrowed if need
// be, and copied out, past the caches where the output is large. Values are those of decode_block.

constexpr int64_t kPiece = 4096;  // values at a time: whole blocks, or a part of one
constexpr int64_t kPieceBlocks = kPiece / 16;
constexpr int64_t kStreamBytes = 1 << 22;  // output from this size on is not read back from cache soon
constexpr int32_t kExactShift = 1 << 22;   // code - zero point is exact in float32 below

// What the codes mean, looked at once per call.
struct Decoder {
  const DecodeSpec* spec;
  bool linear, is_signed;  // value = unit * code
  bool mirrored;           // the highest bit of a code is the sign of its value
  float unit;
};

inline Decoder make_decoder(const DecodeSpec& spec) {
  const int n = 1 << spec.bits, half = n / 2;
  Decoder d{&spec, true, spec.values[n - 1] < 0, true, spec.values[1]};
  for (int i = 0; i < n; ++i) {
    const float code = static_cast<float>(d.is_signed && i >= half ? i - n : i);
    d.linear &= bits_of(spec.values[i]) == bits_of(code * d.unit);
  }
  for (int i = 0; i < half; ++i)
    d.mirrored &= !is_negative(spec.values[i]) &&
                  bits_of(spec.values[i + half]) == (bits_of(spec.values[i]) | 0x80000000u);
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

inline Floats code_numbers(const Decoder& d, Words code) {
  const Ints plain = (Ints)code, wrapped = (Ints)(code << 24) >> 24;
  return to_floats(d.is_signed ? wrapped : plain) * d.unit;
}

enum CodeKind { kNibbles, kSixes, kNumbers, kEights };

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
      const Words code = kKind == kSixes ? load_sixes(packed + i / 4 * 3) : load_eights(packed + i);
      const Floats v = kKind == kNumbers ? code_numbers(d, code) : look_up(d, code);
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
                                  : decode_kind<kEights>;
  run(d, blocks, packed, n, size, out);
}

// Narrow n values to a 16-bit type; `values` and `out` have room for a whole vector more.
inline int64_t narrow(int32_t type, float* values, int64_t n, uint16_t* out) {
  for (int64_t i = n; i % kLanes; ++i) values[i] = 0;
  Ints lost = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats v = load<Floats>(values + i);
    lost += overflows(v, type == kFloat16 ? 0x477FF000u : 0x7F7F8000u);
    if (type == kFloat16)
      store_half(out + i, v);
    else
      store_bfloat16(out + i, v);
  }
  return count_lanes(lost);
}

// memcpy that writes past the caches: they keep what is read, and no line is read to be overwritten.
inline void copy_out(void* out, const void* from, int64_t bytes, bool stream) {
#if defined(__AVX2__)
  if (stream && bytes >= 256) {
    char* to = static_cast<char*>(out);
    const char* p = static_cast<const char*>(from);
    const int64_t head = -reinterpret_cast<intptr_t>(to) & 63;
    memcpy(to, p, static_cast<size_t>(head));
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
      _mm512_stream_si512((__m512i*)(to + i), _mm512_loadu_si512(p + i));
#else
      _mm256_stream_si256((__m256i*)(to + i), _mm256_loadu_si256((const __m256i*)(p + i)));
      _mm256_stream_si256((__m256i*)(to + i + 32), _mm256_loadu_si256((const __m256i*)(p + i + 32)));
#endif
    }
    memcpy(to + i, p + i, static_cast<size_t>(bytes - i));
    return;
  }
#endif
  (void)stream;
  memcpy(out, from, static_cast<size_t>(bytes));
}

struct DequantizeScratch {
  float values[kPiece + 16];
  uint16_t narrow[kPiece + 16];
  uint8_t codes[kPiece];
  BlockScales blocks;
};

// n values of the row that begins at block `first`, from `begin` on (a multiple of kPiece).
inline void decode_piece(const Decoder& d, const uint8_t* row, const void* scales, const void* offsets,
                         int64_t first, int64_t begin, int64_t n, int64_t block_size,
                         DequantizeScratch* scratch) {
  const DecodeSpec& spec = *d.spec;
  const int64_t size = block_size < kPiece ? block_size : kPiece, block = first + begin / block_size;
  int64_t done = 0;
  if (size % 16 == 0 && spec.bits >= 4) {
    const int64_t whole = n / size;
    if (load_blocks(spec, scales, offsets, block, whole, &scratch->blocks)) {
      decode_fast(d, scratch->blocks, row + packed_bytes(begin, spec.bits), whole, size, scratch->values);
      done = whole * size;
    }
  }
  if (done == n) return;
  // Small blocks, the rest of a row, far zero points: one value at a time.
  unpack(row + packed_bytes(begin + done, spec.bits), n - done, spec.bits, scratch->codes);
  for (int64_t i = done; i < n; i += size) {
    const int64_t m = size < n - i ? size : n - i;
    decode_block(spec, scratch->codes + (i - done), m, scales, offsets, block + i / size,
                 scratch->values + i);
  }
}

int64_t dequantize(const DecodeSpec& spec, const uint8_t* packed, int64_t row_bytes, const void* scales,
                   const void* offsets, int64_t row_begin, int64_t row_end, int64_t length,
                   int64_t block_size, void* out) {
  const Decoder d = make_decoder(spec);
  const int64_t width = spec.output_type == kFloat32 ? 4 : 2;
  const bool stream = (row_end - row_begin) * length * width >= kStreamBytes;
  const int64_t blocks = (length + block_size - 1) / block_size;
  int64_t at = row_begin * length, rows = row_end - row_begin, first = row_begin * blocks;
  packed += row_begin * row_bytes;
  if (length % block_size == 0 && row_bytes == packed_bytes(length, spec.bits) &&
      length * spec.bits % 8 == 0) {
    length *= rows;  // rows of whole blocks lie one after the other: one long row
    rows = rows ? 1 : 0;
  }
  DequantizeScratch scratch;
  int64_t lost = 0;
  for (int64_t r = 0; r < rows; ++r, at += length, first += blocks, packed += row_bytes) {
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      const int64_t n = begin + kPiece < length ? kPiece : length - begin;
      decode_piece(d, packed, scales, offsets, first, begin, n, block_size, &scratch);
      const void* from = scratch.values;
      if (width == 2) {
        lost += narrow(spec.output_type, scratch.values, n, scratch.narrow);
        from = scratch.narrow;
      }
      copy_out(static_cast<char*>(out) + (at + begin) * width, from, n * width, stream);
    }
  }
#if defined(__AVX2__)
  if (stream) _mm_sfence();
#endif
  return lost;
}

// Dequantizing in vectors: a piece of some thousand values is decoded in the nearest cache, narrowed if need be,
// and copied out, past the caches where the output is large. Values are those of decode_block.

constexpr int64_t kPiece = 4096;             // values at a time: whole blocks, or a part of one
constexpr int64_t kStreamBytes = 1 << 22;    // output from this size on is not read back from cache soon
constexpr int32_t kExactShift = 1 << 22;     // code - zero point is exact in float32 below

// What the codes mean, looked at once per call.
struct Decoder {
  const DecodeSpec* spec;
  bool linear, is_signed;  // value = unit * code
  bool mirrored;           // the upper half of the codes has the values of the lower, negated
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
    d.mirrored &= bits_of(spec.values[i + half]) == (bits_of(spec.values[i]) ^ 0x80000000u);
  return d;
}

// Parameters of one block: value = scale * (v - shift) + add.
struct BlockScale {
  float scale = 1, shift = 0, add = 0;
  bool exact = true;  // shift and the difference are exact in float32
};

inline BlockScale block_scale(const DecodeSpec& spec, const void* scales, const void* offsets, int64_t block) {
  BlockScale b;
  if (spec.family == 0) {
    b.scale = e8m0_value(static_cast<const uint8_t*>(scales)[block]);
    return b;
  }
  b.scale = load_scale(spec.scale_type, scales, block);
  if (spec.offset == 1) {
    const int32_t z = static_cast<const int32_t*>(offsets)[block];
    b.exact = z < kExactShift && z > -kExactShift;
    b.shift = static_cast<float>(z);
  }
  if (spec.offset == 2) b.add = load_scale(spec.scale_type, offsets, block);
  return b;
}

// The four arithmetics, as decode_block has them. `-0 + 0` would lose a sign: nothing is added without need.
inline Floats apply_scale(const DecodeSpec& spec, const BlockScale& b, Floats v) {
  if (spec.offset == 1) v = v - b.shift;
  v = v * b.scale;
  return spec.offset == 2 ? v + b.add : v;
}

// n codes of four bits through a table of sixteen values.
inline void look_up_16(const float* table, const uint8_t* packed, int64_t n, float* out) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_loadu_ps(table);
  for (int64_t i = 0; i < n; i += 16) {  // only the low four bits of an index count
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)(packed + i / 2)));
    const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    _mm512_storeu_ps(out + i, _mm512_permutexvar_ps(index, values));
  }
#elif defined(__AVX2__)
  const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
  for (int64_t i = 0; i < n; i += 8) {
    int32_t word;
    memcpy(&word, packed + i / 2, 4);
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(word));
    const __m256i index = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
    const __m256 a = _mm256_permutevar8x32_ps(low, index), b = _mm256_permutevar8x32_ps(high, index);
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
  }
#else
  for (int64_t i = 0; i < n; i += 2) {
    out[i] = table[packed[i / 2] & 15];
    out[i + 1] = table[packed[i / 2] >> 4];
  }
#endif
}

// kLanes codes of eight bits as numbers.
inline Floats code_numbers(const uint8_t* codes, bool is_signed) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128((const __m128i*)codes);
  return to_floats((Ints)(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes)));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64((const __m128i*)codes);
  return to_floats((Ints)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes)));
#else
  Ints v;
  for (int i = 0; i < kLanes; ++i) v[i] = is_signed ? static_cast<int8_t>(codes[i]) : codes[i];
  return to_floats(v);
#endif
}

// kLanes codes, a byte each, through the table of the scheme.
inline Floats look_up(const Decoder& d, const uint8_t* codes) {
  const float* values = d.spec->values;
#if defined(__AVX512F__)
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));
  if (!d.mirrored) return (Floats)_mm512_i32gather_ps(code, values, 4);
  // Thirty-two magnitudes at a time; an index counts modulo 32.
  __m512 found = _mm512_permutex2var_ps(_mm512_loadu_ps(values), code, _mm512_loadu_ps(values + 16));
  for (int base = 32; base < 1 << (d.spec->bits - 1); base += 32) {
    const __m512 next =
        _mm512_permutex2var_ps(_mm512_loadu_ps(values + base), code, _mm512_loadu_ps(values + base + 16));
    const __m512i row = _mm512_and_si512(code, _mm512_set1_epi32(0x60));
    found = _mm512_mask_mov_ps(found, _mm512_cmpeq_epi32_mask(row, _mm512_set1_epi32(base)), next);
  }
  const __m512i sign = _mm512_slli_epi32(code, static_cast<unsigned>(32 - d.spec->bits));
  return (Floats)merge(0x80000000u, (Words)sign, (Words)found);
#elif defined(__AVX2__)
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)codes));
  return (Floats)_mm256_i32gather_ps(values, code, 4);
#else
  Floats v;
  for (int i = 0; i < kLanes; ++i) v[i] = values[codes[i]];
  return v;
#endif
}

// n codes of six bits, a byte each; n is a multiple of 16.
inline void unpack_sixes(const uint8_t* packed, int64_t n, uint8_t* codes) {
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t w = 0;
    memcpy(&w, packed + i / 4 * 3, 6);
    w = (w & 0xFFFFFFull) | (w << 8 & 0x00FFFFFF00000000ull);
    w = (w & 0x00000FFF00000FFFull) | (w << 4 & 0x0FFF00000FFF0000ull);
    w = (w & 0x003F003F003F003Full) | (w << 2 & 0x3F003F003F003F00ull);
    memcpy(codes + i, &w, 8);
  }
}

// A block, or a part of one: n values, a multiple of 16.
inline void decode_fast(const Decoder& d, const BlockScale& b, const uint8_t* packed, int64_t n, float* out) {
  const DecodeSpec& spec = *d.spec;
  if (spec.bits == 4) {
    float table[16];
    for (int i = 0; i < 16; i += kLanes)
      store(table + i, apply_scale(spec, b, load<Floats>(spec.values + i)));
    look_up_16(table, packed, n, out);
    return;
  }
  uint8_t room[256];
  const uint8_t* codes = packed;
  for (int64_t begin = 0; begin < n; begin += 256) {
    const int64_t m = begin + 256 < n ? 256 : n - begin;
    if (spec.bits == 6) {
      unpack_sixes(packed + begin / 4 * 3, m, room);
      codes = room - begin;
    }
    if (d.linear)
      for (int64_t i = begin; i < begin + m; i += kLanes)
        store(out + i, apply_scale(spec, b, code_numbers(codes + i, d.is_signed) * d.unit));
    else
      for (int64_t i = begin; i < begin + m; i += kLanes)
        store(out + i, apply_scale(spec, b, look_up(d, codes + i)));
  }
}

// kLanes values rounded to a 16-bit type; `lost` counts the finite ones that became infinite. NaNs become the
// quiet NaN of their sign (float16) or keep their upper bits (bfloat16).
inline void store_half(uint16_t* p, Floats v, Ints* lost) {
  const Words u = (Words)v, a = u & 0x7FFFFFFFu;
  *lost += (Ints)(a - 0x477FF000u < 0x7F800000u - 0x477FF000u);
#if defined(__AVX2__)
  const Words quiet = merge(0x80000000u, u, spread(0x7FC00000u));
  const Floats clean = (Floats)select((Ints)(a > 0x7F800000u), quiet, u);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)clean, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)clean, _MM_FROUND_TO_NEAREST_INT));
#endif
#else
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(v[i]);
#endif
}

inline void store_bfloat16(uint16_t* p, Floats v, Ints* lost) {
  const Words u = (Words)v, a = u & 0x7FFFFFFFu;
  *lost += (Ints)(a - 0x7F7F8000u < 0x8000u);
  const Words rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  const Words h = select((Ints)(a > 0x7F800000u), quiet, rounded);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)h));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)h, (__m256i)h), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(pairs));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(h[i]);
#endif
}

// Narrow n values to a 16-bit type; `values` and `out` have room for a whole vector more.
inline int64_t narrow(int32_t type, float* values, int64_t n, uint16_t* out) {
  for (int64_t i = n; i % kLanes; ++i) values[i] = 0;
  Ints lost = {};
  if (type == kFloat16)
    for (int64_t i = 0; i < n; i += kLanes) store_half(out + i, load<Floats>(values + i), &lost);
  else
    for (int64_t i = 0; i < n; i += kLanes) store_bfloat16(out + i, load<Floats>(values + i), &lost);
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
};

// n values of the row that begins at block `first`, from `begin` on (a multiple of kPiece).
inline void decode_piece(const Decoder& d, const uint8_t* row, const void* scales, const void* offsets,
                         int64_t first, int64_t begin, int64_t n, int64_t block_size, DequantizeScratch* scratch) {
  const DecodeSpec& spec = *d.spec;
  for (int64_t i = 0; i < n;) {
    const int64_t b = (begin + i) / block_size, rest = (b + 1) * block_size - (begin + i);
    const int64_t m = rest < n - i ? rest : n - i;
    const BlockScale scale = block_scale(spec, scales, offsets, first + b);
    if (m % 16 == 0 && scale.exact && spec.bits >= 4) {
      decode_fast(d, scale, row + packed_bytes(begin + i, spec.bits), m, scratch->values + i);
      i += m;
      continue;
    }
    // Small blocks, the rest of a row, far zero points: one value at a time, from whole bytes.
    const int64_t at = (begin + i) & ~int64_t{7}, skip = begin + i - at;
    unpack(row + packed_bytes(at, spec.bits), skip + m, spec.bits, scratch->codes);
    decode_block(spec, scratch->codes + skip, m, scales, offsets, first + b, scratch->values + i);
    i += m;
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
  if (length % block_size == 0 && row_bytes == packed_bytes(length, spec.bits) && length * spec.bits % 8 == 0) {
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

// Sixteen weight rows as a tile: 32-bit lanes belong to the rows.

struct HalfTile {  // kTileSegments segments
  uint8_t* codes;                     // (segment, 8, 64): four codes of each of 16 rows
  float *scales, *shifts, *minimums;  // (segment, 16)
};

// Sixteen rows of 16 words: afterwards lane r of vector q is word q of row r.
[[gnu::always_inline]] inline void transpose_words(__m512i* a) {
  __m512i b[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4)  // a[r + w]: words w, 4 + w, 8 + w, 12 + w of rows r .. r + 3
    for (int h = 0; h < 2; ++h) {
      a[r + 2 * h] = _mm512_unpacklo_epi64(b[r + h], b[r + 2 + h]);
      a[r + 2 * h + 1] = _mm512_unpackhi_epi64(b[r + h], b[r + 2 + h]);
    }
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i x = _mm512_shuffle_i32x4(a[w], a[4 + w], 0x88), y = _mm512_shuffle_i32x4(a[w], a[4 + w], 0xDD);
    const __m512i u = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0x88);
    const __m512i v = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0xDD);
    a[w] = _mm512_shuffle_i32x4(x, u, 0x88);
    a[8 + w] = _mm512_shuffle_i32x4(x, u, 0xDD);
    a[4 + w] = _mm512_shuffle_i32x4(y, v, 0x88);
    a[12 + w] = _mm512_shuffle_i32x4(y, v, 0xDD);
  }
}

// Stored codes of rows n .. n + 15, segments [begin, end); segments past the end of a row are left alone.
template <Int8Order kOrder>
inline void many_codes(const LinearSpec& spec, int64_t n, int64_t begin, int64_t end, const int8_t* sixteen, int flip,
                       uint8_t* out) {
  constexpr int64_t kSegmentBytes = kOrder == kEvenOdd ? 16 : 32, kAtOnce = 64 / kSegmentBytes;
  const uint8_t* rows = spec.packed + n * spec.row_bytes;
  const Wide table = wide_table(sixteen);
  for (int64_t t = begin; t < end; t += kAtOnce) {
    __m512i words[16];
    const int64_t left = end - t;
    const __mmask64 there = left < kAtOnce ? (uint64_t{1} << left * kSegmentBytes) - 1 : ~uint64_t{0};
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)  // not past the row's end
      words[r] = _mm512_maskz_loadu_epi8(there, rows + r * spec.row_bytes + t * kSegmentBytes);
    transpose_words(words);
    for (int i = 0; i < (left < kAtOnce ? left : kAtOnce); ++i, out += 512) {
      if (kOrder == kEvenOdd) {
        for (int q = 0; q < 4; ++q) {
          _mm512_store_si512(out + q * 64, wide_low(table, {words[i * 4 + q]}).v);
          _mm512_store_si512(out + 256 + q * 64, wide_high(table, {words[i * 4 + q]}).v);
        }
      } else {
        for (int q = 0; q < 8; ++q) _mm512_store_si512(out + q * 64, wide_xor({words[i * 8 + q]}, flip).v);
      }
    }
  }
}

// Sixteen scales (or minimums) from `block` on, where the mask has ones.
inline __m512 load_scales(const LinearSpec& spec, const void* from, int64_t block, __mmask16 which) {
  if (spec.family == 0) {
    const __m128i bytes = _mm_maskz_loadu_epi8(which, static_cast<const uint8_t*>(from) + block);
    // 0 is 2**-127, a subnormal, and 255 is NaN: both want the top bit of the mantissa
    const __mmask16 ends = _mm_cmplt_epu8_mask(_mm_add_epi8(bytes, _mm_set1_epi8(1)), _mm_set1_epi8(2));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, ends, bits, _mm512_set1_epi32(0x400000)));
  }
  if (spec.scale_type == kFloat32) return _mm512_maskz_loadu_ps(which, static_cast<const float*>(from) + block);
  const __m256i halves = _mm256_maskz_loadu_epi16(which, static_cast<const uint16_t*>(from) + block);
  if (spec.scale_type == kFloat16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// What sixteen rows hold per block, as (segment, row) from segment `begin` on; zero past `end`.
template <typename Load>
inline void many_spread(const LinearSpec& spec, int64_t n, int64_t begin, int64_t end, Load load, float* out) {
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32));
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t t = begin; t < end; t += 16, out += 256) {
    const int64_t left = end - t < 16 ? end - t : 16, first = t >> shift;
    const __mmask16 there = static_cast<__mmask16>((2u << (left - 1)) - 1);
    const __mmask16 used = static_cast<__mmask16>((2u << (((t + left - 1) >> shift) - first)) - 1);
    const __m512i within = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(t & ((1 << shift) - 1))));
    const __m512i from = _mm512_srl_epi32(within, _mm_cvtsi32_si128(shift));
    __m512i v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      v[r] = _mm512_maskz_permutexvar_epi32(there, from, _mm512_castps_si512(load((n + r) * blocks + first, used)));
    transpose_words(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 16, v[i]);
  }
}

// The `ggml` presets on whole groups of blocks of 32, where there are instructions to narrow vectors in one go
// (AVX-512 with BW and VBMI): the bits and counts of the other path (affine_fast.inl.h), with less work per element.
//
//  * An input of zero gets the code of zero, so the elements that became zero are those with that code less the
//    inputs of zero; and in a group without any, all of them.
//  * q4_1 decodes to zero only where code * scale is exactly minus the minimum. Such groups, and those in which an
//    end of a block saturates, are left to the other path.

#if defined(__AVX512VBMI__)
// Four blocks of 32 codes, in words as packs_epi32 of their halves orders them, to 64 bytes of two codes each, of
// which the bits in `flip` change.
inline void store_nibbles(uint8_t* out, const __m512i* words, char flip) {
  alignas(64) static constexpr uint8_t from[64] = {
      0,  1,  16, 17, 32, 33, 48, 49, 2,  3,  18, 19, 34, 35, 50, 51, 4,  5,  20, 21, 36, 37,
      52, 53, 6,  7,  22, 23, 38, 39, 54, 55, 8,  9,  24, 25, 40, 41, 56, 57, 10, 11, 26, 27,
      42, 43, 58, 59, 12, 13, 28, 29, 44, 45, 60, 61, 14, 15, 30, 31, 46, 47, 62, 63};
  __m512i pairs[4];
  for (int i = 0; i < 4; ++i) pairs[i] = _mm512_madd_epi16(words[i], _mm512_set1_epi32(1 | 16 << 16));
  const __m512i low = _mm512_packus_epi32(pairs[0], pairs[1]), high = _mm512_packus_epi32(pairs[2], pairs[3]);
  const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(from), _mm512_packus_epi16(low, high));
  _mm512_storeu_si512(out, _mm512_xor_si512(bytes, _mm512_set1_epi8(flip)));
}

// Two blocks of such words to 64 codes of a byte each. Returns the number of zeros.
inline int64_t store_codes(uint8_t* out, const __m512i* words) {
  alignas(64) static constexpr uint8_t from[64] = {
      0,  1,  2,  3,  16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51, 4,  5,  6,  7,  20, 21,
      22, 23, 36, 37, 38, 39, 52, 53, 54, 55, 8,  9,  10, 11, 24, 25, 26, 27, 40, 41, 42, 43,
      56, 57, 58, 59, 12, 13, 14, 15, 28, 29, 30, 31, 44, 45, 46, 47, 60, 61, 62, 63};
  const __m512i bytes = _mm512_packs_epi16(words[0], words[1]);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(from), bytes));
  return __builtin_popcountll(_mm512_testn_epi8_mask(bytes, bytes));
}

struct GroupFindings {
  __m512i saturated = {}, zero_codes = {};  // minus the number, in each lane
  __m512i seen = {};                        // all codes, ored
  __m512i least = _mm512_set1_epi32(-1);    // magnitude, in twice its bits
  void look_at(__m512i x) { least = _mm512_min_epu32(least, _mm512_add_epi32(x, x)); }
  bool has_zero() const { return _mm512_testn_epi32_mask(least, least); }
};

// The ends of sixteen blocks, in the order of ordered(). For q4_0 only magnitudes and signs count, and the largest of
// the bits as signed and as unsigned numbers are the greatest and the least element, if there are such of each sign.
template <AffineKind kKind>
[[gnu::always_inline]] inline void whole_ends(const float* x, AffineGroup* g) {
  if (kKind == kQ8_0) return group_amax(x, kGroup, 32, g->high);
  Ints low[kGroup], high[kGroup];
  for (int b = 0; b < kGroup; ++b) {
    const __m512 p = _mm512_loadu_ps(x + b * 32), q = _mm512_loadu_ps(x + b * 32 + 16);
    if (kKind == kQ4_0) {
      low[b] = (Ints)_mm512_max_epu32((__m512i)p, (__m512i)q);
      high[b] = (Ints)_mm512_max_epi32((__m512i)p, (__m512i)q);
    } else {
      low[b] = (Ints)_mm512_min_ps(p, q);
      high[b] = (Ints)_mm512_max_ps(p, q);
    }
  }
  if (kKind == kQ4_0) {
    combine_lanes(low, g->low, [](Ints a, Ints b) { return (Ints)_mm512_max_epu32((__m512i)a, (__m512i)b); });
    combine_lanes(high, g->high, [](Ints a, Ints b) { return maximum(a, b); });
  } else {
    combine_lanes(low, g->low, [](Ints a, Ints b) { return (Ints)minimum((Floats)a, (Floats)b); });
    combine_lanes(high, g->high, [](Ints a, Ints b) { return (Ints)maximum((Floats)a, (Floats)b); });
  }
  store(g->low, ordered(load<Words>(g->low)));
  store(g->high, ordered(load<Words>(g->high)));
}

// Codes of a block in words, as packs_epi32 orders them.
template <AffineKind kKind>
[[gnu::always_inline]] inline __m512i block_words(const AffineGroup& g, int b, const float* x, GroupFindings* f) {
  const __m512 p = _mm512_loadu_ps(x), q = _mm512_loadu_ps(x + 16), inverse = _mm512_set1_ps(g.inverse[b]);
  if (kKind != kQ4_1) f->look_at((__m512i)p), f->look_at((__m512i)q);
  if (kKind == kQ8_0) {
    const __m512i most = _mm512_set1_epi32(0x3EFFFFFF), sign = _mm512_set1_epi32(INT32_MIN);
    const auto code = [&](__m512 v) {
      const __m512 y = _mm512_mul_ps(v, inverse);
      const __m512i half = _mm512_ternarylogic_epi32(sign, (__m512i)y, most, 0xCA);
      return _mm512_cvttps_epi32(_mm512_add_ps(y, (__m512)half));
    };
    return _mm512_packs_epi32(code(p), code(q));
  }
  if (kKind == kQ4_0) {
    const __m512 middle = _mm512_set1_ps(8.5f);
    const auto code = [&](__m512 v) { return _mm512_cvttps_epi32(_mm512_add_ps(_mm512_mul_ps(v, inverse), middle)); };
    const __m512i words = _mm512_packs_epi32(code(p), code(q)), none = _mm512_set1_epi16(-1);
    const __mmask32 over = _mm512_cmpgt_epi16_mask(words, _mm512_set1_epi16(15));
    const __mmask32 zero = _mm512_cmpeq_epi16_mask(words, _mm512_set1_epi16(8));
    f->saturated = _mm512_mask_add_epi16(f->saturated, over, f->saturated, none);
    f->zero_codes = _mm512_mask_add_epi16(f->zero_codes, zero, f->zero_codes, none);
    return _mm512_min_epi16(words, _mm512_set1_epi16(15));
  }
  const __m512 low = _mm512_set1_ps(g.shift[b]), half = _mm512_set1_ps(0.5f);
  const auto code = [&](__m512 v) {
    return _mm512_cvttps_epi32(_mm512_add_ps(_mm512_mul_ps(_mm512_sub_ps(v, low), inverse), half));
  };
  const __m512i words = _mm512_packs_epi32(code(p), code(q));
  f->seen = _mm512_or_si512(f->seen, words);
  return words;
}

// Whether an element of q4_1 may decode to zero or have a code above 15. If a code gives zero, the quotient is that
// code; its product is exact.
inline bool q4_1_is_plain(const AffineGroup& g) {
  const Floats s = load<Floats>(g.scale), m = load<Floats>(g.base), inverse = load<Floats>(g.inverse);
  const Floats top = from_ordered(load<Ints>(g.high)) - from_ordered(load<Ints>(g.low));
  return !any((Ints)(rounded(-m / s) * s + m == 0.0f) | (truncate(top * inverse + 0.5f) > 15));
}

inline int64_t count_zeros(const float* x) {
  int64_t n = 0;
  for (int64_t i = 0; i < kGroup * 32; i += kLanes)
    n += __builtin_popcount(lane_bits((Ints)(load<Floats>(x + i) == 0.0f)));
  return n;
}

// The scales and codes of a group; false, and nothing counted, if it is left to the other path.
template <AffineKind kKind>
inline bool whole_group_words(const AffineSpec& spec, const float* x, uint8_t* packed, uint16_t* scales,
                              uint16_t* minimums, AffineCounts* counts) {
  AffineGroup g;
  whole_ends<kKind>(x, &g);
  ggml_scales<kKind>(x, kGroup, 32, &g, scales, minimums);
  if (g.special || (kKind == kQ4_1 && !q4_1_is_plain(g))) return false;
  GroupFindings found;
  int64_t zero_codes = 0;
  for (int b = 0; b < kGroup; b += 4) {
    __m512i words[4];
    for (int j = 0; j < 4; ++j) {
      prefetch_block(x + (b + j) * 32);
      words[j] = block_words<kKind>(g, b + j, x + (b + j) * 32, &found);
    }
    if (kKind == kQ8_0)
      zero_codes += store_codes(packed + b * 32, words) + store_codes(packed + b * 32 + 64, words + 2);
    else
      store_nibbles(packed + b * 16, words, kKind == kQ4_0 ? '\x88' : '\0');
  }
  if (kKind == kQ4_1) return !_mm512_movepi16_mask(found.seen);  // NaN gives a negative code
  if (found.has_zero()) zero_codes -= count_zeros(x);
  counts->zeroed += (Ints)_mm512_madd_epi16(found.zero_codes, _mm512_set1_epi16(1));
  counts->zeroed[0] -= static_cast<int32_t>(zero_codes);
  counts->saturated += (Ints)_mm512_madd_epi16(found.saturated, _mm512_set1_epi16(1));
  if (kKind == kQ4_0) counts->saturated_blocks += count_saturated<kKind>(spec, g);
  return true;
}
#else
template <AffineKind kKind>
inline bool whole_group_words(const AffineSpec&, const float*, uint8_t*, uint16_t*, uint16_t*, AffineCounts*) {
  return false;
}
#endif

// The `ggml` presets on whole groups of blocks of 32, where there are instructions to narrow vectors in one go
// (AVX-512 with BW and VBMI): the bits and counts of the other path (affine_fast.inl.h), with less work per element.
//
//  * An input of zero gets the code of zero, so the elements that became zero are those with that code less the
//    inputs of zero; and in a group without any, all of them.
//  * q4_1 decodes to zero only where code * scale is exactly minus the minimum. Such groups, and those in which an
//    end of a block saturates, are left to the other path.

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
// Codes of a block lie in words as packs_epi32 of its two vectors orders them: of bfloat16 (block_floats) in order,
// else each 128 bits have four elements of the first half and four of the second. This is where the bytes of four
// blocks (two codes each) or two (one each) come from when they have been narrowed together.
struct ByteOrder {
  alignas(64) uint8_t from[64];
};

constexpr ByteOrder byte_order(bool in_order, int blocks) {
  ByteOrder order = {};
  const int per_lane = 16 / blocks, half = per_lane / 2;  // of a block, in 128 bits
  for (int b = 0; b < blocks; ++b)
    for (int lane = 0; lane < 4; ++lane)
      for (int i = 0; i < per_lane; ++i) {
        const int split = i < half ? lane * half + i : 2 * per_lane + lane * half + i - half;
        const int to = in_order ? lane * per_lane + i : split;
        order.from[b * 4 * per_lane + to] = static_cast<uint8_t>(lane * 16 + b * per_lane + i);
      }
  return order;
}

template <int32_t kType>
constexpr ByteOrder kNibbleOrder = byte_order(kType == kBfloat16, 4);
template <int32_t kType>
constexpr ByteOrder kCodeOrder = byte_order(kType == kBfloat16, 2);

// Four blocks of 32 codes in bytes, two in each vector, to 64 bytes of two codes each, of which the bits in `flip`
// change. Returns them.
template <int32_t kType>
inline __m512i store_byte_pairs(uint8_t* out, __m512i first, __m512i second, char flip) {
  const __m512i by = _mm512_set1_epi16(1 | 16 << 8);
  const __m512i words = _mm512_packus_epi16(_mm512_maddubs_epi16(first, by), _mm512_maddubs_epi16(second, by));
  const __m512i order = _mm512_load_si512(kNibbleOrder<kType>.from);
  const __m512i bytes = _mm512_xor_si512(_mm512_permutexvar_epi8(order, words), _mm512_set1_epi8(flip));
  _mm512_storeu_si512(out, bytes);
  return bytes;
}

// The same of words.
template <int32_t kType>
inline __m512i store_nibbles(uint8_t* out, const __m512i* words, char flip) {
  return store_byte_pairs<kType>(out, _mm512_packus_epi16(words[0], words[1]), _mm512_packus_epi16(words[2], words[3]),
                                 flip);
}

inline int64_t zero_nibbles(__m512i bytes) {
  return __builtin_popcountll(_mm512_testn_epi8_mask(bytes, _mm512_set1_epi8(0x0F))) +
         __builtin_popcountll(_mm512_testn_epi8_mask(bytes, _mm512_set1_epi8('\xF0')));
}

// Two blocks to 64 codes of a byte each. Returns the number of zeros.
template <int32_t kType>
inline int64_t store_codes(uint8_t* out, const __m512i* words, bool is_signed) {
  const __m512i bytes =
      is_signed ? _mm512_packs_epi16(words[0], words[1]) : _mm512_packus_epi16(words[0], words[1]);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(kCodeOrder<kType>.from), bytes));
  return __builtin_popcountll(_mm512_testn_epi8_mask(bytes, bytes));
}

struct GroupFindings {
  __m512i saturated = {};                 // minus the number, in each byte
  __m512i seen = {};                      // all codes, ored
  __m512i least = _mm512_set1_epi32(-1);  // magnitude of float32, in twice its bits
  __mmask32 zeros = 0;                    // of 16-bit numbers
};

template <int32_t kType>
[[gnu::always_inline]] inline void find_zeros(const char* x, GroupFindings* f) {
  const __m512i u = _mm512_loadu_si512(x);
  if (kType != kFloat32) {
    f->zeros |= _mm512_testn_epi16_mask(u, _mm512_set1_epi16(INT16_MAX));
    return;
  }
  const __m512i v = _mm512_loadu_si512(x + 64);
  f->least = _mm512_min_epu32(f->least, _mm512_min_epu32(_mm512_add_epi32(u, u), _mm512_add_epi32(v, v)));
}

template <int32_t kType>
inline bool has_zero(const GroupFindings& f) {
  return kType == kFloat32 ? _mm512_testn_epi32_mask(f.least, f.least) != 0 : f.zeros != 0;
}

// What `least` and `most` leave of each of sixteen blocks of `parts` times 32, four combined; four at a time, as
// registers are few. as: makes vectors of what lies in memory.
template <int32_t kType, typename As, typename Least, typename Most>
[[gnu::always_inline]] inline void four_ends(const char* x, int parts, Ints* lows, Ints* highs, As as, Least least,
                                             Most most) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    Ints low[4], high[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const char* const block = block_input<kType>(x, (4 * i + j) * parts);
      low[j] = high[j] = as(block);
      for (int64_t at = 64; at < 32 * parts * input_width(kType); at += 64) {
        const Ints more = as(block + at);
        low[j] = least(low[j], more), high[j] = most(high[j], more);
      }
    }
    lows[i] = combine_four(low, least), highs[i] = combine_four(high, most);
  }
}

inline Ints as_it_lies(const char* x) { return (Ints)_mm512_loadu_si512(x); }

// The ends of sixteen blocks, as bits of float32: the largest of the bits as unsigned and as signed numbers, which are
// the least and the greatest element where there are such of each sign, with NaN beyond the infinities.
template <int32_t kType>
[[gnu::always_inline]] inline void ends_of_each_sign(const char* x, int parts, AffineGroup* g) {
  constexpr bool kFloats = kType == kFloat32;
  const auto least = [](Ints a, Ints b) {
    return kFloats ? (Ints)_mm512_max_epu32((__m512i)a, (__m512i)b) : larger_words(a, b);
  };
  const auto most = [](Ints a, Ints b) { return kFloats ? maximum(a, b) : larger_signed_words(a, b); };
  Ints lows[4], highs[4];
  four_ends<kType>(x, parts, lows, highs, as_it_lies, least, most);
  if (kFloats) {
    combine_fours(lows, g->low, least), combine_fours(highs, g->high, most);
  } else {
    store(g->low, widened<kType>(largest_words(lows, least)));
    store(g->high, widened<kType>(largest_words(highs, most)));
  }
}

// 16-bit numbers as words that order as they do, and back.
inline __m512i ordered_words(__m512i u) {
  return _mm512_ternarylogic_epi32(u, _mm512_srai_epi16(u, 15), _mm512_set1_epi16(INT16_MAX), 0x78);  // u ^ (sign & c)
}

// The same where signs are any; slower. NaN may get lost; it shows in the codes.
template <int32_t kType>
[[gnu::noinline]] void ends_of_any_sign(const char* x, int parts, AffineGroup* g) {
  Ints lows[4], highs[4];
  if (kType == kFloat32) {
    const auto least = [](Ints a, Ints b) { return (Ints)minimum((Floats)a, (Floats)b); };
    const auto most = [](Ints a, Ints b) { return (Ints)maximum((Floats)a, (Floats)b); };
    four_ends<kType>(x, parts, lows, highs, as_it_lies, least, most);
    combine_fours(lows, g->low, least), combine_fours(highs, g->high, most);
    return;
  }
  const auto as = [](const char* block) { return (Ints)ordered_words(_mm512_loadu_si512(block)); };
  const auto least = [](Ints a, Ints b) { return (Ints)_mm512_min_epi16((__m512i)a, (__m512i)b); };
  four_ends<kType>(x, parts, lows, highs, as, least, larger_signed_words);
  store(g->low, widened<kType>(ordered_words(largest_words(lows, least))));
  store(g->high, widened<kType>(ordered_words(largest_words(highs, larger_signed_words))));
}

// The ends in the order of ordered(). For q4_0 only magnitudes and signs count.
template <AffineKind kKind, int32_t kType>
[[gnu::always_inline]] inline void whole_ends(const char* x, int parts, AffineGroup* g) {
  if (kKind == kQ8_0) return group_amax_words<kType>(x, g->high);
  ends_of_each_sign<kType>(x, parts, g);
  if (kKind != kQ4_0 && any((load<Ints>(g->low) >= 0) | (load<Ints>(g->high) < 0)))
    ends_of_any_sign<kType>(x, parts, g);
  store(g->low, ordered(load<Words>(g->low)));
  store(g->high, ordered(load<Words>(g->high)));
}

// Codes of a block in words.
template <AffineKind kKind, int32_t kType>
[[gnu::always_inline]] inline __m512i block_words(const AffineGroup& g, int b, const char* x, GroupFindings* f) {
  const auto [p, q] = block_floats<kType>(x);
  const __m512 inverse = _mm512_set1_ps(g.inverse[b]);
  if (kKind != kQ4_1) find_zeros<kType>(x, f);
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
    return _mm512_packs_epi32(code(p), code(q));
  }
  const __m512 low = _mm512_set1_ps(g.shift[b]), half = _mm512_set1_ps(0.5f);
  const auto code = [&](__m512 v) {
    return _mm512_cvttps_epi32(_mm512_add_ps(_mm512_mul_ps(_mm512_sub_ps(v, low), inverse), half));
  };
  const __m512i words = _mm512_packs_epi32(code(p), code(q));
  f->seen = _mm512_or_si512(f->seen, words);
  return words;
}

// Two blocks of q4_0 in bytes. The scale is an eighth of the largest magnitude, so that 16 is the largest code, and the
// one that saturates.
inline __m512i q4_0_bytes(const __m512i* words, GroupFindings* f) {
  const __m512i bytes = _mm512_packus_epi16(words[0], words[1]), kept = _mm512_min_epu8(bytes, _mm512_set1_epi8(15));
  f->saturated = _mm512_add_epi8(f->saturated, _mm512_sub_epi8(kept, bytes));
  return kept;
}

// Whether an element of q4_1 may decode to zero or have a code above 15. If a code gives zero, the quotient is that
// code; its product is exact.
inline bool q4_1_is_plain(const AffineGroup& g) {
  const Floats s = load<Floats>(g.scale), m = load<Floats>(g.base), inverse = load<Floats>(g.inverse);
  const Floats top = from_ordered(load<Ints>(g.high)) - from_ordered(load<Ints>(g.low));
  return !any((Ints)(rounded(-m / s) * s + m == 0.0f) | (truncate(top * inverse + 0.5f) > 15));
}

template <AffineKind kKind, int32_t kType>
inline bool affine_words_of(const AffineSpec& spec, const char* x, uint8_t* packed, uint16_t* scales,
                            uint16_t* minimums, AffineCounts* counts) {
  AffineGroup g;
  whole_ends<kKind, kType>(x, 1, &g);
  ggml_scales<kKind>(kGroup, &g, scales, minimums, [&](int b) {
    float room[32];
    return first_extreme(as_floats(kType, block_input<kType>(x, b), 32, room), g.high[b]);
  });
  if (g.special || (kKind == kQ4_1 && !q4_1_is_plain(g))) return false;
  GroupFindings found;
  int64_t zero_codes = 0;
  for (int b = 0; b < kGroup; b += 4) {
    __m512i words[4];
    for (int j = 0; j < 4; ++j) {
      const char* block = block_input<kType>(x, b + j);
      prefetch_block<kType>(block);
      words[j] = block_words<kKind, kType>(g, b + j, block, &found);
    }
    if (kKind == kQ8_0)
      for (int j = 0; j < 4; j += 2) zero_codes += store_codes<kType>(packed + (b + j) * 32, words + j, true);
    else if (kKind == kQ4_0)
      zero_codes += zero_nibbles(store_byte_pairs<kType>(packed + b * 16, q4_0_bytes(words, &found),
                                                         q4_0_bytes(words + 2, &found), '\x88'));
    else
      store_nibbles<kType>(packed + b * 16, words, 0);
  }
  if (kKind == kQ4_1) return !_mm512_movepi16_mask(found.seen);  // NaN gives a negative code
  if (has_zero<kType>(found)) zero_codes -= count_zeros<kType>(x, kGroup);
  counts->zeroed[0] -= static_cast<int32_t>(zero_codes);
  counts->saturated += word_total(_mm512_maddubs_epi16(_mm512_set1_epi8(1), found.saturated));
  if (kKind == kQ4_0) counts->saturated_blocks += count_saturated<kKind>(spec, g);
  return true;
}

// The scales and codes of a group of sixteen blocks of 32, the first element of which is `at`; false, and nothing
// counted, if it is left to the other path.
template <AffineKind kKind>
inline bool affine_words(const AffineSpec& spec, const Rows& rows, int64_t at, uint8_t* packed, uint16_t* scales,
                         uint16_t* minimums, AffineCounts* counts) {
  return with_group(rows, at, [&]<int32_t kType>(const char* x) {
    return affine_words_of<kKind, kType>(spec, x, packed, scales, minimums, counts);
  });
}
#else
template <AffineKind kKind>
inline bool affine_words(const AffineSpec&, const Rows&, int64_t, uint8_t*, uint16_t*, uint16_t*, AffineCounts*) {
  return false;
}
#endif

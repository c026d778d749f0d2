// `absmax` and `minmax` on whole groups of blocks, on 16-bit lanes: the bits and counts of affine_vector, with less
// work per element. Blocks are of 32 or a few times that; a part is 32 elements.
//
// With v = x * (1/s) in float32, |v| <= 2**bits, v is within 2**(bits - 23) of x / s. Where it is not as near to a
// half, v rounded plus the zero point is the code. Four parts in which it is anywhere are done again: between the
// integers f and f + 1 around v, the sign of x - s * (f + 1/2), which a fused multiply-add gives exactly, decides.
// (That x / s is rounded to float64 first changes nothing: unless it is f + 1/2, it differs from that by more than
// 2**-34 of it.) Halves are not rare: 16-bit numbers and scales have few bits.
// Groups in which the end of a block has a code out of range are left to the other path, like those with NaN, which
// converts to the least integer.

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
// Whether no code of the group can be out of range, and all numbers are small enough.
inline bool plain_is_simple(const AffineSpec& spec, const AffineGroup& g) {
  const Floats inverse = load<Floats>(g.inverse), z = load<Floats>(g.shift);
  const Floats high = from_ordered(load<Ints>(g.high)) * inverse;
  const Floats low = spec.rule == 0 ? -high : from_ordered(load<Ints>(g.low)) * inverse;
  const float most = static_cast<float>(1 << spec.bits), qmin = static_cast<float>(spec.qmin);
  const Ints simple = (Ints)(rounded(low) + z >= qmin) & (Ints)(rounded(high) + z <= static_cast<float>(spec.qmax)) &
                      (Ints)(maximum(magnitude(low), magnitude(high)) <= most) & (Ints)(magnitude(z) <= 0x1p12f);
  return !any(~simple);
}

struct PlainFindings : GroupFindings {
  __m512 farthest[2] = {};                  // from an integer
  __m512i lowest = _mm512_setzero_si512();  // rounded value
  __m512i zero_codes = {};                  // minus the number, in each lane
  __mmask32 beyond = 0;                     // codes out of range
};

// The integer nearest to value / s, halves to even.
inline __m512i nearest_exactly(__m512 value, __m512 v, __m512 s) {
  const __m512 below = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m512 half = _mm512_add_ps(below, _mm512_set1_ps(0.5f));
  const __m512i sign = _mm512_and_si512((__m512i)s, _mm512_set1_epi32(INT32_MIN));
  const __m512 beyond = (__m512)_mm512_xor_si512((__m512i)_mm512_fnmadd_ps(s, half, value), sign);
  const __m512i quarter = _mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), (__m512i)beyond,
                                                    (__m512i)_mm512_set1_ps(0.25f), 0xCA);
  const __mmask16 decided = _mm512_cmp_ps_mask(beyond, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  return _mm512_cvtps_epi32(_mm512_mask_add_ps(half, decided, half, (__m512)quarter));
}

// A part: values over the scale rounded, in words.
template <int32_t kType, bool kExact>
[[gnu::always_inline]] inline __m512i rounded_part(const char* x, float s, float inverse, PlainFindings* f) {
  constexpr int kLargestMagnitude = 0x0B;
  const auto [p, q] = block_floats<kType>(x);
  find_zeros<kType>(x, f);
  const auto nearest = [&](__m512 value, __m512* farthest) {
    const __m512 v = _mm512_mul_ps(value, _mm512_set1_ps(inverse));
    if (kExact) return nearest_exactly(value, v, _mm512_set1_ps(s));
    *farthest = _mm512_range_ps(*farthest, _mm512_reduce_ps(v, _MM_FROUND_NO_EXC), kLargestMagnitude);
    return _mm512_cvtps_epi32(v);
  };
  return _mm512_packs_epi32(nearest(p, f->farthest), nearest(q, f->farthest + 1));
}

inline bool is_unsure(const PlainFindings& f, float near_half) {
  return any((Ints)(maximum((Floats)f.farthest[0], (Floats)f.farthest[1]) > near_half));
}

// The same plus the two words of `add`.
template <int32_t kType, bool kExact>
[[gnu::always_inline]] inline __m512i plain_part(const char* x, float s, float inverse, int32_t add,
                                                 PlainFindings* f) {
  const __m512i words = rounded_part<kType, kExact>(x, s, inverse, f);
  f->lowest = _mm512_min_epi16(f->lowest, words);
  count_words(&f->zero_codes, _mm512_testn_epi16_mask(words, words));
  return _mm512_add_epi16(words, _mm512_set1_epi32(add));
}

inline __mmask32 beyond_codes(__m512i words, int least, int count) {
  const __m512i codes = _mm512_sub_epi16(words, _mm512_set1_epi16(static_cast<int16_t>(least)));
  return _mm512_cmpge_epu16_mask(codes, _mm512_set1_epi16(static_cast<int16_t>(count)));
}

// The zero points of sixteen blocks, `more` added, as two equal words each.
inline void doubled_zero_points(const AffineGroup& g, int more, int32_t* out) {
  const Words zero_points = (Words)(truncate(load<Floats>(g.shift)) + more) & 0xFFFFu;
  store(out, zero_points | zero_points << 16);
}

struct PlainParts {
  const AffineSpec& spec;
  const AffineGroup& g;
  const char* x;
  int shift;             // a block has 2**shift parts
  bool flip;             // so that codes are not negative in their words
  int32_t add[kGroup];   // zero points, twice each

  PlainParts(const AffineSpec& of, const AffineGroup& group, const char* input, int parts)
      : spec(of), g(group), x(input), shift(__builtin_ctz(static_cast<unsigned>(parts))),
        flip(of.bits == 4 && of.qmin < 0) {
    doubled_zero_points(g, flip ? 8 : 0, add);
  }

  // Codes of four parts, from part `at` on.
  template <int32_t kType, bool kExact>
  [[gnu::always_inline]] inline void codes(int at, __m512i* words, PlainFindings* f) const {
    for (int j = 0; j < 4; ++j) {
      const char* part = block_input<kType>(x, at + j);
      const int b = (at + j) >> shift;
      prefetch_block<kType>(part);
      words[j] = plain_part<kType, kExact>(part, g.scale[b], g.inverse[b], add[b], f);
      // an end at a half may be beyond, whatever plain_is_simple says
      if (kExact) f->beyond |= beyond_codes(words[j], spec.qmin + (flip ? 8 : 0), spec.qmax - spec.qmin + 1);
    }
  }
};

template <int32_t kType>
inline bool plain_codes(const AffineSpec& spec, const AffineGroup& g, const char* x, int parts, uint8_t* packed,
                        AffineCounts* counts) {
  const PlainParts all(spec, g, x, parts);
  const float near_half = 0.5f - static_cast<float>(1 << spec.bits) * 0x1.04p-23f;
  PlainFindings found;
  for (int at = 0; at < kGroup * parts; at += 4) {
    __m512i words[4];
    PlainFindings with = found;
    all.codes<kType, false>(at, words, &with);
    if (is_unsure(with, near_half)) {
      with = found;
      all.codes<kType, true>(at, words, &with);
    }
    found = with;
    if (spec.bits == 4)
      store_nibbles<kType>(packed + at * 16, words, all.flip ? '\x88' : '\0');
    else
      for (int j = 0; j < 4; j += 2) store_codes<kType>(packed + (at + j) * 32, words + j, spec.qmin < 0);
    found.farthest[0] = found.farthest[1] = _mm512_setzero_ps();
  }
  if (_mm512_cmplt_epi16_mask(found.lowest, _mm512_set1_epi16(-512)) || found.beyond) return false;
  counts->zeroed += word_total(found.zero_codes);
  if (has_zero<kType>(found)) counts->zeroed[0] += static_cast<int32_t>(count_zeros<kType>(x, kGroup * parts));
  return true;
}

template <int32_t kType>
inline bool plain_words_of(const AffineSpec& spec, const ScaleGrid& grid, const char* x, int parts,
                           const AffineOutputs& out, int64_t block, AffineCounts* counts) {
  AffineGroup g;
  AffineCounts found;
  if (spec.rule == 0 && parts == 1) {
    group_amax_words<kType>(x, g.high);  // magnitudes are ordered as they are
  } else {
    whole_ends<kPlain, kType>(x, parts, &g);
    const Floats low = from_ordered(load<Ints>(g.low)), high = from_ordered(load<Ints>(g.high));
    if (spec.rule == 0) store(g.high, (Ints)maximum(-low, high));
  }
  plain_scales(spec, grid, kGroup, &g, &found);
  if (g.special || !plain_is_simple(spec, g)) return false;
  if (!plain_codes<kType>(spec, g, x, parts, out.packed, &found)) return false;
  store_parameters(spec, g, kGroup, out.scales, out.offsets, block);
  counts->zeroed += found.zeroed;
  counts->zero_blocks += found.zero_blocks;
  return true;
}

// A group of sixteen blocks, the first element of which is `at`; false, and nothing counted, if it is left to the
// other path.
inline bool plain_words(const AffineSpec& spec, const ScaleGrid& grid, const Rows& rows, int64_t at,
                        const AffineOutputs& out, int64_t block, AffineCounts* counts) {
  if (rows.block_size % 32 != 0 || (spec.rule == 0 && spec.qmin != -spec.qmax)) return false;
  const int parts = static_cast<int>(rows.block_size / 32);
  return with_group(rows, at, [&]<int32_t kType>(const char* x) {
    return plain_words_of<kType>(spec, grid, x, parts, out, block, counts);
  });
}
#else
inline bool plain_words(const AffineSpec&, const ScaleGrid&, const Rows&, int64_t, const AffineOutputs&, int64_t,
                        AffineCounts*) {
  return false;
}
#endif

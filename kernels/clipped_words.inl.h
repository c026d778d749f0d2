// Codes of 4 bits of a group whose scales are chosen, clipped, on 16-bit lanes: the bits and counts of affine_vector.
// As in plain_words.inl.h, where a product with 1 / s is as near to a half as its error, the exact sign decides.

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
struct ClippedCounts {
  int64_t saturated = 0;
  uint32_t saturated_blocks = 0;  // a bit for each
  __m512i zero_codes = {};        // minus the number, in each lane
};

// Four parts, from part `at` on: rounded values to codes.
inline void clip_parts(int at, int shift, const int32_t* add, __m512i least, __m512i most, __m512i* words,
                       ClippedCounts* counts) {
  for (int j = 0; j < 4; ++j) {
    const int b = (at + j) >> shift;
    const __m512i zero_point = _mm512_set1_epi32(add[b]), wanted = _mm512_add_epi16(words[j], zero_point);
    words[j] = _mm512_min_epi16(_mm512_max_epi16(wanted, least), most);
    const uint32_t over = _mm512_cmpneq_epi16_mask(words[j], wanted);
    counts->saturated += __builtin_popcount(over);
    counts->saturated_blocks |= static_cast<uint32_t>(over != 0) << b;
    count_words(&counts->zero_codes, _mm512_cmpeq_epi16_mask(words[j], zero_point));
  }
}

// x: sixteen blocks of `size`, a multiple of 32, elements up to 300 scales; none of them is special.
inline void clipped_words(const AffineSpec& spec, const AffineGroup& g, const float* x, int64_t size, uint8_t* packed,
                          AffineCounts* counts) {
  const int parts = static_cast<int>(size / 32), shift = __builtin_ctz(static_cast<unsigned>(parts));
  const int flip = spec.qmin < 0 ? 8 : 0;  // so that codes are not negative in their words
  const __m512i least = _mm512_set1_epi16(static_cast<int16_t>(spec.qmin + flip));
  const __m512i most = _mm512_set1_epi16(static_cast<int16_t>(spec.qmax + flip));
  int32_t add[kGroup];
  doubled_zero_points(g, flip, add);
  ClippedCounts clipped;
  PlainFindings found;
  for (int at = 0; at < kGroup * parts; at += 4) {
    __m512i words[4];
    found.farthest[0] = found.farthest[1] = _mm512_setzero_ps();
    const auto round_parts = [&]<bool kExact>() {
      for (int j = 0; j < 4; ++j) {
        const int b = (at + j) >> shift;
        const char* part = reinterpret_cast<const char*>(x + (at + j) * 32);
        words[j] = rounded_part<kFloat32, kExact>(part, g.scale[b], g.inverse[b], &found);
      }
    };
    round_parts.template operator()<false>();
    if (is_unsure(found, 0.5f - 0x1p-14f)) round_parts.template operator()<true>();  // 300 * 2**-23 is less
    clip_parts(at, shift, add, least, most, words, &clipped);
    store_nibbles<kFloat32>(packed + at * 16, words, flip ? '\x88' : '\0');
  }
  counts->zeroed += word_total(clipped.zero_codes);
  counts->saturated[0] -= static_cast<int32_t>(clipped.saturated);
  counts->saturated_blocks += __builtin_popcount(clipped.saturated_blocks);
  if (!has_zero<kFloat32>(found)) return;
  for (int b = 0; b < kGroup; ++b) {  // an input of zero does not become zero; it has this code if there is such a one
    const float z = g.shift[b];
    if (z < static_cast<float>(spec.qmin) || z > static_cast<float>(spec.qmax)) continue;
    const int64_t zeros = count_zeros<kFloat32>(reinterpret_cast<const char*>(x + b * size), parts);
    counts->zeroed[0] += static_cast<int32_t>(zeros);
  }
}
constexpr bool kClipsWords = true;
#else
inline void clipped_words(const AffineSpec&, const AffineGroup&, const float*, int64_t, uint8_t*, AffineCounts*) {}
constexpr bool kClipsWords = false;
#endif

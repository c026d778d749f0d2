// A first look at the scales of signed codes, in integers of 16 bits: lower bounds of their errors at seeds.
//
// Let v = x / s. The error is s^2 D, D the sum of the squared distances of the v from the codes. Seeds are scales
// amax / s = k / 8. Elements become integers X = 8192 x / amax, so v is X k in units of 2^-16, and the low 16 bits
// of that product, as a signed number, are the distance from the nearest integer.
//
// What is found is near the truth because each distance is: it changes no faster than v. X is right to 0.51, and
// so are the bounds of clipped elements; the bits that `distance` drops make 2^-14 of v. So sqrt(D) is right to
// d sqrt(n) with d of `unsure`, and with e = sqrt(12) d, which is near the best,
//     D >= (sqrt(found) - d sqrt(n))^2 >= found (1 - e) - n d^2 / e.

namespace group_search {

typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(4 * kLanes)));

constexpr float kUnit = 8192;  // X of the largest element
constexpr int kLastSeed = 152;

// To each lane the squares of its two halves.
inline Words plus_squares(Words sum, Shorts v) {
#if defined(__AVX512F__)
  return (Words)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)v, (__m512i)v);
#elif defined(__AVX2__)
  return sum + (Words)_mm256_madd_epi16((__m256i)v, (__m256i)v);
#else
  const Ints low = (Ints)((Words)v << 16) >> 16, high = (Ints)v >> 16;
  return sum + (Words)(low * low) + (Words)(high * high);
#endif
}

inline Floats to_floats(Words v) { return __builtin_convertvector(v, Floats); }

// Distances from the nearest integers, in units of 2^-14.
inline Shorts distance(Shorts x, int k) { return (Shorts)((Halves)x * static_cast<uint16_t>(k)) >> 2; }

// X of an element that has just the code: [code][k].
struct CodeElements {
  int16_t x[9][kLastSeed + 1] = {};
  constexpr CodeElements() {
    for (int code = 0; code < 9; ++code)
      for (int k = 8 * 7; k <= kLastSeed; ++k) x[code][k] = static_cast<int16_t>((code * 65536 + k / 2) / k);
  }
};
constexpr CodeElements kCodeElements;

// A seed: u = k / 8, and the lower bound of D is found * factor - n * lost.
struct Seed {
  int k = 0;
  float u = 0, squared = 0, scale = 0, factor = 0, lost = 0;
  constexpr Seed() {}
  constexpr Seed(int number, bool clips) : k(number), u(static_cast<float>(k) / 8), squared(u * u), scale(1 / u) {
    const float unsure = (static_cast<float>(k) * (clips ? 1.03f : 0.52f) + 4) / 65536;
    factor = 1 - 3.4642f * unsure, lost = 0.2888f * unsure;
  }
};
template <int kCount>
struct Seeds {
  Seed at[kCount];
  constexpr Seeds(const uint8_t (&k)[kCount], int unclipped) {
    for (int j = 0; j < kCount; ++j) at[j] = Seed(k[j], j >= unclipped);
  }
};

struct Screen {
  const Words* x;  // of a set: two elements of a block in each lane
  int64_t n;
  int bottom, top;  // magnitudes of the least and the greatest code

  // D, before errors, at `kMany` seeds where no code is clipped.
  template <int kMany>
  void distances(const Seed* seeds, Floats* out) const {
    for (int j = 0; j < kMany; ++j) out[j] = Floats{};
    for (int64_t from = 0; from < n / 2; from += 16) {  // as many as a lane can add
      const int64_t to = from + 16 < n / 2 ? from + 16 : n / 2;
      Words sum[kMany] = {};
      for (int64_t i = from; i < to; ++i)
        for (int j = 0; j < kMany; ++j) sum[j] = plus_squares(sum[j], distance((Shorts)x[i], seeds[j].k));
      for (int j = 0; j < kMany; ++j) out[j] += to_floats(sum[j]) * 0x1p-28f;
    }
  }

  // The same where codes are clipped: above, and below too if kBoth. `costs`: what lies beyond, in squares of X.
  template <int kMany, bool kBoth>
  void clipped_distances(const Seed* seeds, Floats* out, Floats* costs) const {
    Shorts low[kMany], high[kMany];
    for (int j = 0; j < kMany; ++j) {
      low[j] = Shorts{} - kCodeElements.x[bottom][seeds[j].k], high[j] = Shorts{} + kCodeElements.x[top][seeds[j].k];
      out[j] = costs[j] = Floats{};
    }
    for (int64_t from = 0; from < n / 2; from += 16) {
      const int64_t to = from + 16 < n / 2 ? from + 16 : n / 2;
      Words sum[kMany] = {}, beyond[kMany] = {};
      for (int64_t i = from; i < to; ++i)
        for (int j = 0; j < kMany; ++j) {
          const Shorts v = (Shorts)x[i];
          Shorts inside = v < high[j] ? v : high[j];
          if (kBoth) inside = inside > low[j] ? inside : low[j];
          sum[j] = plus_squares(sum[j], distance(inside, seeds[j].k));
          beyond[j] = plus_squares(beyond[j], v - inside);
        }
      for (int j = 0; j < kMany; ++j) {
        const Floats cost = to_floats(beyond[j]);
        costs[j] += cost;
        out[j] += to_floats(sum[j]) * 0x1p-28f + cost * (seeds[j].squared * 0x1p-26f);
      }
    }
  }
};

}  // namespace group_search

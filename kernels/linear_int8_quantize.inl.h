// Activations in 8 bits: symmetric, per 32 elements; scale = amax / 127, code = nearest integer of x / scale, halves
// to even (docs/linear.md).

enum Int8Order { kNatural, kEvenOdd, kHalves };  // how 128 codes of activations lie

inline int64_t segment_size(int64_t block_size) { return block_size < 32 ? block_size : 32; }

#if defined(__AVX2__)
inline Int8Order int8_order(const LinearSpec& spec) {
  if (spec.block_size < 32 || spec.family == 2) return kNatural;
  return spec.bits == 4 ? kEvenOdd : kHalves;
}
#else
inline Int8Order int8_order(const LinearSpec&) { return kNatural; }
#endif

// Where element k of a row lies.
inline int64_t int8_place(Int8Order order, int64_t k) {
  if (order == kNatural) return k;
  const int64_t step = k / 128, j = k / 32 % 4, e = k % 32;
  return step * 128 + j * 16 + (order == kEvenOdd ? (e & 1) * 64 + e / 2 : e / 16 * 64 + e % 16);
}

typedef int8_t Codes16 __attribute__((vector_size(16)));
constexpr int64_t kWide = sizeof(Floats) / 4;
constexpr int64_t kVectors = 32 / kWide;  // of a segment

// Sixteen segments at a time, so that what is common to a segment is found lane by lane.
inline void quantize_segments(const float* x, float* scales, int32_t* sums, int8_t (*codes)[32]) {
  Ints most[16], total[16];
  for (int t = 0; t < 16; ++t) {
    Words m = load<Words>(x + t * 32) & 0x7FFFFFFFu;
    for (int64_t i = 1; i < kVectors; ++i)
      m = (Words)maximum((Ints)m, (Ints)(load<Words>(x + t * 32 + i * kWide) & 0x7FFFFFFFu));
    most[t] = (Ints)m;
  }
  int32_t bits[16];
  largest_lanes(most, bits);  // finite magnitudes compare as integers do
  for (int t = 0; t < 16; ++t) scales[t] = float_of(static_cast<uint32_t>(bits[t])) / 127.0f;
  for (int t = 0; t < 16; ++t) {
    const float s = scales[t];
    const Floats by = spread(s == 0 ? 1.0f : s), keep = spread(s == 0 ? 0.0f : 127.0f);
    total[t] = Ints{};
    for (int64_t i = 0; i < kVectors; ++i) {
      // subnormal scales are coarse: up to 190
      const Floats v = maximum(minimum(load<Floats>(x + t * 32 + i * kWide) / by, keep), -keep);
      const Ints q = round_nearest(v);
      total[t] += q;
      store_bytes(reinterpret_cast<uint8_t*>(codes[t] + i * kWide), (Words)q);
    }
  }
  combine_lanes(total, sums, [](Ints a, Ints b) { return a + b; });
}

inline void place_codes(Int8Order order, const int8_t* codes, int8_t* out) {
  if (order == kNatural) {
    memcpy(out, codes, 32);
  } else if (order == kHalves) {
    memcpy(out, codes, 16), memcpy(out + 64, codes + 16, 16);
  } else {
    const Codes16 v = load<Codes16>(codes), w = load<Codes16>(codes + 16);
    const Codes16 even = __builtin_shufflevector(v, w, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Codes16 odd = __builtin_shufflevector(v, w, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    store(out, even), store(out + 64, odd);
  }
}

void activations_int8(const LinearSpec& spec, const float* a, int64_t a_stride, const Int8Activations& to) {
  const Int8Order order = int8_order(spec);
  const int64_t size = segment_size(spec.block_size), whole = spec.length / 512 * 512;
  for (int64_t r = 0; r < to.rows; ++r) {
    for (int64_t k = 0; k < spec.length; k += 512) {
      const float* x = a + r * a_stride + k;
      float last[512] = {};
      if (k == whole) memcpy(last, x, static_cast<size_t>(spec.length - k) * 4), x = last;
      float scales[16];
      int32_t sums[16];
      int8_t codes[16][32];
      quantize_segments(x, scales, sums, codes);
      for (int64_t t = 0; t < 16 && k + t * 32 < spec.length; ++t) {
        place_codes(order, codes[t], to.codes + r * to.stride + int8_place(order, k + t * 32));
        const int64_t first = r * to.segments + (k + t * 32) / size;
        if (size == 32) {
          to.scales[first] = scales[t], to.sums[first] = static_cast<float>(sums[t]);
          continue;
        }
        for (int64_t i = 0; i < 32 && k + t * 32 + i < spec.length; i += size) {
          int32_t sum = 0;
          for (int64_t j = i; j < i + size; ++j) sum += codes[t][j];
          to.scales[first + i / size] = scales[t], to.sums[first + i / size] = static_cast<float>(sum);
        }
      }
    }
  }
}

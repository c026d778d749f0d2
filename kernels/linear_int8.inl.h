// y = a W^T with activations in 8 bits. Sums of products within a segment (up to 32 elements of one block) are
// integers and exact, so every instruction gives the same; the segments are added in float32 in one fixed order
// (docs/linear.md): segment t goes to lane t mod 4, ascending, as (scale of a * scale of w) * sum.

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

// Symmetric, per 32 elements: scale = amax / 127, code = nearest integer of x / scale, halves to even.
inline float quantize_32(const float* x, int8_t* codes) {
  float most[16];
  for (int i = 0; i < 16; ++i) {
    const float v = float_of(bits_of(x[i]) & 0x7FFFFFFFu), w = float_of(bits_of(x[16 + i]) & 0x7FFFFFFFu);
    most[i] = v > w ? v : w;
  }
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
  const float s = most[0] / 127.0f;
  const float by = s == 0 ? 1.0f : s, keep = s == 0 ? 0.0f : 127.0f;
  int32_t wide[32];
  for (int i = 0; i < 32; ++i) {
    float v = x[i] / by;  // subnormal scales are coarse: up to 190
    v = v > keep ? keep : v;
    v = v < -keep ? -keep : v;
    wide[i] = static_cast<int32_t>((v + 0x1.8p23f) - 0x1.8p23f);
  }
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(wide[i]);
  return s;
}

void activations_int8(const LinearSpec& spec, const float* a, int64_t a_stride, const Int8Activations& to) {
  const Int8Order order = int8_order(spec);
  const int64_t size = segment_size(spec.block_size);
  for (int64_t r = 0; r < to.rows; ++r) {
    int8_t* row = to.codes + r * to.stride;
    for (int64_t k = 0; k < spec.length; k += 32) {
      const int64_t n = spec.length - k < 32 ? spec.length - k : 32;
      int8_t codes[32];
      float last[32] = {};
      if (n < 32) memcpy(last, a + r * a_stride + k, static_cast<size_t>(n) * 4);
      const float s = quantize_32(n < 32 ? last : a + r * a_stride + k, codes);
      for (int64_t i = 0; i < n; i += size) {
        int32_t sum = 0;
        for (int64_t j = i; j < i + size; ++j) sum += codes[j];
        to.scales[r * to.segments + (k + i) / size] = s;
        to.sums[r * to.segments + (k + i) / size] = static_cast<float>(sum);
      }
      int8_t* out = row + int8_place(order, k);
      if (order == kNatural) memcpy(out, codes, 32);
      if (order == kEvenOdd)
        for (int i = 0; i < 16; ++i) out[i] = codes[2 * i], out[64 + i] = codes[2 * i + 1];
      if (order == kHalves) memcpy(out, codes, 16), memcpy(out + 64, codes + 16, 16);
    }
  }
}

inline float weight_scale(const LinearSpec& spec, int64_t block) {
  if (spec.family == 0) return e8m0_value(static_cast<const uint8_t*>(spec.scales)[block]);
  return load_scale(spec.scale_type, spec.scales, block);
}

// Outputs of one weight row for all activations: the definition, written for reading.
inline void int8_row(const LinearSpec& spec, const Int8Activations& a, Int8Order order, int64_t n, uint8_t* codes,
                     int16_t* integers, float* out, int64_t out_stride) {
  const int64_t size = segment_size(spec.block_size), segments = (spec.length + size - 1) / size;
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  unpack(spec.packed + n * spec.row_bytes, spec.length, spec.bits, codes);
  for (int64_t k = 0; k < spec.length; ++k) integers[k] = spec.integers[codes[k]];
  for (int64_t r = 0; r < a.rows; ++r) {
    const int8_t* row = a.codes + r * a.stride;
    float lane[4] = {};
    for (int64_t t = 0; t < segments; ++t) {
      const int64_t begin = t * size, end = begin + size < spec.length ? begin + size : spec.length;
      const int64_t block = n * blocks + begin / spec.block_size;
      int32_t sum = 0;
      if (order == kNatural)
        for (int64_t k = begin; k < end; ++k) sum += static_cast<int32_t>(integers[k]) * row[k];
      else
        for (int64_t k = begin; k < end; ++k) sum += static_cast<int32_t>(integers[k]) * row[int8_place(order, k)];
      const float sa = a.scales[r * a.segments + t], total = a.sums[r * a.segments + t];
      const float s = sa * (weight_scale(spec, block) * spec.step);
      int64_t exact = sum;
      if (spec.offset == 1)
        exact -= static_cast<int64_t>(static_cast<const int32_t*>(spec.offsets)[block]) * static_cast<int64_t>(total);
      lane[t & 3] += s * static_cast<float>(exact);
      if (spec.offset == 2) lane[t & 3] += (sa * load_scale(spec.scale_type, spec.offsets, block)) * total;
    }
    out[r * out_stride + n] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
}

#if defined(__AVX2__)
#include "linear_int8_vector.inl.h"
#if BLOCKSCALE_MANY
#include "linear_int8_many.inl.h"
#endif
#endif

bool linear_int8(const LinearSpec& spec, const Int8Activations& a, int64_t n_begin, int64_t n_end, float* out,
                 int64_t out_stride) {
  const Int8Order order = int8_order(spec);
  Scratch<uint8_t> codes(spec.length + 8);
  Scratch<int16_t> integers(spec.length + 8);
  if (!codes.data || !integers.data) return false;
#if defined(__AVX2__)
#if BLOCKSCALE_MANY
  if (order != kNatural) n_begin = int8_many(spec, a, order, n_begin, n_end, out, out_stride);
  if (n_begin < 0) return false;
#endif
  if (order != kNatural)
    return int8_groups(spec, a, order, n_begin, n_end, codes.data, integers.data, out, out_stride);
#endif
  for (int64_t n = n_begin; n < n_end; ++n)
    int8_row(spec, a, order, n, codes.data, integers.data, out, out_stride);
  return true;
}

// y = a W^T with activations in 8 bits. Sums of products within a segment (up to 32 elements of one block) are
// integers and exact, so every instruction gives the same; the segments are added in float32 in one fixed order
// (docs/linear.md): segment t goes to lane t mod 16, ascending, as (scale of a * scale of w) * sum, by one fused
// multiply-add; a lane of sums that are zero ends as +0.

#include "linear_int8_quantize.inl.h"

inline float weight_scale(const LinearSpec& spec, int64_t block) {
  if (spec.family == 0) return e8m0_value(static_cast<const uint8_t*>(spec.scales)[block]);
  return load_scale(spec.scale_type, spec.scales, block);
}

// lane + x * y, rounded once.
inline void fuse_lanes(const float* x, const float* y, float* lane) {
  for (int h = 0; h < kLanes; h += kWidth)
    store(lane + h, fused(load<Floats>(x + h), load<Floats>(y + h), load<Floats>(lane + h)));
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
    float lane[kLanes] = {};
    for (int64_t step = 0; step < segments; step += kLanes) {
      float scale[kLanes] = {}, minimum[kLanes] = {}, exact[kLanes] = {}, total[kLanes] = {};
      for (int64_t t = step; t < segments && t < step + kLanes; ++t) {
        const int64_t begin = t * size, end = begin + size < spec.length ? begin + size : spec.length;
        const int64_t block = n * blocks + begin / spec.block_size, l = t - step;
        int32_t sum = 0;
        if (order == kNatural)
          for (int64_t k = begin; k < end; ++k) sum += static_cast<int32_t>(integers[k]) * row[k];
        else
          for (int64_t k = begin; k < end; ++k) sum += static_cast<int32_t>(integers[k]) * row[int8_place(order, k)];
        const float sa = a.scales[r * a.segments + t];
        total[l] = a.sums[r * a.segments + t];
        int64_t moved = sum;
        if (spec.offset == 1)
          moved -= static_cast<int64_t>(static_cast<const int32_t*>(spec.offsets)[block]) *
                   static_cast<int64_t>(total[l]);
        exact[l] = static_cast<float>(moved);
        scale[l] = sa * (weight_scale(spec, block) * spec.step);
        if (spec.offset == 2) minimum[l] = sa * load_scale(spec.scale_type, spec.offsets, block);
      }
      fuse_lanes(scale, exact, lane);
      if (spec.offset == 2) fuse_lanes(minimum, total, lane);
    }
    out[r * out_stride + n] = add_lanes(lane) + 0.0f;
  }
}

#if defined(__AVX2__)
// clang-format off: each builds on those before it
#include "linear_int8_wide.inl.h"
#include "linear_int8_scales.inl.h"
#include "linear_int8_step.inl.h"
#include "linear_int8_rows.inl.h"
#include "linear_int8_few.inl.h"
#if BLOCKSCALE_MANY
#include "linear_int8_tile.inl.h"
#include "linear_int8_many.inl.h"
#endif
// clang-format on
#endif

bool linear_int8(const LinearSpec& spec, const Int8Activations& a, int64_t n_begin, int64_t n_end, float* out,
                 int64_t out_stride) {
  const Int8Order order = int8_order(spec);
  Scratch<uint8_t> codes(spec.length + 8);
  Scratch<int16_t> integers(spec.length + 8);
  if (!codes.data || !integers.data) return false;
#if defined(__AVX2__)
#if BLOCKSCALE_MANY
  if (order != kNatural) n_begin = int8_many(spec, a, n_begin, n_end, out, out_stride);
  if (n_begin < 0) return false;
#endif
  if (order != kNatural)
    return int8_few(spec, a, order, n_begin, n_end, codes.data, integers.data, out, out_stride);
#endif
  for (int64_t n = n_begin; n < n_end; ++n)
    int8_row(spec, a, order, n, codes.data, integers.data, out, out_stride);
  return true;
}

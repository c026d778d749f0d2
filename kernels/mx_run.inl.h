// MX quantizing, group by group.

#include "mx_mse.inl.h"
#include "mx_words.inl.h"

struct FastScratch {
  float x[kGroup * kLargestBlock];
  double wide[kLargestBlock];
  uint8_t codes[kGroup * kLargestBlock];
};

// The group's input as floats: where it lies, or widened into the scratch space.
inline const float* group_floats(const Rows& rows, int64_t at, int64_t n, float* out) {
  const char* from = static_cast<const char*>(rows.x) + at * input_width(rows.input_type);
  return as_floats(rows.input_type, from, n, out);
}

template <int kSize, ElementKind kKind>
inline void mx_run(const Rows& rows, const MxSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                   uint8_t* scales, FastScratch* scratch, int64_t* events) {
  const MxVectors v = mx_vectors(spec);
  const int64_t size = kSize ? kSize : rows.block_size;
  MxCounts counts;
  int64_t saturated_blocks = 0;
  int64_t missing = 0;  // blocks of zeros beyond the end
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t n = first + kGroup < blocks ? kGroup : blocks - first;
    uint8_t* out = packed + packed_bytes(first * size, spec.bits);
    if (kSize == 32 && kKind == kE2m1 && n == kGroup &&
        words_group(v, rows, at + first * size, spec.rule == 1, out, scales + first, &counts, &saturated_blocks))
      continue;
    const float* x = group_floats(rows, at + first * size, n * size, scratch->x);
    MxGroup g;
    group_amax(x, n, size, g.amax);
    group_scales(v, &g, &counts);
    missing += kGroup - n;
    const bool mse = kKind == kE2m1 && spec.rule == 1 && size <= 64;
    if (mse)
      choose_mse<kSize>(v, x, n, size, &g);
    else if (spec.rule == 1)
      choose_mse_exact(spec, x, n, size, scratch->wide, &g);
    code_group<kSize, kKind>(v, g, x, n, size, scratch->codes, &counts);
    if (mse) recheck_mse<kSize, kKind>(v, x, n, size, scratch->codes, &g, &counts);
    saturated_blocks += count_saturated_blocks(v, g);
    store_scale_bytes(g, n, scales + first);
    for (uint32_t rest = g.special; rest; rest &= rest - 1) {
      const int b = __builtin_ctz(rest);
      for (int64_t i = 0; i < size; ++i) scratch->wide[i] = x[b * size + i];
      memset(scratch->codes + b * size, 0, static_cast<uint32_t>(size));
      mx_block(spec, scratch->wide, size, scratch->codes + b * size, scales + first + b, events);
    }
    pack_fast(scratch->codes, n * size, spec.bits, out);
  }
  events[kSaturated] += count_lanes(counts.saturated);
  events[kZeroed] += count_lanes(counts.zeroed);
  events[kSaturatedBlocks] += saturated_blocks;
  events[kZeroBlocks] += count_lanes(counts.zero_blocks) - missing;
}

inline bool mx_is_fast(const Rows& rows, const MxSpec& spec) {
  return rows.input_type != kFloat64 && rows.block_size % 16 == 0 && rows.block_size <= kLargestBlock &&
         spec.min_byte < 24;
}

inline void mx_blocks(const Rows& rows, const MxSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                      uint8_t* scales, FastScratch* scratch, int64_t* events) {
  const bool usual = rows.block_size == 32;
  auto* run = usual ? mx_run<32, kInteger> : mx_run<0, kInteger>;
  if (spec.is_float) run = usual ? mx_run<32, kFloating> : mx_run<0, kFloating>;
  if (spec.is_float && spec.bits == 4) run = usual ? mx_run<32, kE2m1> : mx_run<0, kE2m1>;
  run(rows, spec, at, blocks, packed, scales, scratch, events);
}

bool quantize_mx(const Rows& rows, const MxSpec& spec, uint8_t* packed, int64_t row_bytes, uint8_t* scales,
                 int64_t* events) {
  const int64_t size = rows.block_size, whole = rows.length / size;
  const int64_t per_row = (rows.length + size - 1) / size;
  if (!mx_is_fast(rows, spec) || !whole)
    return quantize_mx_plain(rows, spec, packed, row_bytes, scales, events);
  Scratch<FastScratch> scratch(1);
  if (!scratch.data) return false;
  if (whole == per_row) {  // rows of whole blocks lie one after the other
    const int64_t first = rows.row_begin * whole;
    mx_blocks(rows, spec, first * size, (rows.row_end - rows.row_begin) * whole,
              packed + rows.row_begin * row_bytes, scales + first, scratch.data, events);
    return true;
  }
  for (int64_t r = rows.row_begin; r < rows.row_end; ++r) {
    mx_blocks(rows, spec, r * rows.length, whole, packed + r * row_bytes, scales + r * per_row, scratch.data,
              events);
    // The partial block as a row of its own.
    const int64_t done = whole * size;
    const Rows tail{static_cast<const uint8_t*>(rows.x) + (r * rows.length + done) * input_width(rows.input_type),
                    rows.input_type,
                    0,
                    1,
                    rows.length - done,
                    size};
    const int64_t begin = packed_bytes(done, spec.bits);
    if (!quantize_mx_plain(tail, spec, packed + r * row_bytes + begin, row_bytes - begin,
                           scales + r * per_row + whole, events))
      return false;
  }
  return true;
}

// The whole kernel interface: plain C types, one struct of function pointers per instruction set.
// Kernels know no tensors and no files; every argument has been validated by the caller.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace blockscale {

enum InputType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat64 = 3 };

// Counters that a quantize kernel adds to, in this order (see docs/rules.md).
enum Event : int32_t {
  kSaturated, kSaturatedBlocks, kZeroed, kZeroBlocks, kScalesRaised, kScalesClamped, kNanBlocks,
  kUnweightedBlocks, kNonFinite, kScaleOverflow, kEventCount
};

// Rows [row_begin, row_end) of a contiguous matrix `length` wide; blocks of `block_size` along a row.
struct Rows {
  const void* x;
  int32_t input_type;
  int64_t row_begin, row_end, length, block_size;
};

// An MX element type as numbers, and how to choose its exponent.
struct MxSpec {
  int32_t bits, is_float, mantissa_bits, bias;  // integers: value = code * 2**-mantissa_bits
  int32_t emax;
  double max;
  int32_t rule;  // 0: exponent + (m > threshold); 1: least squared error
  double threshold;
  int32_t min_byte;
};

// Affine codes as numbers, and how to choose scale and offset.
struct AffineSpec {
  int32_t bits, qmin, qmax;     // width, and the codes that a quantizer may use
  int32_t scale_type;           // InputType: float32, float16 or bfloat16
  int32_t offset;               // 0 none, 1 zero point, 2 minimum
  int32_t rule;                 // 0 absmax, 1 minmax, 2 ggml, 3 optimal
  int32_t include_zero, positive;
};

// Codes with minimums that get zero points instead; see minimum.inl.h.
struct MinimumSpec {
  int32_t bits;                 // of the old codes: 4 or 8
  int32_t largest_k;            // new codes are up to this many times the old ones
  int64_t block_size;           // even
};

struct DecodeSpec {
  int32_t bits;
  int32_t family;               // 0 MX, 1 affine
  int32_t scale_type;           // affine
  int32_t offset;               // affine: 0 none, 1 zero point, 2 minimum
  int32_t output_type;          // InputType: float32, float16 or bfloat16
  const float* values;          // value of every code, 2**bits entries
};

// Codes of a weight for the matmul: which fast decoding fits.
enum class LinearKind : int32_t { kTable = 0, kInt4, kUint4, kInt8, kUint8, kE2m1, kE4m3, kE5m2 };

// Zero points beyond it might give sums that are not exact in float32: (2**11 + 128) * 127 * 32 < 2**24.
constexpr int32_t kZeroPointLimit = 1024;

// Whether `count` zero points are within it. No `bool`: compilers make vectors of this. Static: one per variant.
static inline bool are_near(const int32_t* z, int64_t count) {
  uint32_t far = 0;
  for (int64_t i = 0; i < count; ++i)
    far |= static_cast<uint32_t>(z[i] > kZeroPointLimit) | static_cast<uint32_t>(z[i] < -kZeroPointLimit);
  return far == 0;
}

// Whether the values of `count` E8M0 bytes are numbers that stay normal times `step`, a power of two of at most 1.
// Static as above.
static inline bool are_normal(const uint8_t* e, int64_t count, float step) {
  uint32_t bits;
  __builtin_memcpy(&bits, &step, 4);
  const uint8_t least = static_cast<uint8_t>(128 - (bits >> 23));  // 1 if step is 1
  uint32_t others = 0;
  for (int64_t i = 0; i < count; ++i)
    others |= static_cast<uint32_t>(e[i] < least) | static_cast<uint32_t>(e[i] == 255);
  return others == 0;
}

// A weight (rows, length) as the matmul sees it.
struct LinearSpec {
  int32_t bits, family, scale_type, offset;  // as in DecodeSpec; family 2: plain float32 rows, no blocks
  LinearKind kind;
  float unit;                                // MX integers: value = code * unit; else 1
  float step;                                // int8 activations: value = integer * step
  const float* values;                       // value of every code, 2**bits entries
  const int16_t* integers;                   // integer of every code (int8 activations), 2**bits entries
  const uint8_t* packed;
  int64_t row_bytes;
  const void* scales;
  const void* offsets;
  const int16_t* near;                       // zero points in 16 bits, if all are within the limit; else null
  bool long_tiles;                           // many float32 rows: see long_tiles in dispatch.h
  bool normal;                               // MX: it is known that every scale times step is a normal number
  int64_t length, block_size;
};

// Activations in 8 bits, (rows, stride) codes, (rows, segments) scales and sums of codes; see docs/linear.md.
struct Int8Activations {
  int8_t* codes;
  float* scales;
  float* sums;
  int64_t rows, stride, segments;
};

struct KernelTable {
  const char* isa;
  // packed: (rows, row_bytes); scales: (rows, blocks). Both are written for the given rows only.
  // Both return false if memory ran out.
  bool (*quantize_mx)(const Rows&, const MxSpec&, uint8_t* packed, int64_t row_bytes, uint8_t* scales,
                      int64_t* events);
  // offsets: int32 zero points, float16 minimums or null. importance: double[length] or null.
  bool (*quantize_affine)(const Rows&, const AffineSpec&, const double* importance, uint8_t* packed,
                          int64_t row_bytes, void* scales, void* offsets, int64_t* events);
  // Returns the number of finite values that became infinite in a 16-bit output.
  int64_t (*dequantize)(const DecodeSpec&, const uint8_t* packed, int64_t row_bytes, const void* scales,
                        const void* offsets, int64_t row_begin, int64_t row_end, int64_t length,
                        int64_t block_size, void* out);
  // The byte of one block by least squared error among base - span .. base + headroom.
  int32_t (*choose_scale_mse)(const double* x, int64_t n, const MxSpec&, int32_t span, int32_t headroom);
  // Blocks [begin, end). scales, minimums: float16 per block. codes: (blocks, block_size) bytes.
  void (*rewrite_minimums)(const MinimumSpec&, const uint8_t* packed, const void* scales, const void* minimums,
                           int64_t begin, int64_t end, uint8_t* codes, float* new_scales, int32_t* zero_points);
  // out[i, n] = a_i . w_n for n_begin <= n < n_end. a: (rows, a_stride), a_stride a multiple of 16, zeros past
  // the length. Both return false if memory ran out.
  bool (*linear_float)(const LinearSpec&, const float* a, int64_t rows, int64_t a_stride, int64_t n_begin,
                       int64_t n_end, float* out, int64_t out_stride);
  bool (*linear_int8)(const LinearSpec&, const Int8Activations&, int64_t n_begin, int64_t n_end, float* out,
                      int64_t out_stride);
  // Fills the activations from (rows, a_stride) finite float32, in the order that linear_int8 of this table wants.
  void (*activations_int8)(const LinearSpec&, const float* a, int64_t a_stride, const Int8Activations&);
};

}  // namespace blockscale

// Dequantizing in vectors: a piece of some thousand values is decoded in the nearest cache, narrowed if need
// be, and copied out, past the caches where the output is large. Values are those of decode_block.

#include "dequantize_codes.inl.h"

constexpr int64_t kStreamBytes = 1 << 22;  // output from this size on is not read back from cache soon

// Narrow n values to a 16-bit type; `values` and `out` have room for a whole vector more.
inline int64_t narrow(int32_t type, float* values, int64_t n, uint16_t* out) {
  for (int64_t i = n; i % kLanes; ++i) values[i] = 0;
  Ints lost = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats v = load<Floats>(values + i);
    lost += overflows(v, type == kFloat16 ? 0x477FF000u : 0x7F7F8000u);
    if (type == kFloat16)
      store_half(out + i, v);
    else
      store_bfloat16(out + i, v);
  }
  return count_lanes(lost);
}

// memcpy that writes past the caches: they keep what is read, and no line is read to be overwritten.
inline void copy_out(void* out, const void* from, int64_t bytes, bool stream) {
#if defined(__AVX2__)
  if (stream && bytes >= 256) {
    char* to = static_cast<char*>(out);
    const char* p = static_cast<const char*>(from);
    const int64_t head = -reinterpret_cast<intptr_t>(to) & 63;
    memcpy(to, p, static_cast<size_t>(head));
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
      _mm512_stream_si512((__m512i*)(to + i), _mm512_loadu_si512(p + i));
#else
      _mm256_stream_si256((__m256i*)(to + i), _mm256_loadu_si256((const __m256i*)(p + i)));
      _mm256_stream_si256((__m256i*)(to + i + 32), _mm256_loadu_si256((const __m256i*)(p + i + 32)));
#endif
    }
    memcpy(to + i, p + i, static_cast<size_t>(bytes - i));
    return;
  }
#endif
  (void)stream;
  memcpy(out, from, static_cast<size_t>(bytes));
}

struct DequantizeScratch {
  float values[kPiece + 16];
  uint16_t narrow[kPiece + 16];
  uint8_t codes[kPiece];
  BlockScales blocks;
};

// n values of the row that begins at block `first`, from `begin` on (a multiple of kPiece).
inline void decode_piece(const Decoder& d, const uint8_t* row, const void* scales, const void* offsets,
                         int64_t first, int64_t begin, int64_t n, int64_t block_size,
                         DequantizeScratch* scratch) {
  const DecodeSpec& spec = *d.spec;
  const int64_t size = block_size < kPiece ? block_size : kPiece, block = first + begin / block_size;
  int64_t done = 0;
  if (size % 16 == 0 && spec.bits >= 4) {
    const int64_t whole = n / size;
    if (load_blocks(spec, scales, offsets, block, whole, &scratch->blocks)) {
      decode_fast(d, scratch->blocks, row + packed_bytes(begin, spec.bits), whole, size, scratch->values);
      done = whole * size;
    }
  }
  if (done == n) return;
  // Small blocks, the rest of a row, far zero points: one value at a time.
  unpack(row + packed_bytes(begin + done, spec.bits), n - done, spec.bits, scratch->codes);
  for (int64_t i = done; i < n; i += size) {
    const int64_t m = size < n - i ? size : n - i;
    decode_block(spec, scratch->codes + (i - done), m, scales, offsets, block + i / size,
                 scratch->values + i);
  }
}

int64_t dequantize(const DecodeSpec& spec, const uint8_t* packed, int64_t row_bytes, const void* scales,
                   const void* offsets, int64_t row_begin, int64_t row_end, int64_t length,
                   int64_t block_size, void* out) {
  const Decoder d = make_decoder(spec);
  const int64_t width = spec.output_type == kFloat32 ? 4 : 2;
  const bool stream = (row_end - row_begin) * length * width >= kStreamBytes;
  const int64_t blocks = (length + block_size - 1) / block_size;
  int64_t at = row_begin * length, rows = row_end - row_begin, first = row_begin * blocks;
  packed += row_begin * row_bytes;
  if (length % block_size == 0 && row_bytes == packed_bytes(length, spec.bits) &&
      length * spec.bits % 8 == 0) {
    length *= rows;  // rows of whole blocks lie one after the other: one long row
    rows = rows ? 1 : 0;
  }
  DequantizeScratch scratch;
  int64_t lost = 0;
  for (int64_t r = 0; r < rows; ++r, at += length, first += blocks, packed += row_bytes) {
    for (int64_t begin = 0; begin < length; begin += kPiece) {
      const int64_t n = begin + kPiece < length ? kPiece : length - begin;
      decode_piece(d, packed, scales, offsets, first, begin, n, block_size, &scratch);
      const void* from = scratch.values;
      if (width == 2) {
        lost += narrow(spec.output_type, scratch.values, n, scratch.narrow);
        from = scratch.narrow;
      }
      copy_out(static_cast<char*>(out) + (at + begin) * width, from, n * width, stream);
    }
  }
#if defined(__AVX2__)
  if (stream) _mm_sfence();
#endif
  return lost;
}

// y = a W^T in float32, in one fixed order (docs/linear.md): element k goes to lane k mod 16 by one fused
// multiply-add, ascending; the lanes are halved, 8 + 4 + 2 + 1. Tiles only change which outputs are worked on
// together.

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRowsA = 4, kRowsW = 6;  // 24 of 32 registers accumulate
#else
constexpr int kRowsA = 3, kRowsW = 4;  // 12 of 16
#endif
constexpr int kWidth = blockscale::kLanes;
constexpr int kLanes = 16;
// The lanes of a tile of outputs lie together, (kRowsA, kRowsW, kLanes), a constant from one address.
constexpr int64_t kTileLanes = kRowsA * kRowsW * kLanes;
constexpr int64_t kChunk = 1024;  // elements of a row decoded at a time, at most
constexpr int64_t kTileRows = 24;  // weight rows decoded at a time, at most
constexpr int64_t kManyActivations = 32;  // rows from which a tile is better that stays in the first cache while they
                                          // meet it, or a long one
constexpr int64_t kPanel = 128;    // activation rows that share a decoded tile

// Decoded weights: this many rows at most, a chunk of K. Rows begin in different places of the cache.
template <int64_t kMostRows, int64_t kMostChunk>
struct TileShape {
  static constexpr int64_t kRows = kMostRows, kElements = kMostChunk, kStride = kMostChunk + 16;
};
typedef TileShape<kTileRows, kChunk> FewTile;
typedef TileShape<kTileRows / 2, kChunk / 2> ManyTile;
typedef TileShape<kTileRows / 2, 4 * kChunk> LongTile;  // lanes of sums stay in registers longer; see long_tiles

// clang-format off: each builds on those before it
#include "linear_codes.inl.h"
#include "linear_decode.inl.h"
#include "linear_lanes.inl.h"
// clang-format on

// Loads and stores that copy bytes would make gcc keep accumulators in memory as well.
typedef float LooseFloats __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

// lanes(i, j) += a_i * w_j over n elements (a multiple of 16); the lanes begin with zeros if `first`.
template <typename Shape, int kA>
inline void dot_tile(const float* a, int64_t a_stride, const float* w, int64_t n, bool first, float* lanes) {
  for (int h = 0; h < kLanes; h += kWidth) {
    Floats sum[kA][kRowsW];
    for (int i = 0; i < kA; ++i)
      for (int j = 0; j < kRowsW; ++j)
        sum[i][j] = first ? Floats{} : *reinterpret_cast<const LooseFloats*>(lanes + (i * kRowsW + j) * kLanes + h);
    for (int64_t k = h; k < n; k += kLanes) {
      Floats x[kA];
      for (int i = 0; i < kA; ++i) x[i] = *reinterpret_cast<const LooseFloats*>(a + i * a_stride + k);
      for (int j = 0; j < kRowsW; ++j) {
        const Floats y = *reinterpret_cast<const LooseFloats*>(w + j * Shape::kStride + k);
        for (int i = 0; i < kA; ++i) sum[i][j] = fused(x[i], y, sum[i][j]);
      }
    }
    for (int i = 0; i < kA; ++i)
      for (int j = 0; j < kRowsW; ++j)
        *reinterpret_cast<LooseFloats*>(lanes + (i * kRowsW + j) * kLanes + h) = sum[i][j];
  }
}

template <typename Shape>
inline void dot_rows(int64_t rows, const float* a, int64_t a_stride, const float* w, int64_t n, bool first,
                     float* lanes) {
  if (rows >= kRowsA) return dot_tile<Shape, kRowsA>(a, a_stride, w, n, first, lanes);
  if (rows == 3) dot_tile<Shape, 3>(a, a_stride, w, n, first, lanes);
  if (rows == 2) dot_tile<Shape, 2>(a, a_stride, w, n, first, lanes);
  if (rows == 1) dot_tile<Shape, 1>(a, a_stride, w, n, first, lanes);
}

// Lanes of a group of activation rows, (weights / kRowsW, kTileLanes), to `count` outputs of each.
inline void add_group(float* lanes, int64_t rows, int64_t count, float* out, int64_t out_stride) {
  constexpr int64_t kTile = kRowsA * kRowsW;
  float sums[kTileRows / kRowsW * kTile + 16];
  add_all_lanes(lanes, (count + kRowsW - 1) / kRowsW * kTile, sums);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < count; j += kRowsW) {
      const float* from = sums + j * kRowsA + i * kRowsW;
      if (kRowsW <= count - j)
        memcpy(out + i * out_stride + j, from, sizeof(float) * kRowsW);  // a constant: no call
      else
        memcpy(out + i * out_stride + j, from, sizeof(float) * static_cast<size_t>(count - j));
    }
}

// Weight rows decoded together, and a chunk of K.
struct FloatTile {
  int64_t rows, chunk;
  float *data, *lanes;  // (rows, kStride); (activation rows / kRowsA, rows / kRowsW, kTileLanes)
  uint8_t* codes;       // of a chunk
};

// Asks for the piece of this row that comes next, or for the row that does: rows are read in turns, in pieces too
// short for the processor to see where they go. Inlined always: a function that does nothing else looks useless to
// compilers, and calls of it go.
[[gnu::always_inline]] inline void prefetch_piece(const LinearSpec& spec, const FloatTile& tile, int64_t r,
                                                  int64_t begin, int64_t n_end) {
  if (begin >= spec.length) begin = 0, r += tile.rows;
  if (r >= n_end) return;
  const int64_t left = spec.length - begin, n = left < tile.chunk ? left : tile.chunk;
  const uint8_t* p = spec.packed + r * spec.row_bytes + packed_bytes(begin, spec.bits);
  for (int64_t i = 0; i < packed_bytes(n, spec.bits); i += 64) __builtin_prefetch(p + i);
}

// Outputs [n_begin, n_end) of a panel of activation rows.
template <typename Shape>
inline void linear_panel(const LinearSpec& spec, const float* a, int64_t rows, int64_t a_stride, int64_t n_begin,
                         int64_t n_end, const FloatTile& tile, float* out, int64_t out_stride) {
  const int64_t groups = (rows + kRowsA - 1) / kRowsA;
  // Where one chunk is all of K, the lanes of a group are added up before the next group needs some.
  const int64_t group_lanes = spec.length <= tile.chunk ? 0 : tile.rows / kRowsW * kTileLanes;
  const DecodeBlocks fast = find_decoder(spec).decode;
  for (int64_t n = n_begin; n < n_end; n += tile.rows) {
    const int64_t count = tile.rows < n_end - n ? tile.rows : n_end - n;
    const int64_t used = (count + kRowsW - 1) / kRowsW * kRowsW;
    for (int64_t k = 0; k < spec.length; k += tile.chunk) {
      const int64_t size = tile.chunk < spec.length - k ? tile.chunk : spec.length - k;
      const int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
      for (int64_t j = 0; j < count; ++j) {
        float* row = tile.data + j * Shape::kStride;
        for (int64_t i = 0; i < size; i += kChunk)  // from a multiple of its length on: decode_blocks wants it so
          decode_piece(spec, fast, n + j, k + i, size - i < kChunk ? size - i : kChunk, tile.codes, row + i);
        for (int64_t i = size; i < padded; ++i) row[i] = 0;
      }
      for (int64_t i = 0; i < groups; ++i) {
        float* const lanes = tile.lanes + i * group_lanes;
        const int64_t left = rows - i * kRowsA;
        for (int64_t j = count * i / groups; j < count * (i + 1) / groups; ++j)
          prefetch_piece(spec, tile, n + j, k + tile.chunk, n_end);
        for (int64_t j = 0; j < used; j += kRowsW)
          dot_rows<Shape>(left, a + i * kRowsA * a_stride + k, a_stride, tile.data + j * Shape::kStride, padded, k == 0,
                          lanes + j / kRowsW * kTileLanes);
        if (k + size == spec.length)
          add_group(lanes, left < kRowsA ? left : kRowsA, count, out + i * kRowsA * out_stride + n, out_stride);
      }
    }
  }
}

// One activation row: four weight rows at a time, without a tile. Returns where it stopped.
inline int64_t linear_row(const LinearSpec& spec, const float* a, int64_t n_begin, int64_t n_end, float* out) {
  const DotBlocks dot = find_decoder(spec).dot;
  const int64_t blocks = spec.length / 32;
  if (!dot || spec.block_size != 32 || spec.length % 32 != 0) return n_begin;
  int64_t n = n_begin;
  for (; n + 4 <= n_end; n += 4) {
    if (spec.offset == 1 && !zero_points_fit(spec, n * blocks, 4 * blocks)) break;
    float lanes[16 * kLanes] = {}, sums[16];  // adding reads and writes sixteen
    for (int64_t k = 0; k < spec.length; k += kChunk) {
      const int64_t size = kChunk < spec.length - k ? kChunk : spec.length - k;
      dot(spec, n, k, size / 32, a + k, lanes);
    }
    add_all_lanes(lanes, 4, sums);
    memcpy(out + n, sums, sizeof(float) * 4);
  }
  return n;
}

// Memory of a tile, at the start of a cache line: vectors that cross lines cost twice.
struct Lined {
  Scratch<float> raw;
  float* data;
  explicit Lined(int64_t n) : raw(n + 16), data(nullptr) {
    if (raw.data) data = raw.data + (-reinterpret_cast<uintptr_t>(raw.data) & 63) / 4;
  }
};

// Outputs [n_begin, n_end) by way of a tile; false: no memory.
template <typename Shape>
inline bool linear_tiles(const LinearSpec& spec, const float* a, int64_t rows, int64_t a_stride, int64_t n_begin,
                         int64_t n_end, float* out, int64_t out_stride) {
  const int64_t tile_rows = rows <= kRowsA ? kRowsW : Shape::kRows, panel = rows < kPanel ? rows : kPanel;
  constexpr int64_t kPiece = Shape::kElements < kChunk ? Shape::kElements : kChunk;  // decoded at a time
  const int64_t chunks = 1 + (spec.length - 1) / Shape::kElements;  // nearly as long as each other
  const int64_t chunk = ((spec.length + chunks - 1) / chunks + kPiece - 1) / kPiece * kPiece;
  Lined data(tile_rows * Shape::kStride + 16);
  Lined lanes((panel + kRowsA - 1) / kRowsA * (tile_rows / kRowsW) * kTileLanes + 16 * kLanes);  // read by sixteen
  Scratch<uint8_t> codes(kChunk + 8);
  if (!data.data || !lanes.data || !codes.data) return false;
  const FloatTile tile{tile_rows, chunk, data.data, lanes.data, codes.data};
  for (int64_t i = 0; i < rows; i += kPanel)
    linear_panel<Shape>(spec, a + i * a_stride, kPanel < rows - i ? kPanel : rows - i, a_stride, n_begin, n_end, tile,
                        out + i * out_stride, out_stride);
  return true;
}

// a: (rows, a_stride) float32, a_stride a multiple of 16, zeros past spec.length.
bool linear_float(const LinearSpec& spec, const float* a, int64_t rows, int64_t a_stride, int64_t n_begin,
                  int64_t n_end, float* out, int64_t out_stride) {
  if (rows == 1) n_begin = linear_row(spec, a, n_begin, n_end, out);
  if (n_begin == n_end) return true;
  if (rows < kManyActivations) return linear_tiles<FewTile>(spec, a, rows, a_stride, n_begin, n_end, out, out_stride);
#if defined(__AVX512F__)
  if (spec.long_tiles) return linear_tiles<LongTile>(spec, a, rows, a_stride, n_begin, n_end, out, out_stride);
#endif
  return linear_tiles<ManyTile>(spec, a, rows, a_stride, n_begin, n_end, out, out_stride);
}

// Sixteen weight rows as a tile: 32-bit lanes belong to the rows.

constexpr int64_t kTileSegments = 32;  // segments of a tile: 16 KiB of codes
constexpr int64_t kChunkSegments = 4 * kTileSegments;

// What 16 weight rows hold for a chunk of K.
struct HalfTile {
  uint8_t* codes;                     // (kTileSegments, 8, 64): four codes of each row, of the tile's segments
  float *scales, *shifts, *minimums;  // (kChunkSegments, 16)
};

// The segments of a tile: four in a row of each sixteen of a chunk, so that they share four lanes of a sum.
struct TileSegments {
  int64_t chunk, first, end;  // the chunk's first segment; that of the tile, < 16; the row's end
  int64_t of_chunk(int64_t u) const { return u / 4 * 16 + first + u % 4; }
  int64_t count() const {
    const int64_t left = end - chunk - first, all = left / 16 * 4 + (left % 16 < 4 ? left % 16 : 4);
    return left <= 0 ? 0 : all < kTileSegments ? all : kTileSegments;
  }
};

// Stored codes of rows n .. n + 15.
template <StoredCodes kCodes>
inline void tile_codes(const LinearSpec& spec, int64_t n, const TileSegments& segments, const Storing& stored,
                       uint8_t* out) {
  constexpr int64_t kSegmentBytes = kCodes == kBytes ? 32 : 16, kAtOnce = 64 / kSegmentBytes;
  const uint8_t* rows = spec.packed + n * spec.row_bytes;
  const int64_t count = segments.count();
  for (int64_t u = 0; u < count; u += kAtOnce) {
    Words words[16];
    const int64_t left = count - u, t = segments.chunk + segments.of_chunk(u);
    const __mmask64 there = left < kAtOnce ? (uint64_t{1} << left * kSegmentBytes) - 1 : ~uint64_t{0};
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)  // not past the row's end
      words[r] = (Words)_mm512_maskz_loadu_epi8(there, rows + r * spec.row_bytes + t * kSegmentBytes);
    transpose_lanes(words);
    for (int i = 0; i < (left < kAtOnce ? left : kAtOnce); ++i) {
      uint8_t* to = out + (u + i) * 512;
      if constexpr (kCodes == kBytes) {
        for (int q = 0; q < 8; ++q)
          _mm512_store_si512(to + q * 64, wide_xor({(__m512i)words[i * 8 + q]}, stored.flip).v);
      } else {
        for (int q = 0; q < 4; ++q) {
          Wide c[2];
          stored_nibbles<kCodes>({(__m512i)words[i * 4 + q]}, stored, c);
          _mm512_store_si512(to + q * 64, c[0].v), _mm512_store_si512(to + 256 + q * 64, c[1].v);
        }
      }
    }
  }
}

// What sixteen rows hold per block from block `first` on, times `step`, segments [begin, end).
template <typename Load>
inline void tile_spread(const BlockPlaces& at, int64_t first, int64_t begin, int64_t end, Load load, float step,
                        float* out) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t t = begin; t < end; t += 16) {
    const SixteenSegments part(at, t, end, lanes);
    Words v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      v[r] = (Words)part.spread(load(first + r * at.blocks + part.first, part.used, step));
    transpose_lanes(v);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(out + (t - begin + i) * 16, v[i]);
  }
}

// Sixteen weight rows as a tile: 32-bit lanes belong to the rows.

constexpr int64_t kTileSegments = 32;  // segments of a tile: 16 KiB of codes

struct HalfTile {
  uint8_t* codes;                     // (segment, 8, 64): four codes of each of 16 rows
  float *scales, *shifts, *minimums;  // (segment, 16)
};

// Stored codes of rows n .. n + 15, segments [begin, end).
template <StoredCodes kCodes>
inline void tile_codes(const LinearSpec& spec, int64_t n, int64_t begin, int64_t end, const Storing& stored,
                       uint8_t* out) {
  constexpr int64_t kSegmentBytes = kCodes == kBytes ? 32 : 16, kAtOnce = 64 / kSegmentBytes;
  const uint8_t* rows = spec.packed + n * spec.row_bytes;
  for (int64_t t = begin; t < end; t += kAtOnce) {
    Words words[16];
    const int64_t left = end - t;
    const __mmask64 there = left < kAtOnce ? (uint64_t{1} << left * kSegmentBytes) - 1 : ~uint64_t{0};
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)  // not past the row's end
      words[r] = (Words)_mm512_maskz_loadu_epi8(there, rows + r * spec.row_bytes + t * kSegmentBytes);
    transpose_lanes(words);
    for (int i = 0; i < (left < kAtOnce ? left : kAtOnce); ++i) {
      uint8_t* to = out + (t - begin + i) * 512;
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

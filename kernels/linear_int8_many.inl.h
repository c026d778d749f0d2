// Many activation rows: 32 weight rows are decoded once into a tile whose 32-bit lanes belong to the rows, so that
// sums of a segment need no adding across lanes. The tile has the segments of a chunk of K that share four lanes of a
// sum: it fits the first cache, and four registers hold a sum. All activations meet it, their float32 lanes wait in
// memory meanwhile. Same integers, same order of additions.

constexpr int64_t kManyRows = 8;       // activation rows from which the tile pays
constexpr int64_t kTileWidth = 32;     // weight rows of a tile, in two halves of a vector each

// Activations of a call, and what is subtracted for stored codes that lie `offset` too high.
struct ManyRows {
  const Int8Activations& a;
  const int32_t* corrections;  // (rows, segments): -offset * sum of codes; zeros where shifts say it
};

// The part of the weight that comes next: asked for while the tile is used, a row at a time.
struct NextTile {
  const uint8_t *codes, *scales;
  int64_t row_bytes, bytes, scale_row_bytes;  // bytes: of codes, the tile's part of a row

  void ask() {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(codes + b, 0, 2);
    if (bytes) __builtin_prefetch(scales, 0, 2);
    codes += row_bytes, scales += scale_row_bytes;
  }
};

// kA activation rows from r on and kTiles halves of the tile. lanes: (rows, kLanes, kTileWidth), from the tile's on.
template <int kA, int kTiles, bool kShifts, bool kMinimums>
inline void many_tile(const HalfTile* w, const ManyRows& rows, int64_t r, const TileSegments& segments,
                      NextTile next, float* lanes) {
  const Int8Activations& a = rows.a;
  const int64_t count = segments.count();
  for (int64_t j = 0; j < 4; ++j) {
    __m512 sum[kA][kTiles];
    for (int i = 0; i < kA; ++i)
      for (int h = 0; h < kTiles; ++h) sum[i][h] = _mm512_load_ps(lanes + (i * kLanes + j) * kTileWidth + h * 16);
    for (int64_t u = j; u < count; u += 4) {
      const int64_t v = segments.of_chunk(u), t = segments.chunk + v;
      next.ask();
      __m512i dot[kA][kTiles];
      for (int i = 0; i < kA; ++i)
        for (int h = 0; h < kTiles; ++h) dot[i][h] = _mm512_set1_epi32(rows.corrections[(r + i) * a.segments + t]);
      const int8_t* codes = a.codes + r * a.stride + t / 4 * 128 + j * 16;
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
        __m512i x[kTiles];
        for (int h = 0; h < kTiles; ++h) x[h] = _mm512_load_si512(w[h].codes + u * 512 + q * 64);
        for (int i = 0; i < kA; ++i) {
          int32_t four;
          memcpy(&four, codes + i * a.stride + q / 4 * 64 + q % 4 * 4, 4);
          const __m512i y = _mm512_set1_epi32(four);
          for (int h = 0; h < kTiles; ++h) dot[i][h] = _mm512_dpbusd_epi32(dot[i][h], x[h], y);
        }
      }
      for (int i = 0; i < kA; ++i) {
        const int64_t at = (r + i) * a.segments + t;
        const __m512 sa = _mm512_set1_ps(a.scales[at]), total = _mm512_set1_ps(a.sums[at]);
        for (int h = 0; h < kTiles; ++h) {
          __m512 exact = _mm512_cvtepi32_ps(dot[i][h]);  // integers below 2**24: exact, with shifts too
          if (kShifts) exact = _mm512_fnmadd_ps(_mm512_load_ps(w[h].shifts + v * 16), total, exact);
          sum[i][h] = _mm512_fmadd_ps(_mm512_mul_ps(sa, _mm512_load_ps(w[h].scales + v * 16)), exact, sum[i][h]);
          if (kMinimums)
            sum[i][h] = _mm512_fmadd_ps(_mm512_mul_ps(sa, _mm512_load_ps(w[h].minimums + v * 16)), total, sum[i][h]);
        }
      }
    }
    for (int i = 0; i < kA; ++i)
      for (int h = 0; h < kTiles; ++h) _mm512_store_ps(lanes + (i * kLanes + j) * kTileWidth + h * 16, sum[i][h]);
  }
}

template <int kTiles, bool kShifts, bool kMinimums>
inline void many_rows(const HalfTile* w, const ManyRows& rows, const TileSegments& segments, NextTile next,
                      float* lanes) {
  constexpr int64_t kRowLanes = kLanes * kTileWidth;
  int64_t r = 0;
  for (; r + 4 <= rows.a.rows; r += 4) {
    many_tile<4, kTiles, kShifts, kMinimums>(w, rows, r, segments, next, lanes + r * kRowLanes);
    next.bytes = 0;
  }
  for (; r < rows.a.rows; ++r)
    many_tile<1, kTiles, kShifts, kMinimums>(w, rows, r, segments, {}, lanes + r * kRowLanes);
}

template <int kTiles>
inline void many_dispatch(const LinearSpec& spec, const HalfTile* w, const ManyRows& rows,
                          const TileSegments& segments, NextTile next, float* lanes) {
  if (spec.offset == 0) many_rows<kTiles, false, false>(w, rows, segments, next, lanes);
  if (spec.offset == 1) many_rows<kTiles, true, false>(w, rows, segments, next, lanes);
  if (spec.offset == 2) many_rows<kTiles, false, true>(w, rows, segments, next, lanes);
}

struct ManyScratch {
  Scratch<float> raw;
  Scratch<int32_t> corrections;
  HalfTile half[2];
  float* lanes;
  ManyScratch(const Int8Activations& a)
      : raw(2 * (kTileSegments * 128 + kChunkSegments * 3 * 16) + a.rows * kLanes * kTileWidth + 16),
        corrections(a.rows * a.segments) {
    if (!raw.data) return;
    float* p = raw.data + (-reinterpret_cast<uintptr_t>(raw.data) & 63) / 4;
    const auto take = [&p](int64_t n) { return p += n, p - n; };
    for (HalfTile& h : half) {
      h.codes = reinterpret_cast<uint8_t*>(take(kTileSegments * 128));
      h.scales = take(kChunkSegments * 16), h.shifts = take(kChunkSegments * 16);
      h.minimums = take(kChunkSegments * 16);
    }
    lanes = p;
  }
  bool ok() const { return raw.data && corrections.data; }
};

// Decodes codes of rows n .. n + 15 for a tile.
inline void fill_codes(const LinearSpec& spec, int64_t n, const TileSegments& segments, const Storing& stored,
                       uint8_t* to) {
  switch (stored_codes_of(spec)) {
    case kNibbles: tile_codes<kNibbles>(spec, n, segments, stored, to); break;
    case kLookup: tile_codes<kLookup>(spec, n, segments, stored, to); break;
    case kBytes: tile_codes<kBytes>(spec, n, segments, stored, to); break;
  }
}

// Decodes what rows n .. n + 15 hold per block, for the segments [begin, end) of a chunk.
inline void fill_blocks(const LinearSpec& spec, const BlockPlaces& at, int64_t n, int64_t begin, int64_t end,
                        const HalfTile& to) {
  const int64_t first = n * at.blocks;
  with_scale_type(spec, [&](auto load) {
    tile_spread(at, first, begin, end, load, spec.step, to.scales);
    if (spec.offset == 2) tile_spread(at, first, begin, end, decltype(load)(spec.offsets), 1.0f, to.minimums);
  });
  if (spec.offset == 1)
    with_zero_points(spec, [&](auto load) { tile_spread(at, first, begin, end, load, 1.0f, to.shifts); });
}

// The lanes of an activation row, for sixteen outputs.
inline __m512 add_tile_lanes(const float* lanes) {
  Words v[kLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) v[j] = load<Words>(lanes + j * kTileWidth);
  return halve_lanes(v) + _mm512_setzero_ps();  // no -0
}

// Returns the output where it stopped: fewer than sixteen rows left, or a zero point too large; -1: no memory.
inline int64_t int8_many(const LinearSpec& spec, const Int8Activations& a, int64_t n_begin, int64_t n_end,
                         float* out, int64_t out_stride) {
  if (a.rows < kManyRows || is_table(spec) || n_end - n_begin < 16) return n_begin;
  const BlockPlaces at(spec);
  ManyScratch scratch(a);
  if (!scratch.ok()) return -1;
  const Storing stored(spec);
  for (int64_t i = 0; i < a.rows * a.segments && spec.offset != 1; ++i)
    scratch.corrections.data[i] = -stored_offset(spec) * static_cast<int32_t>(a.sums[i]);
  const ManyRows rows{a, scratch.corrections.data};
  const int64_t scale_size = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  const int64_t part_bytes = kTileSegments * 4 * spec.bits;  // of a weight row, a fourth of a chunk
  int64_t n = n_begin;
  while (n + 16 <= n_end) {
    const int halves = n + 32 <= n_end ? 2 : 1;
    if (spec.offset == 1 && !small_zero_points(spec, n * at.blocks, halves * 16 * at.blocks)) return n;
    memset(scratch.lanes, 0, static_cast<size_t>(a.rows * kLanes * kTileWidth) * 4);
    for (int64_t t = 0; t < at.segments; t += kChunkSegments) {
      const int64_t end = t + kChunkSegments < at.segments ? t + kChunkSegments : at.segments;
      for (int h = 0; h < halves; ++h) fill_blocks(spec, at, n + h * 16, t, end, scratch.half[h]);
      const int64_t next_n = end < at.segments ? n : n + 32, next_t = end < at.segments ? end : 0;
      const int64_t next_bytes = spec.row_bytes - next_t * 4 * spec.bits;
      for (int64_t c = 0; c < 4; ++c) {
        const TileSegments segments{t, 4 * c, end};
        if (!segments.count()) break;
        NextTile next{};
        if (next_n + 32 <= n_end && c * part_bytes < next_bytes)
          next = {spec.packed + next_n * spec.row_bytes + next_t * 4 * spec.bits + c * part_bytes,
                  static_cast<const uint8_t*>(spec.scales) +
                      (next_n * at.blocks + ((next_t + c * kTileSegments) >> at.shift)) * scale_size,
                  spec.row_bytes, next_bytes - c * part_bytes < part_bytes ? next_bytes - c * part_bytes : part_bytes,
                  at.blocks * scale_size};
        for (int h = 0; h < halves; ++h) fill_codes(spec, n + h * 16, segments, stored, scratch.half[h].codes);
        float* lanes = scratch.lanes + segments.first * kTileWidth;
        if (halves == 2)
          many_dispatch<2>(spec, scratch.half, rows, segments, next, lanes);
        else
          many_dispatch<1>(spec, scratch.half, rows, segments, next, lanes);
      }
    }
    for (int64_t r = 0; r < a.rows; ++r)
      for (int h = 0; h < halves; ++h)
        _mm512_storeu_ps(out + r * out_stride + n + h * 16,
                         add_tile_lanes(scratch.lanes + r * kLanes * kTileWidth + h * 16));
    n += halves * 16;
  }
  return n;
}

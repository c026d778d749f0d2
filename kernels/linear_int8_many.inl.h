// Many activation rows: 32 weight rows are decoded once into a tile whose 32-bit lanes belong to the rows, so that
// sums of a segment need no adding across lanes. The tile covers a part of K that fits the first cache, and all
// activations meet it; their float32 lanes wait in memory meanwhile. Same integers, same order of additions.

constexpr int64_t kManyRows = 6;       // activation rows from which the tile pays
constexpr int64_t kTileSegments = 32;  // segments of a tile: 32 KiB of codes
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

// kA activation rows from r on and kHalves halves of the tile; `steps` times four segments, the first `begin`.
// lanes: (rows, 4, kTileWidth).
template <int kA, int kTiles, bool kShifts, bool kMinimums>
inline void many_tile(const HalfTile* w, const ManyRows& rows, int64_t r, int64_t begin, int64_t steps,
                      NextTile next, float* lanes) {
  const Int8Activations& a = rows.a;
  for (int j = 0; j < 4; ++j) {
    __m512 sum[kA][kTiles];
    for (int i = 0; i < kA; ++i)
      for (int h = 0; h < kTiles; ++h) sum[i][h] = _mm512_load_ps(lanes + (i * 4 + j) * kTileWidth + h * 16);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t u = s * 4 + j, t = begin + u;
      next.ask();
      __m512i dot[kA][kTiles];
      for (int i = 0; i < kA; ++i)
        for (int h = 0; h < kTiles; ++h) dot[i][h] = _mm512_set1_epi32(rows.corrections[(r + i) * a.segments + t]);
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
        __m512i x[kTiles];
        for (int h = 0; h < kTiles; ++h) x[h] = _mm512_load_si512(w[h].codes + u * 512 + q * 64);
        for (int i = 0; i < kA; ++i) {
          int32_t four;
          memcpy(&four, a.codes + (r + i) * a.stride + t / 4 * 128 + j * 16 + q / 4 * 64 + q % 4 * 4, 4);
          const __m512i y = _mm512_set1_epi32(four);
          for (int h = 0; h < kTiles; ++h) dot[i][h] = _mm512_dpbusd_epi32(dot[i][h], x[h], y);
        }
      }
      for (int i = 0; i < kA; ++i) {
        const int64_t at = (r + i) * a.segments + t;
        const __m512 sa = _mm512_set1_ps(a.scales[at]), total = _mm512_set1_ps(a.sums[at]);
        for (int h = 0; h < kTiles; ++h) {
          __m512 exact = _mm512_cvtepi32_ps(dot[i][h]);  // integers below 2**24: exact
          if (kShifts) exact = _mm512_sub_ps(exact, _mm512_mul_ps(_mm512_load_ps(w[h].shifts + u * 16), total));
          const __m512 s = _mm512_mul_ps(sa, _mm512_load_ps(w[h].scales + u * 16));
          sum[i][h] = _mm512_add_ps(sum[i][h], _mm512_mul_ps(s, exact));
          if (kMinimums) {
            const __m512 m = _mm512_mul_ps(sa, _mm512_load_ps(w[h].minimums + u * 16));
            sum[i][h] = _mm512_add_ps(sum[i][h], _mm512_mul_ps(m, total));
          }
        }
      }
    }
    for (int i = 0; i < kA; ++i)
      for (int h = 0; h < kTiles; ++h) _mm512_store_ps(lanes + (i * 4 + j) * kTileWidth + h * 16, sum[i][h]);
  }
}

template <int kTiles, bool kShifts, bool kMinimums>
inline void many_rows(const HalfTile* w, const ManyRows& rows, int64_t begin, int64_t steps, NextTile next,
                      float* lanes) {
  int64_t r = 0;
  for (; r + 4 <= rows.a.rows; r += 4) {
    many_tile<4, kTiles, kShifts, kMinimums>(w, rows, r, begin, steps, next, lanes + r * 4 * kTileWidth);
    next.bytes = 0;
  }
  for (; r < rows.a.rows; ++r)
    many_tile<1, kTiles, kShifts, kMinimums>(w, rows, r, begin, steps, {}, lanes + r * 4 * kTileWidth);
}

template <int kTiles>
inline void many_dispatch(const LinearSpec& spec, const HalfTile* w, const ManyRows& rows, int64_t begin,
                          int64_t steps, NextTile next, float* lanes) {
  if (spec.offset == 0) many_rows<kTiles, false, false>(w, rows, begin, steps, next, lanes);
  if (spec.offset == 1) many_rows<kTiles, true, false>(w, rows, begin, steps, next, lanes);
  if (spec.offset == 2) many_rows<kTiles, false, true>(w, rows, begin, steps, next, lanes);
}

inline bool small_zero_points(const LinearSpec& spec, int64_t first, int64_t count) {
  const int32_t* z = static_cast<const int32_t*>(spec.offsets) + first;
  bool small = true;
  for (int64_t i = 0; i < count; ++i) small &= z[i] >= -kZeroPointLimit && z[i] <= kZeroPointLimit;
  return small;
}

struct ManyScratch {
  Scratch<float> raw;
  Scratch<int32_t> corrections;
  HalfTile half[2];
  float* lanes;
  ManyScratch(const Int8Activations& a)
      : raw(2 * kTileSegments * (128 + 3 * 16) + a.rows * 4 * kTileWidth + 16), corrections(a.rows * a.segments) {
    if (!raw.data) return;
    float* p = raw.data + (-reinterpret_cast<uintptr_t>(raw.data) & 63) / 4;
    const auto take = [&p](int64_t n) { return p += n, p - n; };
    for (HalfTile& h : half) {
      h.codes = reinterpret_cast<uint8_t*>(take(kTileSegments * 128));
      h.scales = take(kTileSegments * 16), h.shifts = take(kTileSegments * 16);
      h.minimums = take(kTileSegments * 16);
    }
    lanes = p;
  }
  bool ok() const { return raw.data && corrections.data; }
};

// Returns the output where it stopped: fewer than sixteen rows left, or a zero point too large; -1: no memory.
inline int64_t int8_many(const LinearSpec& spec, const Int8Activations& a, Int8Order order, int64_t n_begin,
                         int64_t n_end, float* out, int64_t out_stride) {
  const bool plain = spec.bits == 4 || (spec.bits == 8 && spec.kind != LinearKind::kTable);
  if (a.rows < kManyRows || !plain || n_end - n_begin < 16) return n_begin;
  const int64_t segments = (spec.length + 31) / 32;
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  ManyScratch scratch(a);
  if (!scratch.ok()) return -1;
  const int offset = spec.kind == LinearKind::kUint8 ? kUnsignedOffset : kSignedOffset;
  int8_t table[16] = {};
  for (int c = 0; c < 16 && spec.bits == 4; ++c) table[c] = static_cast<int8_t>(spec.integers[c] + offset);
  for (int64_t i = 0; i < a.rows * a.segments && spec.offset != 1; ++i)
    scratch.corrections.data[i] = -offset * static_cast<int32_t>(a.sums[i]);
  const ManyRows rows{a, scratch.corrections.data};
  const auto scales = [&spec](int64_t block, __mmask16 which) {
    return _mm512_mul_ps(load_scales(spec, spec.scales, block, which), _mm512_set1_ps(spec.step));
  };
  const auto minimums = [&spec](int64_t block, __mmask16 which) {
    return load_scales(spec, spec.offsets, block, which);
  };
  const auto shifts = [&spec, offset](int64_t block, __mmask16 which) {
    const int32_t* z = static_cast<const int32_t*>(spec.offsets) + block;
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_maskz_loadu_epi32(which, z), _mm512_set1_epi32(offset)));
  };
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32));
  const int64_t scale_bytes = spec.family == 0 ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  int64_t n = n_begin;
  while (n + 16 <= n_end) {
    const int halves = n + 32 <= n_end ? 2 : 1;
    if (spec.offset == 1 && !small_zero_points(spec, n * blocks, halves * 16 * blocks)) return n;
    memset(scratch.lanes, 0, static_cast<size_t>(a.rows * 4 * kTileWidth) * 4);
    for (int64_t t = 0; t < segments; t += kTileSegments) {
      const int64_t end = t + kTileSegments < segments ? t + kTileSegments : segments;
      const int64_t steps = (end - t + 3) / 4;
      const int64_t next_n = end < segments ? n : n + 32, next_t = end < segments ? end : 0;
      const uint8_t* next_codes = spec.packed + next_n * spec.row_bytes + next_t * 4 * spec.bits;
      const uint8_t* next_scales =
          static_cast<const uint8_t*>(spec.scales) + (next_n * blocks + (next_t >> shift)) * scale_bytes;
      const int64_t next_bytes = next_n + 32 <= n_end ? kTileSegments * 4 * spec.bits : 0;
      const NextTile next{next_codes, next_scales, spec.row_bytes, next_bytes, blocks * scale_bytes};
      for (int h = 0; h < halves; ++h) {
        const HalfTile& to = scratch.half[h];
        if (order == kEvenOdd)
          many_codes<kEvenOdd>(spec, n + h * 16, t, end, table, offset & 128, to.codes);
        else
          many_codes<kHalves>(spec, n + h * 16, t, end, table, offset & 128, to.codes);
        many_spread(spec, n + h * 16, t, end, scales, to.scales);
        if (spec.offset == 1) many_spread(spec, n + h * 16, t, end, shifts, to.shifts);
        if (spec.offset == 2) many_spread(spec, n + h * 16, t, end, minimums, to.minimums);
      }
      if (halves == 2)
        many_dispatch<2>(spec, scratch.half, rows, t, steps, next, scratch.lanes);
      else
        many_dispatch<1>(spec, scratch.half, rows, t, steps, next, scratch.lanes);
    }
    for (int64_t r = 0; r < a.rows; ++r)
      for (int h = 0; h < halves; ++h) {
        const float* l = scratch.lanes + r * 4 * kTileWidth + h * 16;
        const __m512 even = _mm512_add_ps(_mm512_load_ps(l), _mm512_load_ps(l + 2 * kTileWidth));
        const __m512 odd = _mm512_add_ps(_mm512_load_ps(l + kTileWidth), _mm512_load_ps(l + 3 * kTileWidth));
        _mm512_storeu_ps(out + r * out_stride + n + h * 16, _mm512_add_ps(even, odd));
      }
    n += halves * 16;
  }
  return n;
}

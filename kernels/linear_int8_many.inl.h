// Many activation rows: sixteen weight rows are decoded once into a tile whose 32-bit lanes belong to the rows, so
// that sums of a segment need no adding across lanes. Same integers, same order of float32 additions.

constexpr int64_t kManyRows = 12;  // activation rows from which the tile pays

struct ManyTile {
  Scratch<uint8_t> raw;
  uint8_t* codes;    // (segments, 8, 64): four codes of each of 16 rows
  float *scales, *shifts, *minimums;  // (segments, 16)
  explicit ManyTile(int64_t segments) : raw(segments * (512 + 3 * 64) + 64), codes(raw.data) {
    if (!raw.data) return;
    codes += -reinterpret_cast<uintptr_t>(codes) & 63;
    scales = reinterpret_cast<float*>(codes + segments * 512);
    shifts = scales + segments * 16;
    minimums = shifts + segments * 16;
  }
};

// Sixteen rows of 64 bytes to sixteen vectors: lane r of vector q is 32-bit word q of row r.
inline void transpose_words(const uint8_t* rows, int64_t stride, __m512i* out) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) a[r] = _mm512_loadu_si512(rows + r * stride);
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4)  // a[r + w]: words w, 4 + w, 8 + w, 12 + w of rows r .. r + 3
    for (int h = 0; h < 2; ++h) {
      a[r + 2 * h] = _mm512_unpacklo_epi64(b[r + h], b[r + 2 + h]);
      a[r + 2 * h + 1] = _mm512_unpackhi_epi64(b[r + h], b[r + 2 + h]);
    }
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i x = _mm512_shuffle_i32x4(a[w], a[4 + w], 0x88), y = _mm512_shuffle_i32x4(a[w], a[4 + w], 0xDD);
    const __m512i u = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0x88);
    const __m512i v = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0xDD);
    out[w] = _mm512_shuffle_i32x4(x, u, 0x88);
    out[8 + w] = _mm512_shuffle_i32x4(x, u, 0xDD);
    out[4 + w] = _mm512_shuffle_i32x4(y, v, 0x88);
    out[12 + w] = _mm512_shuffle_i32x4(y, v, 0xDD);
  }
}

template <Int8Order kOrder>
inline void many_codes(const LinearSpec& spec, int64_t n, int64_t segments, const int8_t* sixteen, int flip,
                       uint8_t* out) {
  constexpr int64_t kSegmentBytes = kOrder == kEvenOdd ? 16 : 32, kAtOnce = 64 / kSegmentBytes;
  const uint8_t* rows = spec.packed + n * spec.row_bytes;
  const Wide table = wide_table(sixteen);
  uint8_t rest[16 * 64] = {};
  for (int64_t t = 0; t < segments; t += kAtOnce) {
    __m512i words[16];
    const int64_t left = segments - t;
    if (left < kAtOnce) {  // not past the row's end
      for (int r = 0; r < 16; ++r)
        memcpy(rest + r * 64, rows + r * spec.row_bytes + t * kSegmentBytes, static_cast<size_t>(left * kSegmentBytes));
      transpose_words(rest, 64, words);
    } else {
      transpose_words(rows + t * kSegmentBytes, spec.row_bytes, words);
    }
    for (int i = 0; i < (left < kAtOnce ? left : kAtOnce); ++i, out += 512) {
      if (kOrder == kEvenOdd) {
        for (int q = 0; q < 4; ++q) {
          _mm512_store_si512(out + q * 64, wide_lookup(table, wide_low({words[i * 4 + q]})).v);
          _mm512_store_si512(out + 256 + q * 64, wide_lookup(table, wide_high({words[i * 4 + q]})).v);
        }
      } else {
        for (int q = 0; q < 8; ++q) _mm512_store_si512(out + q * 64, wide_xor({words[i * 8 + q]}, flip).v);
      }
    }
  }
}

// Scales (or minimums) of sixteen rows, times `step`, (segment, row).
inline void many_scales(const LinearSpec& spec, const void* from, int64_t n, int64_t segments, float step,
                        float* row, float* out) {
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32));
  for (int64_t r = 0; r < 16; ++r) {
    LinearSpec plain = spec;
    plain.unit = 1;
    read_scales(plain, from, (n + r) * blocks, blocks, row);
    for (int64_t t = 0; t < segments; ++t) out[t * 16 + r] = row[t >> shift] * step;
  }
}

template <int kRows, bool kShifts, bool kMinimums>
inline void many_rows(const ManyTile& w, float offset, const Int8Activations& a, int64_t r, int64_t steps,
                      float* out, int64_t out_stride) {
  __m512 sum[kRows][4];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < 4; ++j) sum[i][j] = _mm512_setzero_ps();
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64_t t = s * 4 + j;
      __m512i dot[kRows];
      for (int i = 0; i < kRows; ++i) dot[i] = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
        const __m512i x = _mm512_load_si512(w.codes + t * 512 + q * 64);
        for (int i = 0; i < kRows; ++i) {
          int32_t four;
          memcpy(&four, a.codes + (r + i) * a.stride + s * 128 + j * 16 + q / 4 * 64 + q % 4 * 4, 4);
          dot[i] = _mm512_dpbusd_epi32(dot[i], x, _mm512_set1_epi32(four));
        }
      }
      const __m512 sw = _mm512_load_ps(w.scales + t * 16);
      const __m512 shift = kShifts ? _mm512_load_ps(w.shifts + t * 16) : _mm512_set1_ps(offset);
      for (int i = 0; i < kRows; ++i) {
        const __m512 total = _mm512_set1_ps(a.sums[(r + i) * a.segments + t]);
        const __m512 sa = _mm512_set1_ps(a.scales[(r + i) * a.segments + t]);
        const __m512 exact = _mm512_sub_ps(_mm512_cvtepi32_ps(dot[i]), _mm512_mul_ps(shift, total));
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_mul_ps(_mm512_mul_ps(sa, sw), exact));
        if (kMinimums) {
          const __m512 m = _mm512_mul_ps(sa, _mm512_load_ps(w.minimums + t * 16));
          sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_mul_ps(m, total));
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i)
    _mm512_storeu_ps(out + (r + i) * out_stride, _mm512_add_ps(_mm512_add_ps(sum[i][0], sum[i][2]),
                                                               _mm512_add_ps(sum[i][1], sum[i][3])));
}

template <bool kShifts, bool kMinimums>
inline void many_all(const ManyTile& w, float offset, const Int8Activations& a, int64_t steps, float* out,
                     int64_t out_stride) {
  int64_t r = 0;
  for (; r + 4 <= a.rows; r += 4) many_rows<4, kShifts, kMinimums>(w, offset, a, r, steps, out, out_stride);
  for (; r < a.rows; ++r) many_rows<1, kShifts, kMinimums>(w, offset, a, r, steps, out, out_stride);
}

// Returns the output where it stopped: fewer than sixteen rows left, or a zero point too large; -1: no memory.
inline int64_t int8_many(const LinearSpec& spec, const Int8Activations& a, Int8Order order, int64_t n_begin,
                         int64_t n_end, float* out, int64_t out_stride) {
  const bool plain = spec.bits == 4 || (spec.bits == 8 && spec.kind != LinearKind::kTable);
  if (a.rows < kManyRows || !plain) return n_begin;
  const int64_t segments = (spec.length + 31) / 32, steps = (segments + 3) / 4;
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  ManyTile tile(steps * 4);  // zeros past the last segment
  Scratch<float> row(blocks + 16);
  if (!tile.codes || !row.data) return -1;
  const int offset = spec.kind == LinearKind::kUint8 ? kUnsignedOffset : kSignedOffset;
  int8_t table[16] = {};
  for (int c = 0; c < 16 && spec.bits == 4; ++c) table[c] = static_cast<int8_t>(spec.integers[c] + offset);
  int64_t n = n_begin;
  for (; n + 16 <= n_end; n += 16) {
    if (spec.offset == 1) {
      const int32_t* z = static_cast<const int32_t*>(spec.offsets) + n * blocks;
      bool small = true;
      for (int64_t i = 0; i < 16 * blocks; ++i) small &= z[i] >= -1024 && z[i] <= 1024;
      if (!small) return n;
      const int shift = __builtin_ctzll(static_cast<unsigned long long>(spec.block_size / 32));
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t t = 0; t < segments; ++t)
          tile.shifts[t * 16 + r] = static_cast<float>(z[r * blocks + (t >> shift)] + offset);
    }
    if (order == kEvenOdd)
      many_codes<kEvenOdd>(spec, n, segments, table, offset & 128, tile.codes);
    else
      many_codes<kHalves>(spec, n, segments, table, offset & 128, tile.codes);
    many_scales(spec, spec.scales, n, segments, spec.step, row.data, tile.scales);
    if (spec.offset == 2) many_scales(spec, spec.offsets, n, segments, 1.0f, row.data, tile.minimums);
    const float shift = static_cast<float>(offset);
    if (spec.offset == 0) many_all<false, false>(tile, shift, a, steps, out + n, out_stride);
    if (spec.offset == 1) many_all<true, false>(tile, shift, a, steps, out + n, out_stride);
    if (spec.offset == 2) many_all<false, true>(tile, shift, a, steps, out + n, out_stride);
  }
  return n;
}

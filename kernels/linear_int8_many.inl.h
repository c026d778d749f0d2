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

template <Int8Order kOrder>
inline void many_codes(const LinearSpec& spec, int64_t n, int64_t segments, const int8_t* sixteen, int flip,
                       uint8_t* out) {
  const uint8_t* rows = spec.packed + n * spec.row_bytes;
  const __m512i at = _mm512_mullo_epi32(_mm512_set1_epi32(static_cast<int>(spec.row_bytes)),
                                        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const Wide table = wide_table(sixteen);
  for (int64_t t = 0; t < segments; ++t, out += 512) {
    if (kOrder == kEvenOdd) {
      for (int q = 0; q < 4; ++q) {
        const Wide x = {_mm512_i32gather_epi32(at, rows + t * 16 + q * 4, 1)};
        _mm512_store_si512(out + q * 64, wide_lookup(table, wide_low(x)).v);
        _mm512_store_si512(out + 256 + q * 64, wide_lookup(table, wide_high(x)).v);
      }
    } else {
      for (int q = 0; q < 8; ++q)
        _mm512_store_si512(out + q * 64, wide_xor({_mm512_i32gather_epi32(at, rows + t * 32 + q * 4, 1)}, flip).v);
    }
  }
}

// Scales (or minimums) of sixteen rows, times `step`, (segment, row).
inline void many_scales(const LinearSpec& spec, const void* from, int64_t n, int64_t segments, float step,
                        float* row, float* out) {
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size, per_block = spec.block_size / 32;
  for (int64_t r = 0; r < 16; ++r) {
    LinearSpec plain = spec;
    plain.unit = 1;
    read_scales(plain, from, (n + r) * blocks, blocks, row);
    for (int64_t t = 0; t < segments; ++t) out[t * 16 + r] = row[t / per_block] * step;
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
  const bool plain = spec.bits == 4 || (spec.bits == 8 && spec.kind != kTable);
  if (a.rows < kManyRows || !plain || spec.row_bytes >= 1 << 26) return n_begin;
  const int64_t segments = (spec.length + 31) / 32, steps = (segments + 3) / 4;
  const int64_t blocks = (spec.length + spec.block_size - 1) / spec.block_size;
  ManyTile tile(steps * 4);  // zeros past the last segment
  Scratch<float> row(blocks + 16);
  if (!tile.codes || !row.data) return -1;
  const int offset = spec.kind == kUint8 ? kUnsignedOffset : kSignedOffset;
  int8_t table[16] = {};
  for (int c = 0; c < 16 && spec.bits == 4; ++c) table[c] = static_cast<int8_t>(spec.integers[c] + offset);
  int64_t n = n_begin;
  for (; n + 16 <= n_end; n += 16) {
    if (spec.offset == 1) {
      const int32_t* z = static_cast<const int32_t*>(spec.offsets) + n * blocks;
      bool small = true;
      for (int64_t i = 0; i < 16 * blocks; ++i) small &= z[i] >= -1024 && z[i] <= 1024;
      if (!small) return n;
      for (int64_t r = 0; r < 16; ++r)
        for (int64_t t = 0; t < segments; ++t)
          tile.shifts[t * 16 + r] = static_cast<float>(z[r * blocks + t / (spec.block_size / 32)] + offset);
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

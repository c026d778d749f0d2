// The affine kernel: one block at a time, whatever the rule.

struct AffineScratch {
  OptimalScratch search;
  Scratch<float> narrow;
  AffineScratch(const AffineSpec& spec, int64_t n)
      : search(spec.rule == 3 ? n : 1,
               spec.rule == 3 ? 2 * static_cast<int64_t>(zero_point_cap(spec)) + 1 : 1),
        narrow(spec.rule == 2 ? n : 1) {}
  bool ok() const { return search.ok() && narrow.data; }
};

inline bool affine_block(const AffineSpec& spec, const ScaleGrid& grid, const double* x, const double* w,
                         int64_t n, AffineScratch& scratch, uint8_t* codes, void* scales, void* offsets,
                         int64_t block, int64_t* events) {
  int64_t bad = 0;
  const double amax = scan_amax(x, n, &bad);
  events[kNonFinite] += bad;
  if (bad) return true;
  if (spec.rule == 2) {
    ggml_block(spec, grid, x, n, scratch.narrow.data, codes, scales, offsets, block, events);
    return true;
  }
  Choice c;
  if (spec.rule == 3) {
    bool any = !w;
    for (int64_t i = 0; w && i < n; ++i) any |= w[i] > 0;
    events[kUnweightedBlocks] += !any;
    if (!choose_optimal(spec, grid, x, any ? w : nullptr, n, scratch.search, &c)) return false;
  } else {
    c = choose_plain(spec, grid, x, n, events);
  }
  events[kZeroBlocks] += amax == 0;
  if (c.overflow) {
    events[kScaleOverflow] += 1;
    return true;
  }
  store_scale(spec.scale_type, scales, block, c.s);
  if (spec.offset == 1) static_cast<int32_t*>(offsets)[block] = static_cast<int32_t>(c.shift);
  events[kScaleOverflow] += !affine_codes(spec, x, n, c, codes, events);
  return true;
}

inline bool quantize_affine_plain(const Rows& rows, const AffineSpec& spec, const double* importance,
                                  uint8_t* packed, int64_t row_bytes, void* scales, void* offsets,
                                  int64_t* events) {
  const ScaleGrid grid = scale_grid(spec.scale_type);
  const int64_t blocks = (rows.length + rows.block_size - 1) / rows.block_size;
  AffineScratch scratch(spec, rows.block_size < rows.length ? rows.block_size : rows.length + 1);
  if (!scratch.ok()) return false;
  bool ok = true;
  const uint8_t mask = static_cast<uint8_t>((1u << spec.bits) - 1);
  const bool walked = for_each_block(
      rows, spec.bits, packed, row_bytes, [&](const double* x, int64_t n, uint8_t* codes, int64_t block) {
        const double* w = importance ? importance + block % blocks * rows.block_size : nullptr;
        ok &= affine_block(spec, grid, x, w, n, scratch, codes, scales, offsets, block, events);
        for (int64_t i = 0; i < n; ++i) codes[i] &= mask;
      });
  return ok && walked;
}

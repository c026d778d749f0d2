// The rule `optimal` where the search of many blocks at once serves.

inline bool optimal_group_serves(const AffineSpec& spec) {
  const bool is_signed = spec.offset == 0 && spec.qmin < 0 && !spec.positive;
  return spec.rule == 3 && spec.bits == 4 && (is_signed || spec.offset == 1) && spec.scale_type != kFloat32;
}

template <int kSize>
inline bool optimal_run(const Rows& rows, const AffineSpec& spec, int64_t at, int64_t blocks, uint8_t* packed,
                        void* scales, void* offsets, int64_t first_block, FastScratch* scratch, int64_t* events) {
  using namespace group_search;
  const int64_t size = kSize ? kSize : rows.block_size;
  const ScaleGrid grid = scale_grid(spec.scale_type);
  AffineScratch plain(spec, size);
  Room room;
  if (!plain.ok() || !room.bytes.data) return false;
  Memory& memory = room.memory();
  AffineCounts counts;
  for (int64_t first = 0; first < blocks; first += kBlocks) {
    const int64_t n = first + kBlocks < blocks ? kBlocks : blocks - first;
    const float* x = group_floats(rows, at + first * size, n * size, memory.floats);
    Choices choices = {};
    for (int64_t b = 0; b < n; b += kGroup) {
      AffineGroup g;
      const int64_t m = b + kGroup < n ? kGroup : n - b;
      group_ends(x + b * size, m, size, &g);
      for (int64_t i = 0; i < m; ++i) {
        choices.low[b + i] = from_ordered(g.low[i]);
        choices.high[b + i] = from_ordered(g.high[i]);
      }
    }
    auto* choose = spec.offset == 1 ? choose_zero : choose_signed;
    choose(spec, grid, x, size, n, memory, scratch->wide, &choices);
    for (int64_t b = 0; b < n; b += kGroup) {
      const int64_t m = b + kGroup < n ? kGroup : n - b, block = first_block + first + b;
      AffineGroup g = {};
      for (int64_t i = 0; i < m; ++i) {
        const float s = choices.scale[b + i], reach = 300 * (s < 0 ? -s : s);  // affine_vector relies on it
        const bool known = s != 0 && choices.high[b + i] <= reach && choices.low[b + i] >= -reach;
        g.scale[i] = known ? s : 1;
        g.inverse[i] = 1.0f / g.scale[i];
        g.shift[i] = choices.zero[b + i];
        g.special |= static_cast<uint32_t>(!known) << i;
      }
      store_parameters(spec, g, m, scales, offsets, block);
      const AffineOutputs out = {packed + packed_bytes((first + b) * size, spec.bits), scales, offsets};
      finish_group<kPlain, kSize>(spec, grid, &g, x + b * size, m, size, block, out, plain, scratch, &counts, events);
    }
  }
  add_counts(counts, events);
  return true;
}

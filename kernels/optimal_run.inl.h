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
    const int64_t bytes = n * size * input_width(rows.input_type);
    memory.next = static_cast<const char*>(rows.x) + (at + first * size) * input_width(rows.input_type) + bytes;
    memory.part = bytes / Memory::kParts;
    Choices choices = {};
    find_ends(x, size, n, memory, &choices);
    auto* choose = spec.offset == 1 ? choose_zero : choose_signed;
    choose(spec, grid, x, size, n, memory, scratch->wide, &choices);
    for (int64_t b = 0; b < n; b += kGroup) {
      const int64_t m = b + kGroup < n ? kGroup : n - b, block = first_block + first + b;
      AffineGroup g = {};
      for (int64_t i = 0; i < kGroup && b + i < kBlocks; i += kLanes) {
        const Floats s = load<Floats>(choices.scale + b + i), reach = 300 * magnitude(s);  // affine_vector relies on it
        const Ints known = (Ints)(s != 0.0f) & (Ints)(load<Floats>(choices.high + b + i) <= reach) &
                           (Ints)(load<Floats>(choices.low + b + i) >= -reach);
        const Floats scale = select(known, s, spread(1.0f));
        store(g.scale + i, scale), store(g.inverse + i, 1.0f / scale);
        store(g.shift + i, load<Floats>(choices.zero + b + i));
        g.special |= lane_bits(~known) << i;
      }
      g.special &= (1u << m) - 1;
      store_parameters(spec, g, m, scales, offsets, block);
      const AffineOutputs out = {packed + packed_bytes((first + b) * size, spec.bits), scales, offsets};
      if (kClipsWords && m == kGroup && !g.special && size % 32 == 0) {
        clipped_words(spec, g, x + b * size, size, out.packed, &counts);
        continue;
      }
      finish_group<kPlain, kSize>(spec, grid, &g, x + b * size, m, size, block, out, plain, scratch, &counts, events);
    }
  }
  add_counts(counts, events);
  return true;
}

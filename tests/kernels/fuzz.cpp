// Calls every kernel of every instruction set with drawn arguments, in buffers of exactly the size that the
// interface promises, and compares the parts with those of the plain loops (float64 input; whole calls
// against single rows). Built by .ci/sanitize with sanitizers, and for aarch64. Usage: fuzz [rounds] [seed]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"

using namespace blockscale;

namespace {

uint64_t state;

uint32_t draw() {  // xorshift64*
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return static_cast<uint32_t>((state * 0x2545F4914F6CDD1Dull) >> 32);
}

int64_t below(uint32_t n) { return draw() % n; }

// Memory of exactly n bytes (so that one byte more is caught), off the usual alignment at times.
struct Buffer {
  char* room;
  char* data;
  size_t size;
  explicit Buffer(int64_t n, int64_t align = 4)
      : room(static_cast<char*>(malloc(static_cast<size_t>(n) + 64))), size(static_cast<size_t>(n)) {
    data = room + 64 - below(static_cast<uint32_t>(16)) / align * align;  // ends before the end of the room:
    char* exact = static_cast<char*>(malloc(size + static_cast<size_t>(data - room)));
    free(room);
    data = exact + (data - room);  // ends at the end of the room
    room = exact;
    memset(data, 0xA5, size);
  }
  ~Buffer() { free(room); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

bool same(const Buffer& a, const Buffer& b) { return a.size == b.size && !memcmp(a.data, b.data, a.size); }

float drawn_float(int kind) {
  uint32_t u = draw();
  if (kind == 1) u = (u & 0x807FFFFFu) | (120u + u % 11u) << 23;           // ordinary
  if (kind == 2) return static_cast<float>(static_cast<int>(u % 17) - 8);  // many ties
  if (kind == 3) u &= 0x80FFFFFFu;                                         // tiny
  if (kind == 4) u = u % 40 ? (u & 0x803FFFFFu) | 127u << 23 : 0x7FC00000u;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

const MxSpec kElements[] = {
    {4, 1, 1, 1, 2, 6.0, 0, 2, 0, 0},     {6, 1, 3, 1, 2, 7.5, 0, 2, 0, 0},
    {6, 1, 2, 3, 4, 28, 0, 2, 0, 0},      {8, 1, 3, 7, 8, 448, 0, 2, 0, 0},
    {8, 1, 2, 15, 15, 57344, 0, 2, 0, 0}, {8, 0, 6, 0, 0, 127 / 64.0, 0, 2, 0, 0},
    {4, 0, 2, 0, 0, 7 / 4.0, 0, 2, 0, 0},
};
const double kThresholds[] = {2.0, 1.0, 1.5, 1.75};

int64_t packed_bytes(int64_t count, int bits) {
  return bits == 6 ? 3 * ((count + 3) / 4) : (count * bits + 7) / 8;
}

int failures = 0;

void expect(bool ok, const char* what, const char* isa, long seed) {
  if (ok) return;
  printf("%s differs: isa %s, seed %ld\n", what, isa, seed);
  ++failures;
}

struct Shape {
  int64_t rows, length, size, blocks, row_bytes;
};

Shape drawn_shape(int bits, bool ggml) {
  static const int64_t sizes[] = {2, 8, 16, 32, 64, 128};
  const int64_t size = ggml ? 32 : sizes[below(6)];
  const int64_t length = below(3) ? 1 + below(700) : size * (1 + below(20));
  const int64_t blocks = (length + size - 1) / size;
  return {1 + below(4), length, size, blocks, packed_bytes(blocks * size, bits)};
}

// x of a type and the same numbers as float64.
void fill(const Shape& s, int32_t type, Buffer& x, Buffer& wide) {
  const int kind = static_cast<int>(below(5));
  for (int64_t i = 0; i < s.rows * s.length; ++i) {
    float f = drawn_float(kind);
    uint32_t u;
    memcpy(&u, &f, 4);
    if (type == kFloat32) {
      memcpy(x.data + 4 * i, &u, 4);
    } else if (type == kBfloat16) {
      u &= 0xFFFF0000u;
      memcpy(&f, &u, 4);
      const uint16_t h = static_cast<uint16_t>(u >> 16);
      memcpy(x.data + 2 * i, &h, 2);
    } else {  // every float16 has a plain form: significand times a power of two
      const uint16_t h = static_cast<uint16_t>(draw() & (kind ? 0xBBFFu : 0xFFFFu));
      memcpy(x.data + 2 * i, &h, 2);
      const int e = h >> 10 & 31, m = h & 1023;
      double v = e ? m + 1024 : m;
      for (int k = e ? e : 1; k > 25; --k) v *= 2;
      for (int k = e ? e : 1; k < 25; ++k) v /= 2;
      if (e == 31) v = m ? __builtin_nan("") : __builtin_inf();
      v = h & 0x8000 ? -v : v;
      memcpy(wide.data + 8 * i, &v, 8);
      continue;
    }
    const double v = f;
    memcpy(wide.data + 8 * i, &v, 8);
  }
}

void fuzz_mx(const Variants& v, long seed) {
  MxSpec spec = kElements[below(7)];
  spec.rule = below(3) == 0;
  spec.threshold = kThresholds[below(4)];
  spec.min_byte = static_cast<int32_t>(below(2));
  const Shape s = drawn_shape(spec.bits, false);
  const int32_t type = static_cast<int32_t>(below(3));
  Buffer x(s.rows * s.length * (type == kFloat32 ? 4 : 2)), wide(s.rows * s.length * 8, 8);
  fill(s, type, x, wide);
  Buffer packed(s.rows * s.row_bytes, 1), scales(s.rows * s.blocks, 1);
  int64_t events[kEventCount] = {};
  const Rows plain{wide.data, kFloat64, 0, s.rows, s.length, s.size},
      rows{x.data, type, 0, s.rows, s.length, s.size};
  v.table[0]->quantize_mx(plain, spec, reinterpret_cast<uint8_t*>(packed.data), s.row_bytes,
                          reinterpret_cast<uint8_t*>(scales.data), events);
  for (int i = 0; i < v.count; ++i) {
    Buffer p(s.rows * s.row_bytes, 1), c(s.rows * s.blocks, 1);
    int64_t counted[kEventCount] = {};
    v.table[i]->quantize_mx(rows, spec, reinterpret_cast<uint8_t*>(p.data), s.row_bytes,
                            reinterpret_cast<uint8_t*>(c.data), counted);
    expect(same(p, packed) && same(c, scales) && !memcmp(events, counted, sizeof events), "quantize_mx",
           v.table[i]->isa, seed);
  }
}

void fuzz_affine(const Variants& v, long seed) {
  static const AffineSpec specs[] = {
      {8, -128, 127, 1, 0, 2, 1, 0}, {4, -8, 7, 1, 0, 2, 1, 0},  {4, 0, 15, 1, 2, 2, 1, 0},
      {8, -127, 127, 0, 0, 0, 1, 0}, {4, -7, 7, 1, 0, 0, 1, 0},  {2, -1, 1, 2, 0, 0, 1, 0},
      {4, 0, 15, 0, 0, 0, 1, 0},     {8, 0, 255, 1, 1, 1, 1, 0}, {4, 0, 15, 2, 1, 1, 1, 0},
      {4, -8, 7, 0, 1, 1, 0, 0},     {4, -7, 7, 1, 0, 3, 1, 0},  {4, -8, 7, 1, 0, 3, 1, 0},
      {4, -8, 7, 2, 0, 3, 1, 0},     {4, 0, 15, 1, 1, 3, 1, 0}, {4, -8, 7, 2, 1, 3, 1, 0},
  };
  const AffineSpec spec = specs[below(below(8) ? 10 : 15)];  // the search is slow: seldom
  Shape s = drawn_shape(spec.bits, spec.rule == 2);
  if (spec.rule == 3) s.rows = 1;
  const int32_t type = static_cast<int32_t>(below(3));
  const int64_t scale_bytes = s.rows * s.blocks * (spec.scale_type == kFloat32 ? 4 : 2);
  const int64_t offset_bytes = spec.offset ? s.rows * s.blocks * (spec.offset == 1 ? 4 : 2) : 0;
  Buffer x(s.rows * s.length * (type == kFloat32 ? 4 : 2)), wide(s.rows * s.length * 8, 8);
  fill(s, type, x, wide);
  Buffer packed(s.rows * s.row_bytes, 1), scales(scale_bytes), offsets(offset_bytes);
  int64_t events[kEventCount] = {};
  const Rows plain{wide.data, kFloat64, 0, s.rows, s.length, s.size},
      rows{x.data, type, 0, s.rows, s.length, s.size};
  v.table[0]->quantize_affine(plain, spec, nullptr, reinterpret_cast<uint8_t*>(packed.data), s.row_bytes,
                              scales.data, spec.offset ? offsets.data : nullptr, events);
  for (int i = 0; i < v.count; ++i) {
    Buffer p(s.rows * s.row_bytes, 1), c(scale_bytes), o(offset_bytes);
    int64_t counted[kEventCount] = {};
    v.table[i]->quantize_affine(rows, spec, nullptr, reinterpret_cast<uint8_t*>(p.data), s.row_bytes, c.data,
                                spec.offset ? o.data : nullptr, counted);
    const bool refused =
        events[kNonFinite] || events[kScaleOverflow];  // the parts are then left as they were
    expect((refused || (same(p, packed) && same(c, scales) && same(o, offsets))) &&
               events[kNonFinite] == counted[kNonFinite] &&
               events[kScaleOverflow] == counted[kScaleOverflow] &&
               (refused || !memcmp(events, counted, sizeof events)),
           "quantize_affine", v.table[i]->isa, seed);
  }
}

void fuzz_dequantize(const Variants& v, long seed) {
  static const int widths[] = {2, 4, 6, 8};
  DecodeSpec spec{};
  spec.bits = widths[below(4)];
  spec.family = spec.bits == 6 ? 0 : static_cast<int32_t>(below(2));
  spec.scale_type = static_cast<int32_t>(below(3));
  spec.offset = spec.family ? static_cast<int32_t>(below(3)) : 0;
  spec.output_type = static_cast<int32_t>(below(3));
  float values[256];
  const int n = 1 << spec.bits;
  const bool numbers = spec.family || below(2), is_signed = below(2);
  for (int i = 0; i < n; ++i)
    values[i] = numbers ? static_cast<float>(is_signed && i >= n / 2 ? i - n : i)
                        : (i < n / 2 ? drawn_float(2) : -values[i - n / 2]);
  spec.values = values;
  const Shape s = drawn_shape(spec.bits, false);
  const int64_t scale_bytes = s.rows * s.blocks * (!spec.family ? 1 : spec.scale_type == kFloat32 ? 4 : 2);
  const int64_t offset_bytes = s.rows * s.blocks *
                               (spec.offset == 1              ? 4
                                : spec.offset == 0            ? 0
                                : spec.scale_type == kFloat32 ? 4
                                                              : 2);
  Buffer packed(s.rows * s.row_bytes, 1), scales(scale_bytes), offsets(offset_bytes);
  for (size_t i = 0; i < packed.size; ++i) packed.data[i] = static_cast<char>(draw());
  for (size_t i = 0; i < scales.size; ++i) scales.data[i] = static_cast<char>(draw() & 0x3F);
  for (size_t i = 0; i < offsets.size; ++i)
    offsets.data[i] = static_cast<char>(draw() & (below(50) ? 0x1F : 0x7F));
  const int64_t width = spec.output_type == kFloat32 ? 4 : 2, bytes = s.rows * s.length * width;
  Buffer wanted(bytes);
  int64_t lost = 0;
  for (int64_t r = 0; r < s.rows; ++r)
    lost += v.table[0]->dequantize(spec, reinterpret_cast<uint8_t*>(packed.data), s.row_bytes, scales.data,
                                   offsets.data, r, r + 1, s.length, s.size, wanted.data);
  for (int i = 0; i < v.count; ++i) {
    Buffer out(bytes);
    const int64_t count =
        v.table[i]->dequantize(spec, reinterpret_cast<uint8_t*>(packed.data), s.row_bytes, scales.data,
                               offsets.data, 0, s.rows, s.length, s.size, out.data);
    expect(same(out, wanted) && count == lost, "dequantize", v.table[i]->isa, seed);
  }
}

void fuzz_minimums(const Variants& v, long seed) {
  const MinimumSpec spec{below(2) ? 4 : 8, static_cast<int32_t>(1 + below(17)), int64_t{2} << below(7)};
  const int64_t blocks = 1 + below(200), size = blocks * spec.block_size;
  Buffer packed(size * spec.bits / 8, 1), scales(blocks * 2, 2), minimums(blocks * 2, 2);
  const uint32_t mask = spec.bits == 8 ? 31 : 255;
  for (size_t i = 0; i < packed.size; ++i) packed.data[i] = static_cast<char>(draw() & mask);
  const uint32_t kind = below(3) ? 0xBBFFu : 0xFFFFu;  // at times NaN, infinities and zeros too
  for (int64_t i = 0; i < 2 * blocks; ++i) {
    const uint16_t h = static_cast<uint16_t>(draw() & kind);
    memcpy((i < blocks ? scales : minimums).data + i % blocks * 2, &h, 2);
  }
  Buffer codes(size, 1), s(blocks * 4), z(blocks * 4);
  for (int i = 0; i < v.count; ++i) {
    Buffer c(size, 1), t(blocks * 4), y(blocks * 4);
    const int64_t cut = below(static_cast<uint32_t>(blocks + 1));
    for (int part = 0; part < 2; ++part) {
      v.table[i]->rewrite_minimums(spec, reinterpret_cast<uint8_t*>(packed.data), scales.data, minimums.data,
                                   part ? cut : 0, part ? blocks : cut, reinterpret_cast<uint8_t*>(c.data),
                                   reinterpret_cast<float*>(t.data), reinterpret_cast<int32_t*>(y.data));
    }
    if (i) {
      expect(same(c, codes) && same(t, s) && same(y, z), "rewrite_minimums", v.table[i]->isa, seed);
    } else {
      memcpy(codes.data, c.data, c.size), memcpy(s.data, t.data, t.size), memcpy(z.data, y.data, y.size);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? atol(argv[1]) : 2000, first = argc > 2 ? atol(argv[2]) : 1;
  const Variants v = available_variants();
  for (long seed = first; seed < first + rounds && failures < 10; ++seed) {
    state = static_cast<uint64_t>(seed) * 0x9E3779B97F4A7C15ull;
    for (int i = 0; i < 8; ++i) draw();
    fuzz_mx(v, seed);
    fuzz_affine(v, seed);
    fuzz_dequantize(v, seed);
    fuzz_minimums(v, seed);
  }
  printf("%ld rounds, %d failures, instruction sets:", rounds, failures);
  for (int i = 0; i < v.count; ++i) printf(" %s", v.table[i]->isa);
  printf("\n");
  return failures != 0;
}

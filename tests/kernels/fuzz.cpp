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
    {4, 1, 1, 1, 2, 6.0, 0, 2, 0},     {6, 1, 3, 1, 2, 7.5, 0, 2, 0},
    {6, 1, 2, 3, 4, 28, 0, 2, 0},      {8, 1, 3, 7, 8, 448, 0, 2, 0},
    {8, 1, 2, 15, 15, 57344, 0, 2, 0}, {8, 0, 6, 0, 0, 127 / 64.0, 0, 2, 0},
    {4, 0, 2, 0, 0, 7 / 4.0, 0, 2, 0},
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

// Some blocks get one number throughout, or zeros of one sign.
void make_uniform(const Shape& s, int64_t width, Buffer& x, Buffer& wide) {
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t b = 0; b < s.length; b += s.size) {
      if (below(3) == 0) continue;
      char *block = x.data + (r * s.length + b) * width, *number = wide.data + (r * s.length + b) * 8;
      if (below(2)) {
        const char sign = below(2) ? '\x80' : '\0';
        memset(block, 0, static_cast<size_t>(width)), memset(number, 0, 8);
        block[width - 1] = number[7] = sign;
      }
      const int64_t n = s.size < s.length - b ? s.size : s.length - b;
      for (int64_t i = 1; i < n; ++i) {
        memcpy(block + i * width, block, static_cast<size_t>(width));
        memcpy(number + i * 8, number, 8);
      }
    }
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
  if (below(3) == 0) make_uniform(s, type == kFloat32 ? 4 : 2, x, wide);
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

// Codes of a matmul weight: width, family, offset, kind, unit, step; the fast kinds and tables.
struct LinearCode {
  int32_t bits, family, offset;
  LinearKind kind;
  float unit, step;
};
const LinearCode kCodes[] = {
    {4, 0, 0, LinearKind::kE2m1, 1, 0.5f},  {4, 1, 0, LinearKind::kInt4, 1, 1},      {4, 1, 1, LinearKind::kUint4, 1, 1},
    {4, 1, 2, LinearKind::kUint4, 1, 1},    {4, 1, 1, LinearKind::kInt4, 1, 1},      {8, 1, 0, LinearKind::kInt8, 1, 1},
    {8, 1, 1, LinearKind::kUint8, 1, 1},    {8, 0, 0, LinearKind::kInt8, 0.0625f, 0.0625f},
    {2, 1, 0, LinearKind::kTable, 1, 1},    {6, 0, 0, LinearKind::kTable, 1, 0.125f}, {8, 0, 0, LinearKind::kE4m3, 1, 1},
    {8, 0, 0, LinearKind::kE5m2, 1, 1},
};

float half_value(uint16_t h) {
  const int e = h >> 10 & 31;
  float v = static_cast<float>(e ? (h & 1023) | 1024 : h & 1023) * 0x1p-24f;
  for (int k = 1; k < e; ++k) v *= 2;
  if (e == 31) v = h & 1023 ? __builtin_nanf("") : __builtin_inff();
  return h & 0x8000 ? -v : v;
}

// Values and, where there are any, integers of the codes, as native_linear.py makes them.
bool fill_codes(const LinearCode& c, float* values, int16_t* integers) {
  static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int n = 1 << c.bits;
  const bool is_signed = c.kind == LinearKind::kInt4 || c.kind == LinearKind::kInt8 || c.bits == 2;
  for (int i = 0; i < n; ++i) {
    float v = static_cast<float>(is_signed && i >= n / 2 ? i - n : i) * c.unit;
    if (c.kind == LinearKind::kE2m1) v = i & 8 ? -e2m1[i & 7] : e2m1[i];
    if (c.bits == 6) v = (i & 32 ? -0.125f : 0.125f) * static_cast<float>(i & 31);
    if (c.kind == LinearKind::kE5m2) v = half_value(static_cast<uint16_t>(i << 8));
    if (c.kind == LinearKind::kE4m3) {
      v = half_value(static_cast<uint16_t>((i & 0x80) << 8 | (i & 0x7F) << 7)) * 256;
      if ((i & 0x7F) == 0x7F) v = __builtin_nanf("");
    }
    values[i] = v;
    if (c.kind != LinearKind::kE4m3 && c.kind != LinearKind::kE5m2) integers[i] = static_cast<int16_t>(v / c.step);
  }
  return c.kind != LinearKind::kE4m3 && c.kind != LinearKind::kE5m2;
}

bool same_floats(const Buffer& a, const Buffer& b) {  // NaN where the other has NaN
  for (size_t i = 0; i + 4 <= a.size; i += 4) {
    float x, y;
    memcpy(&x, a.data + i, 4), memcpy(&y, b.data + i, 4);
    if (memcmp(&x, &y, 4) && !(x != x && y != y)) return false;
  }
  return true;
}

// Every instruction set against the plain loops, output by output.
void fuzz_linear(const Variants& v, long seed) {
  const LinearCode& code = kCodes[below(12)];
  Shape s = drawn_shape(code.bits, false);
  s.rows = 1 + below(below(3) ? 5 : 70);
  if (below(4) == 0) s.length = 1 + below(3000);
  if (below(6) == 0) s.size = int64_t{512} << below(4);  // a row may be a small part of a block
  s.blocks = (s.length + s.size - 1) / s.size;
  s.row_bytes = packed_bytes(s.blocks * s.size, code.bits);
  const int64_t m = 1 + below(below(2) ? 3 : below(4) ? 14 : 40), stride = (s.length + 15) / 16 * 16;
  float values[256];
  int16_t integers[256];
  LinearSpec spec{};
  const bool whole = fill_codes(code, values, integers);
  spec.bits = code.bits, spec.family = code.family == 0 ? 0 : 1, spec.offset = code.offset, spec.kind = code.kind;
  spec.scale_type = spec.family ? static_cast<int32_t>(below(3)) : 0;
  spec.unit = code.unit, spec.step = code.step, spec.values = values, spec.integers = whole ? integers : nullptr;
  const int64_t scale_size = !spec.family ? 1 : spec.scale_type == kFloat32 ? 4 : 2;
  const int64_t offset_size = spec.offset == 0 ? 0 : spec.offset == 1 ? 4 : scale_size;
  Buffer packed(s.rows * s.row_bytes, 1), scales(s.rows * s.blocks * scale_size);
  Buffer offsets(s.rows * s.blocks * offset_size), a(m * stride * 4);
  for (size_t i = 0; i < packed.size; ++i) packed.data[i] = static_cast<char>(draw());
  for (size_t i = 0; i < scales.size; ++i)  // MX: also 0 and 255; others: no NaN
    scales.data[i] = static_cast<char>(spec.family ? draw() & 0x3F : below(40) ? 100 + below(40) : -(draw() & 1));
  spec.normal = !spec.family && below(2);
  for (size_t i = 0; i < scales.size && spec.normal; ++i)
    spec.normal = static_cast<uint8_t>(scales.data[i]) >= 100 && static_cast<uint8_t>(scales.data[i]) < 140;
  spec.long_tiles = below(2);
  const bool near = spec.offset == 1 && below(2);
  Buffer words(near ? s.rows * s.blocks * 2 : 0);
  for (int64_t i = 0; i < s.rows * s.blocks && spec.offset == 1; ++i) {
    const int32_t reach = near && below(8) == 0 ? kZeroPointLimit : 128;
    const int32_t small = static_cast<int32_t>(below(2 * reach + 1)) - reach;
    const int32_t z = near || below(200) ? small : static_cast<int32_t>(draw());
    memcpy(offsets.data + 4 * i, &z, 4);
    const int16_t word = static_cast<int16_t>(z);
    if (near) memcpy(words.data + 2 * i, &word, 2);
  }
  for (size_t i = 0; i < offsets.size && spec.offset == 2; ++i) offsets.data[i] = static_cast<char>(draw() & 0x3F);
  memset(a.data, 0, a.size);
  for (int64_t r = 0; r < m; ++r)
    for (int64_t k = 0; k < s.length; ++k) {
      const float f = drawn_float(1 + static_cast<int>(seed & 1));
      memcpy(a.data + (r * stride + k) * 4, &f, 4);
    }
  spec.packed = reinterpret_cast<uint8_t*>(packed.data), spec.row_bytes = s.row_bytes;
  spec.scales = scales.data, spec.offsets = spec.offset ? offsets.data : nullptr;
  spec.near = near ? reinterpret_cast<int16_t*>(words.data) : nullptr;
  spec.length = s.length, spec.block_size = s.size;

  const float* x = reinterpret_cast<float*>(a.data);
  Buffer wanted(m * s.rows * 4), wanted_int8(m * s.rows * 4);
  const int64_t step = (s.length + 127) / 128 * 128, segments = step / (s.size < 32 ? s.size : 32);
  for (int i = -1; i < v.count; ++i) {  // -1: the plain loops, an output at a time
    const KernelTable& table = *v.table[i < 0 ? 0 : i];
    Buffer out(m * s.rows * 4);
    float* y = reinterpret_cast<float*>((i < 0 ? wanted : out).data);
    const int64_t at_once = i < 0 ? 1 : m, cut = i < 0 ? 1 : 1 + below(static_cast<uint32_t>(s.rows));
    for (int64_t r = 0; r < m; r += at_once)
      for (int64_t n = 0; n < s.rows; n += cut)
        table.linear_float(spec, x + r * stride, at_once, stride, n, n + cut < s.rows ? n + cut : s.rows,
                           y + r * s.rows, s.rows);
    if (i >= 0) expect(same_floats(out, wanted), "linear_float", table.isa, seed);
    if (!whole) continue;
    Buffer codes(m * step, 1), a_scales(m * segments * 4), sums(m * segments * 4);
    memset(codes.data, 0, codes.size), memset(a_scales.data, 0, a_scales.size), memset(sums.data, 0, sums.size);
    y = reinterpret_cast<float*>((i < 0 ? wanted_int8 : out).data);
    for (int64_t r = 0; r < m; r += at_once) {
      const Int8Activations to{reinterpret_cast<int8_t*>(codes.data) + r * step,
                               reinterpret_cast<float*>(a_scales.data) + r * segments,
                               reinterpret_cast<float*>(sums.data) + r * segments, at_once, step, segments};
      table.activations_int8(spec, x + r * stride, stride, to);
      for (int64_t n = 0; n < s.rows; n += cut)
        table.linear_int8(spec, to, n, n + cut < s.rows ? n + cut : s.rows, y + r * s.rows, s.rows);
    }
    if (i >= 0) expect(same_floats(out, wanted_int8), "linear_int8", table.isa, seed);
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
    fuzz_linear(v, seed);
  }
  printf("%ld rounds, %d failures, instruction sets:", rounds, failures);
  for (int i = 0; i < v.count; ++i) printf(" %s", v.table[i]->isa);
  printf("\n");
  return failures != 0;
}

// Binds the matmul: checks sizes, releases the GIL, calls a kernel (see bind.cpp for how arrays arrive).
#include "bind_linear.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "away.h"
#include "bind_checks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace blockscale {
namespace {

template <typename T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int64_t item_size(int32_t type) { return type == kFloat32 ? 4 : 2; }

// A weight (rows, length), checked once and used by many calls; it keeps the arrays that it points into.
struct Weight {
  LinearSpec spec;
  int64_t rows;
  Flat<const float> values;
  Flat<const int16_t> integers;
  Flat<const uint8_t> packed, scales;
  std::optional<Flat<const uint8_t>> offsets;
  std::vector<int16_t> near;  // zero points in 16 bits: less to read
};

// The zero points in 16 bits, or nothing if one is beyond the limit.
std::vector<int16_t> near_zero_points(const int32_t* z, int64_t count) {
  if (!are_near(z, count)) return {};
  return std::vector<int16_t>(z, z + count);
}

Weight weight(nb::tuple t, Flat<const float> values, Flat<const int16_t> integers, Flat<const uint8_t> packed,
              Flat<const uint8_t> scales, std::optional<Flat<const uint8_t>> offsets, bool long_tiles) {
  need(t.size() == 11, "a weight has eleven numbers");
  LinearSpec s{};
  s.bits = nb::cast<int32_t>(t[0]), s.family = nb::cast<int32_t>(t[1]), s.scale_type = nb::cast<int32_t>(t[2]);
  s.offset = nb::cast<int32_t>(t[3]), s.kind = static_cast<LinearKind>(nb::cast<int32_t>(t[4]));
  s.unit = nb::cast<float>(t[5]), s.step = nb::cast<float>(t[6]);
  const int64_t rows = nb::cast<int64_t>(t[7]);
  s.length = nb::cast<int64_t>(t[8]), s.block_size = nb::cast<int64_t>(t[9]), s.row_bytes = nb::cast<int64_t>(t[10]);
  need(rows >= 0 && s.length >= 0 && s.block_size >= 2 && s.row_bytes >= 0, "negative size");
  need(s.bits == 32 ? s.family == 2 : s.bits >= 2 && s.bits <= 8, "bits");
  need(static_cast<int64_t>(packed.size()) == rows * s.row_bytes, "size of packed");
  const int64_t blocks = (s.length + s.block_size - 1) / s.block_size;
  const int64_t padded = blocks * s.block_size;
  if (s.family == 2) {
    need(s.row_bytes == s.length * 4, "row bytes");
  } else {
    need(s.row_bytes >= (s.bits == 6 ? 3 * ((padded + 3) / 4) : (padded * s.bits + 7) / 8), "row bytes");
    need(static_cast<int64_t>(values.size()) == int64_t{1} << s.bits, "size of values");
    need(integers.size() == values.size() || integers.size() == 0, "size of integers");
    const int64_t scale_size = s.family == 0 ? 1 : item_size(s.scale_type);
    need(static_cast<int64_t>(scales.size()) == rows * blocks * scale_size, "size of scales");
    need(offsets.has_value() == (s.offset != 0), "offsets");
    const int64_t offset_size = s.offset == 1 ? 4 : item_size(s.scale_type);
    need(!offsets || static_cast<int64_t>(offsets->size()) == rows * blocks * offset_size, "size of offsets");
  }
  s.values = values.data(), s.integers = integers.data(), s.packed = packed.data(), s.scales = scales.data();
  s.offsets = offsets ? offsets->data() : nullptr;
  Weight made{s, rows, values, integers, packed, scales, offsets, {}};
  if (s.offset == 1 && integers.size())
    made.near = near_zero_points(static_cast<const int32_t*>(s.offsets), rows * blocks);
  made.spec.long_tiles = long_tiles;
  made.spec.normal = s.family == 0 && are_normal(scales.data(), rows * blocks, s.step);
  made.spec.near = made.near.empty() ? nullptr : made.near.data();  // stays there when the weight moves
  return made;
}

void check_output(const Weight& w, int32_t threads, int64_t rows, const Matrix<float>& out) {
  need(threads >= 1, "threads");
  need(static_cast<int64_t>(out.shape(0)) == rows && static_cast<int64_t>(out.shape(1)) == w.rows, "shape of out");
}

// Outputs [0, count) in pieces of whole tiles, kTile outputs that a kernel works on together: `each` for each thread.
// Tiles that many activation rows meet take long, and few pieces would leave a thread waiting for milliseconds.
template <int64_t kTile, typename Multiply>
bool over_tiles(Crew& crew, int32_t threads, int64_t count, int64_t each, const Multiply& multiply) {
  const auto tiles = [&](int64_t, int64_t begin, int64_t end) {
    return multiply(begin * kTile, end * kTile < count ? end * kTile : count);
  };
  return over_rows(crew, threads, (count + kTile - 1) / kTile, tiles, each);
}

bool linear_float(Crew& crew, int32_t threads, int32_t isa, Matrix<const float> a, Matrix<float> out,
                  const Weight& w) {
  const int64_t rows = static_cast<int64_t>(a.shape(0)), stride = static_cast<int64_t>(a.shape(1));
  need(stride == (w.spec.length + 15) / 16 * 16, "width of a");
  check_output(w, threads, rows, out);
  const KernelTable& kernels = table(isa);
  const Away away(crew);
  return over_tiles<24>(crew, threads, w.rows, rows < 16 ? 4 : rows < 64 ? 16 : 64, [&](int64_t begin, int64_t end) {
    return kernels.linear_float(w.spec, a.data(), rows, stride, begin, end, out.data(), w.rows);
  });
}

// Activations in 8 bits and their memory, zeros at first: codes of whole steps of 128, scales, sums of codes.
struct Activations {
  std::unique_ptr<float, void (*)(void*)> memory;
  Int8Activations codes;
};

Activations activations(const Weight& w, int64_t rows) {
  const int64_t stride = (w.spec.length + 127) / 128 * 128;
  const int64_t segments = stride / (w.spec.block_size < 32 ? w.spec.block_size : 32);
  need(w.spec.integers != nullptr, "integers");
  const size_t line = 64, bytes = static_cast<size_t>(rows * (stride + 8 * segments)) / line * line + line;
  Activations made{{static_cast<float*>(std::aligned_alloc(line, bytes)), std::free}, {}};
  if (!made.memory) return made;
  std::memset(made.memory.get(), 0, bytes);
  float* scales = made.memory.get() + rows * stride / 4;
  made.codes = {reinterpret_cast<int8_t*>(made.memory.get()), scales, scales + rows * segments, rows, stride, segments};
  return made;
}

Int8Activations rows_of(const Int8Activations& a, int64_t begin, int64_t end) {
  return {a.codes + begin * a.stride, a.scales + begin * a.segments, a.sums + begin * a.segments,
          end - begin,                a.stride,                      a.segments};
}

// What linear_int8 answers.
enum Answer : int32_t { kNoMemory, kDone, kNotFinite };

bool finite_scales(const Int8Activations& a) {  // infinite or NaN as the largest activation is
  for (int64_t i = 0; i < a.rows * a.segments; ++i)
    if (!std::isfinite(a.scales[i])) return false;
  return true;
}

// Writes to `out` only if all activations are finite.
int32_t linear_int8(Crew& crew, int32_t threads, int32_t isa, Matrix<const float> a, Matrix<float> out,
                    const Weight& w) {
  const int64_t rows = static_cast<int64_t>(a.shape(0)), stride = static_cast<int64_t>(a.shape(1));
  need(stride >= w.spec.length, "shape of a");
  check_output(w, threads, rows, out);
  const KernelTable& kernels = table(isa);
  const Activations made = activations(w, rows);
  if (!made.memory) return kNoMemory;
  const Int8Activations& codes = made.codes;
  const Away away(crew);
  over_rows(crew, rows < 4 ? 1 : threads, rows, [&](int64_t, int64_t begin, int64_t end) {
    kernels.activations_int8(w.spec, a.data() + begin * stride, stride, rows_of(codes, begin, end));
    return true;
  });
  if (!finite_scales(codes)) return kNotFinite;
  const bool done = over_tiles<32>(crew, threads, w.rows, rows < 16 ? 4 : 16, [&](int64_t begin, int64_t end) {
    return kernels.linear_int8(w.spec, codes, begin, end, out.data(), w.rows);
  });
  return done ? kDone : kNoMemory;
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<Weight>(m, "LinearWeight");
  m.def("linear_weight", &weight, "spec"_a, "values"_a, "integers"_a, "packed"_a, "scales"_a, "offsets"_a.none(),
        "long_tiles"_a);
  m.def("linear_float", &linear_float, "crew"_a, "threads"_a, "isa"_a, "a"_a, "out"_a, "weight"_a);
  m.def("linear_int8", &linear_int8, "crew"_a, "threads"_a, "isa"_a, "a"_a, "out"_a, "weight"_a);
}

}  // namespace blockscale

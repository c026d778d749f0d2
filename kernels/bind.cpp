// The Python extension: checks sizes, releases the GIL, has a crew call a kernel over ranges of rows. Arrays arrive as
// bytes (`uint8` views), because the small ml_dtypes types cross no array protocol.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "away.h"
#include "bind_checks.h"
#include "bind_linear.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {
using namespace blockscale;

using In = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Events = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int64_t item_size(int32_t type) { return type == kFloat64 ? 8 : type == kFloat32 ? 4 : 2; }

struct Extent {
  int64_t rows, length, block_size, row_bytes;
  int64_t blocks() const { return rows * ((length + block_size - 1) / block_size); }
};

void check_extent(const Extent& e, size_t packed_bytes) {
  need(e.rows >= 0 && e.length >= 0 && e.block_size >= 2 && e.row_bytes >= 0, "negative size");
  need(static_cast<int64_t>(packed_bytes) == e.rows * e.row_bytes, "size of packed");
}

Extent extent(nb::tuple t) {
  need(t.size() == 4, "extent has four numbers");
  return {nb::cast<int64_t>(t[0]), nb::cast<int64_t>(t[1]), nb::cast<int64_t>(t[2]), nb::cast<int64_t>(t[3])};
}

MxSpec mx_spec(nb::tuple t) {
  need(t.size() == 9, "an MX specification has nine entries");
  return {nb::cast<int32_t>(t[0]), nb::cast<int32_t>(t[1]), nb::cast<int32_t>(t[2]), nb::cast<int32_t>(t[3]),
          nb::cast<int32_t>(t[4]), nb::cast<double>(t[5]),  nb::cast<int32_t>(t[6]), nb::cast<double>(t[7]),
          nb::cast<int32_t>(t[8])};
}

AffineSpec affine_spec(nb::tuple t) {
  need(t.size() == 8, "an affine specification has eight entries");
  return {nb::cast<int32_t>(t[0]), nb::cast<int32_t>(t[1]), nb::cast<int32_t>(t[2]), nb::cast<int32_t>(t[3]),
          nb::cast<int32_t>(t[4]), nb::cast<int32_t>(t[5]), nb::cast<int32_t>(t[6]), nb::cast<int32_t>(t[7])};
}

// Has pieces of the rows quantized, each with counters of its own, and adds these up.
template <typename Quantize>
bool count_events(Crew& crew, int32_t threads, const In& x, int32_t input_type, const Extent& e, const Events& events,
                  const Quantize& quantize) {
  std::vector<std::array<int64_t, kEventCount>> counts(static_cast<size_t>(threads) * 4);
  const bool done = over_rows(crew, threads, e.rows, [&](int64_t piece, int64_t begin, int64_t end) {
    const Rows rows{x.data(), input_type, begin, end, e.length, e.block_size};
    return quantize(rows, counts[static_cast<size_t>(piece)].data());
  });
  for (const auto& part : counts)
    for (size_t i = 0; i < part.size(); ++i) events.data()[i] += part[i];
  return done;
}

bool quantize_mx(Crew& crew, int32_t threads, int32_t isa, In x, int32_t input_type, nb::tuple size,
                 nb::tuple spec_tuple, Out packed, Out scales, Events events) {
  const Extent e = extent(size);
  const MxSpec spec = mx_spec(spec_tuple);
  check_extent(e, packed.size());
  need(static_cast<int64_t>(x.size()) == e.rows * e.length * item_size(input_type), "size of x");
  need(static_cast<int64_t>(scales.size()) == e.blocks(), "size of scales");
  need(events.size() == kEventCount, "size of events");
  need(threads >= 1, "threads");
  const KernelTable& kernels = table(isa);
  const Away away(crew);
  return count_events(crew, threads, x, input_type, e, events, [&](const Rows& rows, int64_t* counts) {
    return kernels.quantize_mx(rows, spec, packed.data(), e.row_bytes, scales.data(), counts);
  });
}

bool quantize_affine(Crew& crew, int32_t threads, int32_t isa, In x, int32_t input_type, nb::tuple size,
                     nb::tuple spec_tuple, std::optional<Doubles> importance, Out packed, Out scales,
                     std::optional<Out> offsets, Events events) {
  const Extent e = extent(size);
  const AffineSpec spec = affine_spec(spec_tuple);
  check_extent(e, packed.size());
  need(static_cast<int64_t>(x.size()) == e.rows * e.length * item_size(input_type), "size of x");
  need(static_cast<int64_t>(scales.size()) == e.blocks() * item_size(spec.scale_type), "size of scales");
  need(!importance || static_cast<int64_t>(importance->size()) == e.length, "size of importance");
  need(events.size() == kEventCount, "size of events");
  const int64_t offset_size = spec.offset == 1 ? 4 : 2;
  need(offsets.has_value() == (spec.offset != 0), "offsets");
  need(!offsets || static_cast<int64_t>(offsets->size()) == e.blocks() * offset_size, "size of offsets");
  need(threads >= 1, "threads");
  const KernelTable& kernels = table(isa);
  const Away away(crew);
  return count_events(crew, threads, x, input_type, e, events, [&](const Rows& rows, int64_t* counts) {
    return kernels.quantize_affine(rows, spec, importance ? importance->data() : nullptr, packed.data(), e.row_bytes,
                                   scales.data(), offsets ? offsets->data() : nullptr, counts);
  });
}

int64_t dequantize(Crew& crew, int32_t threads, int32_t isa, In packed, In scales, std::optional<In> offsets,
                   nb::tuple size, nb::tuple spec_tuple, Floats values, Out out) {
  const Extent e = extent(size);
  need(spec_tuple.size() == 5, "a decoding specification has five entries");
  const DecodeSpec spec{nb::cast<int32_t>(spec_tuple[0]), nb::cast<int32_t>(spec_tuple[1]),
                        nb::cast<int32_t>(spec_tuple[2]), nb::cast<int32_t>(spec_tuple[3]),
                        nb::cast<int32_t>(spec_tuple[4]), values.data()};
  check_extent(e, packed.size());
  need(static_cast<int64_t>(values.size()) == int64_t{1} << spec.bits, "size of values");
  const int64_t scale_size = spec.family == 0 ? 1 : item_size(spec.scale_type);
  need(static_cast<int64_t>(scales.size()) == e.blocks() * scale_size, "size of scales");
  const int64_t offset_size = spec.offset == 1 ? 4 : item_size(spec.scale_type);
  need(offsets.has_value() == (spec.offset != 0), "offsets");
  need(!offsets || static_cast<int64_t>(offsets->size()) == e.blocks() * offset_size, "size of offsets");
  need(static_cast<int64_t>(out.size()) == e.rows * e.length * item_size(spec.output_type), "size of out");
  need(threads >= 1, "threads");
  const KernelTable& kernels = table(isa);
  std::atomic<int64_t> infinite{0};
  const Away away(crew);
  over_rows(crew, threads, e.rows, [&](int64_t, int64_t begin, int64_t end) {
    infinite += kernels.dequantize(spec, packed.data(), e.row_bytes, scales.data(),
                                   offsets ? offsets->data() : nullptr, begin, end, e.length, e.block_size,
                                   out.data());
    return true;
  });
  return infinite;
}

int32_t choose_scale_mse(int32_t isa, Doubles x, nb::tuple spec_tuple, int32_t span, int32_t headroom) {
  return table(isa).choose_scale_mse(x.data(), static_cast<int64_t>(x.size()), mx_spec(spec_tuple), span,
                                     headroom);
}

void rewrite_minimums(Crew& crew, int32_t threads, int32_t isa, In packed, In scales, In minimums,
                      nb::tuple spec_tuple, Out codes, Out new_scales, Out zero_points) {
  need(spec_tuple.size() == 3, "a specification of minimums has three entries");
  const MinimumSpec spec{nb::cast<int32_t>(spec_tuple[0]), nb::cast<int32_t>(spec_tuple[1]),
                         nb::cast<int64_t>(spec_tuple[2])};
  const int64_t blocks = static_cast<int64_t>(scales.size()) / 2, n = spec.block_size;
  need((spec.bits == 4 || spec.bits == 8) && spec.largest_k >= 1 && spec.largest_k <= 255, "specification");
  need(threads >= 1 && n >= 2 && n % 2 == 0, "threads, block size");
  need(static_cast<int64_t>(packed.size()) == blocks * n * spec.bits / 8, "size of packed");
  need(scales.size() % 2 == 0 && minimums.size() == scales.size(), "size of minimums");
  need(static_cast<int64_t>(codes.size()) == blocks * n, "size of codes");
  need(static_cast<int64_t>(new_scales.size()) == blocks * 4, "size of scales");
  need(static_cast<int64_t>(zero_points.size()) == blocks * 4, "size of zero points");
  const KernelTable& kernels = table(isa);
  const Away away(crew);
  over_rows(crew, threads, blocks, [&](int64_t, int64_t begin, int64_t end) {
    kernels.rewrite_minimums(spec, packed.data(), scales.data(), minimums.data(), begin, end, codes.data(),
                             reinterpret_cast<float*>(new_scales.data()),
                             reinterpret_cast<int32_t*>(zero_points.data()));
    return true;
  });
}

}  // namespace

NB_MODULE(_kernels, m) {
  nb::list isas;
  for (int i = 0; i < variants().count; ++i) isas.append(variants().table[i]->isa);
  m.attr("isas") = nb::tuple(isas);
  m.attr("long_tiles") = nb::bool_(long_tiles());
#ifdef __clang__
  m.attr("compiler") = __VERSION__;
#else
  m.attr("compiler") = "gcc " __VERSION__;
#endif
  m.attr("flags") = BLOCKSCALE_FLAGS;
  nb::class_<Crew>(m, "Crew").def(nb::init<>()).def("forget", &Crew::forget).def("close", [](Crew& crew) {
    nb::gil_scoped_release release;
    crew.close();
  });
  m.def("quantize_mx", &quantize_mx, "crew"_a, "threads"_a, "isa"_a, "x"_a, "input_type"_a, "size"_a, "spec"_a,
        "packed"_a, "scales"_a, "events"_a);
  m.def("quantize_affine", &quantize_affine, "crew"_a, "threads"_a, "isa"_a, "x"_a, "input_type"_a, "size"_a,
        "spec"_a, "importance"_a.none(), "packed"_a, "scales"_a, "offsets"_a.none(), "events"_a);
  m.def("dequantize", &dequantize, "crew"_a, "threads"_a, "isa"_a, "packed"_a, "scales"_a, "offsets"_a.none(),
        "size"_a, "spec"_a, "values"_a, "out"_a);
  m.def("choose_scale_mse", &choose_scale_mse, "isa"_a, "x"_a, "spec"_a, "span"_a, "headroom"_a);
  m.def("rewrite_minimums", &rewrite_minimums, "crew"_a, "threads"_a, "isa"_a, "packed"_a, "scales"_a, "minimums"_a,
        "spec"_a, "codes"_a, "new_scales"_a, "zero_points"_a);
  nb::set_leak_warnings(false);  // a weight may live until the interpreter ends
  blockscale::bind_linear(m);
}

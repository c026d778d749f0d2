// All kernels, compiled once per instruction set with -DBLOCKSCALE_ISA=<name>.
//
// Everything lies in an anonymous namespace, and no C++ library header is included: a template instantiated
// in two variants would be merged by the linker into one body, compiled for whichever processor.
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13  // their AVX-512 headers warn of themselves
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "table.h"

namespace blockscale {
namespace {

// clang-format off: each builds on those before it
#include "common.inl.h"
#include "vector.inl.h"
#include "vector_memory.inl.h"
#include "vector_lanes.inl.h"
#include "fused.inl.h"
#include "mx.inl.h"
#include "mx_fast.inl.h"
#include "mx_run.inl.h"
#include "affine.inl.h"
#include "optimal.inl.h"
#include "affine_kernel.inl.h"
#include "affine_fast.inl.h"
#include "dequantize.inl.h"
#include "dequantize_fast.inl.h"
#include "minimum.inl.h"
namespace matmul {
#include "linear_float.inl.h"
#include "linear_int8.inl.h"
}  // namespace matmul
// clang-format on

}  // namespace

#define BLOCKSCALE_JOIN(a, b) a##b
#define BLOCKSCALE_TABLE(isa) BLOCKSCALE_JOIN(table_, isa)
#define BLOCKSCALE_TEXT2(s) #s
#define BLOCKSCALE_TEXT(s) BLOCKSCALE_TEXT2(s)

extern const KernelTable BLOCKSCALE_TABLE(BLOCKSCALE_ISA);
const KernelTable BLOCKSCALE_TABLE(BLOCKSCALE_ISA) = {
    BLOCKSCALE_TEXT(BLOCKSCALE_ISA), quantize_mx, quantize_affine, dequantize, choose_scale_mse,
    rewrite_minimums, matmul::linear_float, matmul::linear_int8, matmul::activations_int8,
};

}  // namespace blockscale

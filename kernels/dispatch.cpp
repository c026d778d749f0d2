// Which instruction sets this build has and this processor can run. No state: asked once by the binding.
#include "dispatch.h"

#if BLOCKSCALE_X86
#include <cpuid.h>
#endif

namespace blockscale {

extern const KernelTable table_baseline;
#if BLOCKSCALE_X86
extern const KernelTable table_avx2, table_avx512;
#endif

namespace {

#if BLOCKSCALE_X86
// __builtin_cpu_supports knows what the operating system saves too; not every compiler lets it ask for F16C.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
}

bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && has_f16c();
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#endif

}  // namespace

Variants available_variants() {
  Variants v{};
  v.table[v.count++] = &table_baseline;
#if BLOCKSCALE_X86
  __builtin_cpu_init();
  if (runs_avx2()) v.table[v.count++] = &table_avx2;
  if (runs_avx512()) v.table[v.count++] = &table_avx512;
#endif
  return v;
}

bool long_tiles() {
#if BLOCKSCALE_X86
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (!__builtin_cpu_is("amd") || !runs_avx512() || !__get_cpuid(1, &a, &b, &c, &d)) return false;
  return ((a >> 8) & 15) + ((a >> 20) & 255) == 25;  // family
#else
  return false;
#endif
}

}  // namespace blockscale

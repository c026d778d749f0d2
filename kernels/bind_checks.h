// What all bindings check, and where they find kernels.
#pragma once
#include <stdexcept>

#include "dispatch.h"

namespace blockscale {

inline void need(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

inline const Variants& variants() {
  static const Variants found = available_variants();
  return found;
}

// The kernels of one instruction set: an index into `isas`.
inline const KernelTable& table(int32_t isa) {
  need(isa >= 0 && isa < variants().count, "isa");
  return *variants().table[isa];
}

}  // namespace blockscale

// Which instruction sets this build has and this processor can run.
#pragma once
#include "table.h"

namespace blockscale {

// Variants that this machine runs, slowest first.
struct Variants {
  const KernelTable* table[4];
  int count;
};

Variants available_variants();

// Whether the second cache keeps up with AVX-512's multiply-adds, so that decoded weights may lie there: where these go
// at half width (Zen 4).
bool long_tiles();

}  // namespace blockscale

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

}  // namespace blockscale

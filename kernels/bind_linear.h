// The matmul's part of the Python extension.
#pragma once
#include <nanobind/nanobind.h>

namespace blockscale {
void bind_linear(nanobind::module_& m);
}

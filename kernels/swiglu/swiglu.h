// kernels/swiglu/swiglu.h
//
//   y[t, i] = A( silu(min(g[t, i], limit)) * clamp(u[t, i], -limit, limit) )       limit 0: no clamp
//
//   g, u, y  [count]  all F32 or all BF16; fp32 inside, one rounding; y may be g or u.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

struct SwigluArgs {
  const void *g = nullptr, *u = nullptr;
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
  float limit = 0;
};

using SwigluFn = void(const SwigluArgs&);
std::span<const KernelVariant<SwigluFn>> swiglu_variants();

}  // namespace weft

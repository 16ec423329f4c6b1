// Compiled once per level.
#include "kernels/vector_math/f32_vector-inl.h"

namespace weft {

double WEFT_NAME(fma_chains)(int64_t steps, float* sink);
double WEFT_NAME(fma_chains)(int64_t steps, float* sink) {
  constexpr int kChains = 12;
  Vector sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = set1(static_cast<float>(i));
  Vector factor = set1(0.999f), addend = set1(0.001f);
  for (int64_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], factor, addend);
    asm volatile("" : "+x"(factor), "+x"(addend));  // one step after the other, in registers
  }
  for (int i = 1; i < kChains; ++i) sum[0] = add(sum[0], sum[i]);
  float lanes[kLanes];
  store(lanes, sum[0]);
  *sink = lanes[0];
  return static_cast<double>(steps) * kChains * kLanes;
}

}  // namespace weft

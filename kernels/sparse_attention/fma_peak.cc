#include "kernels/sparse_attention/fma_peak.h"

#include <cstdint>

namespace weft {

// `sink` keeps the work alive.
double fma_chains_avx2(int64_t steps, float* sink);
double fma_chains_avx512(int64_t steps, float* sink);

double run_fma_chains(Isa isa) {
  constexpr int64_t kSteps = 100000;
  float sink = 0;
  const double fma = isa >= Isa::kAvx512 ? fma_chains_avx512(kSteps, &sink) : fma_chains_avx2(kSteps, &sink);
  volatile float kept = sink;
  static_cast<void>(kept);
  return fma;
}

}  // namespace weft

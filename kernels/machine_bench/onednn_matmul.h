// kernels/machine_bench/onednn_matmul.h
//
// oneDNN's f32 matmul as the peak to reach, y [M, N] = x [M, K] * w [N, K]^T. The library is loaded at run time if it
// is there: nothing of weft depends on it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/cpu.h"
#include "base/status.h"

namespace weft {

class OneDnnMatmul {
 public:
  virtual ~OneDnnMatmul() = default;
  virtual void run() = 0;
};

// The weights are brought into the layout that oneDNN asks for here, not in run(). Levels below AVX-512 restrict oneDNN
// to AVX2, which is possible only before its first use in the process.
Result<std::unique_ptr<OneDnnMatmul>> make_onednn_matmul(const float* x, const float* w, float* y, int64_t m, int64_t n,
                                                         int64_t k, int threads, Isa isa);

}  // namespace weft

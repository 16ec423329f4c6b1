#include "kernels/compressor/compressor.h"

#include <cmath>
#include <limits>

#include "kernels/compressor/compressor_impl.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

void compressor_pool_ref(const CompressorPoolArgs& args) {
  for (int64_t c = 0; c < args.width; ++c) {
    float max = -std::numeric_limits<float>::infinity();
    for (const float* s : args.s) {
      if (s != nullptr) max = s[c] > max ? s[c] : max;
    }
    float den = 0, num = 0;
    for (size_t n = 0; n < args.s.size(); ++n) {
      if (args.s[n] == nullptr) continue;
      const float e = exp_f32(args.s[n][c] - max);
      den += e;
      num = std::fma(e, args.k[n][c], num);
    }
    args.u[c] = num / den;
  }
}

}  // namespace

std::span<const KernelVariant<CompressorPoolFn>> compressor_pool_variants() {
  static constexpr KernelVariant<CompressorPoolFn> kVariants[] = {
      {"avx512", Isa::kAvx512, compressor_pool_avx512},
      {"avx2", Isa::kAvx2, compressor_pool_avx2},
      {"ref", Isa::kScalar, compressor_pool_ref},
  };
  return kVariants;
}

}  // namespace weft

#include "kernels/rms_norm/rms_norm.h"

namespace weft {

void rms_norm_avx512(const RmsNormArgs& args);
void rms_norm_avx2(const RmsNormArgs& args);
void rms_norm_ref(const RmsNormArgs& args);

std::span<const KernelVariant<RmsNormFn>> rms_norm_variants() {
  static constexpr KernelVariant<RmsNormFn> kVariants[] = {
      {"avx512", Isa::kAvx512, rms_norm_avx512},
      {"avx2", Isa::kAvx2, rms_norm_avx2},
      {"ref", Isa::kScalar, rms_norm_ref},
  };
  return kVariants;
}

}  // namespace weft

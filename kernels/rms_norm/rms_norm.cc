#include "kernels/rms_norm/rms_norm.h"

namespace weft {

void rms_norm_ref(const RmsNormArgs& args);

std::span<const KernelVariant<RmsNormFn>> rms_norm_variants() {
  static constexpr KernelVariant<RmsNormFn> kVariants[] = {
      {"ref", Isa::kScalar, rms_norm_ref},
  };
  return kVariants;
}

}  // namespace weft

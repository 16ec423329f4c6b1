#include "kernels/swiglu/swiglu.h"

namespace weft {

void swiglu_ref(const SwigluArgs& args);

std::span<const KernelVariant<SwigluFn>> swiglu_variants() {
  static constexpr KernelVariant<SwigluFn> kVariants[] = {
      {"ref", Isa::kScalar, swiglu_ref},
  };
  return kVariants;
}

}  // namespace weft

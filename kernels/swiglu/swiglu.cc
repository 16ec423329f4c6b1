#include "kernels/swiglu/swiglu.h"

namespace weft {

void swiglu_avx512(const SwigluArgs& args);
void swiglu_avx2(const SwigluArgs& args);
void swiglu_ref(const SwigluArgs& args);

std::span<const KernelVariant<SwigluFn>> swiglu_variants() {
  static constexpr KernelVariant<SwigluFn> kVariants[] = {
      {"avx512", Isa::kAvx512, swiglu_avx512},
      {"avx2", Isa::kAvx2, swiglu_avx2},
      {"ref", Isa::kScalar, swiglu_ref},
  };
  return kVariants;
}

}  // namespace weft

#include "kernels/quantise/quantise.h"

namespace weft {

void quantise_avx512(const QuantiseArgs& args);
void quantise_avx2(const QuantiseArgs& args);
void quantise_ref(const QuantiseArgs& args);

std::span<const KernelVariant<QuantiseFn>> quantise_variants() {
  static constexpr KernelVariant<QuantiseFn> kVariants[] = {
      {"avx512", Isa::kAvx512, quantise_avx512},
      {"avx2", Isa::kAvx2, quantise_avx2},
      {"ref", Isa::kScalar, quantise_ref},
  };
  return kVariants;
}

}  // namespace weft

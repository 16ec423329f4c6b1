#include "kernels/quantise/quantise.h"

namespace weft {

void quantise_ref(const QuantiseArgs& args);

std::span<const KernelVariant<QuantiseFn>> quantise_variants() {
  static constexpr KernelVariant<QuantiseFn> kVariants[] = {
      {"ref", Isa::kScalar, quantise_ref},
  };
  return kVariants;
}

}  // namespace weft

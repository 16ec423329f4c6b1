#include "kernels/layer_norm/layer_norm.h"

namespace weft {

void layer_norm_avx512(const LayerNormArgs& args);
void layer_norm_avx2(const LayerNormArgs& args);
void layer_norm_ref(const LayerNormArgs& args);

std::span<const KernelVariant<LayerNormFn>> layer_norm_variants() {
  static constexpr KernelVariant<LayerNormFn> kVariants[] = {
      {"avx512", Isa::kAvx512, layer_norm_avx512},
      {"avx2", Isa::kAvx2, layer_norm_avx2},
      {"ref", Isa::kScalar, layer_norm_ref},
  };
  return kVariants;
}

}  // namespace weft

#include "kernels/sparse_attention/sparse_attention.h"

#include <cmath>

#include "kernels/sparse_attention/sparse_attention_impl.h"

namespace weft {

int64_t sparse_attention_scratch_bytes(int64_t num_heads, int64_t head_dim) {
  return AttentionScratch(num_heads, head_dim).total * static_cast<int64_t>(sizeof(float));
}

float log_sum_exp(float max, float den) { return max + std::log(den); }

std::span<const KernelVariant<SparseAttentionFn>> sparse_attention_variants() {
  static constexpr KernelVariant<SparseAttentionFn> kVariants[] = {
      {"avx512_bf16", Isa::kAvx512Bf16, sparse_attention_avx512_bf16},
      {"avx512", Isa::kAvx512, sparse_attention_avx512},
      {"avx2", Isa::kAvx2, sparse_attention_avx2},
      {"ref", Isa::kScalar, sparse_attention_ref},
  };
  return kVariants;
}

}  // namespace weft

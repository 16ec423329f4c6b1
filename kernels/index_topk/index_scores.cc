#include <cmath>

#include "base/numeric.h"
#include "kernels/index_topk/index_topk.h"
#include "kernels/index_topk/index_topk_impl.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {

int64_t index_scores_scratch_bytes(int64_t num_heads, int64_t head_dim) {
  return IndexScratch(num_heads, head_dim).total * static_cast<int64_t>(sizeof(float));
}

namespace {

using Dot = float(const float* x, const float* y, int64_t n);

void score_entries(const IndexScoresArgs& args, Dot* dot_of) {
  const IndexScratch layout(args.num_heads, args.head_dim);
  float* const q = reinterpret_cast<float*>(args.scratch) + layout.q;
  float* const key = reinterpret_cast<float*>(args.scratch) + layout.keys;
  const int64_t head_dim = args.head_dim;
  const auto read = [](const void* src, DType dtype, int64_t i) {
    return dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(src)[i]) : static_cast<const float*>(src)[i];
  };

  for (int64_t i = 0; i < args.num_heads * head_dim; ++i) q[i] = read(args.iq, args.iq_dtype, i);
  for (int64_t g = args.begin; g < args.end; ++g) {
    const int64_t row = g % args.page_entries;
    for (int64_t k = 0; k < head_dim; ++k) {
      key[k] = read(args.pages[g / args.page_entries], args.key_dtype, row * head_dim + k);
    }
    float score = 0;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const float dot = dot_of(q + h * head_dim, key, head_dim);
      // NaN stays NaN, so that a broken entry sorts last instead of looking like an unrelated one.
      const float relu = dot < 0 ? 0.0f : dot;
      score = std::fma(args.w[h], relu, score);
    }
    args.scores[g] = score;
  }
}

}  // namespace

void index_scores_ref(const IndexScoresArgs& args) { score_entries(args, dot_f32); }

void index_scores_bf16_ref(const IndexScoresArgs& args) { score_entries(args, takes_bf16_pairs(args) ? dot_bf16_pairs : dot_f32); }

std::span<const KernelVariant<IndexScoresFn>> index_scores_variants() {
  static constexpr KernelVariant<IndexScoresFn> kVariants[] = {
      {"avx512_bf16", Isa::kAvx512Bf16, index_scores_avx512_bf16},
      {"avx512_vbmi", Isa::kAvx512Vbmi, index_scores_avx512_vbmi},
      {"avx512", Isa::kAvx512, index_scores_avx512},
      {"avx2", Isa::kAvx2, index_scores_avx2},
      {"ref", Isa::kScalar, index_scores_ref},
  };
  return kVariants;
}

}  // namespace weft

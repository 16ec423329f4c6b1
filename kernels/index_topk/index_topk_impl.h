// Declarations that the sources of this folder share.
#pragma once

#include "kernels/index_topk/index_topk.h"

namespace weft {

// Entries that the SIMD variants score together: two vectors of AVX-512, four of AVX2.
inline constexpr int64_t kIndexPanel = 32;

void index_scores_ref(const IndexScoresArgs& args);
void index_scores_avx2(const IndexScoresArgs& args);
void index_scores_avx512(const IndexScoresArgs& args);
void index_scores_avx512_vbmi(const IndexScoresArgs& args);
void index_scores_avx512_bf16(const IndexScoresArgs& args);

// Plain code of what avx512_bf16 computes.
void index_scores_bf16_ref(const IndexScoresArgs& args);
inline bool takes_bf16_pairs(const IndexScoresArgs& args) {
  return args.iq_dtype == DType::kBF16 && args.key_dtype == DType::kBF16 && args.head_dim % 16 == 0;
}

// Where a call keeps what in its scratch; in floats, starts at multiples of 64 bytes.
struct IndexScratch {
  int64_t q = 0;  // [num_heads, head_dim]      queries as fp32
  int64_t keys;   // [head_dim, panel]          keys of a panel as fp32, transposed; the reference keeps one key here
  int64_t int8;   // bytes of queries, two words per head, bytes of two panels of keys (int8_scores-inl.h)
  int64_t total;

  constexpr IndexScratch(int64_t num_heads, int64_t head_dim)
      : keys((num_heads * head_dim + 15) / 16 * 16),
        int8(keys + kIndexPanel * head_dim),
        total(int8 + (num_heads * (head_dim + 8) + 2 * kIndexPanel * head_dim + 63) / 64 * 16) {}
};

}  // namespace weft

// Declarations that the table of variants, the reference and the SIMD sources of this folder share.
#pragma once

#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {

// Columns per block of the online softmax; part of the contract.
inline constexpr int64_t kAttentionBlock = 64;

void sparse_attention_ref(const SparseAttentionArgs& args);
void sparse_attention_avx2(const SparseAttentionArgs& args);
void sparse_attention_avx512(const SparseAttentionArgs& args);
void sparse_attention_avx512_bf16(const SparseAttentionArgs& args);

// Plain code of what avx512_bf16 computes.
void sparse_attention_bf16_ref(const SparseAttentionArgs& args);
inline bool takes_bf16_pairs(const SparseAttentionArgs& args) {
  return args.dtype == DType::kBF16 && args.kv_dtype == DType::kBF16 && args.head_dim % 16 == 0 && args.value_dim % 16 == 0;
}

// max + ln(den), for all variants alike.
float log_sum_exp(float max, float den);

// Where a call keeps what in its scratch; sizes in floats, starts at multiples of 64 bytes.
struct AttentionScratch {
  int64_t head_pitch;        // heads of one column of scores
  int64_t row_pitch;         // floats of one converted key row
  int64_t q = 0;             // [num_heads, head_dim]   queries as fp32, or [head_dim / 2, whole vectors of heads] pairs of bf16
  int64_t acc;               // [num_heads, head_dim]   numerators
  int64_t keys;              // [block, row_pitch]      keys of a block as fp32, or [block / 2, row_pitch] pairs of values
  int64_t scores;            // [block, head_pitch]     scores, then probabilities
  int64_t max, den, factor;  // [max(head_pitch, 16)] each
  int64_t total;

  constexpr AttentionScratch(int64_t num_heads, int64_t head_dim)
      // Few heads: several columns share a vector. Else whole vectors of 16 heads.
      : head_pitch(num_heads <= 4   ? 4
                   : num_heads <= 8 ? 8
                                    : (num_heads + 15) / 16 * 16),
        // A head dim is often a power of two: one more cache line spreads the rows over the sets of the cache.
        row_pitch((head_dim + 15) / 16 * 16 + 16) {
    const int64_t per_head = (head_pitch + 15) / 16 * 16;
    const int64_t all_heads = (num_heads * head_dim + 15) / 16 * 16, pairs = per_head * ((head_dim + 1) / 2);
    acc = all_heads > pairs ? all_heads : pairs;
    keys = acc + all_heads;
    scores = keys + kAttentionBlock * row_pitch;
    max = scores + kAttentionBlock * head_pitch;
    den = max + per_head;
    factor = den + per_head;
    total = factor + per_head;
  }
};

}  // namespace weft

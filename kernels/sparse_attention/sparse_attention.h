// kernels/sparse_attention/sparse_attention.h
//
// Attention of one query row, all heads, over a list of key rows that all heads share, with a sink per head. Values are the
// first value_dim features of the keys.
//
//   z[h,n] = scale * <q[h,:], kv_n>                     M_h = max_n z[h,n]  (the sink is not part of the maximum)
//   out[h,:] = A( sum_n P(exp(z[h,n] - M_h)) * kv_n[0..value_dim) / (sum_n exp(z[h,n] - M_h) + exp(sink_h - M_h)) )
//
//   q     [num_heads, head_dim]   A (F32 or BF16)
//   keys  num_keys row pointers, each [head_dim] of kv_dtype; a null pointer is an empty column
//   sink  [num_heads] F32, or null (then no sink term)
//   out   [num_heads, value_dim]  A; must not alias q
//
// Order: columns in list order, in blocks of 64 (fixed: block = column / 64) with an online softmax over the blocks.
// The running maximum after block b is m_b; probabilities of block b are exp(z - m_b); accumulators and denominator are
// multiplied by exp(m_{b-1} - m_b) before the block is added, also when that factor is 1. An empty column is skipped; a
// block of empty columns changes nothing. P rounds to bf16 when A is BF16 and is the identity for F32; the denominator
// adds the unrounded values, columns ascending.
// Scores: 16-lane sums of kernels/linear over head_dim, times scale. Values: out[h,d] starts at 0, one fma per column
// in ascending order. avx512_bf16 has bits of its own where q and keys are BF16 and both dims are multiples of 16: scores are
// dot_bf16_pairs, values are added by fma_no_subnormals (kernels/vector_math), and a block with an odd number of keys ends with one
// more of zeros and of probability 0. At the end den += exp(sink - M), then out / den. exp by kernels/vector_math.
// A row without keys gives zeros. The bits depend neither on the number of heads nor on other rows.
// Sources: deepseek_v4.md 2.5.7; glm_moe_dsa.md 2.6 (absorbed form).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

struct SparseAttentionArgs {
  const void* q = nullptr;
  void* out = nullptr;
  DType dtype = DType::kF32;     // of q and out
  DType kv_dtype = DType::kF32;  // kF32 or kBF16
  int64_t num_heads = 0, head_dim = 0, value_dim = 0;
  std::span<const void* const> keys;
  const float* sink = nullptr;  // [num_heads]
  float* lse = nullptr;         // [num_heads], or null: M + ln(denominator), -infinity for a row without keys
  float scale = 1;
  std::byte* scratch = nullptr;  // sparse_attention_scratch_bytes(...), 64-byte aligned, one per thread
};

int64_t sparse_attention_scratch_bytes(int64_t num_heads, int64_t head_dim);

using SparseAttentionFn = void(const SparseAttentionArgs&);
std::span<const KernelVariant<SparseAttentionFn>> sparse_attention_variants();

}  // namespace weft

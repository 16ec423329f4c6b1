// kernels/index_topk/index_topk.h
//
// Lightning-indexer scores and the selection of the best entries for one query row (deepseek_v4.md 2.6).
//
//   score(g) = sum_h w[h] * relu(<iq[h,:], ik_g>)            g < num_visible
//   picks    = the top_k entries by score descending, then g ascending; written in ascending g, then -1
//
//   iq     [num_heads, head_dim]  F32 or BF16 (iq_dtype)
//   w      [num_heads]            F32
//   pages  entry g is row g % page_entries of pages[g / page_entries], rows [head_dim] of key_dtype (F32 or BF16)
//   scores [num_visible]          F32 scratch of the caller
//
// Dot products: 16-lane sums of kernels/linear; avx512_bf16 has bits of its own where iq and keys are BF16 and head_dim is a
// multiple of 16: dot_bf16_pairs (kernels/vector_math). The sum over heads: h ascending, one fma each, from 0; all in fp32.
// relu keeps NaN. For the order -0.0 and +0.0 are equal and NaN sorts last.
// index_scores fills scores[begin, end) (threads split the entries); select_topk picks.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

struct IndexScoresArgs {
  const void* iq = nullptr;
  DType iq_dtype = DType::kF32;
  const float* w = nullptr;
  int64_t num_heads = 0, head_dim = 0;
  std::span<const void* const> pages;
  DType key_dtype = DType::kF32;
  int64_t page_entries = 0;
  int64_t begin = 0, end = 0;
  float* scores = nullptr;       // indexed by g
  std::byte* scratch = nullptr;  // index_scores_scratch_bytes(...), 64-byte aligned, one per thread
};

int64_t index_scores_scratch_bytes(int64_t num_heads, int64_t head_dim);

using IndexScoresFn = void(const IndexScoresArgs&);
std::span<const KernelVariant<IndexScoresFn>> index_scores_variants();

// picks[0, k): ascending entries, -1 beyond min(k, scores.size()). Expected linear time. scratch: scores.size() I32.
void select_topk(std::span<const float> scores, std::span<int32_t> picks, std::span<int32_t> scratch);

}  // namespace weft

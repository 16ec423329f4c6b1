// kernels/experts/experts.h
//
// Routed experts, grouped: each row goes through its own experts.
//
//   for every row t and slot j (e = expert[t, j], p = weight[t, j]):
//     g = A(w1[e] x'[t]),  u = A(w3[e] x'[t])                        w1, w3 [I, D]
//     u = clamp(u, -limit, limit), g = min(g, limit)                 limit 0: no clamp
//     a = A(p * (silu(g) * u))        weight_before_w2; otherwise a = A(silu(g) * u)
//     o = A(w2[e] a')                                                w2 [D, I]
//     y[t] += o   (weight_before_w2)  or  p * o                      fp32, slots in ascending expert id, starting from 0
//
//   x      [num_rows, D]        F32 or BF16
//   expert [num_rows, top_k]    I32, ascending within a row, -1 = unused slot (then at the end)
//   weight [num_rows, top_k]    F32
//   y      [num_rows, D]        F32
//          per_slot: [num_rows * top_k, D]; row t * top_k + j gets 0 + what slot j adds, or 0 if the slot is unused, so that
//          these rows, added from 0 in ascending expert id, are y[t] of the sum to the bit
//
// A(.) rounds to the dtype of x (F32: no rounding); x', a' are after act_quant. Sums by the rule of kernels/linear (one
// block; each of the three layers takes the path that kernels/linear says for it); silu(v) = v / (1 + exp(-v)) by kernels/vector_math. Row-independent: the bits of a row depend neither on the other
// rows nor on how many share an expert.
// The weights of an expert are separate matrices in their stored bytes: w1[e].data etc., all of one dtype and shape. They may
// be views, e.g. rows of w1 and w3 and the same columns of w2 for a share of the inner width; col0 is the same for all experts.
//
// In two calls (`part`), so that several owners of some rows of w1 and w3, then of some rows of w2, can put a[] together in
// between: kUp writes the rounded a (before act_quant) of every slot, kDown reads it and adds up y. The bits are those of one call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/linear/linear.h"

namespace weft {

enum class ExpertsPart { kAll, kUp, kDown };

struct ExpertsArgs {
  ExpertsPart part = ExpertsPart::kAll;
  const void* x = nullptr;
  DType x_dtype = DType::kF32;
  int64_t num_rows = 0, hidden = 0, inner = 0, top_k = 0;  // hidden: width of x (kUp), of y (kDown)
  const int32_t* expert = nullptr;
  const float* weight = nullptr;
  std::span<const WeightMatrix> w1, w3, w2;  // by expert id; w1 and w3 not of kDown, w2 not of kUp
  float swiglu_limit = 0;
  bool weight_before_w2 = true;
  ActQuant act_quant = ActQuant::kNone;
  bool per_slot = false;                     // the output of each slot instead of their sum
  void* a = nullptr;                         // kUp, kDown: [num_rows * top_k, inner] of x_dtype; unused slots are 0, not read
  float* y = nullptr;                        // not of kUp
  std::byte* scratch = nullptr;              // experts_scratch_bytes(...), 64-byte aligned
};

int64_t experts_scratch_bytes(ExpertsPart part, int64_t num_rows, int64_t hidden, int64_t inner, int64_t top_k,
                              int64_t num_experts, int num_threads);

using ExpertsFn = void(const ExpertsArgs& args, ThreadPool& pool);
std::span<const KernelVariant<ExpertsFn>> experts_variants();
inline void experts(const ExpertsArgs& args, Isa isa, ThreadPool& pool) { pick_variant(experts_variants(), isa)(args, pool); }

}  // namespace weft

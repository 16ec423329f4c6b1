// y = x W^T on weights in stored bytes: kernels/linear.
//
//   x [T, G*K] A, or [T, a, b] with a*b = G*K (heads side by side), or [T, S, K] (every stream by itself, G = 1)
//   w [G*N, K] F32 / BF16 / F8_E4M3 / F4_E2M1 / I8, scale (for the last three) [.., ..] F8_E8M0 or F32
//   y [T, G*N] of `dtype`; heads > 0: [T, heads, G*N/heads]; for x [T, S, K]: [T, S, N]
// rest R > 0: of groups that are heads, x [T, G, K+R] A -> y [T, G, N+R] A; the last R features of each are copied.
// act_quant int8_row, int8_static: w is I8 with one F32 scale for each row (scale_rows 1, scale_cols at least K). More inputs then:
//   int8_row     optionally the largest magnitudes of the whole rows [T] F32, where x is a slice of them (RowAbsmax)
//   int8_static  bias I32 [G*N], and divisor, factor and offset of x [3] F32
// x I8 [T, G, K+4] (act_quant none): what QuantiseGroups gives, codes and their scale. The codes of a group are summed as they are and
// the sum is multiplied by the scale of its row and group: y = round(s * sum_k code_k w_k).
// A weight that is split over ranks has the scales (and the bias) of the whole weight beside it.
// Scale blocks follow from the shapes: block_rows = ceil over the published block sizes (scale_rows, scale_cols attributes).
#pragma once

#include "graph/op_spec.h"
#include "kernels/linear/linear.h"

namespace weft {

template <>
struct EnumText<ActQuant> {
  static constexpr std::array<std::string_view, 5> kNames = {"none", "fp8_block128", "fp8_block128_any_scale", "int8_row", "int8_static"};
};

struct Linear {
  static constexpr std::string_view kName = "linear";
  DType dtype = DType::kF32;              // of y
  ActQuant act_quant = ActQuant::kNone;
  int64_t groups = 1;
  int64_t k_blocks = 1;                   // canonical blocks of a row-parallel layer (canonical_blocks), else 1
  int64_t heads = 0;                      // > 0: y has that many heads
  int64_t scale_rows = 0, scale_cols = 0; // weights that share a scale; 0: no scale
  int64_t rest = 0;                       // features of every group that pass by

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("dtype", self.dtype);
    f("act_quant", self.act_quant);
    f("groups", self.groups);
    f("k_blocks", self.k_blocks);
    f("heads", self.heads);
    f("scale_rows", self.scale_rows);
    f("scale_cols", self.scale_cols);
    f("rest", self.rest);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const;
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Linear&) const = default;

 private:
  Status expect_codes(TypeSpan in) const;
  Status run_codes(RunContext& ctx, LinearArgs args) const;
  static int64_t code_scratch_bytes(int64_t rows, int64_t k_total, int64_t n_total, DType dtype);
};

// Blocks of the canonical reduction tree over K inputs: the largest power of two <= 16 such that K / blocks is a multiple
// of 4 (design: numerics).
int64_t canonical_blocks(int64_t k);

// What activations of `dtype` are after `act_quant`, for a machine that multiplies them so.
DType quantised_dtype(ActQuant act_quant, DType dtype);
// Operations per element that this takes.
double quantising_ops(ActQuant act_quant);

// What activations of int8 need of a weight [.., N, K] and its scales.
Status expect_int8_weight(std::string_view op, TypeSpan in, int weight, int scale, int64_t scale_rows, int64_t scale_cols);

// The stored weight `w` and its scale as the kernels want them.
WeightMatrix weight_matrix(const TensorView& w, const TensorView* scale, int64_t scale_rows, int64_t scale_cols);

}  // namespace weft

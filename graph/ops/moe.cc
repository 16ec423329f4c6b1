#include "graph/ops/moe.h"

#include <cmath>

#include "base/int_math.h"
#include "kernels/experts/experts.h"
#include "kernels/moe_route/moe_route.h"

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return align_up(bytes, kAlignment); }

// The kernel's list of matrices lies at the front of the scratch.
int64_t matrix_list_bytes(int64_t experts) { return aligned(3 * experts * static_cast<int64_t>(sizeof(WeightMatrix))); }

TensorView slice(const TensorView& stacked, int64_t e) {
  TensorView view;
  view.type = {stacked.dtype(), {stacked.shape()[1], stacked.shape()[2]}};
  view.data = stacked.parts.empty() ? stacked.as<std::byte>() + e * view.type.bytes() : stacked.parts[e];
  view.row_stride = stacked.row_stride;
  view.row0 = stacked.row0;
  view.col0 = stacked.col0;
  return view;
}

}  // namespace

Result<ValueTypes> MoeRoute::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, by == RouteBy::kScore ? 1 : 3, by == RouteBy::kScore ? 2 : 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "logits", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "logits", 2));
  const int64_t rows = in[0].shape()[0], experts = in[0].shape()[1];
  if (top_k < 1 || top_k > experts) {
    return invalid_argument(fmt::format("{}: top_k {} of {} experts", kName, top_k, experts));
  }
  WEFT_RETURN_IF_ERROR(expect_range(kName, "experts", experts, 1, kMaxExperts));
  if (n_group < 1 || experts % n_group != 0 || topk_group < 1 || topk_group > n_group ||
      top_k > experts / n_group * topk_group) {
    return invalid_argument(fmt::format("{}: top_k {} of {} experts in {} of {} groups", kName, top_k, experts, topk_group,
                                        n_group));
  }
  if (by == RouteBy::kScore && in.size() == 2) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "bias", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "bias", in[1].shape().num_elements(), experts));
  }
  if (by == RouteBy::kToken) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "table", {DType::kI64}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "table", 2));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of table", in[1].shape()[1], top_k));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "tokens", {DType::kI32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 2, "tokens", 1));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "tokens", in[2].shape()[0], rows));
  }
  return ValueTypes{{{DType::kI32, {rows, top_k}}, in[0].rows}, {{DType::kF32, {rows, top_k}}, in[0].rows}};
}

Work MoeRoute::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  if (by == RouteBy::kScore) {
    Work work = streaming_work(in, out);
    const auto experts = static_cast<double>(in[0].shape()[1]);
    work.vector_beside = static_cast<double>(in[0].shape()[0]) * experts * std::log2(static_cast<double>(top_k) + 1);  // planner.md 2.2
    return work;
  }
  Work work = streaming_work({&in[0], 1}, out);
  work.bytes_stored = in[0].shape()[0] * in[1].tensor.bytes() / in[1].shape()[0];  // a table row a token
  work.bytes_read += in[2].tensor.bytes() + work.bytes_stored;
  return work;
}

Status MoeRoute::run(RunContext& ctx) const {
  const int64_t experts = ctx.in[0].shape()[1];
  if (by == RouteBy::kToken) {  // a table of the checkpoint: its entries are input, not ours to trust
    for (int64_t t = 0; t < ctx.in[0].shape()[0]; ++t) {
      const int64_t token = ctx.in[2].as<int32_t>()[t], vocab = ctx.in[1].shape()[0];
      if (token < 0 || token >= vocab) {
        return invalid_argument(fmt::format("token id {} at row {} is outside the routing table of {}", token, t, vocab));
      }
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t expert = ctx.in[1].as<int64_t>()[token * top_k + j];
        if (expert < 0 || expert >= experts) {
          return invalid_argument(fmt::format("tid2eid[{}][{}] is {}, expected an expert below {}", token, j, expert, experts));
        }
      }
    }
  }
  ctx.pool.parallel_for(ctx.in[0].shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    MoeRouteArgs args;
    args.logits = ctx.in[0].as<float>() + begin * experts;
    args.num_rows = end - begin;
    args.num_experts = experts;
    args.top_k = top_k;
    args.scoring_func = scoring_func;
    if (by == RouteBy::kToken) {
      args.table = ctx.in[1].as<int64_t>();
      args.tokens = ctx.in[2].as<int32_t>() + begin;
    } else if (ctx.in.size() == 2) {
      args.bias = ctx.in[1].as<float>();
    }
    args.n_group = n_group;
    args.topk_group = topk_group;
    args.normalise = normalise;
    args.sum_eps = static_cast<float>(sum_eps);
    args.scaling = static_cast<float>(scaling);
    args.expert = ctx.out[0].as<int32_t>() + begin * top_k;
    args.weight = ctx.out[1].as<float>() + begin * top_k;
    moe_route(args);
  });
  return {};
}

Result<ValueTypes> Experts::infer(TypeSpan in) const {
  const bool scaled = scale_rows > 0;
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, scaled ? 9 : 6, scaled ? 9 : 6));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "expert", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "weight", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  for (int i = 1; i < 3; ++i) {
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, i, i == 1 ? "expert" : "weight", 2));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, i == 1 ? "rows of expert" : "rows of weight", in[i].shape()[0], in[0].shape()[0]));
  }
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of weight", in[2].shape()[1], in[1].shape()[1]));
  for (int i = 3; i < 6; ++i) {
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, i, "expert weights", 3));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, i, "expert weights", {in[3].dtype()}));
  }
  WEFT_RETURN_IF_ERROR(expect_range(kName, "experts", in[3].shape()[0], 1, kMaxExperts));
  const int64_t experts = in[3].shape()[0], inner = in[3].shape()[1], hidden = in[0].shape()[1];
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of w1", in[3].shape()[2], hidden));
  if (in[4].tensor != in[3].tensor || in[5].shape() != Shape{experts, hidden, inner}) {
    return invalid_argument(fmt::format("{}: w1 {}, w3 {}, w2 {} do not fit together", kName, to_string(in[3]),
                                        to_string(in[4]), to_string(in[5])));
  }
  if (scaled && scale_cols < 1) return invalid_argument(fmt::format("{}: scale_cols is {}", kName, scale_cols));
  for (int i = 6; scaled && i < 9; ++i) {
    const Shape& weight = in[i - 3].shape();
    const Shape expected = {experts, (weight[1] + scale_rows - 1) / scale_rows, (weight[2] + scale_cols - 1) / scale_cols};
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, i, "scale", {DType::kF8E8M0, DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, i, "scale", {in[6].dtype()}));
    if (in[i].shape() != expected) {
      return invalid_argument(fmt::format("{}: a scale is {}, expected {}", kName, to_string(in[i].shape()), to_string(expected)));
    }
  }
  if (act_quant == ActQuant::kInt8Static) return invalid_argument(fmt::format("{}: act_quant int8_static is not for experts", kName));
  if (is_int8(act_quant)) {
    if (!scaled) return invalid_argument(fmt::format("{}: int8 activations need weights with scales", kName));
    for (int i = 3; i < 6; ++i) WEFT_RETURN_IF_ERROR(expect_int8_weight(kName, in, i, i + 3, scale_rows, scale_cols));
  }
  return ValueTypes{{{DType::kF32, in[0].shape()}, in[0].rows}};
}

Work Experts::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  WorkEnv alone = env;
  alone.routing.expert_ranks = 1;
  return work_of_rank(in, out, alone);
}

Work Experts::work_of_rank(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  const int64_t rows = in[0].shape()[0], hidden = in[0].shape()[1], experts = in[3].shape()[0], inner = in[3].shape()[1];
  const int64_t top_k = in[1].shape()[1];
  Work work = streaming_work(in.first(3), out);
  const ExpertLoad load = expert_load(env.routing, rows, top_k, experts);
  for (size_t i = 3; i < in.size(); ++i) {
    work.bytes_stored += std::llround(static_cast<double>(in[i].tensor.bytes() / experts) * load.experts_hit);
  }
  work.bytes_read += work.bytes_stored;
  work.flops = 6.0 * load.picks * static_cast<double>(hidden) * static_cast<double>(inner);
  work.rows = load.experts_hit > 0 ? load.picks / load.experts_hit : 0;
  work.columns = static_cast<double>(inner);
  work.depth = static_cast<double>(hidden);
  work.count = load.experts_hit;
  work.unit = WorkUnit::kMatrix;
  work.weight = in[3].dtype();
  work.activation = quantised_dtype(act_quant, in[0].dtype());
  constexpr double kSwigluOps = 11;  // clamped: planner.md 2.4
  work.vector_apart = load.picks * (quantising_ops(act_quant) * static_cast<double>(hidden + inner) + kSwigluOps * static_cast<double>(inner));
  work.scratch_bytes = matrix_list_bytes(experts) + experts_scratch_bytes(rows, hidden, inner, top_k, experts,
                                                                          in[3].dtype(), env.num_threads);
  return work;
}

Status Experts::run(RunContext& ctx, bool per_slot) const {
  const int64_t num_experts = ctx.in[3].shape()[0];
  auto* list = reinterpret_cast<WeightMatrix*>(ctx.scratch.data());
  std::span<const WeightMatrix> matrices[3];
  for (int w = 0; w < 3; ++w) {
    for (int64_t e = 0; e < num_experts; ++e) {
      const TensorView weight = slice(ctx.in[3 + w], e);
      const TensorView scale = scale_rows > 0 ? slice(ctx.in[6 + w], e) : TensorView{};
      new (&list[w * num_experts + e])
          WeightMatrix(weight_matrix(weight, scale_rows > 0 ? &scale : nullptr, scale_rows, scale_cols));
    }
    matrices[w] = {list + w * num_experts, static_cast<size_t>(num_experts)};
  }
  ExpertsArgs args;
  args.x = ctx.in[0].data;
  args.x_dtype = ctx.in[0].dtype();
  args.num_rows = ctx.in[0].shape()[0];
  args.hidden = ctx.in[0].shape()[1];
  args.inner = ctx.in[3].shape()[1];
  args.top_k = ctx.in[1].shape()[1];
  args.expert = ctx.in[1].as<int32_t>();
  args.weight = ctx.in[2].as<float>();
  args.w1 = matrices[0];
  args.w3 = matrices[1];
  args.w2 = matrices[2];
  args.swiglu_limit = static_cast<float>(swiglu_limit);
  args.weight_before_w2 = weight_before_w2;
  args.act_quant = act_quant;
  args.per_slot = per_slot;
  args.y = ctx.out[0].as<float>();
  args.scratch = ctx.scratch.data() + matrix_list_bytes(num_experts);
  experts(args, ctx.isa, ctx.pool);
  return {};
}

Result<ValueTypes> ExpertSlots::infer(TypeSpan in) const {
  WEFT_ASSIGN_OR_RETURN(const ValueTypes sum, experts.infer(in));
  const Shape& y = sum[0].shape();
  return ValueTypes{{{DType::kF32, {y[0], in[1].shape()[1], y[1]}}, in[0].rows}};
}

Work ExpertSlots::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return experts.work_of_rank(in, out, env);
}

Status ExpertSlots::run(RunContext& ctx) const { return experts.run(ctx, true); }

}  // namespace weft

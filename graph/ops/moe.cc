#include "graph/ops/moe.h"

#include <cmath>

#include "base/int_math.h"
#include "graph/ops/scratch.h"
#include "kernels/experts/experts.h"
#include "kernels/moe_route/moe_route.h"

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 16;

// The kernel's list of matrices lies at the front of the scratch.
int64_t matrix_list_bytes(int64_t matrices) { return aligned_scratch(matrices * static_cast<int64_t>(sizeof(WeightMatrix))); }

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

namespace {

// Inputs x (or a), expert and weight; how many rows.
Status expect_routed(std::string_view op, TypeSpan in, std::string_view first, int rank) {
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 0, first, {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 1, "expert", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 2, "weight", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, 0, first, rank));
  for (int i = 1; i < 3; ++i) {
    WEFT_RETURN_IF_ERROR(expect_rank(op, in, i, i == 1 ? "expert" : "weight", 2));
    WEFT_RETURN_IF_ERROR(expect_dim(op, i == 1 ? "rows of expert" : "rows of weight", in[i].shape()[0], in[0].shape()[0]));
  }
  return expect_dim(op, "columns of weight", in[2].shape()[1], in[1].shape()[1]);
}

// Stacked weights are inputs 3 .. 3 + n - 1, their scales those behind.
Status expect_expert_weights(std::string_view op, const Experts& experts, TypeSpan in, int n) {
  for (int i = 3; i < 3 + n; ++i) {
    WEFT_RETURN_IF_ERROR(expect_rank(op, in, i, "expert weights", 3));
    WEFT_RETURN_IF_ERROR(expect_dtype(op, in, i, "expert weights", {in[3].dtype()}));
  }
  WEFT_RETURN_IF_ERROR(expect_range(op, "experts", in[3].shape()[0], 1, kMaxExperts));
  const bool scaled = experts.scale_rows > 0;
  if (scaled && experts.scale_cols < 1) return invalid_argument(fmt::format("{}: scale_cols is {}", op, experts.scale_cols));
  for (int i = 3 + n; scaled && i < 3 + 2 * n; ++i) {
    const ValueType& weight = in[i - n];
    Shape expected = {weight.shape()[0], ceil_div(weight.shape()[1], experts.scale_rows),
                      ceil_div(weight.shape()[2], experts.scale_cols)};
    for (const Placement& p : weight.placement) {  // rows of a slice, scales of the whole
      const bool slice = p == Placement::sharded(1) && in[i].shape().rank() == 3 && in[i].shape()[1] >= expected[1];
      if (slice) expected[1] = in[i].shape()[1];
    }
    WEFT_RETURN_IF_ERROR(expect_dtype(op, in, i, "scale", {DType::kF8E8M0, DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dtype(op, in, i, "scale", {in[3 + n].dtype()}));
    if (in[i].shape() != expected) {
      return invalid_argument(fmt::format("{}: a scale is {}, expected {}", op, to_string(in[i].shape()), to_string(expected)));
    }
  }
  if (experts.act_quant == ActQuant::kInt8Static) {
    return invalid_argument(fmt::format("{}: act_quant int8_static is not for experts", op));
  }
  if (is_int8(experts.act_quant)) {
    if (!scaled) return invalid_argument(fmt::format("{}: int8 activations need weights with scales", op));
    for (int i = 3; i < 3 + n; ++i) {
      WEFT_RETURN_IF_ERROR(expect_int8_weight(op, in, i, i + n, experts.scale_rows, experts.scale_cols));
    }
  }
  return {};
}

int num_inputs(const Experts& experts, int weights) { return 3 + (experts.scale_rows > 0 ? 2 : 1) * weights; }

// Work of `weights` of the three layers of every slot, of which input 3 is the first. `expert_ranks` that share the experts.
Work expert_work(const Experts& op, TypeSpan in, TypeSpan out, int weights, ExpertsPart part, const WorkEnv& env,
                 int64_t expert_ranks = 1) {
  const int64_t rows = in[0].shape()[0], experts = in[3].shape()[0], top_k = in[1].shape()[1];
  const bool down = part == ExpertsPart::kDown;
  const int64_t hidden = in[3].shape()[down ? 1 : 2], inner = in[3].shape()[down ? 2 : 1];
  Routing routing = env.routing;
  routing.expert_ranks = expert_ranks;
  const ExpertLoad load = expert_load(routing, rows, top_k, experts);
  Work work = streaming_work(in.first(3), out);
  const bool weighs = part == ExpertsPart::kAll || op.weight_before_w2 != down;
  if (!weighs) work.bytes_read -= in[2].tensor.bytes();
  for (size_t i = 3; i < in.size(); ++i) {
    work.bytes_stored += std::llround(static_cast<double>(in[i].tensor.bytes() / experts) * load.experts_hit);
  }
  work.bytes_read += work.bytes_stored;
  work.flops = 2.0 * weights * load.picks * static_cast<double>(hidden) * static_cast<double>(inner);
  work.rows = load.experts_hit > 0 ? load.picks / load.experts_hit : 0;
  work.columns = static_cast<double>(down ? hidden : inner);
  work.depth = static_cast<double>(down ? inner : hidden);
  work.count = load.experts_hit;
  work.unit = WorkUnit::kMatrix;
  work.weight = in[3].dtype();
  work.activation = quantised_dtype(op.act_quant, in[0].dtype());
  constexpr double kSwigluOps = 11;  // clamped: planner.md 2.4
  double apart = 0;  // of one pick
  if (part != ExpertsPart::kDown) {
    apart += quantising_ops(op.act_quant) * static_cast<double>(hidden) + kSwigluOps * static_cast<double>(inner);
  }
  if (part != ExpertsPart::kUp) apart += quantising_ops(op.act_quant) * static_cast<double>(inner);
  work.vector_apart = load.picks * apart;
  work.scratch_bytes = matrix_list_bytes(weights * experts) +
                       experts_scratch_bytes(part, rows, hidden, inner, top_k, experts, env.num_threads);
  return work;
}

// What a call of any part has in common. `parts`: which of w1, w3, w2 the weights from input 3 on are.
ExpertsArgs expert_args(const Experts& experts, const RunContext& ctx, ExpertsPart part,
                        std::initializer_list<std::span<const WeightMatrix> ExpertsArgs::*> parts) {
  const int64_t num_experts = ctx.in[3].shape()[0];
  const bool scaled = experts.scale_rows > 0;
  ExpertsArgs args;
  args.part = part;
  auto* list = reinterpret_cast<WeightMatrix*>(ctx.scratch.data());
  size_t input = 3;
  for (const auto member : parts) {
    for (int64_t e = 0; e < num_experts; ++e) {
      const TensorView weight = matrix_at(ctx.in[input], e);
      const TensorView scale = scaled ? matrix_at(ctx.in[input + parts.size()], e) : TensorView{};
      new (&list[e]) WeightMatrix(weight_matrix(weight, scaled ? &scale : nullptr, experts.scale_rows, experts.scale_cols));
    }
    args.*member = {list, static_cast<size_t>(num_experts)};
    list += num_experts;
    ++input;
  }
  args.x_dtype = ctx.in[0].dtype();
  args.num_rows = ctx.in[0].shape()[0];
  args.top_k = ctx.in[1].shape()[1];
  args.expert = ctx.in[1].as<int32_t>();
  args.weight = ctx.in[2].as<float>();
  args.swiglu_limit = static_cast<float>(experts.swiglu_limit);
  args.weight_before_w2 = experts.weight_before_w2;
  args.act_quant = experts.act_quant;
  args.scratch = ctx.scratch.data() + matrix_list_bytes(static_cast<int64_t>(parts.size()) * num_experts);
  return args;
}

Status run_whole(const Experts& op, RunContext& ctx, bool per_slot) {
  ExpertsArgs args = expert_args(op, ctx, ExpertsPart::kAll, {&ExpertsArgs::w1, &ExpertsArgs::w3, &ExpertsArgs::w2});
  args.x = ctx.in[0].data;
  args.hidden = ctx.in[0].shape()[1];
  args.inner = ctx.in[3].shape()[1];
  args.per_slot = per_slot;
  args.y = ctx.out[0].as<float>();
  experts(args, ctx.isa, ctx.pool);
  return {};
}

}  // namespace

Result<ValueTypes> Experts::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, num_inputs(*this, 3), num_inputs(*this, 3)));
  WEFT_RETURN_IF_ERROR(expect_routed(kName, in, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_expert_weights(kName, *this, in, 3));
  const int64_t experts = in[3].shape()[0], inner = in[3].shape()[1], hidden = in[0].shape()[1];
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of w1", in[3].shape()[2], hidden));
  if (in[4].tensor != in[3].tensor || in[5].shape() != Shape{experts, hidden, inner}) {
    return invalid_argument(fmt::format("{}: w1 {}, w3 {}, w2 {} do not fit together", kName, to_string(in[3]),
                                        to_string(in[4]), to_string(in[5])));
  }
  return ValueTypes{{{DType::kF32, in[0].shape()}, in[0].rows}};
}

Work Experts::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return expert_work(*this, in, out, 3, ExpertsPart::kAll, env);
}

Status Experts::run(RunContext& ctx) const { return run_whole(*this, ctx, false); }

Result<ValueTypes> ExpertsUp::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, num_inputs(experts, 2), num_inputs(experts, 2)));
  WEFT_RETURN_IF_ERROR(expect_routed(kName, in, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_expert_weights(kName, experts, in, 2));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of w1", in[3].shape()[2], in[0].shape()[1]));
  if (in[4].tensor != in[3].tensor) {
    return invalid_argument(fmt::format("{}: w1 {}, w3 {} do not fit together", kName, to_string(in[3]), to_string(in[4])));
  }
  return ValueTypes{{{in[0].dtype(), {in[0].shape()[0], in[1].shape()[1], in[3].shape()[1]}}, in[0].rows}};
}

Work ExpertsUp::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return expert_work(experts, in, out, 2, ExpertsPart::kUp, env);
}

Status ExpertsUp::run(RunContext& ctx) const {
  ExpertsArgs args = expert_args(experts, ctx, ExpertsPart::kUp, {&ExpertsArgs::w1, &ExpertsArgs::w3});
  args.x = ctx.in[0].data;
  args.hidden = ctx.in[0].shape()[1];
  args.inner = ctx.in[3].shape()[1];
  args.a = ctx.out[0].data;
  weft::experts(args, ctx.isa, ctx.pool);
  return {};
}

Result<ValueTypes> ExpertsDown::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, num_inputs(experts, 1), num_inputs(experts, 1)));
  WEFT_RETURN_IF_ERROR(expect_routed(kName, in, "a", 3));
  WEFT_RETURN_IF_ERROR(expect_expert_weights(kName, experts, in, 1));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "slots of a row", in[0].shape()[1], in[1].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of w2", in[3].shape()[2], in[0].shape()[2]));
  return ValueTypes{{{DType::kF32, {in[0].shape()[0], in[3].shape()[1]}}, in[0].rows}};
}

Work ExpertsDown::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return expert_work(experts, in, out, 1, ExpertsPart::kDown, env);
}

Status ExpertsDown::run(RunContext& ctx) const {
  ExpertsArgs args = expert_args(experts, ctx, ExpertsPart::kDown, {&ExpertsArgs::w2});
  args.a = ctx.in[0].data;
  args.hidden = ctx.in[3].shape()[1];
  args.inner = ctx.in[3].shape()[2];
  args.y = ctx.out[0].as<float>();
  weft::experts(args, ctx.isa, ctx.pool);
  return {};
}

Result<ValueTypes> ExpertSlots::infer(TypeSpan in) const {
  WEFT_ASSIGN_OR_RETURN(const ValueTypes sum, experts.infer(in));
  const Shape& y = sum[0].shape();
  return ValueTypes{{{DType::kF32, {y[0], in[1].shape()[1], y[1]}}, in[0].rows}};
}

Work ExpertSlots::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return expert_work(experts, in, out, 3, ExpertsPart::kAll, env, env.routing.expert_ranks);
}

Status ExpertSlots::run(RunContext& ctx) const { return run_whole(experts, ctx, true); }

}  // namespace weft

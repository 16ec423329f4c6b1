// Mixture of experts.
//
//   MoeRoute  logits [T,E] F32, then bias [E] F32 (routing by score) or table [V,k] I64 and tokens [T] I32 (routing by token id)
//             -> expert [T,k] I32 ascending, weight [T,k] F32: kernels/moe_route
//   Experts   x [T,D] A, expert, weight, w1 [E,I,D], w3 [E,I,D], w2 [E,D,I] (stacked, each expert in its own place), and for
//             scaled formats their scales s1, s3, s2 -> y [T,D] F32: kernels/experts
//   ExpertsUp   the first half of it: x, expert, weight, w1, w3 (, s1, s3) -> a [T,k,I] A, what each slot's expert passes to w2
//   ExpertsDown the second half: a [T,k,I] A, expert, weight, w2 (, s2) -> y [T,D] F32
// A rank may have some of the I of w1 and w3, and some of the D of w2; scales are those of the whole weights.
#pragma once

#include "graph/op_spec.h"
#include "graph/ops/linear_op.h"
#include "kernels/moe_route/moe_route.h"

namespace weft {

template <>
struct EnumText<ScoringFunc> {
  static constexpr std::array<std::string_view, 3> kNames = {"sqrtsoftplus", "sigmoid", "softmax"};
};

enum class RouteBy { kScore, kToken };

template <>
struct EnumText<RouteBy> {
  static constexpr std::array<std::string_view, 2> kNames = {"score", "token"};
};

struct MoeRoute {
  static constexpr std::string_view kName = "moe_route";
  RouteBy by = RouteBy::kScore;
  int64_t top_k = 0;
  ScoringFunc scoring_func = ScoringFunc::kSqrtSoftplus;
  int64_t n_group = 1, topk_group = 1;
  bool normalise = true;
  double sum_eps = 0, scaling = 1;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("by", self.by);
    f("top_k", self.top_k);
    f("scoring_func", self.scoring_func);
    f("n_group", self.n_group);
    f("topk_group", self.topk_group);
    f("normalise", self.normalise);
    f("sum_eps", self.sum_eps);
    f("scaling", self.scaling);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return by == RouteBy::kScore ? ShardRule{{"te", "e"}, {"tk", "tk"}, "t", ""}
                                 : ShardRule{{"te", "vk", "t"}, {"tk", "tk"}, "t", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const MoeRoute&) const = default;
};

struct Experts {
  static constexpr std::string_view kName = "experts";
  ActQuant act_quant = ActQuant::kNone;
  double swiglu_limit = 0;
  bool weight_before_w2 = true;
  int64_t scale_rows = 0, scale_cols = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("act_quant", self.act_quant);
    f("swiglu_limit", self.swiglu_limit);
    f("weight_before_w2", self.weight_before_w2);
    f("scale_rows", self.scale_rows);
    f("scale_cols", self.scale_cols);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return {{"td", "tk", "tk", "eid", "eid", "edi", "exy", "exy", "exy"}, {"td"}, "t", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Experts&) const = default;
};

struct ExpertsUp {
  static constexpr std::string_view kName = "experts_up";
  Experts experts;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    Experts::visit_fields(self.experts, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"td", "tk", "tk", "eid", "eid"}, {"tki"}, "ti", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const ExpertsUp&) const = default;
};

struct ExpertsDown {
  static constexpr std::string_view kName = "experts_down";
  Experts experts;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    Experts::visit_fields(self.experts, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"tki", "tk", "tk", "edi"}, {"td"}, "td", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const ExpertsDown&) const = default;
};

// The experts of one rank on rows that expert_dispatch brought: every slot's own output, for expert_combine.
//   x [R,D], expert, weight, w1, ... as for Experts, rows and experts of this rank -> [R,k,D] F32, unused slots 0
struct ExpertSlots {
  static constexpr std::string_view kName = "expert_slots";
  Experts experts;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    Experts::visit_fields(self.experts, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const {  // rows and experts of a rank belong together: one letter
    return {{"ed", "ek", "ek", "eij", "eij", "eij", "exy", "exy", "exy"}, {"ekd"}, "e", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const ExpertSlots&) const = default;
};

}  // namespace weft

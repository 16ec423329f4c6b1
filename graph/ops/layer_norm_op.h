// Layer norm over the last dimension of x [T, W], with weight and bias [W]: kernels/layer_norm.
#pragma once

#include "graph/op_spec.h"

namespace weft {

struct LayerNorm {
  static constexpr std::string_view kName = "layer_norm";
  double eps = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("eps", self.eps);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"tw", "w", "w"}, {"tw"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const LayerNorm&) const = default;
};

}  // namespace weft

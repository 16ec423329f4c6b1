// RMS norm over the last dimension of x, with a weight [W] or without one: kernels/rms_norm. A weight that is shorter than the
// last dimension: of the first W features, the others are copied.
#pragma once

#include "graph/op_spec.h"
#include "kernels/rms_norm/rms_norm.h"

namespace weft {

template <>
struct EnumText<NormRounding> {
  static constexpr std::array<std::string_view, 2> kNames = {"once", "each_step"};
};

struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  double eps = 0;
  NormRounding rounding = NormRounding::kOnce;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("eps", self.eps);
    f("rounding", self.rounding);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    const std::string x = in[0].shape().rank() == 3 ? "thw" : "tw";
    return {{x, "v"}, {x}, "th", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const RmsNorm&) const = default;
};

}  // namespace weft

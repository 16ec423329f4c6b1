// Small ops between the big ones.
//
//   Swiglu           g, u [T,I] A -> A(silu(min(g,limit)) * clamp(u,+-limit)) [T,I]: kernels/swiglu
//   Add              a [T,D] F32 or A, b [T,D] A -> A(a + b), fp32 sum
//   AddStreams       e [T,D] A, X [T,S,D] A -> A(e + X[s]) [T,S,D]
//   AddPositionBias  s [T,W] F32, bias [R,W] F32, positions -> s[t] + bias[positions[t] mod R]
//   Concat           a [T,X] A, b [T,Y] A -> [T,X+Y], side by side
//   GatherRows       x [T, ...], rows of the batch whose logits are wanted -> [logits L, ...]
#pragma once

#include "graph/op_spec.h"

namespace weft {

struct Swiglu {
  static constexpr std::string_view kName = "swiglu";
  double limit = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("limit", self.limit);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"ti", "ti"}, {"ti"}, "ti", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Swiglu&) const = default;
};

struct Add {
  static constexpr std::string_view kName = "add";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"td", "td"}, {"td"}, "td", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Add&) const = default;
};

struct AddStreams {
  static constexpr std::string_view kName = "add_streams";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"td", "tsd"}, {"tsd"}, "td", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const AddStreams&) const = default;
};

struct AddPositionBias {
  static constexpr std::string_view kName = "add_position_bias";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"tw", "rw", "t"}, {"tw"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const AddPositionBias&) const = default;
};

struct Concat {
  static constexpr std::string_view kName = "concat";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"tx", "ty"}, {"tz"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Concat&) const = default;
};

struct GatherRows {
  static constexpr std::string_view kName = "gather_rows";
  int64_t capacity = 0;  // rows of the output

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const {
    return in[0].shape().rank() == 3 ? ShardRule{{"tsd"}, {"tsd"}, "td", ""} : ShardRule{{"td"}, {"td"}, "td", ""};
  }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const GatherRows&) const = default;
};

}  // namespace weft

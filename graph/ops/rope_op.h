// RopeTable: positions I32[T] -> (cos, sin) F32[T, rotary_dims/2, 2].
// Rope: x [T, H, hd] or [T, hd], table -> the same shape, the last (or first) rotary_dims features of every head rotated:
// kernels/rope.
#pragma once

#include "graph/op_spec.h"
#include "kernels/rope/rope.h"

namespace weft {

template <>
struct EnumText<RopeDirection> {
  static constexpr std::array<std::string_view, 2> kNames = {"forward", "inverse"};
};

template <>
struct EnumText<RopePairs> {
  static constexpr std::array<std::string_view, 2> kNames = {"interleaved", "half_split"};
};

template <>
struct EnumText<RopePlace> {
  static constexpr std::array<std::string_view, 2> kNames = {"last", "first"};
};

// Everything that decides the frequencies.
struct RopeParameters {
  double theta = 10000;
  int64_t rotary_dims = 0;
  RopeScaling scaling;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("theta", self.theta);
    f("rotary_dims", self.rotary_dims);
    f("factor", self.scaling.factor);
    f("beta_fast", self.scaling.beta_fast);
    f("beta_slow", self.scaling.beta_slow);
    f("original_max_position_embeddings", self.scaling.original_max_position_embeddings);
  }
  std::vector<float> frequencies() const { return rope_frequencies(theta, rotary_dims, scaling); }
  bool operator==(const RopeParameters&) const = default;
};

struct RopeTable {
  static constexpr std::string_view kName = "rope_table";
  RopeParameters rope;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    RopeParameters::visit_fields(self.rope, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"t"}, {"tip"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const RopeTable&) const = default;
};

struct Rope {
  static constexpr std::string_view kName = "rope";
  RopeDirection direction = RopeDirection::kForward;
  RopePairs pairs = RopePairs::kInterleaved;
  RopePlace place = RopePlace::kLast;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("direction", self.direction);
    f("pairs", self.pairs);
    f("place", self.place);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{in[0].shape().rank() == 3 ? "thd" : "td", "tip"}, {in[0].shape().rank() == 3 ? "thd" : "td"}, "th", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Rope&) const = default;
};

}  // namespace weft

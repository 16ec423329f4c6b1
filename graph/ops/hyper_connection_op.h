// Manifold-constrained hyper-connections: kernels/hyper_connection.
//
//   HcPre   X [T,S,D] A, fn [(2+S)*S, S*D], base, scale F32 -> x [T,D] A, mix [T, S + S*S] F32
//   HcPost  y [T,D] A, X [T,S,D] A, mix -> X' [T,S,D] A
//   HcHead  X [T,S,D] A, fn [S, S*D], base, scale -> h [T,D] A
#pragma once

#include "graph/op_spec.h"

namespace weft {

struct HcPre {
  static constexpr std::string_view kName = "hc_pre";
  int64_t iterations = 0;
  double rms_eps = 0, hc_eps = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("iterations", self.iterations);
    f("rms_eps", self.rms_eps);
    f("hc_eps", self.hc_eps);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"tsd", "mk", "m", "c"}, {"td", "tm"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const HcPre&) const = default;
};

struct HcPost {
  static constexpr std::string_view kName = "hc_post";

  template <class Self, class F>
  static void visit_fields(Self&, F&&) {}
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"td", "tsd", "tm"}, {"tsd"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const HcPost&) const = default;
};

struct HcHead {
  static constexpr std::string_view kName = "hc_head";
  double rms_eps = 0, hc_eps = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("rms_eps", self.rms_eps);
    f("hc_eps", self.hc_eps);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"tsd", "mk", "m", "c"}, {"td"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const HcHead&) const = default;
};

}  // namespace weft

// Attention over entries that lie on the ranks of an axis in turn (dcp.h), without moving them: every rank attends to those that
// it holds, for the heads of all ranks of the group, and partial results are merged by their log-sum-exp. Not to the bit of one
// rank: softmaxes of parts are added in another order than entries.
//
//   GatherHeads       q [T, h, d] -> [T, n * h, d]: the heads of the group's ranks, one rank after another
//   PartialAttention  inputs as SparseAttention without sink, q [T, n * h, d] -> [T, n * h, vd + 1] F32: per head the result over
//                     the entries that this rank holds, then its log-sum-exp (-infinity: no key). Window keys, which every rank has, count for a rank's own heads alone: once in all
//   MergePartials     partial results [T, n * h, vd + 1], optionally sink [h] -> [T, h, vd] A: own heads over all entries. The sink counts once
#pragma once

#include "graph/ops/attention.h"
#include "graph/ops/collective.h"

namespace weft {

struct GatherHeads {
  static constexpr std::string_view kName = "gather_heads";
  MeshAxis axis = MeshAxis::kDcp;
  int64_t size = 1;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const GatherHeads&) const = default;
};

struct PartialAttention {
  static constexpr std::string_view kName = "partial_attention";
  int64_t size = 1;  // ranks that hold entries
  SparseAttention attention;  // without sink

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("size", self.size);
    SparseAttention::visit_fields(self.attention, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const;
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const PartialAttention&) const = default;
};

struct MergePartials {
  static constexpr std::string_view kName = "merge_partials";
  MeshAxis axis = MeshAxis::kDcp;
  int64_t size = 1;
  DType dtype = DType::kF32;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("dtype", self.dtype);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const MergePartials&) const = default;
};

}  // namespace weft

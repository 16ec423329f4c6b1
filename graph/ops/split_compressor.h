// A compressor whose rows are split over ranks (compressor=split; sharding/compressor_split.h has the rule).
//
//   SplitCompressor  inputs as Compressor, k and s [t, w] of this rank's rows. An entry is computed by the rank that has the last
//                    row of its groups, from rows of its own, of the state ring, and of other ranks that send it theirs. Entries
//                    go to all ranks, and so do the last rows of every request, those that the ring keeps: caches are whole on
//                    every rank, as without the split
#pragma once

#include "graph/ops/attention.h"
#include "graph/ops/collective.h"

namespace weft {

struct SplitCompressor {
  static constexpr std::string_view kName = "split_compressor";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  Compressor compressor;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    Compressor::visit_fields(self.compressor, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const { return compressor.infer(in); }
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  // Bytes: of one request whose rows fill the ranks evenly, in whole groups.
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return compressor.mutates(); }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const SplitCompressor&) const = default;
};

}  // namespace weft

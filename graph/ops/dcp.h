// Decode context parallel: the entries of appended caches lie in turn on the ranks of an axis (placement shard(1) of
// [pages, page entries, width]; entry g on rank g mod n). What every rank of the group sees then, to the bit:
//
//   FetchEntries     entries, then optionally picks [T, k] -> rows [capacity, width]: the entries that the requests of the step
//                    see, request after request; with picks those that a row of the request picked, each once, rank after
//                    rank, and picks' [T, k]: where each pick stands in them (-1 stays). Their owners send them to all.
//                    Rows behind the last one keep their bytes
//   IndexCandidates  iq, w, keys as IndexTopK -> [T, top_k, 2] I32: of the entries that this rank holds the best by score, by
//                    ascending entry: the bits of the score, the entry (-1: none). Gathered along dimension 1, the candidates
//                    of all ranks. None where a row sees no more than top_k entries
//   MergeTopK        candidates of all ranks [T, n * top_k, 2] -> picks as IndexTopK
// The best entries of all are among the best of their owners, and the order is total: the picks are those of one rank.
#pragma once

#include "graph/ops/attention.h"
#include "graph/ops/collective.h"

namespace weft {

struct FetchEntries {
  static constexpr std::string_view kName = "fetch_entries";
  MeshAxis axis = MeshAxis::kDcp;
  int64_t size = 1;
  int64_t ratio = 1;
  int64_t max_context = 0;  // of one request
  int64_t capacity = 0;

  // Of a step of `rows` rows: all that there is room for, or what every row may see or has picked.
  int64_t capacity_for(TypeSpan in, int64_t rows) const;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("ratio", self.ratio);
    f("max_context", self.max_context);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  // Entries are counted as if the ranks had equal numbers of them; without segments, as if they filled the capacity.
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const FetchEntries&) const = default;

 private:
  Status fetch_visible(RunContext& ctx, Communicator& group) const;
  Status fetch_picked(RunContext& ctx, Communicator& group) const;
};

struct IndexCandidates {
  static constexpr std::string_view kName = "index_candidates";
  int64_t size = 1;  // ranks that hold entries
  IndexTopK index;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("size", self.size);
    IndexTopK::visit_fields(self.index, f);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"thd", "th", "ged"}, {"te2"}, "te", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const IndexCandidates&) const = default;
};

struct MergeTopK {
  static constexpr std::string_view kName = "merge_topk";
  int64_t ratio = 0, top_k = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("ratio", self.ratio);
    f("top_k", self.top_k);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"tc2"}, {"tk"}, "t", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const MergeTopK&) const = default;
};

}  // namespace weft

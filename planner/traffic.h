// What a rank sends in one step, per collective and group.
#pragma once

#include <string>
#include <vector>

#include "planner/engine_profile.h"
#include "planner/step_graph.h"

namespace weft {

struct TrafficLine {
  std::string op;  // "all_reduce", ..., "send" (hand-over between stages), "broadcast" (logits)
  MeshAxis axis = MeshAxis::kTp;
  int64_t group_size = 1;
  int64_t calls = 0;       // of one rank in one step
  int64_t bytes_sent = 0;  // of one rank in one step
  bool expected = false;   // depends on which experts or entries are picked: an expectation, or the most there can be
  bool operator==(const TrafficLine&) const = default;
};

// One rank in one step, without data.
struct StepOnRank {
  const StepBatch& batch;
  const RowSets& row_sets;
  const RankContext& ranks;
};

// Of the graph alone, by op and axis in order of first use: what this rank sends (bytes_sent of the ops, which the executor's tests
// hold against the transport), or what work() says where it depends on picks, and where no rank is given. `engine`: sums and
// gathers travel in its dtypes; null: as the graph says.
std::vector<TrafficLine> traffic_of(const StepGraph& step, const WorkEnv& env, const EngineProfile* engine = nullptr,
                                    const StepOnRank* rank = nullptr);
// What the runtime sends besides. Values to the next stage: `sent_bytes`, in a graph of exactly the rows of a micro-batch. Logits, that
// every rank gets: `logit_rows` of this rank's data-parallel group in a whole step.
std::vector<TrafficLine> send_traffic(std::span<const int64_t> sent_bytes, const Layout& layout);
std::vector<TrafficLine> logit_traffic(int stage, const Layout& layout, int64_t logit_rows, int64_t vocab_size);

int64_t total_sent(const std::vector<TrafficLine>& lines);

}  // namespace weft

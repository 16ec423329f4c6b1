// Cuts a graph into pipeline stages: whole layers (regions "layers.N"); what comes before
// the layers goes to the first stage, what needs their output to the last. Ops without weights or states that no layer feeds
// (rope tables, slices of the tokens) are in every stage that uses them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weft {

struct StageGraph {
  Graph graph;                        // values that come from the stage before are inputs, those for the next one results
  std::vector<std::string> received;  // their names, in the order in which they are sent
  std::vector<std::string> sent;
};

// `begins`: the first layer of every stage, ascending from 0. A graph without layers is all in the last stage. Errors: a value that
// skips a stage. verified: as ShardOptions::verified.
Result<StageGraph> pipeline_stage(const Graph& graph, int stage, std::span<const int64_t> begins, bool verified = true);

}  // namespace weft

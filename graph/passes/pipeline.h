// Cuts a graph into pipeline stages: whole layers (regions "layers.N"), in equal numbers as far as possible; what comes before
// the layers goes to the first stage, what needs their output to the last. Ops without weights or states that no layer feeds
// (rope tables, slices of the tokens) are in every stage that uses them.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace weft {

struct StageGraph {
  Graph graph;                        // values that come from the stage before are inputs, those for the next one results
  std::vector<std::string> received;  // their names, in the order in which they are sent
  std::vector<std::string> sent;
};

// 0 <= stage < stages. A graph without layers is all in the last stage. `layers`: of the model, where the graph has not all of
// them; 0: the graph's. Errors: more stages than layers; a value that skips a stage.
Result<StageGraph> pipeline_stage(const Graph& graph, int stage, int stages, int64_t layers = 0);

// The layers of one stage: [stage_begin(s), stage_begin(s + 1)).
inline int64_t stage_begin(int64_t stage, int64_t stages, int64_t layers) { return (stage * layers + stages - 1) / stages; }

}  // namespace weft

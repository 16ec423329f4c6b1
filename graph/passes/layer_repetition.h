// Layers that repeat: a graph in which one period of equal layers stands for all of them, and back.
//
// A period is one or more neighbouring layers (regions), as in models whose kinds of layers alternate. Periods are equal when
// their nodes are, their weights and states differ in the layer's name alone ("layers.3.attn.wkv"), and what enters them from
// outside is the same value in all (tables, positions), or what the period before made in the same place (residual streams).
//
// A folded graph is a graph like any other: passes run on it, and expand_layers(pass(folded)) has the nodes of
// pass(graph), if the pass treats equal layers alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace weft {

struct LayerRun {
  std::vector<std::string> regions;              // the period that stands in the folded graph
  std::vector<std::vector<std::string>> copies;  // regions of the periods that it stands for besides, in order
  // What a period takes from the one before, by name: the value that enters the first period, and the one that leaves it.
  std::vector<std::pair<std::string, std::string>> carried;

  int64_t count() const { return 1 + static_cast<int64_t>(copies.size()); }
  bool operator==(const LayerRun&) const = default;
};

struct FoldedGraph {
  Graph graph;
  std::vector<LayerRun> runs;
};

// Finds the runs itself; a graph without equal neighbours is returned as it is, with no runs.
FoldedGraph fold_layers(const Graph& graph);

// Errors: a value of a run that is not there (the pass removed it), that is not named after its layer, or that does not lie at
// the end of a period as it did at its beginning.
Result<Graph> expand_layers(const Graph& folded, const std::vector<LayerRun>& runs);

}  // namespace weft

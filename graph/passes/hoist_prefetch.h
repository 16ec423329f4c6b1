// Starts prefetches early: nodes on the prefetch stream (gathers of weights: graph/passes/shard.h) go to the front of their layer.
//
// Before: such a node stands where its output is used. After: it stands before the first node of its region, with its output live
// from there on, so that it can run while the layer's other nodes are computed: the executor starts it there and waits where the
// output is used, the timeline lets it overlap, the memory plan holds its buffer. Not further ahead: one layer's weights at a time.
// Nodes keep their order otherwise; values, types and results stay. A node that needs what its layer makes stays behind that.
#pragma once

#include "graph/graph.h"

namespace weft {

// verified: as ShardOptions::verified.
Result<Graph> hoist_prefetch(const Graph& graph, bool verified = true);

}  // namespace weft

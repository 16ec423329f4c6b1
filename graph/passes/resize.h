// The graph of a step for other sizes: what a model's builder and the passes make of them, without building it anew. Rows of the step
// and its logits, and the room of caches, change; names, order, placements and all other dimensions stay. A graph whose structure
// depended on a size could not be resized: none does (models and passes look at layouts, not at sizes), and a test compares.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "graph/cache_spec.h"
#include "graph/graph.h"
#include "graph/row_sets.h"

namespace weft {

struct StepRoom {
  std::array<int64_t, kNumRowSets> tokens{};  // most rows of each set, as ShardOptions::capacity
  int64_t logits = 1;
  int64_t num_slots = 1, num_pages = 1;       // as CacheCapacity
};

// What does not change with the sizes, found once.
struct SizeFreeFacts {
  std::vector<CacheKind> caches;  // by value: of states
  // By node: the first one that is equal in all but names, in this and in all other sizes of the graph. It is asked in their place.
  std::vector<int32_t> alike;
};

SizeFreeFacts size_free_facts(const Graph& graph, std::span<const CacheSpec> caches);

// Errors: what an op says of the new sizes; the graph is of no use then.
Status resize(Graph& graph, const StepRoom& room, const SizeFreeFacts& facts);

}  // namespace weft

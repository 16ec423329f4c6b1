// Collectives step by step, for tests: the messages of an algorithm on ports of one direction each, with what every rank holds
// afterwards, so that the time belongs to an algorithm that does the work.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/collective_cost.h"

namespace weft {

struct SimulationResult {
  double seconds = 0;
  bool correct = false;  // every rank ended with what the collective promises
};

// No value: this algorithm does not do that collective. `pieces`: into how many a pipelined message is cut.
std::optional<SimulationResult> simulate_collective(CollectiveKind kind, CollectiveAlgorithm algorithm, int n,
                                                    double bytes, const LinkTerms& link, int pieces);

}  // namespace weft

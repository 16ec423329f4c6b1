// Counts how often each expert was picked, from the values of an engine's steps.
#pragma once

#include <string>
#include <unordered_map>

#include "planner/expert_load.h"

namespace weft {

class PickCounter {
 public:
  // none: what there is to count (no_picks).
  explicit PickCounter(ExpertCounts none);

  // From an observer of the engine's only rank.
  void record(const Value& value, const TensorView& view);

  const ExpertCounts& counts() const { return counts_; }

 private:
  ExpertCounts counts_;
  std::unordered_map<std::string, size_t> place_;  // in counts_, by value
};

}  // namespace weft

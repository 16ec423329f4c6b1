// Graphs of steps that many plans share. Layouts that split a phase in the same way have the same graph in it, and batches that
// differ in the room of their caches have graphs that differ in the first dimension of states alone.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "planner/step_graph.h"

namespace weft {

// The layout in which steps of the phase have the same graph, with all choices that those do not see at their defaults.
Layout phase_layout(const Layout& layout, StepPhase phase);

// The smallest caches with which graphs are the same but for the first dimension of states: StepGraph::cache.
CacheCapacity shared_cache(const Layout& layout, const CacheCapacity& cache);

// Thread-safe.
class StepStore {
 public:
  // most: graphs that are kept, the ones that were asked for last; some 200 KiB each.
  explicit StepStore(size_t most = 256) : most_(most) {}

  // As build_step, but with the caches of shared_cache.
  Result<std::shared_ptr<const StepGraph>> get(const StepSetting& setting, const StepKey& key);

 private:
  struct Entry {
    std::shared_ptr<const StepGraph> step;
    uint64_t used = 0;
  };

  const size_t most_;
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace weft

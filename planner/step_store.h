// Graphs of steps that many plans share. Layouts that split a phase in the same way have the same graph in it, batches
// have graphs that differ in sizes alone: each graph is built once and resized (planner/step_graph.h), and what a size
// needs is remembered.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "planner/step_graph.h"

namespace weft {

// The layout in which steps of the phase have the same graph, with all choices that those do not see at their defaults,
// and no more data-parallel groups than share experts.
Layout phase_layout(const Layout& layout, StepPhase phase);

// A layout whose caches lie as those of this one, for graphs of which nothing else is wanted: many layouts have the
// same.
Layout cache_layout(const Layout& layout);

// The smallest caches with which graphs are the same but for the first dimension of states.
CacheCapacity shared_cache(const Layout& layout, const CacheCapacity& cache);

// What a ledger wants to know of a step of some size.
struct StepMemory {
  StepKey key;
  int64_t arena_bytes = 0;
  ArenaUse fullest;
  std::string peak_op;  // where it is fullest
};

// Counters for tests.
struct StoreCounts {
  int64_t built = 0, resized = 0;  // graphs
};

// Thread-safe. Answers do not depend on what was asked for before.
class StepStore {
 public:
  // most: graphs that are kept while nobody uses them, those that were used last; some 400 KiB each.
  explicit StepStore(size_t most = 96) : most_(most) {}

  // A graph while it is used; back to the store at its end.
  struct GiveBack {
    StepStore* store = nullptr;
    std::string family;
    int64_t periods = 0;
    void operator()(SizedStep* step) const { store->give_back(family, periods, step); }
  };
  using Lease = std::unique_ptr<SizedStep, GiveBack>;

  // As build_step, but with the caches of shared_cache and the layout of phase_layout, and so many periods of equal
  // layers as every size of this step needs that was seen typical; more where this one needs more.
  Result<Lease> get(const StepSetting& setting, const StepKey& key);
  // Its memory.
  Result<StepMemory> memory(const StepSetting& setting, const StepKey& key);
  // The same step in any size, with the fewest layers, which are the same ones for all steps of a stage: for its
  // weights and states.
  Result<Lease> any_size(const StepSetting& setting, const StepKey& key);

  StoreCounts counts() const;

 private:
  // Graphs of all sizes of one step.
  struct Family {
    int64_t periods = 0;                                              // that its typical size needs; 0: not known yet
    std::map<int64_t, std::vector<std::unique_ptr<SizedStep>>> idle;  // by periods
    uint64_t used = 0;
  };

  Result<Lease> lease(const StepSetting& shared, const std::string& family, const StepKey& key, int64_t periods);
  Result<int64_t> typical_periods(const StepSetting& shared, const std::string& family, const StepKey& key);
  void give_back(const std::string& family, int64_t periods, SizedStep* step);
  Result<std::shared_ptr<const Graph>> whole(const StepSetting& shared, GraphKind kind, const GraphOptions& options);

  const size_t most_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Family> families_;
  std::unordered_map<std::string, StepMemory> memory_;
  std::unordered_map<std::string, std::shared_ptr<const Graph>> whole_;
  size_t idle_ = 0;
  uint64_t clock_ = 0;
  StoreCounts counts_;
};

}  // namespace weft

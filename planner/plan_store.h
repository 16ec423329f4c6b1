// What the plans of one search share: graphs of steps, and times of steps that have been costed. All of them must be of the same
// model, device, engine, numeric mode, workload but for batch, phase and chunk, threads, routing.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "planner/plan.h"
#include "planner/step_store.h"

namespace weft {

// Thread-safe.
class PlanStore {
 public:
  struct Times {
    StagePlan stage;  // without ops and events
    bool unverified = false;
  };

  explicit PlanStore(size_t most_graphs = 256) : graphs(most_graphs) {}

  StepStore graphs;

  std::optional<Times> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto at = times_.find(key);
    return at == times_.end() ? std::nullopt : std::optional(at->second);
  }
  void keep(const std::string& key, Times times) {
    const std::lock_guard lock(mutex_);
    if (times_.size() >= kMost) times_.clear();
    times_.emplace(key, std::move(times));
  }

 private:
  static constexpr size_t kMost = 20'000;  // some 1 KiB each

  std::mutex mutex_;
  std::unordered_map<std::string, Times> times_;
};

}  // namespace weft

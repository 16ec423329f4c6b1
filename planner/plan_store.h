// What the plans of one search share: graphs of steps, what stages hold, and times of steps that have been costed. All of them must be
// of the same model, device, engine, numeric mode, workload but for batch, phase and chunk, threads, routing.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "planner/plan.h"
#include "planner/step_store.h"

namespace weft {

// Answers by name. Thread-safe.
template <class T>
class Known {
 public:
  // most: answers that are kept; then it begins anew.
  explicit Known(size_t most) : most_(most) {}

  std::optional<T> find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(name);
    return at == known_.end() ? std::nullopt : std::optional(at->second);
  }
  void keep(const std::string& name, T answer) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= most_) known_.clear();
    known_.emplace(name, std::move(answer));
  }

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, T> known_;
};

// Of the graph of one step on the slowest rank of a stage.
struct StepTimes {
  StagePlan stage;                  // without what the runtime sends besides; kept without ops and events
  std::vector<int64_t> sent_bytes;  // values for the next stage
  FigureMarks unverified = 0;
};

class PlanStore {
 public:
  explicit PlanStore(size_t most_graphs = 96) : graphs(most_graphs) {}

  StepStore graphs;
  Known<std::shared_ptr<const StageHoldings>> holdings{4'000};  // some 4 KiB each
  Known<StepTimes> times{20'000};                               // some 1 KiB each
};

}  // namespace weft

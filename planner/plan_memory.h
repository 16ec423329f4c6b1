// What the ranks of a plan hold, for any number of requests.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "planner/memory_ledger.h"
#include "planner/plan_store.h"
#include "planner/workload.h"

namespace weft {

class MemoryPlanner {
 public:
  // Borrowed. tensors: weights by tensor, not by component. like: by stage, the first one that is the same in all but
  // the numbers of its layers.
  MemoryPlanner(const PlanRequest& request, bool tensors, std::span<const int> like, PlanStore& store)
      : request_(request), tensors_(tensors), like_(like), store_(store) {}

  // By pipeline stage. The setting has the caches of the workload.
  Result<std::vector<RankLedger>> ledgers(const Workload& work, const StepSetting& setting) const;

  // The most requests, in data-parallel groups of equal size, whose plan fits into `capacity` bytes of a device; 0:
  // none. `planned`: ledgers of the request's own batch.
  Result<int64_t> most_requests(int64_t capacity, const StepSetting& setting,
                                std::span<const RankLedger> planned) const;

 private:
  Result<std::shared_ptr<const StageHoldings>> holdings(const Workload& work, const StepSetting& setting,
                                                        int stage) const;
  Result<RankLedger> ledger(const Workload& work, const StepSetting& setting, int stage) const;

  // Bytes by which a device holds too much; they grow with the requests. A unit: one request of every group.
  using Excess = std::function<Result<int64_t>(const Workload&, const StepSetting& sized)>;
  Result<double> excess_of(int64_t units, const Excess& of, const StepSetting& setting) const;
  Result<int64_t> most_units(const Excess& of, const StepSetting& setting, std::span<const RankLedger> planned) const;

  const PlanRequest& request_;
  const bool tensors_;
  const std::span<const int> like_;
  PlanStore& store_;
};

}  // namespace weft

#include "planner/plan_memory.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace weft {

Result<std::vector<RankLedger>> MemoryPlanner::ledgers(const Workload& work, const StepSetting& setting) const {
  std::vector<RankLedger> all;
  for (int stage = 0; stage < setting.layout.mesh.pp; ++stage) {
    if (const int first = like_[static_cast<size_t>(stage)]; first != stage) {
      all.push_back(all[static_cast<size_t>(first)]);
      all.back().stage = stage;
      continue;
    }
    WEFT_ASSIGN_OR_RETURN(all.emplace_back(), ledger(work, setting, stage));
  }
  return all;
}

Result<RankLedger> MemoryPlanner::ledger(const Workload& work, const StepSetting& setting, int stage) const {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const StageHoldings> held, holdings(work, setting, stage));
  std::vector<StepMemory> steps;
  for (StepKey key : work.shapes) {
    key.stage = stage;
    WEFT_ASSIGN_OR_RETURN(steps.emplace_back(), store_.graphs.memory(setting, key));
  }
  return make_ledger(request_, setting, stage, *held, steps);
}

// Weights and caches of all kinds of steps of a stage.
Result<std::shared_ptr<const StageHoldings>> MemoryPlanner::holdings(const Workload& work, const StepSetting& setting,
                                                                     int stage) const {
  std::vector<StepKey> kinds;
  for (const StepKey& shape : work.shapes) {
    const auto same = [&](const StepKey& k) { return k.kind == shape.kind && k.phase == shape.phase; };
    if (std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back({shape.kind, shape.phase, 1, 1, stage, {}});
  }
  const size_t run = kinds.size();
  // Caches of draft layers are there, whether or not drafts are made; they are in the last stage.
  const bool unused =
      request_.drafts == 0 && request_.model->num_draft_layers() > 0 && stage + 1 == setting.layout.mesh.pp;
  if (unused) kinds.push_back({GraphKind::kDraft, StepPhase::kDecode, 1, 1, stage, {}});
  const LedgerDetail detail = tensors_ ? LedgerDetail::kTensors : LedgerDetail::kComponents;
  std::string name = fmt::format("{}|{} {} {} {}", to_string(setting.layout), static_cast<int>(detail), stage,
                                 setting.cache.draft_rows, setting.cache.max_context);
  for (const StepKey& key : kinds)
    name += fmt::format("|{} {}", static_cast<int>(key.kind), static_cast<int>(key.phase));
  if (auto known = store_.holdings.find(name)) return *known;
  std::vector<StepStore::Lease> leases;
  std::vector<const StepGraph*> steps;
  for (size_t k = 0; k < kinds.size(); ++k) {
    StepSetting its = setting;
    if (k >= run) its.layout = cache_layout(setting.layout);
    WEFT_ASSIGN_OR_RETURN(leases.emplace_back(), store_.graphs.any_size(its, kinds[k]));
    steps.push_back(&leases.back()->step());
  }
  const std::span<const StepGraph* const> all(steps);
  auto made = std::make_shared<const StageHoldings>(
      stage_holdings(request_, setting, all.first(run), all.subspan(run), detail));
  store_.holdings.keep(name, made);
  return made;
}

Result<int64_t> MemoryPlanner::most_requests(int64_t capacity, const StepSetting& setting,
                                             std::span<const RankLedger> planned) const {
  const auto fuller = [](const RankLedger& a, const RankLedger& b) { return a.total() < b.total(); };
  const RankLedger& fullest = *std::max_element(planned.begin(), planned.end(), fuller);
  // What does not fit into the stage that is fullest fits nowhere; the others are asked once, for what it takes.
  const Excess in_fullest = [&](const Workload& work, const StepSetting& sized) -> Result<int64_t> {
    WEFT_ASSIGN_OR_RETURN(const RankLedger its, ledger(work, sized, like_[static_cast<size_t>(fullest.stage)]));
    return its.total() * request_.local_ranks - capacity;
  };
  const Excess in_any = [&](const Workload& work, const StepSetting& sized) -> Result<int64_t> {
    WEFT_ASSIGN_OR_RETURN(const std::vector<RankLedger> all, ledgers(work, sized));
    return std::max_element(all.begin(), all.end(), fuller)->total() * request_.local_ranks - capacity;
  };
  WEFT_ASSIGN_OR_RETURN(const int64_t units, most_units(in_fullest, setting, planned));
  if (units == 0 || setting.layout.mesh.pp == 1) return units * setting.layout.mesh.dp;
  WEFT_ASSIGN_OR_RETURN(const double others, excess_of(units, in_any, setting));
  if (others <= 0) return units * setting.layout.mesh.dp;
  WEFT_ASSIGN_OR_RETURN(const int64_t in_all, most_units(in_any, setting, planned));
  return in_all * setting.layout.mesh.dp;
}

Result<double> MemoryPlanner::excess_of(int64_t units, const Excess& of, const StepSetting& setting) const {
  PlanRequest request = request_;
  request.batch = units * setting.layout.mesh.dp;
  const Workload work = make_workload(request);
  StepSetting sized = setting;
  sized.cache = cache_capacity(setting.layout, work.sizes);
  WEFT_ASSIGN_OR_RETURN(const int64_t bytes, of(work, sized));
  return static_cast<double>(bytes);
}

Result<int64_t> MemoryPlanner::most_units(const Excess& of, const StepSetting& setting,
                                          std::span<const RankLedger> planned) const {
  constexpr int64_t kMost = 1 << 20;
  const int64_t unit = setting.layout.mesh.dp;
  const auto excess = [&](int64_t units) { return excess_of(units, of, setting); };
  double per_unit = 1;
  for (const RankLedger& l : planned) {
    per_unit = std::max(per_unit, static_cast<double>(l.cache_bytes_per_request) +
                                      l.cache_bytes_per_token * static_cast<double>(request_.context()));
  }
  per_unit *= request_.local_ranks;
  // `low` fits, `high` does not. First a bracket, by the growth of the caches alone, ...
  int64_t low = 0, high = 0;
  double low_excess = 0, high_excess = 0;
  for (int64_t units = std::max<int64_t>(request_.batch / unit, 1); high == 0 || low == 0;) {
    WEFT_ASSIGN_OR_RETURN(const double found, excess(units));
    if (found <= 0) {
      low = units;
      low_excess = found;
      if (units * unit > kMost - unit) return low;
    } else {
      high = units;
      high_excess = found;
      if (units == 1) return int64_t{0};
    }
    const auto step = std::max<int64_t>(static_cast<int64_t>(std::abs(found) / per_unit) + units / 64, 1);
    units = found <= 0 ? std::min(units + std::min(step, kMost), kMost / unit) : std::max<int64_t>(units - step, 1);
  }
  // ... then in it, where the line between both ends meets the capacity; an end that stays weighs half (Illinois).
  int side = 0;
  while (high - low > 1) {
    const double part = low_excess / (low_excess - high_excess);
    const int64_t units =
        std::clamp(low + static_cast<int64_t>(part * static_cast<double>(high - low)), low + 1, high - 1);
    WEFT_ASSIGN_OR_RETURN(const double found, excess(units));
    if (found <= 0) {
      low = units;
      low_excess = found;
      if (side == 1) high_excess /= 2;
      side = 1;
    } else {
      high = units;
      high_excess = found;
      if (side == -1) low_excess /= 2;
      side = -1;
    }
  }
  return low;
}

}  // namespace weft

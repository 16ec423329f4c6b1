#include "planner/step_store.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace weft {
namespace {

std::string mode_name(const NumericMode& mode) {
  return fmt::format("{} {} {}", dtype_name(mode.dtype), mode.act_quant, static_cast<int>(mode.output_quant));
}

// All that decides the structure of a graph.
std::string family_of(const StepSetting& s, const StepKey& key) {
  const CacheCapacity& c = s.cache;
  return fmt::format("{}|{} {} {}|{} {}|{} {} {}|{} {} {}", to_string(s.layout), static_cast<int>(key.kind),
                     static_cast<int>(key.phase), key.stage, static_cast<const void*>(s.model), mode_name(s.mode),
                     c.page_tokens, c.max_context, c.draft_rows, s.threads, s.expanded, s.canonical_sums);
}

// And its size.
std::string size_of(const StepSetting& s, const StepKey& key) {
  std::string size = fmt::format("|{} {} {} {}", key.tokens, key.logits, s.cache.num_slots, s.cache.num_pages);
  for (const int64_t rows : key.rows_of_set) size += fmt::format(" {}", rows);
  return size;
}

StepSetting shared_setting(const StepSetting& setting, StepPhase phase) {
  StepSetting shared = setting;
  shared.layout = phase_layout(setting.layout, phase);
  shared.cache = shared_cache(setting.layout, setting.cache);
  return shared;
}

// The size with which all graphs are built, and that by which the number of periods is chosen.
struct SomeSize {
  StepSetting setting;
  StepKey key;
};
constexpr int64_t kFewRows = 16, kManyRows = 4096;
SomeSize small_size(const StepSetting& shared, const StepKey& key) {
  SomeSize size{shared, {key.kind, key.phase, kFewRows, kFewRows, key.stage, {}}};
  size.setting.cache.num_slots = size.setting.cache.num_pages = kFewRows;
  return size;
}
SomeSize typical_size(const StepSetting& shared, const StepKey& key) {
  SomeSize size = small_size(shared, key);
  if (key.phase == StepPhase::kPrefill) size.key.tokens = kManyRows, size.key.logits = 1;
  return size;
}

}  // namespace

Layout phase_layout(const Layout& layout, StepPhase phase) {
  Layout same = layout;
  const int own = same.mesh.pcp * same.mesh.tp;
  same.mesh.dp = same.mesh.ep / std::gcd(same.mesh.ep, own);
  const bool owned = layout.split == TokenSplit::kOwned;
  if (phase == StepPhase::kPrefill) {
    if (owned) same.split = TokenSplit::kFlat;
  } else if (!owned && layout.mesh.pcp == 1 && layout.compressor == CompressorChoice::kFull &&
             layout.queries == QueryRows::kLocal) {
    // All ranks compute all rows: nothing is left of how prefill splits them.
    same.split = TokenSplit::kFlat;
    same.attention = AttentionChoice::kHeads;
    same.o_proj = OProjChoice::kSharded;
    same.prefetch = false;
  }
  return same;
}

Layout cache_layout(const Layout& layout) {
  Layout same;
  same.mesh = layout.mesh;
  same.mesh.dp = same.mesh.ep = 1;
  // Which rows a rank writes, and what it needs so that it can be split like that.
  same.attention = layout.attention;
  same.split = layout.split;
  same.o_proj = layout.o_proj;
  same.queries = layout.queries;
  same.compressor = layout.compressor;
  return same;
}

CacheCapacity shared_cache(const Layout& layout, const CacheCapacity& cache) {
  CacheCapacity shared = cache;
  // Other splits and split compressors have room for rows by requests; dcp and owned caches lie in pieces.
  const bool by_rows = layout.split == TokenSplit::kFlat && layout.compressor == CompressorChoice::kFull;
  if (by_rows && layout.mesh.dcp == 1) shared.num_slots = shared.num_pages = 1;
  return shared;
}

Result<std::shared_ptr<const Graph>> StepStore::whole(const StepSetting& shared, GraphKind kind,
                                                      const GraphOptions& options) {
  const CacheCapacity& c = options.cache;
  std::string name =
      fmt::format("{} {}|{} {}|{} {} {} {} {}|{}", static_cast<int>(kind), static_cast<const void*>(shared.model),
                  mode_name(options.mode), options.canonical_sums, c.num_slots, c.num_pages, c.page_tokens,
                  c.max_context, c.draft_rows, options.shape.tokens);
  for (const int64_t layer : options.layers) name += fmt::format(" {}", layer);
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = whole_.find(name); at != whole_.end()) return at->second;
  }
  WEFT_ASSIGN_OR_RETURN(Graph graph,
                        kind == GraphKind::kTrunk ? shared.model->build(options) : shared.model->build_draft(options));
  auto made = std::make_shared<const Graph>(std::move(graph));
  constexpr size_t kMost = 64;
  const std::lock_guard lock(mutex_);
  if (whole_.size() >= kMost) whole_.clear();
  whole_[std::move(name)] = made;
  return made;
}

// The idle graph that was used last, or a new one of small size.
Result<StepStore::Lease> StepStore::lease(const StepSetting& shared, const std::string& family, const StepKey& key,
                                          int64_t periods) {
  {
    const std::lock_guard lock(mutex_);
    Family& members = families_[family];
    members.used = ++clock_;
    std::vector<std::unique_ptr<SizedStep>>& idle = members.idle[periods];
    if (!idle.empty()) {
      const auto wanted =
          std::find_if(idle.begin(), idle.end(), [&](const auto& step) { return step->step().key == key; });
      const auto at = wanted == idle.end() ? idle.end() - 1 : wanted;
      SizedStep* step = at->release();
      idle.erase(at);
      --idle_;
      return Lease(step, {this, family, periods});
    }
    ++counts_.built;
  }
  const SomeSize small = small_size(shared, key);
  const WholeGraph source = [&](GraphKind kind, const GraphOptions& options) { return whole(shared, kind, options); };
  WEFT_ASSIGN_OR_RETURN(SizedStep made, SizedStep::build(small.setting, small.key, periods, source));
  return Lease(std::make_unique<SizedStep>(std::move(made)).release(), {this, family, periods});
}

void StepStore::give_back(const std::string& family, int64_t periods, SizedStep* step) {
  std::unique_ptr<SizedStep> owned(step);
  std::vector<std::unique_ptr<SizedStep>> forgotten;  // freed without the lock
  const std::lock_guard lock(mutex_);
  families_[family].idle[periods].push_back(std::move(owned));
  if (++idle_ <= most_) return;
  // Half of them at once: a search for the oldest is rare.
  std::vector<uint64_t> used;
  for (const auto& [name, members] : families_) {
    for (const auto& [count, idle] : members.idle) used.insert(used.end(), idle.size(), members.used);
  }
  const auto middle = used.begin() + static_cast<std::ptrdiff_t>(used.size() / 2);
  std::nth_element(used.begin(), middle, used.end());
  for (auto& [name, members] : families_) {
    if (members.used > *middle) continue;
    for (auto& [count, idle] : members.idle) {
      idle_ -= idle.size();
      std::move(idle.begin(), idle.end(), std::back_inserter(forgotten));
      idle.clear();
    }
  }
}

Result<int64_t> StepStore::typical_periods(const StepSetting& shared, const std::string& family, const StepKey& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = families_.find(family); at != families_.end() && at->second.periods > 0)
      return at->second.periods;
  }
  const SomeSize typical = typical_size(shared, key);
  for (int64_t periods = SizedStep::kFewestPeriods;; ++periods) {
    WEFT_ASSIGN_OR_RETURN(const Lease step, lease(shared, family, typical.key, periods));
    WEFT_RETURN_IF_ERROR(step->resize(typical.setting, typical.key));
    if (!step->settled()) continue;
    const std::lock_guard lock(mutex_);
    families_[family].periods = periods;
    return periods;
  }
}

Result<StepStore::Lease> StepStore::get(const StepSetting& setting, const StepKey& key) {
  const StepSetting shared = shared_setting(setting, key.phase);
  const std::string family = family_of(shared, key);
  WEFT_ASSIGN_OR_RETURN(const int64_t typical, typical_periods(shared, family, key));
  for (int64_t periods = typical;; ++periods) {
    WEFT_ASSIGN_OR_RETURN(Lease step, lease(shared, family, key, periods));
    {
      const std::lock_guard lock(mutex_);
      ++counts_.resized;
    }
    WEFT_RETURN_IF_ERROR(step->resize(shared, key));
    if (step->settled()) return step;
  }
}

Result<StepMemory> StepStore::memory(const StepSetting& setting, const StepKey& key) {
  const StepSetting shared = shared_setting(setting, key.phase);
  const std::string name = family_of(shared, key) + size_of(shared, key);
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = memory_.find(name); at != memory_.end()) return at->second;
  }
  WEFT_ASSIGN_OR_RETURN(const Lease lease, get(setting, key));
  const MemoryPlan& plan = lease->step().memory;
  StepMemory made{key, plan.arena_bytes, plan.fullest, lease->peak_op()};
  const std::lock_guard lock(mutex_);
  constexpr size_t kMost = 50'000;  // some 300 bytes each
  if (memory_.size() >= kMost) memory_.clear();
  return memory_.emplace(name, std::move(made)).first->second;
}

Result<StepStore::Lease> StepStore::any_size(const StepSetting& setting, const StepKey& key) {
  const StepSetting shared = shared_setting(setting, key.phase);
  return lease(shared, family_of(shared, key), key, SizedStep::kFewestPeriods);
}

StoreCounts StepStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace weft

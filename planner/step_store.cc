#include "planner/step_store.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft {
namespace {

std::string name_of(const StepSetting& s, const StepKey& key) {
  const CacheCapacity& c = s.cache;
  std::string name = fmt::format("{}|{} {} {} {} {}|{} {} {}|{} {} {} {} {}|{} {} {}", to_string(s.layout), static_cast<int>(key.kind),
                                 static_cast<int>(key.phase), key.tokens, key.logits, key.stage, static_cast<const void*>(s.model),
                                 static_cast<int>(s.mode.dtype), 2 * static_cast<int>(s.mode.output_quant) + s.mode.act_quant, c.num_slots, c.num_pages, c.page_tokens, c.max_context, c.draft_rows,
                                 s.threads, s.expanded, s.canonical_sums);
  for (const int64_t rows : key.rows_of_set) name += fmt::format(" {}", rows);
  return name;
}

}  // namespace

Layout phase_layout(const Layout& layout, StepPhase phase) {
  Layout same = layout;
  const bool owned = layout.split == TokenSplit::kOwned;
  if (phase == StepPhase::kPrefill) {
    if (owned) same.split = TokenSplit::kFlat;
  } else if (!owned && layout.mesh.pcp == 1 && layout.compressor == CompressorChoice::kFull && layout.queries == QueryRows::kLocal) {
    // All ranks compute all rows: nothing is left of how prefill splits them.
    same.split = TokenSplit::kFlat;
    same.attention = AttentionChoice::kHeads;
    same.o_proj = OProjChoice::kSharded;
    same.prefetch = false;
  }
  return same;
}

CacheCapacity shared_cache(const Layout& layout, const CacheCapacity& cache) {
  CacheCapacity shared = cache;
  // Other splits and split compressors have room for rows by requests; dcp and owned caches lie in pieces.
  const bool by_rows = layout.split == TokenSplit::kFlat && layout.compressor == CompressorChoice::kFull;
  if (by_rows && layout.mesh.dcp == 1) shared.num_slots = shared.num_pages = 1;
  return shared;
}

Result<std::shared_ptr<const StepGraph>> StepStore::get(const StepSetting& setting, const StepKey& key) {
  StepSetting shared = setting;
  shared.layout = phase_layout(setting.layout, key.phase);
  shared.cache = shared_cache(setting.layout, setting.cache);
  const std::string name = name_of(shared, key);
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = entries_.find(name); at != entries_.end()) {
      at->second.used = ++clock_;
      return at->second.step;
    }
  }
  // Two threads may build the same graph: they are equal.
  WEFT_ASSIGN_OR_RETURN(StepGraph made, build_step(shared, key));
  auto step = std::make_shared<const StepGraph>(std::move(made));
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= most_) {
    // Half of them at once: a search for the oldest is rare.
    std::vector<uint64_t> used;
    for (const auto& [text, entry] : entries_) used.push_back(entry.used);
    const auto middle = used.begin() + static_cast<std::ptrdiff_t>(used.size() / 2);
    std::nth_element(used.begin(), middle, used.end());
    std::erase_if(entries_, [&](const auto& entry) { return entry.second.used < *middle; });
  }
  entries_[name] = {step, ++clock_};
  return step;
}

}  // namespace weft

// Where the bytes of a rank go: every persistent line with its reason, and the fullest moment of its steps.
// The sums equal what the executor maps, reserves and allocates, byte for byte (engine profile `weft`).
#pragma once

#include <string>
#include <vector>

#include "graph/memory_plan.h"
#include "planner/plan_request.h"
#include "planner/step_store.h"

namespace weft {

enum class LedgerCategory {
  kWeights,
  kScales,
  kDerived,
  kEngineCopies,
  kCaches,
  kActivations,
  kCommunication,
  kScratch,
  kPadding,
  kReserve
};
inline constexpr int kNumLedgerCategories = 10;
std::string_view ledger_category_name(LedgerCategory category);  // "weights", "scales", ...

struct LedgerLine {
  LedgerCategory category = LedgerCategory::kWeights;
  std::string what;     // component of weights, kind of cache: "routed experts", "compressed"
  std::string tensor;   // of weights, without its layer: "mlp.experts.up_proj"; lines by component have none
  std::string storage;  // dtype; empty where mixed
  int64_t bytes = 0;    // of one rank
  int64_t tensors = 0;
  int64_t copies = 1;  // ranks of its stage that hold the same bytes
  std::string reason;  // why there are copies, or which rule of the engine profile made the line
  bool unverified = false;

  // Of `bytes`, what is there because other ranks hold the same: bytes * (copies - 1) / copies.
  int64_t replicated_bytes() const { return bytes - bytes / copies; }
  bool operator==(const LedgerLine&) const = default;
};

// One rank of a pipeline stage; all ranks of a stage have the same sizes.
struct RankLedger {
  int stage = 0;
  int64_t ranks = 1;              // of the stage
  std::vector<LedgerLine> lines;  // by category, then largest first
  int64_t weight_bytes =
      0;  // weights, scales and derived: MemoryUse::weight_file_bytes + derived_weight_bytes and derived_weight_bytes
  int64_t cache_bytes = 0;              // MemoryUse::cache_bytes
  int64_t arena_bytes = 0;              // MemoryUse::arena_bytes
  ArenaUse arena;                       // MemoryUse::arena
  int64_t reserve_bytes = 0;            // engine's reserves and the request's
  int64_t engine_bytes = 0;             // copies and changes of the engine profile (may be negative)
  int64_t cache_bytes_per_request = 0;  // whatever its length
  double cache_bytes_per_token = 0;     // of one request, behind that
  std::string peak_op, peak_step;       // node at which the arena is fullest, and the step that it belongs to

  int64_t total() const { return weight_bytes + engine_bytes + cache_bytes + arena_bytes + reserve_bytes; }
  int64_t of(LedgerCategory category) const;
  // What stays while the engine runs: weights with their scales, derived weights and copies, and reserves.
  int64_t static_bytes() const { return weight_bytes + engine_bytes + reserve_bytes; }
};

enum class LedgerDetail {
  kComponents,
  kTensors
};  // lines of weights: one for each component, or for each tensor of it

// The same bytes in fewer lines: without tensors.
std::vector<LedgerLine> by_component(const std::vector<LedgerLine>& lines);

// What a rank of a stage holds whatever its steps' sizes: weights, and what caches need for a request and for a page.
struct StageHoldings {
  struct Cache {
    LedgerLine line;  // bytes: for one slot or page
    bool pages = false;
  };
  std::vector<LedgerLine> weights;
  std::vector<Cache> caches;
  int64_t weight_bytes = 0, engine_bytes = 0;
};

// steps: one graph of every kind of step that the stage runs, of any size. unused: graphs whose caches are reserved, but which are not run.
// Of the layout, the engine and the model in `setting` and `request`, not of its caches.
StageHoldings stage_holdings(const PlanRequest& request, const StepSetting& setting,
                             std::span<const StepGraph* const> steps, std::span<const StepGraph* const> unused = {},
                             LedgerDetail detail = LedgerDetail::kTensors);

// The ledger of one stage with the caches of `setting`, from the memory of all steps that it runs.
RankLedger make_ledger(const PlanRequest& request, const StepSetting& setting, int stage, const StageHoldings& holdings,
                       std::span<const StepMemory> steps);

}  // namespace weft

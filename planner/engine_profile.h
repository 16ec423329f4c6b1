// What another engine does with the same model and layout: devices/engines/*.json (docs/devices.md has the schema).
//
// The planner builds weft's graph and ledger; an engine profile is a list of rules that change lines of that ledger. Exact bytes
// are promised for `weft` alone, whose profile has no rules.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/weight_split.h"
#include "planner/device_profile.h"
#include "sharding/layout.h"

namespace weft {

// When a rule holds.
enum class RuleCondition { kAlways, kDsaCp, kNoDsaCp, kSequenceParallel, kMtp };
enum class Lifetime { kPersistent, kLoad, kStep };

// One rule about weights: which, when, and what changes. Rules are applied in order; several may match a weight.
struct WeightRule {
  std::string name;                    // of the ledger's line: "W_UK and W_UV beside kv_b"
  std::string source;
  bool verified = true;
  RuleCondition when = RuleCondition::kAlways;
  std::vector<std::string> patterns;   // of weight value names, `*` stands for any text; empty: all
  std::optional<WeightSplit> split;    // only weights of this kind

  enum class Effect {
    kReplicate,  // whole on every rank, whatever the layout says
    kShard,      // over tp along its dimension, although weft keeps it whole
    kStoreAs,    // held as `dtype`, without scales unless scales are of that dtype
    kExtraCopy,  // besides what is there: `factor` of its elements in `dtype`
    kOmit,       // not counted
    kOverhead,   // bytes_per_output per output row: scales, offsets, bias corrections
  };
  Effect effect = Effect::kExtraCopy;
  std::optional<DType> dtype;
  double factor = 1;                   // kExtraCopy
  double bytes_per_output = 0;         // kOverhead
  Lifetime lifetime = Lifetime::kPersistent;
};

// Bytes that no tensor explains: communication buffers, device context.
struct ReserveRule {
  std::string name, source;
  bool verified = true;
  double bytes = 0;
  bool per_communicator = false;       // times the groups of more than one rank
};

struct EngineProfile {
  std::string name, description;
  std::vector<WeightRule> weights;
  std::vector<ReserveRule> reserves;

  // Collectives: dtype in which sums and gathers travel. nullopt: as the graph says (weft: fp32 partials).
  std::optional<DType> reduce_dtype, gather_dtype;
  // Padding of counts, 1: none.
  int64_t token_multiple_of_tp = 0;    // 1: rows of a step are padded to a multiple of tp
  int64_t vocabulary_multiple = 1;     // times tp
  bool counts_mtp = true;              // draft layers are in its published totals
  bool counts_caches_per_rank = true;
  // Layouts that only this engine accepts: canonical-tree rules of weft's executor are not checked.
  bool executor_limits = true;
};

Result<EngineProfile> parse_engine_profile(std::string_view text, std::string_view where);
Result<EngineProfile> load_engine_profile(std::string_view name_or_path, const std::vector<std::filesystem::path>& folders);
std::vector<std::string> engine_profile_names(const std::vector<std::filesystem::path>& folders);

// Whether the rule speaks about this weight in this layout.
bool applies(const WeightRule& rule, std::string_view weight, WeightSplit split, const Layout& layout);

}  // namespace weft

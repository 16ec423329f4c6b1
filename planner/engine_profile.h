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
#include "graph/op.h"
#include "models/weight_split.h"
#include "planner/device_profile.h"
#include "sharding/layout.h"
#include "tensor/tensor.h"

namespace weft {

// When a rule holds.
enum class RuleCondition { kAlways, kDsaCp, kNoDsaCp, kSequenceParallel };
// How long the bytes of a rule are there.
enum class Lifetime {
  kPersistent,
  kLoad,  // while weights are loaded and processed
  kStep,  // while a step runs, of one layer at a time
};
std::string_view lifetime_name(Lifetime lifetime);  // "persistent", "load", "step"

enum class WeightEffect {
  kReplicate,   // whole on every rank, whatever the layout says
  kShard,       // over tp, although weft keeps it whole
  kStoreAs,     // held as `dtype`; no scales then
  kOmitScales,  // scales are not counted
  kOmit,        // nothing of it is counted
  kExtraCopy,   // besides what is there: `factor` of the elements of a rank, as `dtype`
  kOverhead,    // besides: bytes for every output and every input of the rank's part
};

// One rule about weights: which, when, and what changes. Rules are applied in order; several may match a weight.
struct WeightRule {
  std::string name;  // of the ledger's line: "W_UK and W_UV beside kv_b"
  std::string source;
  bool verified = true;
  RuleCondition when = RuleCondition::kAlways;
  std::vector<std::string> patterns;  // of names in the weights table, `*` stands for any text; empty: all
  std::optional<WeightSplit> split;   // only weights of this kind
  std::optional<DType> stored;        // only weights that the checkpoint stores so
  WeightEffect effect = WeightEffect::kExtraCopy;
  std::optional<DType> dtype;                        // kStoreAs, kExtraCopy
  double factor = 1;                                 // kExtraCopy
  double bytes_per_output = 0, bytes_per_input = 0;  // kOverhead
  Lifetime lifetime = Lifetime::kPersistent;         // kExtraCopy
};

// Bytes of every rank that no weight explains: communication buffers, device context, tables of positions.
struct ReserveRule {
  std::string name, source;
  bool verified = true;
  double bytes = 0;
  double bytes_per_communicator = 0;  // times the groups of more than one rank that a rank is in
  double bytes_per_position = 0;      // times max_position_embeddings
};

struct EngineProfile {
  std::string name, description;
  bool exact = false;  // the ledger is this engine's own: `weft`
  std::vector<WeightRule> weights;
  std::vector<ReserveRule> reserves;

  // Dtypes in which sums and gathered rows travel; none: as the graph says (weft: fp32 partials, rows as they are).
  std::optional<DType> reduce_dtype, gather_dtype;
  bool executor_limits = true;  // false: layouts that weft's executor refuses are fine
  bool shares_logits =
      true;  // every rank gets the logits of all stages and data-parallel groups; false: they are sampled where they are
  // Attention over split tokens is no choice of its own: it comes with sequence_parallel on models that have DSA, in the form of
  // queries=full (planner/engine_layout.h).
  bool dsa_cp_with_sequence_parallel = false;
  std::vector<std::string> leaves_out;  // what its published figures do not hold, for readers
  std::vector<std::string> unverified;  // names of rules that nobody verified
};

Result<EngineProfile> parse_engine_profile(std::string_view text, std::string_view where);
Result<EngineProfile> load_engine_profile(std::string_view name_or_path,
                                          const std::vector<std::filesystem::path>& folders);
std::vector<std::string> engine_profile_names(const std::vector<std::filesystem::path>& folders);

// A value of a weight as weft's rank holds it; scales and offsets are values of their own.
struct HeldWeight {
  std::string_view name;  // of the weight; of a scale the name of its weight, or with the scale's own suffix
  WeightSplit split = WeightSplit::kWhole;
  bool is_scale = false;
  DType dtype = DType::kF32;
  int64_t elements = 0;  // of this rank
  int64_t inputs = 1;    // ... for each output
  int64_t pieces = 1;    // parts that the layout cuts it into
  bool over_tp = false;  // ... along tp, among others
};

// What a rank of the engine holds of it. Rules point into the profile.
struct EngineWeight {
  struct Line {
    const WeightRule* rule = nullptr;
    int64_t bytes = 0;
    Lifetime lifetime = Lifetime::kPersistent;
  };
  DType dtype = DType::kF32;
  int64_t elements = 0, pieces = 1;
  bool omitted = false;
  std::vector<const WeightRule*> changed_by = {};
  std::vector<Line> extra = {};  // copies and overhead
  bool unverified = false;

  int64_t bytes() const { return omitted ? 0 : TensorType{dtype, {elements}}.bytes(); }
};
EngineWeight engine_weight(const EngineProfile& engine, const HeldWeight& weight, const Layout& layout);

// What a collective of weft that sends `bytes` sends in the engine's dtypes.
int64_t sent_bytes_of(const EngineProfile& engine, const Op& op, TypeSpan in, TypeSpan out, int64_t bytes);

int64_t reserve_bytes(const ReserveRule& rule, int64_t communicators, int64_t max_positions);

// `*` in a pattern stands for any text.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace weft

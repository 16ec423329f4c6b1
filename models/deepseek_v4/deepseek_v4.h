// DeepSeek-V4: the model family behind the common interface.
#pragma once

#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/weights.h"
#include "models/model.h"

namespace weft::deepseek_v4 {

// Per-request state of every layer, MTP layers after the trunk (deepseek_v4.md 3.1):
//   window      kRing   A, head_dim                  last sliding_window - 1 positions
//   state       kRing   F32, 2 * compressor width    raw k | s of the unfinished groups (CSA: two groups)
//   compressed  kAppend A, head_dim                  one entry per 4 or 128 tokens
//   index_state, index_keys: the same for the indexer of CSA layers
std::vector<CacheSpec> cache_specs(const Config& config, const NumericMode& mode, const CacheCapacity& capacity);

// The trunk (results: logits, and hidden when the model has draft layers) and the NextN draft layer `mtp.0`.
// `weights`: the table of the model's storage; it gives the types of the weight values.
Result<Graph> build_trunk(const Config& config, std::span<const Weight> weights, const GraphOptions& options, bool with_hidden);
Result<Graph> build_nextn(const Config& config, std::span<const Weight> weights, const GraphOptions& options);

// Name in the graph of a weight and of its scale.
inline std::string scale_value_name(std::string_view weight) { return std::string(weight) + ".scale"; }

// The contract of the family (models/model.h).
Status check_layout(const Config& config, const Layout& layout);

Result<std::unique_ptr<Model>> open(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options);

}  // namespace weft::deepseek_v4

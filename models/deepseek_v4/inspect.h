// What a DeepSeek-V4 folder holds, told to people; and the names of an index without its shards.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "models/deepseek_v4/weights.h"
#include "models/model_summary.h"

namespace weft::deepseek_v4 {

// `weights`: the table as the files have it, or as the config announces it. `bound`: null without weight files.
ModelSummary summarise(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> weights,
                       const Storage& storage, const BoundWeights* bound);

// Contents::kNames: the table of `storage`, without the MTP part if a Transformers export left it out. An error lists
// the names that are missing and those that no weight has.
Result<std::vector<Weight>> match_names(const Config& config, const Checkpoint& checkpoint, const Storage& storage);

// Contents::kNames: the index gives the total size, which tells FP4 from FP8 experts where config.json does not.
Storage storage_of_index(const Config& config, const Checkpoint& checkpoint);

}  // namespace weft::deepseek_v4

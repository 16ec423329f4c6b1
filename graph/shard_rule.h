// Which dimensions of an op may be split over ranks, and what that does to its outputs, written with one letter per dimension:
//
//   linear      {"tk", "nk"} -> {"tn"}, split "tnk", partial "k"
//   rms_norm    {"tw", "w"}  -> {"tw"}, split "t"
//
// A letter of `split` that is sharded in one input must be sharded alike in every input that has it; outputs that have it are
// sharded there. A letter of `partial` occurs in no output: sharding it makes the outputs Partial. Any other sharding, and any
// Partial input of an op without `linear`, is an error.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "graph/value_type.h"

namespace weft {

struct ShardRule {
  std::vector<std::string> in, out;  // one letter per dimension; "" = do not look at this value
  std::string split;
  std::string partial;
  bool linear = false;               // the op may take Partial inputs (all its inputs Partial) and gives Partial outputs
};

// Placements of the outputs; the error names the op's input and the mesh axis.
Result<std::vector<Placements>> apply_shard_rule(const ShardRule& rule, TypeSpan inputs);

}  // namespace weft

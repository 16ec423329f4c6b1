#include "graph/shard_rule.h"

#include <fmt/format.h>

namespace weft {
namespace {

bool contains(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

}  // namespace

Result<std::vector<Placements>> apply_shard_rule(const ShardRule& rule, TypeSpan inputs) {
  std::vector<Placements> outputs(rule.out.size());
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    const auto axis_name = mesh_axis_name(static_cast<MeshAxis>(axis));
    char letter = 0;       // the dimension that this axis splits
    int num_partial = 0, num_looked_at = 0;
    for (size_t i = 0; i < inputs.size() && i < rule.in.size(); ++i) {
      const Placement& p = inputs[i].placement[axis];
      if (rule.in[i].empty()) continue;
      ++num_looked_at;
      if (p.kind == Placement::Kind::kPartial) {
        if (!rule.linear) {
          return invalid_argument(fmt::format("input {} is a partial sum on axis {}; it must be reduced first", i, axis_name));
        }
        ++num_partial;
      }
      if (p.kind != Placement::Kind::kSharded) continue;
      const char here = p.dim < static_cast<int>(rule.in[i].size()) ? rule.in[i][p.dim] : '?';
      if (!contains(rule.split, here)) {
        return invalid_argument(fmt::format("input {} is sharded on dimension {} over axis {}, which this op needs whole", i,
                                            p.dim, axis_name));
      }
      if (letter != 0 && letter != here) {
        return invalid_argument(fmt::format("axis {} splits dimension {} of input {} but another one elsewhere", axis_name,
                                            p.dim, i));
      }
      letter = here;
    }
    if (num_partial != 0 && (num_partial != num_looked_at || letter != 0)) {
      return invalid_argument(fmt::format("partial sums on axis {} are mixed with whole values", axis_name));
    }
    if (letter != 0) {  // every input that has the dimension must be split there
      for (size_t i = 0; i < inputs.size() && i < rule.in.size(); ++i) {
        if (contains(rule.in[i], letter) && inputs[i].placement[axis].kind != Placement::Kind::kSharded) {
          return invalid_argument(fmt::format("axis {} splits other inputs but not input {}: {}", axis_name, i,
                                              to_string(inputs[i])));
        }
      }
    }
    for (size_t o = 0; o < rule.out.size(); ++o) {
      Placement& p = outputs[o][axis];
      const size_t dim = letter != 0 ? rule.out[o].find(letter) : std::string::npos;
      if (dim != std::string::npos) {
        p = Placement::sharded(static_cast<int>(dim));
      } else if (num_partial != 0 || (letter != 0 && contains(rule.partial, letter))) {
        p = Placement::partial();
      }
    }
  }
  return outputs;
}

}  // namespace weft

#include "sharding/placement.h"

#include <fmt/format.h>

namespace weft {

std::string_view mesh_axis_name(MeshAxis axis) {
  constexpr std::string_view kNames[kNumMeshAxes] = {"dp", "pp", "pcp", "tp", "dcp", "ep"};
  return kNames[static_cast<int>(axis)];
}

std::string to_string(const Placements& placements) {
  std::string text;
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    const Placement& p = placements[axis];
    const auto name = mesh_axis_name(static_cast<MeshAxis>(axis));
    if (p.kind == Placement::Kind::kSharded) text += fmt::format(" {}:shard({})", name, p.dim);
    if (p.kind == Placement::Kind::kPartial) text += fmt::format(" {}:partial", name);
  }
  return text;
}

}  // namespace weft

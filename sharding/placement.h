// How one value lies over the ranks: one entry per mesh axis.
//
//   Replicated    every rank of the axis holds the whole value
//   Sharded(dim)  rank i of n holds the i-th of n equal parts of dimension `dim`; the token dimension may be shorter on the last
//   Partial       every rank holds an fp32 summand; the value is their sum
//
// Values carry local shapes: those of what one rank holds.
#pragma once

#include <array>
#include <string>

namespace weft {

enum class MeshAxis { kDp, kPp, kPcp, kTp, kDcp, kEp };
inline constexpr int kNumMeshAxes = 6;

std::string_view mesh_axis_name(MeshAxis axis);  // "dp", "pp", "pcp", "tp", "dcp", "ep"

struct Placement {
  enum class Kind { kReplicated, kSharded, kPartial };
  Kind kind = Kind::kReplicated;
  int dim = 0;  // kSharded only

  static Placement replicated() { return {}; }
  static Placement sharded(int dim) { return {Kind::kSharded, dim}; }
  static Placement partial() { return {Kind::kPartial, 0}; }
  bool operator==(const Placement&) const = default;
};

using Placements = std::array<Placement, kNumMeshAxes>;

// "" when replicated on all axes, else e.g. " tp:shard(1) pcp:shard(0) tp:partial"
inline Placement& on(Placements& placements, MeshAxis axis) { return placements[static_cast<size_t>(axis)]; }
inline const Placement& on(const Placements& placements, MeshAxis axis) { return placements[static_cast<size_t>(axis)]; }

std::string to_string(const Placements& placements);

}  // namespace weft

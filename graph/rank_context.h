// What the ops of one rank know of the others: its place in the mesh and an endpoint of its group along each axis.
#pragma once

#include <array>

#include "comm/communicator.h"
#include "sharding/mesh.h"

namespace weft {

struct RankContext {
  int rank = 0;                                      // in the world
  std::array<int, kNumMeshAxes> index{};             // place in the group along each axis
  std::array<int, kNumMeshAxes> size{1, 1, 1, 1, 1, 1};
  std::array<Communicator*, kNumMeshAxes> group{};   // null where the size is 1; borrowed

  int index_of(MeshAxis axis) const { return index[static_cast<int>(axis)]; }
  int size_of(MeshAxis axis) const { return size[static_cast<int>(axis)]; }
  Communicator* group_of(MeshAxis axis) const { return group[static_cast<int>(axis)]; }
};

}  // namespace weft

// What the ops between ranks share.
#pragma once

#include <numeric>
#include <vector>

#include "graph/op_spec.h"

namespace weft {

inline Status expect_group(std::string_view op, int64_t size) { return expect_range(op, "size of the group", size, 2, 1 << 20); }

inline Communicator& group_of(const RunContext& ctx, MeshAxis axis, int64_t size) {
  WEFT_CHECK(ctx.ranks != nullptr && ctx.ranks->size_of(axis) == size && ctx.ranks->group_of(axis) != nullptr,
             "{}: a group of {} ranks along {} is not there", ctx.name, size, mesh_axis_name(axis));
  return *ctx.ranks->group_of(axis);
}

// How an op between ranks travels.
inline void travels(Work& work, CommPattern pattern, MeshAxis axis, int64_t size, int64_t calls = 1) {
  work.pattern = pattern;
  work.axis = axis;
  work.group_size = size;
  work.calls = calls;
}

// First place of each rank's rows when they stand rank after rank.
inline std::vector<int64_t> first_places(const std::vector<int64_t>& counts) {
  std::vector<int64_t> first(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), int64_t{0});
  return first;
}

}  // namespace weft

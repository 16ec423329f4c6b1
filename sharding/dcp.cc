#include "sharding/dcp.h"

#include <algorithm>

namespace weft {

int64_t DcpShard::local_length(int64_t length, int rank) const {
  const int64_t base = length / interleave / ranks * interleave;
  return base + std::clamp<int64_t>(length - base * ranks - rank * interleave, 0, interleave);
}

std::vector<int64_t> localize_slots(const DcpShard& shard, int rank, std::span<const int64_t> slots) {
  std::vector<int64_t> local;
  local.reserve(slots.size());
  for (int64_t slot : slots) {
    local.push_back(slot >= 0 && shard.owner(slot) == rank ? shard.local_row(slot) : -1);
  }
  return local;
}

LocalSelection localize_selection(const DcpShard& shard, int rank, std::span<const int32_t> selected) {
  LocalSelection local;
  local.rows.assign(selected.size(), -1);
  for (int32_t row : selected) {
    if (row < 0 || shard.owner(row) != rank) continue;
    local.rows[local.valid++] = static_cast<int32_t>(shard.local_row(row));
  }
  return local;
}

}  // namespace weft

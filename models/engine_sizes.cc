#include "models/engine_sizes.h"

#include <algorithm>
#include <bit>

#include "base/int_math.h"
#include "comm/bytes.h"

namespace weft {

CacheCapacity cache_capacity(const Layout& layout, const EngineSizes& sizes) {
  CacheCapacity capacity;
  capacity.num_slots = ceil_div(sizes.max_sequences, static_cast<int64_t>(layout.mesh.dp));
  capacity.max_context = sizes.max_context;
  capacity.draft_rows = sizes.max_drafts;
  // Ranks that hold the entries of a page in turn each have as many of them as one rank has of a page of its own.
  capacity.page_tokens *= layout.mesh.dcp;
  // The sequences of one data-parallel group; every one may leave its last page unfilled.
  const int64_t tokens = std::min(sizes.total_context, capacity.num_slots * sizes.max_context);
  capacity.num_pages = ceil_div(tokens, capacity.page_tokens) + (capacity.num_slots - 1);
  return capacity;
}

int64_t row_capacity(int64_t rows, int64_t largest) {
  return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1)))), largest);
}

int64_t micro_batches(const Layout& layout, GraphKind kind, StepPhase phase, int64_t rows) {
  const int64_t stages = layout.mesh.pp;
  return stages == 1 || kind == GraphKind::kDraft || phase == StepPhase::kDecode ? 1 : std::min(stages, rows);
}

SentBytes logit_bytes(const Layout& layout, int64_t stage, int64_t own_rows, int64_t vocab_size) {
  const MeshSizes& mesh = layout.mesh;
  const int64_t row = vocab_size * static_cast<int64_t>(sizeof(float));
  SentBytes bytes{};
  if (mesh.pp > 1) bytes[static_cast<size_t>(MeshAxis::kPp)] = broadcast_bytes(mesh.pp, stage, mesh.pp - 1, own_rows * row);
  if (mesh.dp > 1) bytes[static_cast<size_t>(MeshAxis::kDp)] = all_gather_v_bytes(mesh.dp, own_rows, row);
  return bytes;
}

}  // namespace weft

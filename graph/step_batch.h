// What one step computes: rows of several requests, flattened. Plain data; the same for every node of the graph.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sharding/segment.h"

namespace weft {

// The segment in which a row lies; segments ascend by row0, without gaps.
inline const Segment& segment_of_row(std::span<const Segment> segments, int64_t row) {
  auto after = std::upper_bound(segments.begin(), segments.end(), row, [](int64_t r, const Segment& s) { return r < s.row0; });
  return *(after - 1);
}

struct StepBatch {
  std::vector<Segment> segments;      // ascending row0, gapless from row 0; at most one per request
  std::vector<int32_t> tokens;        // [num_tokens]
  std::vector<int32_t> positions;     // [num_tokens]
  std::vector<int32_t> logit_rows;    // rows whose logits are wanted, ascending
  std::span<const std::vector<int32_t>> pages;  // by request slot: block table of the kAppend caches; borrowed

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

}  // namespace weft

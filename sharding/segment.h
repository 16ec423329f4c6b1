// A run of consecutive query rows of one request: what every token split of a batch comes down to. Rows are counted in
// the batch, or among a rank's own rows where values hold local tokens.
#pragma once

#include <cstdint>

namespace weft {

struct Segment {
  int32_t request = 0;  // slot of the request in the caches
  int64_t row0 = 0;     // first row
  int64_t len = 0;      // rows
  int64_t kv_end = 0;   // position just past the last row: row j is at position kv_end - len + j

  int64_t first_position() const { return kv_end - len; }
  bool operator==(const Segment&) const = default;
};

}  // namespace weft

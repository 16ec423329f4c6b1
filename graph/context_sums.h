// Sums over the rows of segments of what each row sees of its context, in closed form: row at position p sees p + 1 positions.
#pragma once

#include <cstdint>
#include <span>

#include "sharding/segment.h"

namespace weft {

struct ContextSums {
  int64_t seen = 0;      // sum over rows
  int64_t distinct = 0;  // without those that an earlier row of the same segment sees
  int64_t rows = 0;      // rows that are counted
};

// The last min(p + 1, window) positions.
ContextSums window_sums(std::span<const Segment> segments, int64_t window);

// The first floor((p + 1) / ratio) entries, of which a row picks at most `at_most`; distinct: no more than were picked or exist.
ContextSums entry_sums(std::span<const Segment> segments, int64_t ratio, int64_t at_most);

// The same entries, all of them, of the rows that see more than `threshold`.
ContextSums entry_sums_above(std::span<const Segment> segments, int64_t ratio, int64_t threshold);

}  // namespace weft

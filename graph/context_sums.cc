#include "graph/context_sums.h"

#include <algorithm>

namespace weft {
namespace {

// sum of floor(x / ratio), x = 0 .. n - 1
int64_t floor_sum(int64_t n, int64_t ratio) {
  const int64_t q = n / ratio, r = n % ratio;
  return ratio * (q * (q - 1) / 2) + q * r;
}

// The same for x = begin .. end - 1.
int64_t floor_sum(int64_t begin, int64_t end, int64_t ratio) { return floor_sum(end, ratio) - floor_sum(begin, ratio); }

}  // namespace

ContextSums window_sums(std::span<const Segment> segments, int64_t window) {
  ContextSums sums;
  for (const Segment& s : segments) {
    if (s.len == 0) continue;
    // Rows whose windows are not full yet see p + 1 = first + 1 .. .
    const int64_t first = s.first_position(), growing = std::clamp<int64_t>(window - first, 0, s.len);
    sums.seen += growing * first + growing * (growing + 1) / 2 + (s.len - growing) * window;
    sums.distinct += std::min(s.kv_end, s.len + window - 1);
    sums.rows += s.len;
  }
  return sums;
}

ContextSums entry_sums(std::span<const Segment> segments, int64_t ratio, int64_t at_most) {
  ContextSums sums;
  for (const Segment& s : segments) {
    if (s.len == 0) continue;
    // x = p + 1 runs from first + 1 to kv_end; from x = at_most * ratio on a row has its fill.
    const int64_t begin = s.first_position() + 1, end = s.kv_end + 1;
    const int64_t full = at_most > (end / ratio) ? end : std::clamp(at_most * ratio, begin, end);
    const int64_t seen = floor_sum(begin, full, ratio) + (end - full) * at_most;
    sums.seen += seen;
    sums.distinct += std::min(seen, s.kv_end / ratio);
    sums.rows += s.len;
  }
  return sums;
}

ContextSums entry_sums_above(std::span<const Segment> segments, int64_t ratio, int64_t threshold) {
  ContextSums sums;
  for (const Segment& s : segments) {
    const int64_t begin = std::max(s.first_position() + 1, (threshold + 1) * ratio), end = s.kv_end + 1;
    if (s.len == 0 || begin >= end) continue;
    sums.seen += floor_sum(begin, end, ratio);
    sums.distinct += s.kv_end / ratio;
    sums.rows += end - begin;
  }
  return sums;
}

}  // namespace weft

#include "graph/context_sums.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace weft {
namespace {

// Walks over every row of every segment; see(position) lists what the row sees.
template <class F>
ContextSums walk(const std::vector<Segment>& segments, F see) {
  ContextSums sums;
  for (const Segment& segment : segments) {
    std::set<int64_t> distinct;
    for (int64_t p = segment.first_position(); p < segment.kv_end; ++p) {
      const std::vector<int64_t> seen = see(p);
      if (seen.empty()) continue;
      sums.seen += static_cast<int64_t>(seen.size());
      distinct.insert(seen.begin(), seen.end());
    }
    sums.distinct += static_cast<int64_t>(distinct.size());
  }
  return sums;
}

TEST(ContextSums, AreThoseOfAWalkOverTheRows) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1)); };
    std::vector<Segment> segments;
    int64_t rows = 0;
    for (int64_t i = draw(0, 3); i >= 0; --i) {
      const int64_t len = draw(0, 40);
      segments.push_back({0, rows, len, draw(0, 60) + len});
      rows += len;
    }
    const int64_t window = draw(1, 30), ratio = draw(1, 9), top = draw(1, 12);

    const ContextSums in_window = window_sums(segments, window), slow_window = walk(segments, [&](int64_t p) {
      std::vector<int64_t> seen;
      for (int64_t k = std::max<int64_t>(0, p - window + 1); k <= p; ++k) seen.push_back(k);
      return seen;
    });
    EXPECT_EQ(in_window.seen, slow_window.seen);
    EXPECT_EQ(in_window.distinct, slow_window.distinct);
    EXPECT_EQ(in_window.rows, rows);

    const auto entries = [&](int64_t p, int64_t at_most) {
      std::vector<int64_t> seen;
      for (int64_t g = 0; g < std::min((p + 1) / ratio, at_most); ++g) seen.push_back(g);
      return seen;
    };
    const ContextSums all = entry_sums(segments, ratio, 1'000'000);
    const ContextSums slow_all = walk(segments, [&](int64_t p) { return entries(p, 1'000'000); });
    EXPECT_EQ(all.seen, slow_all.seen);
    EXPECT_EQ(all.distinct, slow_all.distinct);
    // Which of them a row picks is not known: the sum is, distinct is a bound.
    const ContextSums picked = entry_sums(segments, ratio, top);
    EXPECT_EQ(picked.seen, walk(segments, [&](int64_t p) { return entries(p, top); }).seen);
    EXPECT_LE(picked.distinct, std::min(picked.seen, all.distinct));

    const ContextSums above = entry_sums_above(segments, ratio, top);
    const ContextSums slow_above = walk(segments, [&](int64_t p) {
      return (p + 1) / ratio > top ? entries(p, 1'000'000) : std::vector<int64_t>();
    });
    EXPECT_EQ(above.seen, slow_above.seen);
    EXPECT_EQ(above.distinct, slow_above.distinct);
  }
}

}  // namespace
}  // namespace weft

// Helpers of this folder's tests.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "sharding/shard_plan.h"

namespace weft {

using Ints = std::vector<int64_t>;

// Request i is in cache slot i. num_rows 0: just the rows of the requests.
inline GlobalBatch make_batch(const Ints& q, const Ints& kv, int64_t num_rows = 0) {
  GlobalBatch batch;
  for (size_t i = 0; i < q.size(); ++i) {
    batch.requests.push_back({.slot = static_cast<int32_t>(i), .new_tokens = q[i], .length = kv[i]});
  }
  batch.num_rows = num_rows > 0 ? num_rows : batch.num_tokens();
  return batch;
}

inline ShardPlan plan_of_rank(const GlobalBatch& batch, TokenSplit split, int ranks, int rank) {
  return ShardPlan::create(batch, {.split = split, .ranks = ranks, .rank = rank}).value();
}

inline std::vector<ShardPlan> plans_of_ranks(const GlobalBatch& batch, TokenSplit split, int ranks) {
  std::vector<ShardPlan> plans;
  for (int r = 0; r < ranks; ++r) plans.push_back(plan_of_rank(batch, split, ranks, r));
  return plans;
}

inline std::vector<ShardPlan> plans_from_segments(const GlobalBatch& batch, TokenSplit split,
                                                  const std::vector<std::vector<Segment>>& by_rank) {
  std::vector<ShardPlan> plans;
  const int ranks = static_cast<int>(by_rank.size());
  for (int r = 0; r < ranks; ++r) {
    plans.push_back(ShardPlan::from_segments(batch, {.split = split, .ranks = ranks, .rank = r}, by_rank));
  }
  return plans;
}

inline Ints valid_rows(const ShardPlan& plan) {
  return {plan.local().rows.begin(), plan.local().rows.begin() + plan.local_tokens()};
}

inline Ints entry_lens(const ShardPlan& plan) {
  const Ints& starts = plan.local().query_start_loc;
  Ints lens;
  for (size_t i = 1; i < starts.size(); ++i) lens.push_back(starts[i] - starts[i - 1]);
  return lens;
}

inline Ints range(int64_t begin, int64_t end) {
  Ints values(end - begin);
  std::iota(values.begin(), values.end(), begin);
  return values;
}

inline Ints concat(std::initializer_list<Ints> parts) {
  Ints all;
  for (const Ints& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

inline Ints repeat(int64_t value, int64_t count) { return Ints(count, value); }

}  // namespace weft

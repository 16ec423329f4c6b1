// Invariants of every plan (reference, section 13) on random batches, each split against the formulas of the reference
// as they stand there; causal balance (section 8); errors.
#include <algorithm>
#include <map>
#include <random>

#include "sharding/test_support.h"

namespace weft {
namespace {

constexpr TokenSplit kSplits[] = {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned};
constexpr int kRanks[] = {1, 2, 3, 4, 5, 8};
constexpr int kBatches = 3000;

struct RandomBatch {
  GlobalBatch batch;
  bool padding = false;
};

RandomBatch random_batch(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  RandomBatch result;
  const int64_t requests = below(7), longest = below(4) == 0 ? 150 : 24, slots = 16;
  std::vector<int32_t> free;
  for (int32_t s = 0; s < slots; ++s) free.push_back(s);
  std::ranges::shuffle(free, random);
  for (int64_t i = 0; i < requests; ++i) {
    BatchRequest request{.slot = free[i], .new_tokens = below(longest)};
    request.length = request.new_tokens + (below(2) == 0 ? 0 : below(300));
    request.decode = request.length > request.new_tokens && request.new_tokens < 5 && below(2) == 0;
    result.batch.requests.push_back(request);
  }
  for (int64_t i = below(8) == 0 ? 1 + below(3) : 0; i > 0; --i) {
    result.batch.requests.push_back({.slot = -1, .new_tokens = 1 + below(4)});
  }
  // A request without any token looks like one of padding too.
  result.padding = std::ranges::any_of(result.batch.requests, &BatchRequest::padding);
  result.batch.num_rows = result.batch.num_tokens() + (below(3) == 0 ? below(40) : 0);
  return result;
}

int64_t copies_of(const BatchRequest& request, TokenSplit split, int ranks) {
  return split == TokenSplit::kZigzag && request.decode ? ranks : 1;
}

// The three splits, written as in sections 4.2, 4.3 and 4.5: rows of each request on rank r, and its key length.
struct Expected {
  Ints rows;
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> pieces;  // request -> (rows, keys), empty ones left out
};

Expected expected_rows(const GlobalBatch& batch, TokenSplit split, int ranks, int r) {
  Expected e;
  int64_t base = 0;
  const auto take = [&](size_t i, int64_t s, int64_t end) {
    const BatchRequest& request = batch.requests[i];
    if (s >= end) return;
    for (int64_t j = s; j < end; ++j) e.rows.push_back(base + j);
    const int64_t beyond = request.new_tokens - end;
    e.pieces[static_cast<int64_t>(i)].push_back(
        {end - s, std::max<int64_t>(request.padding() ? 0 : request.length - beyond, 0)});
  };
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const int64_t q = batch.requests[i].new_tokens, P = ranks;
    if (P == 1) {
      take(i, 0, q);
    } else if (split == TokenSplit::kFlat) {
      const int64_t t = (batch.num_rows + P - 1) / P, ls = r * t, le = ls + t;
      take(i, std::clamp(base, ls, le) - base, std::clamp(base + q, ls, le) - base);
    } else if (split == TokenSplit::kPerRequest) {
      const int64_t seg = (q + P - 1) / P, start = std::min(r * seg, q);
      take(i, start, std::min(start + seg, q));
    } else if (split == TokenSplit::kZigzag) {
      const int64_t c = (q + 2 * P - 1) / (2 * P);
      if (batch.requests[i].decode) {
        take(i, 0, q);
      } else {
        for (int64_t k : {int64_t{r}, 2 * P - 1 - r}) take(i, std::min(k * c, q), std::min(std::min(k * c, q) + c, q));
      }
    } else if (batch.requests[i].slot % P == r) {
      take(i, 0, q);
    }
    base += q;
  }
  return e;
}

void check_rank(const GlobalBatch& batch, const ShardPlan& plan) {
  const LocalView& local = plan.local();
  const GlobalView& global = plan.global();
  const int r = plan.rank();
  const Expected expected = expected_rows(batch, plan.split(), plan.ranks(), r);
  ASSERT_EQ(valid_rows(plan), expected.rows);

  // Sizes: row counts are t, and the arrays of entries fit together.
  const size_t entries = local.entry_request.size();
  ASSERT_EQ(local.rows.size(), static_cast<size_t>(plan.tokens_per_rank()));
  ASSERT_EQ(local.positions.size(), local.rows.size());
  ASSERT_EQ(local.query_start_loc.size(), entries + 1);
  ASSERT_EQ(local.seq_lens.size(), entries);
  ASSERT_EQ(local.kv_row_start.size(), entries);
  ASSERT_EQ(local.kv_extent.size(), entries + 1);
  ASSERT_EQ(local.query_start_loc.back(), plan.local_tokens());
  ASSERT_EQ(plan.padded_rows(), plan.tokens_per_rank() * plan.ranks());

  // Entries: rows and keys of each, with the first local row's distance from the request's start.
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> pieces;
  int64_t extent = 0;
  for (size_t e = 0; e < entries; ++e) {
    const int64_t i = local.entry_request[e], len = local.query_start_loc[e + 1] - local.query_start_loc[e];
    ASSERT_EQ(local.kv_extent[e], extent);
    extent += local.seq_lens[e];
    ASSERT_GE(local.seq_lens[e], 0);
    int64_t address = 0;
    for (int64_t j = 0; j < i; ++j) address += batch.requests[j].length;
    ASSERT_EQ(local.kv_row_start[e], address);
    if (batch.requests[i].padding()) {
      ASSERT_EQ(local.seq_lens[e], 0);
    }
    if (len == 0) continue;
    pieces[i].push_back({len, local.seq_lens[e]});
    const int64_t offset = local.rows[local.query_start_loc[e]] - global.query_start_loc[i];
    if (!batch.requests[i].padding()) {
      ASSERT_EQ(local.seq_lens[e] - len, batch.requests[i].start_pos() + offset);
    }
  }
  ASSERT_EQ(local.kv_extent.back(), extent);
  ASSERT_EQ(pieces, expected.pieces);

  // Positions: of rows, and as a kernel finds them from segments.
  for (int64_t j = 0; j < plan.tokens_per_rank(); ++j) {
    ASSERT_EQ(local.positions[j], local.rows[j] < 0 ? -1 : global.positions[local.rows[j]]);
    ASSERT_EQ(local.rows[j] >= 0, j < plan.local_tokens());
  }
  int64_t covered = 0;
  for (const Segment& segment : local.segments) {
    for (int64_t j = 0; j < segment.len; ++j) {
      ASSERT_EQ(segment.first_position() + j, local.positions[segment.row0 + j]);
    }
    covered += segment.len;
  }
  ASSERT_EQ(covered, std::ranges::count_if(local.positions, [](int64_t p) { return p >= 0; }));
}

void check_group(const GlobalBatch& batch, const std::vector<ShardPlan>& plans) {
  const ShardPlan& first = plans[0];
  const int ranks = first.ranks();
  const int64_t n = batch.num_tokens();
  Ints gathered, padded, of_request = repeat(0, static_cast<int64_t>(batch.requests.size())), primaries = repeat(0, n);
  for (const ShardPlan& plan : plans) {
    // Every rank knows the same.
    ASSERT_EQ(plan.global(), first.global());
    ASSERT_EQ(plan.valid(), first.valid());
    ASSERT_EQ(plan.restore(), first.restore());
    ASSERT_EQ(plan.padded_restore(), first.padded_restore());
    ASSERT_EQ(plan.row_owner(), first.row_owner());
    ASSERT_EQ(plan.segments(), first.segments());
    ASSERT_NO_FATAL_FAILURE(check_rank(batch, plan));
    const Ints rows = valid_rows(plan);
    gathered.insert(gathered.end(), rows.begin(), rows.end());
    padded.insert(padded.end(), plan.local().rows.begin(), plan.local().rows.end());
    for (size_t e = 0; e < plan.local().entry_request.size(); ++e) {
      of_request[plan.local().entry_request[e]] +=
          plan.local().query_start_loc[e + 1] - plan.local().query_start_loc[e];
    }
    for (int64_t j = 0; j < plan.tokens_per_rank(); ++j) {
      if (plan.primary(j)) ++primaries[plan.local().rows[j]];
    }
  }
  // Partition.
  int64_t copies = 0;
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const int64_t of_rows = copies_of(batch.requests[i], first.split(), ranks) * batch.requests[i].new_tokens;
    ASSERT_EQ(of_request[i], of_rows);
    copies += of_rows;
  }
  ASSERT_EQ(static_cast<int64_t>(gathered.size()), copies);
  const auto at = [](const Ints& restore, int64_t g) { return restore.empty() ? g : restore[g]; };
  for (int64_t g = 0; g < n; ++g) {
    ASSERT_EQ(gathered[at(first.restore(), g)], g);
    ASSERT_EQ(padded[at(first.padded_restore(), g)], g);
    ASSERT_EQ(primaries[g], first.global().positions[g] >= 0 ? 1 : 0);
  }
  // Flat: the keys of a request end at its length on the rank of its last token, nowhere later.
  if (first.split() != TokenSplit::kFlat) return;
  for (int r = 0; r < ranks; ++r) {
    ASSERT_EQ(first.valid()[r], std::clamp<int64_t>(n - r * first.tokens_per_rank(), 0, first.tokens_per_rank()));
  }
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const BatchRequest& request = batch.requests[i];
    if (request.padding() || request.new_tokens == 0) continue;
    const int owner = first.row_owner()[first.global().query_start_loc[i + 1] - 1];
    for (int r = 0; r < ranks; ++r) ASSERT_LE(plans[r].local().seq_lens[i], request.length);
    ASSERT_EQ(plans[owner].local().seq_lens[i], request.length);
  }
}

TEST(ShardPlan, InvariantsOnRandomBatches) {
  for (unsigned seed = 0; seed < kBatches; ++seed) {
    const RandomBatch random = random_batch(seed);
    const int ranks = kRanks[seed % std::size(kRanks)];
    for (TokenSplit split : kSplits) {
      if (split == TokenSplit::kOwned && random.padding) continue;
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << token_split_name(split) << " over " << ranks);
      ASSERT_NO_FATAL_FAILURE(check_group(random.batch, plans_of_ranks(random.batch, split, ranks)));
    }
  }
}

// The global view is the batch's, whatever the split, the ranks and the rank.
TEST(ShardPlan, GlobalViewIsUntouched) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const RandomBatch random = random_batch(seed);
    const GlobalView one = plan_of_rank(random.batch, TokenSplit::kFlat, 1, 0).global();
    int64_t row = 0;
    for (size_t i = 0; i < random.batch.requests.size(); ++i) {
      const BatchRequest& request = random.batch.requests[i];
      ASSERT_EQ(one.query_start_loc[i], row);
      ASSERT_EQ(one.seq_lens[i], request.length);
      ASSERT_EQ(one.start_pos[i], request.padding() ? 0 : request.length - request.new_tokens);
      for (int64_t j = 0; j < request.new_tokens; ++j, ++row) {
        ASSERT_EQ(one.positions[row], request.padding() ? -1 : one.start_pos[i] + j);
      }
    }
    for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
      ASSERT_EQ(plan_of_rank(random.batch, split, 3, 2).global(), one) << "seed " << seed;
    }
  }
}

// One rank: the arrays of the batch themselves.
TEST(ShardPlan, IdentityForOneRank) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const RandomBatch random = random_batch(seed);
    for (TokenSplit split : kSplits) {
      if (split == TokenSplit::kOwned && random.padding) continue;
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << token_split_name(split));
      const ShardPlan plan = plan_of_rank(random.batch, split, 1, 0);
      ASSERT_EQ(plan.local().query_start_loc, plan.global().query_start_loc);
      ASSERT_EQ(plan.local().seq_lens, plan.global().seq_lens);
      ASSERT_EQ(plan.local().positions, plan.global().positions);
      ASSERT_EQ(valid_rows(plan), range(0, random.batch.num_tokens()));
      ASSERT_EQ(plan.tokens_per_rank(), random.batch.num_rows);
      ASSERT_TRUE(plan.restore().empty());
    }
  }
}

// Buffers of a step shape hold every plan of a step within it.
TEST(ShardPlan, RowCapacityIsEnough) {
  int64_t full = 0;
  for (unsigned seed = 0; seed < kBatches; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 8);
    StepCapacity capacity{.requests = 1 + static_cast<int64_t>(random() % 12),
                          .decode_rows = 1 + static_cast<int64_t>(random() % 4)};
    for (TokenSplit split : kSplits) {
      GlobalBatch batch;
      for (int32_t slot = 0; slot < capacity.requests; ++slot) {
        const bool decode = split == TokenSplit::kOwned || random() % 3 != 0;
        const int64_t q = 1 + static_cast<int64_t>(random()) % (decode ? capacity.decode_rows : 60);
        batch.requests.push_back({.slot = slot, .new_tokens = q, .length = q + 10, .decode = decode});
      }
      batch.num_rows = capacity.tokens = batch.num_tokens();
      const int64_t rows = plan_of_rank(batch, split, ranks, 0).tokens_per_rank();
      const int64_t bound = local_row_capacity(split, capacity, ranks);
      ASSERT_LE(rows, bound) << "seed " << seed << " " << token_split_name(split) << " over " << ranks;
      ASSERT_LE(bound, capacity.tokens);
      full += rows == bound ? 1 : 0;
    }
  }
  EXPECT_GT(full, kBatches);  // it is reached, not just large
}

TEST(ShardPlan, EmptyBatch) {
  for (TokenSplit split : kSplits) {
    const ShardPlan plan = plan_of_rank({}, split, 4, 3);
    EXPECT_EQ(plan.tokens_per_rank(), 0);
    EXPECT_EQ(plan.valid(), repeat(0, 4));
    EXPECT_EQ(plan.local().query_start_loc, Ints{0});
    EXPECT_TRUE(plan.local().segments.empty());
  }
}

TEST(ShardPlan, Errors) {
  const ShardPlanOptions two{.ranks = 2};
  const auto message = [](const GlobalBatch& batch, const ShardPlanOptions& options) {
    return ShardPlan::create(batch, options).status().message();
  };
  GlobalBatch twice = make_batch({1, 1}, {5, 5});
  twice.requests[1].slot = 0;
  EXPECT_EQ(message(twice, two), "request 1 of the batch: cache slot 0 is used by another request");
  twice.requests[1].slot = -3;
  EXPECT_EQ(message(twice, two), "request 1 of the batch: cache slot -3");
  EXPECT_EQ(message(make_batch({1, 6}, {5, 5}), two), "request 1 of the batch: 6 new tokens of a length of 5");
  EXPECT_EQ(message(make_batch({-1}, {5}, 4), two), "request 0 of the batch: -1 new tokens of a length of 5");
  EXPECT_EQ(message(make_batch({3, 4}, {5, 5}, 6), two), "the batch has 6 rows, its requests need 7");
  EXPECT_EQ(message(make_batch({1}, {5}), {.ranks = 0}), "a token split over 0 ranks");
  EXPECT_EQ(message(make_batch({1}, {5}), {.ranks = 2, .rank = 2}), "rank 2 of a tp group of 2");
  EXPECT_EQ(message(make_batch({1, 4}, {5, 0}), {.split = TokenSplit::kOwned, .ranks = 2}),
            "split=owned: padding requests belong to no rank; leave them out of the batch");
}

// Work of the index scorer per rank (section 8): with a prefix of Cx, every rank's pair of chunks of c rows costs
// 2c * Cx + 2P * c^2 + c, exactly, when 2P divides the rows.
TEST(ShardPlan, ZigzagBalancesTheIndexScorer) {
  for (int ranks : {2, 3, 4, 8}) {
    for (int64_t c : {1, 5, 64}) {
      for (int64_t prefix : {0, 77}) {
        const int64_t q = 2 * ranks * c;
        for (const ShardPlan& plan : plans_of_ranks(make_batch({q}, {prefix + q}), TokenSplit::kZigzag, ranks)) {
          int64_t cost = 0;
          for (int64_t j = 0; j < plan.local_tokens(); ++j) cost += plan.local().positions[j] + 1;
          EXPECT_EQ(cost, 2 * c * prefix + 2 * ranks * c * c + c);
        }
      }
    }
  }
}

// The table of section 8: largest over mean work of a rank, contiguous and zigzag.
TEST(ShardPlan, S8_LoadTable) {
  const auto imbalance = [](int64_t n, int ranks, int64_t prefix, TokenSplit split, auto work) {
    const ShardPlan plan = plan_of_rank(make_batch({n}, {prefix + n}), split, ranks, 0);
    double largest = 0, total = 0;
    for (const auto& segments : plan.segments()) {
      double of_rank = 0;
      for (const Segment& s : segments) {
        for (int64_t j = 0; j < s.len; ++j) of_rank += static_cast<double>(work(s.first_position() + j));
      }
      largest = std::max(largest, of_rank);
      total += of_rank;
    }
    return largest / (total / ranks);
  };
  using Work = int64_t (*)(int64_t);
  const Work kWork[] = {
      [](int64_t p) { return p + 1; },
      [](int64_t p) { return std::min<int64_t>(2048, p + 1); },
      [](int64_t p) { return std::min<int64_t>(128, p + 1) + std::min<int64_t>(512, (p + 1) / 4); },
      [](int64_t p) { return std::min<int64_t>(128, p + 1) + (p + 1) / 128; },
      [](int64_t p) { return std::min<int64_t>(128, p + 1); },
  };
  struct Row {
    int64_t n;
    int ranks;
    int64_t prefix;
    double contiguous[5], zigzag[5];
  };
  const Row kTable[] = {
      {4096, 4, 0, {1.750, 1.333, 1.255, 1.099, 1.016}, {1.000, 1.250, 1.192, 1.014, 1.016}},
      {8192, 4, 0, {1.750, 1.143, 1.113, 1.158, 1.008}, {1.000, 1.143, 1.113, 1.006, 1.008}},
      {65536, 4, 0, {1.750, 1.016, 1.013, 1.501, 1.001}, {1.000, 1.016, 1.013, 1.000, 1.001}},
      {65536, 8, 0, {1.875, 1.016, 1.013, 1.585, 1.001}, {1.000, 1.016, 1.013, 1.000, 1.001}},
      {8192, 4, 65536, {1.044, 1.000, 1.000, 1.036, 1.000}, {1.000, 1.000, 1.000, 1.000, 1.000}},
  };
  for (const Row& row : kTable) {
    for (int k = 0; k < 5; ++k) {
      SCOPED_TRACE(testing::Message() << row.n << " " << row.ranks << " " << row.prefix << " column " << k);
      EXPECT_NEAR(imbalance(row.n, row.ranks, row.prefix, TokenSplit::kFlat, kWork[k]), row.contiguous[k], 0.00051);
      EXPECT_NEAR(imbalance(row.n, row.ranks, row.prefix, TokenSplit::kZigzag, kWork[k]), row.zigzag[k], 0.00051);
    }
  }
}

}  // namespace
}  // namespace weft

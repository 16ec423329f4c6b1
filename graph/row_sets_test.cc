// Which rows of a step a rank holds: examples by hand, and laws on random steps against owners worked out row by row.
#include "graph/row_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "comm/bytes.h"
#include "graph/test_support.h"

namespace weft {
namespace {

using Rows32 = std::vector<int32_t>;

RankContext context(int pcp, int pcp_size, int tp, int tp_size) {
  RankContext ranks;
  ranks.rank = pcp * tp_size + tp;
  ranks.index[static_cast<int>(MeshAxis::kPcp)] = pcp;
  ranks.size[static_cast<int>(MeshAxis::kPcp)] = pcp_size;
  ranks.index[static_cast<int>(MeshAxis::kTp)] = tp;
  ranks.size[static_cast<int>(MeshAxis::kTp)] = tp_size;
  return ranks;
}

RowSets sets_of(const StepBatch& batch, const RowSetOptions& options, const RankContext& ranks) {
  auto sets = make_row_sets(batch, options, ranks);
  EXPECT_TRUE(sets.ok()) << sets.status().message();
  return sets.ok() ? std::move(*sets) : RowSets();
}

// ---- Names of sets

TEST(RowSet, PlacementsNameASet) {
  const struct {
    RowSet set;
    const char* text;
  } cases[] = {{RowSet::kAll, ""}, {RowSet::kTp, " tp:shard(0)"}, {RowSet::kPcp, " pcp:shard(0)"}, {RowSet::kPcpTp, " pcp:shard(0) tp:shard(0)"}};
  Placements heads;
  heads[static_cast<int>(MeshAxis::kTp)] = Placement::sharded(1);
  heads[static_cast<int>(MeshAxis::kEp)] = Placement::partial();
  for (const auto& c : cases) {
    const Placements placements = with_row_set({}, c.set);
    EXPECT_EQ(to_string(placements), c.text);
    EXPECT_EQ(row_set(placements), c.set);
    for (const auto& other : cases) EXPECT_EQ(with_row_set(placements, other.set), with_row_set({}, other.set));
    // Other axes, and other dimensions of the same axis where the set leaves it alone, stay.
    const Placements mixed = with_row_set(heads, c.set);
    EXPECT_EQ(mixed[static_cast<int>(MeshAxis::kEp)], Placement::partial());
    const bool uses_tp = c.set == RowSet::kTp || c.set == RowSet::kPcpTp;
    EXPECT_EQ(mixed[static_cast<int>(MeshAxis::kTp)], uses_tp ? Placement::sharded(0) : Placement::sharded(1));
  }
}

TEST(RowSet, SetsAreNested) {
  constexpr RowSet kSets[] = {RowSet::kAll, RowSet::kTp, RowSet::kPcp, RowSet::kPcpTp};
  const bool expected[4][4] = {// of: all tp pcp pcp_tp
                               {true, true, true, true},
                               {false, true, false, false},
                               {false, false, true, true},
                               {false, false, false, true}};
  for (int outer = 0; outer < 4; ++outer) {
    for (int inner = 0; inner < 4; ++inner) EXPECT_EQ(contains(kSets[outer], kSets[inner]), expected[outer][inner]) << outer << inner;
  }
  EXPECT_EQ(parent(RowSet::kPcpTp), RowSet::kPcp);
  EXPECT_EQ(last_axis(RowSet::kPcpTp), MeshAxis::kTp);
  EXPECT_EQ(parent(RowSet::kTp), RowSet::kAll);
  EXPECT_EQ(last_axis(RowSet::kPcp), MeshAxis::kPcp);
}

// ---- Examples

TEST(RowSets, FlatOverTpLeavesLastRanksShort) {
  const StepBatch batch = batch_of({3, 2}, {2, 4});  // 5 rows over 4 ranks: 2 2 1 0
  const Rows32 rows[] = {{0, 1}, {2, 3}, {4}, {}}, logits[] = {{}, {0}, {1}, {}};
  for (int r = 0; r < 4; ++r) {
    const RowSets sets = sets_of(batch, {.tp = true}, context(0, 1, r, 4));
    const RowSplit &tokens = sets.of(Rows::kTokens, RowSet::kTp), &wanted = sets.of(Rows::kLogits, RowSet::kTp);
    EXPECT_EQ(tokens.rows, rows[r]);
    EXPECT_EQ(tokens.local, rows[r]);
    EXPECT_EQ(tokens.counts, (std::vector<int64_t>{2, 2, 1, 0}));
    EXPECT_TRUE(tokens.order.empty());
    EXPECT_TRUE(tokens.flat);
    EXPECT_TRUE(tokens.unique);
    // The logits of a rank are those of its own rows: not a flat split of them.
    EXPECT_EQ(wanted.rows, logits[r]);
    EXPECT_EQ(wanted.counts, (std::vector<int64_t>{0, 1, 1, 0}));
    EXPECT_FALSE(wanted.flat);
    EXPECT_TRUE(wanted.order.empty());
    EXPECT_EQ(sets.of(Rows::kTokens, RowSet::kPcp).rows, Rows32());  // not used
  }
}

TEST(RowSets, ZigzagIsRestoredAndSplitAgainOverTp) {
  // 2 x 2 ranks; requests of 8 and 3 rows. Zigzag over pcp 2: chunks of 2 and of 1.
  const StepBatch batch = batch_of({8, 3}, {7, 10});
  const RowSetOptions options{.tp = true, .pcp = true, .pcp_split = TokenSplit::kZigzag};
  const Rows32 pcp_rows[] = {{0, 1, 6, 7, 8}, {2, 3, 4, 5, 9, 10}};
  const Rows32 both[2][2] = {{{0, 1, 6}, {7, 8}}, {{2, 3, 4}, {5, 9, 10}}};
  const Rows32 both_local[2][2] = {{{0, 1, 2}, {3, 4}}, {{0, 1, 2}, {3, 4, 5}}};
  for (int c = 0; c < 2; ++c) {
    for (int t = 0; t < 2; ++t) {
      const RowSets sets = sets_of(batch, options, context(c, 2, t, 2));
      const RowSplit &pcp = sets.of(Rows::kTokens, RowSet::kPcp), &inner = sets.of(Rows::kTokens, RowSet::kPcpTp);
      EXPECT_EQ(pcp.rows, pcp_rows[c]);
      EXPECT_EQ(pcp.counts, (std::vector<int64_t>{5, 6}));
      EXPECT_EQ(pcp.order, (Rows32{0, 1, 6, 7, 8, 2, 3, 4, 5, 9, 10}));
      EXPECT_FALSE(pcp.flat);
      EXPECT_EQ(inner.rows, both[c][t]);
      EXPECT_EQ(inner.local, both_local[c][t]);
      EXPECT_TRUE(inner.order.empty());  // within the parent's rows
      EXPECT_TRUE(inner.flat);
      EXPECT_EQ(sets.of(Rows::kLogits, RowSet::kPcp).rows, c == 0 ? Rows32{0} : Rows32{1});
      EXPECT_EQ(sets.of(Rows::kLogits, RowSet::kPcpTp).rows, t == 0 ? Rows32() : c == 0 ? Rows32{0} : Rows32{1});
      EXPECT_EQ(sets.of(Rows::kLogits, RowSet::kPcpTp).local, t == 0 ? Rows32() : Rows32{0});
    }
  }
}

TEST(RowSets, ARankWithoutRowsHasCounts) {
  const StepBatch batch = batch_of({1});
  for (const TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    for (int c = 0; c < 3; ++c) {
      for (int t = 0; t < 2; ++t) {
        const RowSets sets = sets_of(batch, {.tp = true, .pcp = true, .pcp_split = split}, context(c, 3, t, 2));
        EXPECT_EQ(sets.of(Rows::kTokens, RowSet::kPcp).counts, (std::vector<int64_t>{1, 0, 0}));
        EXPECT_EQ(sets.of(Rows::kTokens, RowSet::kPcp).size(), c == 0 ? 1 : 0);
        EXPECT_EQ(sets.of(Rows::kTokens, RowSet::kPcpTp).counts, (std::vector<int64_t>{c == 0 ? 1 : 0, 0}));
        EXPECT_EQ(sets.of(Rows::kLogits, RowSet::kPcp).counts, (std::vector<int64_t>{0, 0, 0}));
      }
    }
  }
}

TEST(RowSets, OneRankAlongAnAxisHasNoSet) {
  const RowSets sets = sets_of(batch_of({4}), {.tp = true, .pcp = true}, context(0, 1, 0, 1));
  for (const RowSet set : {RowSet::kTp, RowSet::kPcp, RowSet::kPcpTp}) {
    EXPECT_TRUE(sets.of(Rows::kTokens, set).counts.empty());
  }
}

// ---- Laws

// Who owns each row: from the definitions of the splits, row by row.
std::vector<int> owners(const StepBatch& batch, TokenSplit split, int ranks) {
  std::vector<int> owner(batch.tokens.size());
  for (const Segment& s : batch.segments) {
    for (int64_t j = 0; j < s.len; ++j) {
      int64_t rank = 0;
      if (split == TokenSplit::kFlat) {
        rank = (s.row0 + j) / rows_per_rank(ranks, batch.num_tokens());
      } else if (split == TokenSplit::kPerRequest) {
        rank = j / ((s.len + ranks - 1) / ranks);
      } else {
        const int64_t chunk = j / ((s.len + 2 * ranks - 1) / (2 * ranks));
        rank = std::min(chunk, 2 * ranks - 1 - chunk);
      }
      owner[static_cast<size_t>(s.row0 + j)] = static_cast<int>(rank);
    }
  }
  return owner;
}

// All that a group must agree on: `by_rank` are the splits of one set on every rank of its last axis, all of the same parent rows.
void check_group(const std::vector<RowSplit>& by_rank, const Rows32& parent_rows) {
  Rows32 gathered;
  for (const RowSplit& split : by_rank) gathered.insert(gathered.end(), split.local.begin(), split.local.end());
  for (size_t r = 0; r < by_rank.size(); ++r) {
    const RowSplit& split = by_rank[r];
    ASSERT_EQ(split.rows.size(), split.local.size());
    for (size_t j = 0; j < split.rows.size(); ++j) ASSERT_EQ(split.rows[j], parent_rows[static_cast<size_t>(split.local[j])]);
    ASSERT_TRUE(std::is_sorted(split.local.begin(), split.local.end()));
    ASSERT_EQ(split.counts.size(), by_rank.size());
    for (size_t p = 0; p < by_rank.size(); ++p) ASSERT_EQ(split.counts[p], by_rank[p].size());
    // Gathered in the order of the ranks, row i belongs at order[i].
    Rows32 order = split.order;
    if (order.empty()) {
      order.resize(gathered.size());
      std::iota(order.begin(), order.end(), 0);
    }
    ASSERT_EQ(order, gathered);
    bool flat = split.order.empty();
    const auto n = static_cast<int64_t>(by_rank.size()), total = static_cast<int64_t>(gathered.size());
    for (int64_t p = 0; p < n; ++p) {
      flat = flat && split.counts[static_cast<size_t>(p)] == first_row_of_rank(n, total, p + 1) - first_row_of_rank(n, total, p);
    }
    ASSERT_EQ(split.flat, flat);
    ASSERT_TRUE(split.unique);
  }
  std::sort(gathered.begin(), gathered.end());
  Rows32 all(parent_rows.size());
  std::iota(all.begin(), all.end(), 0);
  ASSERT_EQ(gathered, all);  // a partition
}

TEST(RowSets, LawsOnRandomSteps) {
  constexpr TokenSplit kSplits[] = {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag};
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1)); };
    std::vector<int64_t> lengths;
    for (int64_t i = pick(1, 5); i > 0; --i) lengths.push_back(random() % 3 == 0 ? pick(1, 2) : pick(1, 23));
    StepBatch batch = batch_of(lengths);
    for (int32_t i = 0; i < static_cast<int32_t>(batch.num_tokens()); ++i) {
      if (random() % 3 == 0) batch.logit_rows.push_back(i);
    }
    const int pcp_size = static_cast<int>(pick(1, 4)), tp_size = static_cast<int>(pick(1, 4));
    RowSetOptions options;
    options.tp = true;
    options.pcp = true;
    options.tp_split = kSplits[random() % 3];
    options.pcp_split = kSplits[random() % 3];

    std::vector<std::vector<RowSets>> sets(static_cast<size_t>(pcp_size));
    for (int c = 0; c < pcp_size; ++c) {
      for (int t = 0; t < tp_size; ++t) sets[static_cast<size_t>(c)].push_back(sets_of(batch, options, context(c, pcp_size, t, tp_size)));
    }
    Rows32 all(batch.tokens.size()), all_logits(batch.logit_rows.size());
    std::iota(all.begin(), all.end(), 0);
    std::iota(all_logits.begin(), all_logits.end(), 0);
    const auto requests = static_cast<int64_t>(lengths.size());
    // One set of a group: partition, owners, capacity; and the logits, which follow the tokens.
    const auto check = [&](const std::vector<const RowSets*>& group, RowSet set, const Rows32& rows_above, const Rows32& logits_above) {
      std::vector<RowSplit> tokens, logits;
      for (const RowSets* rank : group) {
        tokens.push_back(rank->of(Rows::kTokens, set));
        logits.push_back(rank->of(Rows::kLogits, set));
      }
      check_group(tokens, rows_above);
      check_group(logits, logits_above);
      for (size_t r = 0; r < tokens.size() && !testing::Test::HasFatalFailure(); ++r) {
        for (int32_t i : logits[r].rows) {
          const int32_t row = batch.logit_rows[static_cast<size_t>(i)];
          ASSERT_TRUE(std::binary_search(tokens[r].rows.begin(), tokens[r].rows.end(), row)) << "row " << row;
        }
      }
    };
    const auto check_owners = [&](const RowSplit& split, TokenSplit how, int ranks, int rank) {
      const std::vector<int> owner = owners(batch, how, ranks);
      for (int32_t row : split.rows) ASSERT_EQ(owner[static_cast<size_t>(row)], rank);
      ASSERT_LE(split.size(), local_row_capacity(how, {batch.num_tokens(), requests, 1}, ranks));
    };
    for (int c = 0; c < pcp_size; ++c) {
      std::vector<const RowSets*> tp_group;
      for (const RowSets& rank : sets[static_cast<size_t>(c)]) tp_group.push_back(&rank);
      if (tp_size > 1) {
        check(tp_group, RowSet::kTp, all, all_logits);
        for (int t = 0; t < tp_size; ++t) check_owners(tp_group[static_cast<size_t>(t)]->of(Rows::kTokens, RowSet::kTp), options.tp_split, tp_size, t);
      }
      if (pcp_size > 1 && tp_size > 1) {
        check(tp_group, RowSet::kPcpTp, tp_group[0]->of(Rows::kTokens, RowSet::kPcp).rows, tp_group[0]->of(Rows::kLogits, RowSet::kPcp).rows);
        for (const RowSets* rank : tp_group) {
          const int64_t above = rank->of(Rows::kTokens, RowSet::kPcp).size();
          ASSERT_LE(rank->of(Rows::kTokens, RowSet::kPcpTp).size(), rows_per_rank(tp_size, above));
        }
      }
    }
    for (int t = 0; t < tp_size && pcp_size > 1; ++t) {
      std::vector<const RowSets*> pcp_group;
      for (const auto& row : sets) pcp_group.push_back(&row[static_cast<size_t>(t)]);
      check(pcp_group, RowSet::kPcp, all, all_logits);
      for (int c = 0; c < pcp_size; ++c) check_owners(pcp_group[static_cast<size_t>(c)]->of(Rows::kTokens, RowSet::kPcp), options.pcp_split, pcp_size, c);
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace weft

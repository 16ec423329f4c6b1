// Who holds which rows of a sharded cache (reference 4.7, 5.9), who computes which compressed rows (5.10, section 9).
#include "sharding/compressor_split.h"
#include "sharding/dcp.h"
#include "sharding/test_support.h"

namespace weft {
namespace {

TEST(Dcp, S59_Lengths) {
  struct Case {
    int64_t length, interleave;
    int ranks;
    Ints lengths;
  };
  const Case cases[] = {
      {23, 4, 4, {8, 7, 4, 4}}, {130, 64, 2, {66, 64}}, {5, 4, 2, {4, 1}}, {0, 4, 2, {0, 0}}, {9, 1, 1, {9}}};
  for (const Case& c : cases) {
    const DcpShard shard{.interleave = c.interleave, .ranks = c.ranks};
    Ints lengths;
    for (int r = 0; r < c.ranks; ++r) lengths.push_back(shard.local_length(c.length, r));
    EXPECT_EQ(lengths, c.lengths) << c.length;
  }
}

TEST(Dcp, S59_Owners) {
  const DcpShard shard{.interleave = 4, .ranks = 4};
  struct Case {
    int64_t row;
    int owner;
    int64_t local;
  };
  for (const Case& c : {Case{13, 3, 1}, Case{16, 0, 4}, Case{18, 0, 6}, Case{23, 1, 7}}) {
    EXPECT_EQ(shard.owner(c.row), c.owner) << c.row;
    EXPECT_EQ(shard.local_row(c.row), c.local) << c.row;
  }
}

TEST(Dcp, S59_WholeBlocks) {
  const DcpShard shard{.interleave = 4, .ranks = 2};
  EXPECT_EQ(localize_slots(shard, 1, Ints{-1, 0, 3, 4, 7, 8, 12}), (Ints{-1, -1, -1, 0, 3, -1, 4}));
  EXPECT_EQ(shard.whole_block_prefix(23, 4), 8);
  EXPECT_EQ(shard.whole_block_prefix(7, 4), 0);
}

TEST(Dcp, EveryRowHasOnePlace) {
  for (int64_t interleave : {1, 3, 4, 64}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      const DcpShard shard{.interleave = interleave, .ranks = ranks};
      Ints next = repeat(0, ranks);
      for (int64_t row = 0; row < 700; ++row) {
        const int owner = shard.owner(row);
        ASSERT_EQ(shard.local_row(row), next[owner]++);  // dense and in order
        ASSERT_EQ(shard.global_row(owner, shard.local_row(row)), row);
        for (int r = 0; r < ranks; ++r) ASSERT_EQ(shard.local_length(row + 1, r), next[r]);
      }
    }
  }
}

TEST(Dcp, SelectionIsCompactedInOrder) {
  const DcpShard shard{.interleave = 2, .ranks = 2};
  const std::vector<int32_t> selected = {9, 0, 2, 5, 6, -1, 1};
  EXPECT_EQ(localize_selection(shard, 0, selected).rows, (std::vector<int32_t>{5, 0, 3, 1, -1, -1, -1}));
  EXPECT_EQ(localize_selection(shard, 0, selected).valid, 4);
  EXPECT_EQ(localize_selection(shard, 1, selected).rows, (std::vector<int32_t>{0, 2, -1, -1, -1, -1, -1}));
  EXPECT_EQ(localize_selection(shard, 1, selected).valid, 2);
}

TEST(CompressorSplit, S510_Owners) {
  struct Case {
    int64_t ratio, tokens;
    int ranks;
    std::vector<Ints> rows;
    Ints restore;
  };
  const Case cases[] = {
      {4, 16, 4, {{0}, {1}, {2}, {3}}, {0, 1, 2, 3}},     {4, 20, 3, {{0}, {1, 2}, {3, 4}}, {0, 2, 3, 4, 5}},
      {4, 22, 3, {{0, 1}, {2, 3}, {4}}, {0, 1, 2, 3, 4}}, {4, 8, 4, {{}, {0}, {}, {1}}, {1, 3}},
      {128, 256, 4, {{}, {0}, {}, {1}}, {1, 3}},          {128, 145, 2, {{}, {0}}, {1}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << "ratio " << c.ratio << ", " << c.tokens << " tokens");
    const ShardPlan plan = plan_of_rank(make_batch({c.tokens}, {c.tokens}), TokenSplit::kFlat, c.ranks, 0);
    const CompressorSplit split = split_compressor(plan, c.ratio, c.ratio == 4 ? 1 : 0);
    std::vector<Ints> rows;
    for (const auto& runs : split.owned) {
      Ints& of_rank = rows.emplace_back();
      for (const CompressedRows& run : runs) {
        for (int64_t j = 0; j < run.num_rows; ++j) of_rank.push_back(run.first_row + j);
      }
    }
    EXPECT_EQ(rows, c.rows);
    EXPECT_EQ(split.restore, c.restore);
  }
}

// The rows and tokens that a rank needs for its part of the compressor's output.
TEST(CompressorSplit, S9_Inputs) {
  const auto owned = [](const Ints& q, int64_t ratio, int overlap, int ranks, int rank) {
    const GlobalBatch batch = make_batch(q, q);
    return split_compressor(plan_of_rank(batch, TokenSplit::kFlat, ranks, rank), ratio, overlap).owned[rank];
  };
  using Runs = std::vector<CompressedRows>;
  EXPECT_EQ(owned({16}, 4, 1, 4, 1), (Runs{{0, 1, 1, 0, 8}}));         // tokens [4, 8)
  EXPECT_EQ(owned({256}, 128, 0, 4, 1), (Runs{{0, 0, 1, 0, 128}}));    // tokens [64, 128)
  EXPECT_EQ(owned({256}, 128, 0, 4, 3), (Runs{{0, 1, 1, 128, 256}}));  // tokens [192, 256)
  // Two requests of 8, tokens [7, 12) of 16: the second row of one, the first of the other.
  const GlobalBatch two = make_batch({8, 8}, {8, 8});
  const std::vector<std::vector<Segment>> parts = {{{0, 0, 7, 7}}, {{0, 7, 1, 8}, {1, 8, 4, 4}}, {{1, 12, 4, 8}}};
  const ShardPlan plan = plans_from_segments(two, TokenSplit::kPerRequest, parts)[1];
  EXPECT_EQ(split_compressor(plan, 4, 1).owned[1], (Runs{{0, 1, 1, 0, 8}, {1, 0, 1, 0, 4}}));
  EXPECT_EQ(owned({42}, 4, 1, 11, 0), (Runs{{0, 0, 1, 0, 4}}));  // tokens [0, 4)
}

TEST(CompressorSplit, TailBelongsToTheLastToken) {
  const GlobalBatch batch = make_batch({42, 0, 3}, {42, 7, 9});
  const CompressorSplit flat = split_compressor(plan_of_rank(batch, TokenSplit::kFlat, 4, 0), 4, 1);
  EXPECT_EQ(flat.tail_owner, (std::vector<int32_t>{3, -1, 3}));
  // Seven chunks of six rows, three of one: the last ones are chunks 6 and 2.
  const CompressorSplit zigzag = split_compressor(plan_of_rank(batch, TokenSplit::kZigzag, 4, 0), 4, 1);
  EXPECT_EQ(zigzag.tail_owner, (std::vector<int32_t>{1, -1, 2}));
}

// Every row completed in a step has one owner, whatever the split: its padded gather holds them all.
TEST(CompressorSplit, RestoreReachesEveryRow) {
  const GlobalBatch batch = make_batch({19, 1, 40, 3}, {150, 64, 40, 5});
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      const CompressorSplit c = split_compressor(plan_of_rank(batch, split, ranks, ranks - 1), 4, 1);
      std::vector<std::pair<int64_t, int64_t>> gathered(c.rows_per_rank * ranks, {-1, -1}), expected, restored;
      for (int r = 0; r < ranks; ++r) {
        int64_t at = r * c.rows_per_rank;
        for (const CompressedRows& run : c.owned[r]) {
          for (int64_t j = 0; j < run.num_rows; ++j) gathered[at++] = {run.request, run.first_row + j};
        }
      }
      for (int64_t i = 0; i < 4; ++i) {
        const BatchRequest& request = batch.requests[i];
        for (int64_t p = request.start_pos(); p < request.length; ++p) {
          if (p % 4 == 3) expected.push_back({i, p / 4});
        }
      }
      for (int64_t at : c.restore) restored.push_back(gathered[at]);
      EXPECT_EQ(restored, expected) << token_split_name(split) << " " << ranks;
    }
  }
}

}  // namespace
}  // namespace weft

// Failures that other engines had (reference, section 12), as far as integers show them; the number is in the name.
#include <algorithm>
#include <random>

#include "sharding/compressor_split.h"
#include "sharding/dcp.h"
#include "sharding/test_support.h"

namespace weft {
namespace {

const GlobalBatch& graph_padded_batch() {
  static const GlobalBatch batch = make_batch(repeat(4, 20), concat({range(200, 217), repeat(0, 3)}));
  return batch;
}

TEST(FailureModes, FailureMode01_GroupSizeIsNotCpSize) {
  const Mesh mesh = Mesh::create({.pcp = 2, .tp = 2}).value();
  EXPECT_TRUE(mesh.check_group(MeshAxis::kPcp, 1, std::vector<int>{1, 3}).ok());
  EXPECT_EQ(mesh.check_group(MeshAxis::kPcp, 1, std::vector<int>{0, 1, 2, 3}).message(),
            "rank 1: its pcp group must be the 2 ranks [1 3], got the 4 ranks [0 1 2 3]");
  EXPECT_FALSE(mesh.check_group(MeshAxis::kPcp, 1, std::vector<int>{0, 1}).ok());  // the right size alone is not enough
  // What the check prevents: two ranks that split as if they were four do not cover the batch.
  const GlobalBatch batch = make_batch({10}, {10});
  const auto by_rank = split_tokens(batch, TokenSplit::kPerRequest, 4).value();
  int64_t rows = 0;
  for (int r : {0, 1}) {
    for (const Segment& segment : by_rank[r]) rows += segment.len;
  }
  EXPECT_NE(rows, batch.num_tokens());
}

TEST(FailureModes, FailureMode02_TpNotDividedByCp) {
  const Mesh mesh = Mesh::create({.pcp = 2, .tp = 2}).value();
  EXPECT_TRUE(mesh.check_world(4).ok());
  const Mesh forgotten = Mesh::create({.pcp = 2, .tp = 4}).value();
  EXPECT_EQ(forgotten.check_world(4).message(), "the layout has dp 1 x pp 1 x pcp 2 x tp 4 = 8 ranks, the job has 4");
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const std::vector<int> group = mesh.group(MeshAxis::kTp, rank);
    int ones = 0;
    std::vector<int> heads_seen(8, 0);
    for (int member : group) {
      ++ones;
      const int index = mesh.index(MeshAxis::kTp, member), per_rank = 8 / mesh.size(MeshAxis::kTp);
      for (int h = index * per_rank; h < (index + 1) * per_rank; ++h) ++heads_seen[h];
    }
    EXPECT_EQ(ones, 2);
    EXPECT_EQ(heads_seen, std::vector<int>(8, 1));
  }
}

TEST(FailureModes, FailureMode03_GlobalLengthsWithLocalQueries) {
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    for (const ShardPlan& plan : plans_of_ranks(graph_padded_batch(), split, 8)) {
      EXPECT_EQ(plan.local().query_start_loc.back(), plan.local_tokens());
      EXPECT_LT(plan.local().query_start_loc.back(), plan.global().query_start_loc.back());
      for (const Segment& segment : plan.local().segments) EXPECT_LE(segment.row0 + segment.len, plan.local_tokens());
    }
  }
}

TEST(FailureModes, FailureMode04_FullKvLengthShiftsQueries) {
  const ShardPlan plan = plan_of_rank(make_batch({145}, {145}), TokenSplit::kFlat, 2, 0);
  const Segment segment = plan.local().segments.at(0);
  for (int64_t j = 0; j < segment.len; ++j) EXPECT_EQ(segment.first_position() + j, plan.local().positions[j]);
  // With the request's length the rows would stand at 72..144.
  EXPECT_EQ(plan.global().seq_lens[0] - segment.len, 72);
  EXPECT_EQ(segment.first_position(), 0);
}

TEST(FailureModes, FailureMode05_ScorerSeesNoKeys) {
  for (const ShardPlan& plan : plans_of_ranks(make_batch({64}, {4096}), TokenSplit::kFlat, 4)) {
    for (size_t e = 0; e < plan.local().seq_lens.size(); ++e) EXPECT_GT(plan.local().seq_lens[e] / 4, 512);
  }
}

TEST(FailureModes, FailureMode06_NegativeLkvOnGraphPadding) {
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    for (const ShardPlan& plan : plans_of_ranks(graph_padded_batch(), split, 8)) {
      for (size_t e = 0; e < plan.local().seq_lens.size(); ++e) {
        const bool padding = plan.local().entry_request[e] >= 17;
        EXPECT_GE(plan.local().seq_lens[e], 0);
        if (padding) {
          EXPECT_EQ(plan.local().seq_lens[e], 0);
        }
      }
      for (const Segment& segment : plan.local().segments) EXPECT_GE(segment.first_position(), 0);
    }
  }
}

TEST(FailureModes, FailureMode07_StartPosFromLocalLengths) {
  const GlobalBatch batch = make_batch({1, 12, 2}, {513, 76, 2});
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned}) {
    for (const ShardPlan& plan : plans_of_ranks(batch, split, 4)) {
      EXPECT_EQ(plan.global().start_pos, (Ints{512, 64, 0}));
      EXPECT_EQ(plan.global().writers, (Ints{0, 1, 2}));
    }
  }
  const ShardPlan padded = plan_of_rank(graph_padded_batch(), TokenSplit::kFlat, 8, 7);
  EXPECT_EQ(padded.global().start_pos[17], 0);  // not 0 - 4
  EXPECT_EQ(padded.global().writers, range(0, 17));
}

TEST(FailureModes, FailureMode10_WritersNeedAllRows) {
  for (const ShardPlan& plan : plans_of_ranks(graph_padded_batch(), TokenSplit::kFlat, 8)) {
    int64_t written = 0;
    for (int64_t i : plan.global().writers)
      written += plan.global().query_start_loc[i + 1] - plan.global().query_start_loc[i];
    EXPECT_EQ(written, 68);
    EXPECT_EQ(std::ranges::count_if(plan.global().positions, [](int64_t p) { return p >= 0; }), 68);
  }
}

TEST(FailureModes, FailureMode17_DraftStepsShareStorage) {
  const ShardPlan step0 = plan_of_rank(make_batch({8, 3}, {8, 20}), TokenSplit::kFlat, 2, 1);
  const ShardPlan before = step0;
  std::vector<ShardPlan> drafts;
  for (int64_t d = 1; d <= 3; ++d)
    drafts.push_back(plan_of_rank(make_batch({1, 1}, {8 + d, 20 + d}), TokenSplit::kFlat, 2, 1));
  EXPECT_EQ(step0, before);
  EXPECT_EQ(drafts[0].local().seq_lens, (Ints{0, 21}));
  EXPECT_EQ(drafts[2].local().seq_lens, (Ints{0, 23}));
  EXPECT_NE(drafts[0].local().kv_row_start.data(), drafts[1].local().kv_row_start.data());
}

TEST(FailureModes, FailureMode18_CachedTopKRowsAreLocal) {
  const ShardPlan plan = plan_of_rank(make_batch({4090}, {4090}), TokenSplit::kFlat, 8, 7);
  EXPECT_EQ(plan.local_tokens(), 506);
  EXPECT_EQ(plan.tokens_per_rank(), 512);
  EXPECT_EQ(plan.local().query_start_loc, (Ints{0, 506}));
}

TEST(FailureModes, FailureMode19_WrongSlotMappingForShardedCache) {
  const DcpShard shard{.interleave = 64, .ranks = 4};
  const Ints slots = concat({{-1}, range(100, 900)});
  std::vector<int> owners(slots.size(), 0);
  for (int r = 0; r < shard.ranks; ++r) {
    const Ints local = localize_slots(shard, r, slots);
    for (size_t j = 0; j < slots.size(); ++j) {
      if (local[j] < 0) continue;
      ++owners[j];
      EXPECT_EQ(shard.global_row(r, local[j]), slots[j]);
    }
  }
  EXPECT_EQ(owners[0], 0);
  EXPECT_TRUE(std::all_of(owners.begin() + 1, owners.end(), [](int n) { return n == 1; }));
}

TEST(FailureModes, FailureMode21_Float32IndexRemap) {
  const DcpShard shard{.interleave = 1, .ranks = 2};
  const std::vector<int32_t> selected = {16777217, 16777219, 2147483647};
  EXPECT_EQ(localize_selection(shard, 1, selected).rows, (std::vector<int32_t>{8388608, 8388609, 1073741823}));
  EXPECT_EQ(localize_selection(shard, 0, selected).valid, 0);
  const DcpShard one{.interleave = 64, .ranks = 1};
  EXPECT_EQ(localize_selection(one, 0, selected).rows, selected);
  EXPECT_EQ(one.local_row((int64_t{1} << 53) + 1), (int64_t{1} << 53) + 1);
}

TEST(FailureModes, FailureMode22_PadTokensRoutedToOneRank) {
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    int64_t dispatched = 0;
    for (const ShardPlan& plan : plans_of_ranks(graph_padded_batch(), split, 8)) {
      for (int64_t j = 0; j < plan.tokens_per_rank(); ++j) dispatched += plan.primary(j) ? 1 : 0;
    }
    EXPECT_EQ(dispatched, 68);
  }
}

TEST(FailureModes, FailureMode23_ReplicatedTokensDispatchedTwice) {
  GlobalBatch batch = make_batch({3, 3, 40}, {50, 60, 40});
  batch.requests[0].decode = batch.requests[1].decode = true;
  int64_t dispatched = 0, computed = 0;
  for (const ShardPlan& plan : plans_of_ranks(batch, TokenSplit::kZigzag, 4)) {
    computed += plan.local_tokens();
    for (int64_t j = 0; j < plan.tokens_per_rank(); ++j) dispatched += plan.primary(j) ? 1 : 0;
  }
  EXPECT_EQ(computed, 46 + 3 * 6);
  EXPECT_EQ(dispatched, 46);
}

TEST(FailureModes, FailureMode29_HeadSplitCutsGroups) {
  EXPECT_EQ(check_divisible("o_groups", 8, "tp", 16).message(),
            "o_groups 8 is not divisible by tp 16; usable sizes: 1 2 4 8");
}

TEST(FailureModes, FailureMode31_UnevenTokenCounts) {
  const GlobalBatch batch = make_batch({145}, {145});
  const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, 2, 1);
  EXPECT_EQ(plan.check_equal_rows("gate=k_sharded").message(),
            "gate=k_sharded needs the same number of rows on every rank, split=flat of 145 tokens gives [73 72]; pad "
            "to 73 rows "
            "or exchange with counts");
  // Padded, they are equal: every rank has t rows.
  EXPECT_EQ(plan.local().rows.size(), 73u);
  EXPECT_TRUE(plan_of_rank(make_batch({146}, {146}), TokenSplit::kFlat, 2, 1).check_equal_rows("gate").ok());
}

TEST(FailureModes, FailureMode32_PadRowsMappedToRowZero) {
  const GlobalBatch batch = make_batch({9}, {9});
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    Ints scattered = repeat(-7, 9);
    for (const ShardPlan& plan : plans_of_ranks(batch, split, 4)) {
      for (int64_t j = 0; j < plan.tokens_per_rank(); ++j) {
        const int64_t row = plan.local().rows[j];
        EXPECT_EQ(row == -1, j >= plan.local_tokens());
        if (row >= 0) scattered[row] = j < plan.local_tokens() ? row : -1000;
      }
    }
    EXPECT_EQ(scattered, range(0, 9));
  }
}

TEST(FailureModes, FailureMode34_UnrestoredRowsReadInOrder) {
  const GlobalBatch whole = make_batch({22}, {22});
  for (TokenSplit split : {TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
    // In one go and in two chunks, restored positions are 0..21.
    for (const std::vector<GlobalBatch>& steps :
         {std::vector<GlobalBatch>{whole}, {make_batch({13}, {13}), make_batch({9}, {22})}}) {
      Ints positions;
      for (const GlobalBatch& step : steps) {
        Ints gathered;
        const std::vector<ShardPlan> plans = plans_of_ranks(step, split, 4);
        for (const ShardPlan& plan : plans) {
          for (int64_t j = 0; j < plan.local_tokens(); ++j) gathered.push_back(plan.local().positions[j]);
        }
        for (int64_t at : plans[0].restore()) positions.push_back(gathered[at]);
        if (split == TokenSplit::kZigzag && steps.size() == 1) {
          EXPECT_FALSE(std::ranges::is_sorted(gathered));
        }
      }
      EXPECT_EQ(positions, range(0, 22));
    }
  }
}

// Rows of a segment of 126, and what is before them: keys come from the whole sequence, not from one neighbour.
TEST(FailureModes, FailureMode35_ZigzagSegmentShorterThanTheWindow) {
  constexpr int64_t kWindow = 128;
  const GlobalBatch batch = make_batch({126 * 8}, {126 * 8});
  int64_t across_three = 0;
  for (const ShardPlan& plan : plans_of_ranks(batch, TokenSplit::kZigzag, 4)) {
    for (const Segment& segment : plan.local().segments) {
      EXPECT_EQ(segment.len, 126);
      for (int64_t j = 0; j < segment.len; ++j) {
        const int64_t p = segment.first_position() + j, first_key = std::max<int64_t>(p - kWindow + 1, 0);
        EXPECT_EQ(p, plan.global().positions[plan.local().rows[segment.row0 + j]]);
        if (p / 126 - first_key / 126 >= 2) ++across_three;
      }
    }
  }
  EXPECT_GT(across_three, 0);
}

// 4k + 2 prompt tokens leave two in the compressor's state: the row they begin is completed in decode, and needs them.
TEST(FailureModes, FailureMode36_TailStateMissingAtDecode) {
  const CompressorSplit prefill = split_compressor(plan_of_rank(make_batch({42}, {42}), TokenSplit::kFlat, 4, 0), 4, 1);
  EXPECT_EQ(prefill.tail_owner[0], 3);
  EXPECT_EQ(prefill.restore.size(), 10u);
  const CompressorSplit decode = split_compressor(plan_of_rank(make_batch({2}, {44}), TokenSplit::kOwned, 4, 0), 4, 1);
  const std::vector<CompressedRows> rows = decode.owned[slot_owner(0, 4)];
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0],
            (CompressedRows{.request = 0, .first_row = 10, .num_rows = 1, .input_begin = 36, .input_end = 44}));
}

// 255 decode requests of three rows and a prompt of 3,331 rows, budget 4,096 on four ranks: one rank holds 1,599 rows.
TEST(FailureModes, FailureMode37_ProfileRunWithEqualShares) {
  GlobalBatch batch = make_batch(concat({repeat(3, 255), {3331}}), concat({repeat(500, 255), {3331}}));
  for (int i = 0; i < 255; ++i) batch.requests[i].decode = true;
  ASSERT_EQ(batch.num_tokens(), 4096);
  const ShardPlan plan = plan_of_rank(batch, TokenSplit::kZigzag, 4, 0);
  EXPECT_EQ(plan.tokens_per_rank(), 1599);  // 765 decode rows and two chunks of 417, where a share is 1,024
  EXPECT_EQ(plan.valid(), (Ints{1594, 1599, 1599, 1599}));  // rank 0 has the prompt's last, shorter chunk
  EXPECT_EQ(zigzag_row_reserve(4096, 4, 256, 3), 1152 + 768);
  EXPECT_EQ(zigzag_row_reserve(4096, 4, 100000, 1), 4096);
  EXPECT_EQ(zigzag_row_reserve(0, 4, 0, 1), 0);
}

TEST(FailureModes, FailureMode38_PlanCarriesItsSplit) {
  const GlobalBatch batch = make_batch({16}, {16});
  std::vector<ShardPlan> plans;
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned}) {
    plans.push_back(plan_of_rank(batch, split, 2, 0));
    EXPECT_EQ(plans.back().split(), split);
    EXPECT_EQ(plans.back().options(), (ShardPlanOptions{.split = split, .ranks = 2}));
  }
  // Flat and per_request of one even prompt are the same rows; the plans still tell which they are.
  EXPECT_EQ(plans[0].local(), plans[1].local());
  EXPECT_NE(plans[0], plans[1]);
}

}  // namespace
}  // namespace weft

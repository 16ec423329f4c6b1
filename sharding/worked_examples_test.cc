// The worked examples of the layouts' reference, one test per example, its section number beside it.
#include "sharding/test_support.h"

namespace weft {
namespace {

struct FlatRow {
  int64_t valid;
  Ints len, query_start_loc, seq_lens, kv_extent;
};

void expect_flat(const GlobalBatch& batch, const std::vector<FlatRow>& table) {
  const int ranks = static_cast<int>(table.size());
  for (int r = 0; r < ranks; ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, ranks, r);
    EXPECT_EQ(plan.local_tokens(), table[r].valid);
    EXPECT_EQ(entry_lens(plan), table[r].len);
    EXPECT_EQ(plan.local().query_start_loc, table[r].query_start_loc);
    EXPECT_EQ(plan.local().seq_lens, table[r].seq_lens);
    EXPECT_EQ(plan.local().kv_extent, table[r].kv_extent);
    EXPECT_TRUE(plan.restore().empty());
    EXPECT_TRUE(plan.padded_restore().empty());
  }
}

struct RequestRow {
  Ints len, seq_lens, rows, kv_extent;
};

void expect_per_request(const GlobalBatch& batch, const std::vector<RequestRow>& table, const Ints& restore) {
  const int ranks = static_cast<int>(table.size());
  for (int r = 0; r < ranks; ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    const ShardPlan plan = plan_of_rank(batch, TokenSplit::kPerRequest, ranks, r);
    EXPECT_EQ(entry_lens(plan), table[r].len);
    EXPECT_EQ(plan.local().seq_lens, table[r].seq_lens);
    EXPECT_EQ(valid_rows(plan), table[r].rows);
    if (!table[r].kv_extent.empty()) {
      EXPECT_EQ(plan.local().kv_extent, table[r].kv_extent);
    }
    EXPECT_EQ(plan.restore(), restore);
  }
}

// One prompt of 4,096 tokens on 16 ranks.
TEST(WorkedExamples, S51_OnePrompt) {
  const GlobalBatch batch = make_batch({4096}, {4096});
  for (int r = 0; r < 16; ++r) {
    const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, 16, r);
    EXPECT_EQ(plan.tokens_per_rank(), 256);
    EXPECT_EQ(plan.padded_rows(), 4096);
    EXPECT_EQ(valid_rows(plan), range(256 * r, 256 * r + 256));
    EXPECT_EQ(plan.local().query_start_loc, (Ints{0, 256}));
    EXPECT_EQ(plan.local().seq_lens, (Ints{256 * (r + 1)}));
    EXPECT_EQ(plan.local().kv_extent, (Ints{0, 256 * (r + 1)}));
  }
  EXPECT_EQ(valid_rows(plan_of_rank(batch, TokenSplit::kFlat, 16, 5)), range(1280, 1536));
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kFlat, 16, 5).local().seq_lens, Ints{1536});
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kFlat, 16, 15).local().seq_lens, Ints{4096});
}

// Nine decode tokens on four ranks: padded to 12, 3 each, the last rank has padding alone.
TEST(WorkedExamples, S52_NineDecodeTokens) {
  const GlobalBatch batch = make_batch(repeat(1, 9), repeat(100, 9));
  expect_flat(batch, {{3, concat({repeat(1, 3), repeat(0, 6)}), concat({range(0, 4), repeat(3, 6)}),
                       concat({repeat(100, 3), repeat(0, 6)}), concat({{0, 100, 200}, repeat(300, 7)})},
                      {3,
                       {0, 0, 0, 1, 1, 1, 0, 0, 0},
                       {0, 0, 0, 0, 1, 2, 3, 3, 3, 3},
                       {0, 0, 0, 100, 100, 100, 0, 0, 0},
                       {0, 0, 0, 0, 100, 200, 300, 300, 300, 300}},
                      {3,
                       concat({repeat(0, 6), repeat(1, 3)}),
                       {0, 0, 0, 0, 0, 0, 0, 1, 2, 3},
                       concat({repeat(0, 6), repeat(100, 3)}),
                       concat({repeat(0, 7), {100, 200, 300}})},
                      {0, repeat(0, 9), repeat(0, 10), repeat(0, 9), repeat(0, 10)}});
  const ShardPlan last = plan_of_rank(batch, TokenSplit::kFlat, 4, 3);
  EXPECT_EQ(last.padded_rows(), 12);
  EXPECT_EQ(last.tokens_per_rank(), 3);
  EXPECT_EQ(last.valid(), (Ints{3, 3, 3, 0}));
  EXPECT_EQ(last.local().rows, repeat(-1, 3));
  EXPECT_TRUE(last.local().segments.empty());
}

// Fresh prompts of length 1..9 on three ranks. (Rank 1's start array has ten entries, one more than its source prints.)
TEST(WorkedExamples, S53_PromptsOfOneToNine) {
  const GlobalBatch batch = make_batch(range(1, 10), range(1, 10));
  const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, 3, 1);
  EXPECT_EQ(plan.global().query_start_loc, (Ints{0, 1, 3, 6, 10, 15, 21, 28, 36, 45}));
  EXPECT_EQ(plan.tokens_per_rank(), 15);
  expect_flat(batch, {{15,
                       {1, 2, 3, 4, 5, 0, 0, 0, 0},
                       {0, 1, 3, 6, 10, 15, 15, 15, 15, 15},
                       {1, 2, 3, 4, 5, 0, 0, 0, 0},
                       {0, 1, 3, 6, 10, 15, 15, 15, 15, 15}},
                      {15,
                       {0, 0, 0, 0, 0, 6, 7, 2, 0},
                       {0, 0, 0, 0, 0, 0, 6, 13, 15, 15},
                       {0, 0, 0, 0, 0, 6, 7, 2, 0},
                       {0, 0, 0, 0, 0, 0, 6, 13, 15, 15}},
                      {15,
                       {0, 0, 0, 0, 0, 0, 0, 6, 9},
                       {0, 0, 0, 0, 0, 0, 0, 0, 6, 15},
                       {0, 0, 0, 0, 0, 0, 0, 8, 9},
                       {0, 0, 0, 0, 0, 0, 0, 0, 8, 17}}});
  // Keys are addressed by the request's place in the full buffer, not by the extents.
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kFlat, 3, 2).local().kv_row_start, (Ints{0, 1, 3, 6, 10, 15, 21, 28, 36}));
}

const GlobalBatch& uneven_batch() {
  static const GlobalBatch batch = make_batch({10, 5, 7}, {10, 25, 7});
  return batch;
}

TEST(WorkedExamples, S54_UnevenRequestsFlat) {
  expect_flat(uneven_batch(), {{8, {8, 0, 0}, {0, 8, 8, 8}, {8, 0, 0}, {0, 8, 8, 8}},
                               {8, {2, 5, 1}, {0, 2, 7, 8}, {10, 25, 1}, {0, 10, 35, 36}},
                               {6, {0, 0, 6}, {0, 0, 0, 6}, {0, 0, 7}, {0, 0, 0, 7}}});
  EXPECT_EQ(plan_of_rank(uneven_batch(), TokenSplit::kFlat, 3, 0).padded_rows(), 24);
}

TEST(WorkedExamples, S54_UnevenRequestsPerRequest) {
  expect_per_request(uneven_batch(),
                     {{{4, 2, 3}, {4, 22, 3}, {0, 1, 2, 3, 10, 11, 15, 16, 17}, {0, 4, 26, 29}},
                      {{4, 2, 3}, {8, 24, 6}, {4, 5, 6, 7, 12, 13, 18, 19, 20}, {0, 8, 32, 38}},
                      {{2, 1, 1}, {10, 25, 7}, {8, 9, 14, 21}, {0, 10, 35, 42}}},
                     {0, 1, 2, 3, 9, 10, 11, 12, 18, 19, 4, 5, 13, 14, 20, 6, 7, 8, 15, 16, 17, 21});
  EXPECT_EQ(plan_of_rank(uneven_batch(), TokenSplit::kPerRequest, 3, 0).valid(), (Ints{9, 9, 4}));
}

TEST(WorkedExamples, S54_UnevenRequestsZigzag) {
  // (request, first row within the request, rows, keys)
  const std::vector<std::vector<Segment>> expected = {
      {{0, 0, 2, 2}, {1, 0, 1, 21}, {2, 0, 2, 2}},
      {{0, 2, 2, 4}, {0, 8, 2, 10}, {1, 1, 1, 22}, {1, 4, 1, 25}, {2, 2, 2, 4}},
      {{0, 4, 2, 6}, {0, 6, 2, 8}, {1, 2, 1, 23}, {1, 3, 1, 24}, {2, 4, 2, 6}, {2, 6, 1, 7}}};
  for (int r = 0; r < 3; ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    const ShardPlan plan = plan_of_rank(uneven_batch(), TokenSplit::kZigzag, 3, r);
    EXPECT_EQ(plan.valid(), (Ints{5, 8, 9}));
    std::vector<Segment> segments = plan.segments()[r];
    for (Segment& s : segments) s.row0 -= plan.global().query_start_loc[s.request];
    EXPECT_EQ(segments, expected[r]);
    // One entry per segment.
    Ints seq_lens, requests;
    for (const Segment& s : expected[r]) {
      seq_lens.push_back(s.kv_end);
      requests.push_back(s.request);
    }
    EXPECT_EQ(plan.local().seq_lens, seq_lens);
    EXPECT_EQ(plan.local().entry_request, requests);
  }
}

// 17 decode requests of 4 rows, three more that pad the step to its capacity of 80 rows, 8 ranks.
TEST(WorkedExamples, S55_GraphPadding) {
  const Ints lens = concat({range(200, 217), repeat(0, 3)});
  const GlobalBatch batch = make_batch(repeat(4, 20), lens);
  struct Row {
    Ints requests, len, seq_lens;
    int64_t extent;
  };
  const Row table[] = {{{0, 1, 2}, {4, 4, 2}, {200, 201, 200}, 601},    {{2, 3, 4}, {2, 4, 4}, {202, 203, 204}, 609},
                       {{5, 6, 7}, {4, 4, 2}, {205, 206, 205}, 616},    {{7, 8, 9}, {2, 4, 4}, {207, 208, 209}, 624},
                       {{10, 11, 12}, {4, 4, 2}, {210, 211, 210}, 631}, {{12, 13, 14}, {2, 4, 4}, {212, 213, 214}, 639},
                       {{15, 16, 17}, {4, 4, 2}, {215, 216, 0}, 431},   {{17, 18, 19}, {2, 4, 4}, {0, 0, 0}, 0}};
  for (int r = 0; r < 8; ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, 8, r);
    Ints len = repeat(0, 20), seq_lens = repeat(0, 20);
    for (int i = 0; i < 3; ++i) {
      len[table[r].requests[i]] = table[r].len[i];
      seq_lens[table[r].requests[i]] = table[r].seq_lens[i];
    }
    EXPECT_EQ(plan.tokens_per_rank(), 10);
    EXPECT_EQ(entry_lens(plan), len);
    EXPECT_EQ(plan.local().seq_lens, seq_lens);
    EXPECT_EQ(plan.local().kv_extent.back(), table[r].extent);
    EXPECT_EQ(plan.local().query_start_loc.back(), 10);
  }
  EXPECT_TRUE(plan_of_rank(batch, TokenSplit::kFlat, 8, 7).local().segments.empty());

  const GlobalBatch only_real = make_batch(repeat(4, 17), range(200, 217), 80);
  EXPECT_EQ(plan_of_rank(only_real, TokenSplit::kFlat, 8, 6).valid(), (Ints{10, 10, 10, 10, 10, 10, 8, 0}));
}

// A decode row, a chunk of a prompt and a tiny prompt on four ranks.
TEST(WorkedExamples, S56_MixedBatch) {
  const GlobalBatch batch = make_batch({1, 12, 2}, {513, 76, 2});
  expect_flat(batch, {{4, {1, 3, 0}, {0, 1, 4, 4}, {513, 67, 0}, {0, 513, 580, 580}},
                      {4, {0, 4, 0}, {0, 0, 4, 4}, {0, 71, 0}, {0, 0, 71, 71}},
                      {4, {0, 4, 0}, {0, 0, 4, 4}, {0, 75, 0}, {0, 0, 75, 75}},
                      {3, {0, 1, 2}, {0, 0, 1, 3}, {0, 76, 2}, {0, 0, 76, 78}}});
  const Ints positions[] = {{512, 64, 65, 66}, range(67, 71), range(71, 75), {75, 0, 1, -1}};
  const Ints csa_rows_visible[] = {{128, 16, 16, 16}, repeat(17, 4), repeat(18, 4), {19, 0, 0}};
  for (int r = 0; r < 4; ++r) {
    const ShardPlan plan = plan_of_rank(batch, TokenSplit::kFlat, 4, r);
    EXPECT_EQ(plan.local().positions, positions[r]);
    Ints visible;
    for (int64_t j = 0; j < plan.local_tokens(); ++j) visible.push_back((plan.local().positions[j] + 1) / 4);
    EXPECT_EQ(visible, csa_rows_visible[r]) << "rank " << r;
  }
  expect_per_request(batch,
                     {{{1, 3, 1}, {513, 67, 1}, {0, 1, 2, 3, 13}, {}},
                      {{0, 3, 1}, {513, 70, 2}, {4, 5, 6, 14}, {}},
                      {{0, 3, 0}, {513, 73, 2}, {7, 8, 9}, {}},
                      {{0, 3, 0}, {513, 76, 2}, {10, 11, 12}, {}}},
                     {0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 4, 8});
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kPerRequest, 4, 0).valid(), (Ints{5, 4, 3, 3}));
}

TEST(WorkedExamples, S57_ChunkWithPrefix) {
  const GlobalBatch batch = make_batch({20}, {100});
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest}) {
    for (int r : {0, 1}) {
      const ShardPlan plan = plan_of_rank(batch, split, 2, r);
      EXPECT_EQ(plan.valid(), (Ints{10, 10}));
      EXPECT_EQ(plan.local().seq_lens, Ints{r == 0 ? 90 : 100});
      EXPECT_EQ(plan.global().start_pos, Ints{80});
    }
  }
}

TEST(WorkedExamples, S57_OddPrompt) {
  const GlobalBatch batch = make_batch({145}, {145});
  const ShardPlan flat = plan_of_rank(batch, TokenSplit::kFlat, 2, 0);
  EXPECT_EQ(flat.padded_rows(), 146);
  for (TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest}) {
    EXPECT_EQ(plan_of_rank(batch, split, 2, 0).valid(), (Ints{73, 72}));
    EXPECT_EQ(plan_of_rank(batch, split, 2, 0).local().seq_lens, Ints{73});
    EXPECT_EQ(plan_of_rank(batch, split, 2, 1).local().seq_lens, Ints{145});
  }
}

TEST(WorkedExamples, S57_FewerTokensThanRanks) {
  const GlobalBatch batch = make_batch({2}, {2});
  expect_flat(batch, {{1, {1}, {0, 1}, {1}, {0, 1}},
                      {1, {1}, {0, 1}, {2}, {0, 2}},
                      {0, {0}, {0, 0}, {0}, {0, 0}},
                      {0, {0}, {0, 0}, {0}, {0, 0}}});
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kFlat, 4, 0).padded_rows(), 4);
  expect_per_request(batch, {{{1}, {1}, {0}, {}}, {{1}, {2}, {1}, {}}, {{0}, {2}, {}, {}}, {{0}, {2}, {}, {}}}, {0, 1});
}

// Seven tokens A..G on two ranks: [A B G] and [C D E F], gathered in four rows per rank.
TEST(WorkedExamples, S58_SevenTokensZigzag) {
  const GlobalBatch batch = make_batch({7}, {7});
  EXPECT_EQ(valid_rows(plan_of_rank(batch, TokenSplit::kZigzag, 2, 0)), (Ints{0, 1, 6}));
  EXPECT_EQ(valid_rows(plan_of_rank(batch, TokenSplit::kZigzag, 2, 1)), (Ints{2, 3, 4, 5}));
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kZigzag, 2, 0).padded_restore(), (Ints{0, 1, 4, 5, 6, 7, 2}));
  EXPECT_EQ(plan_of_rank(batch, TokenSplit::kZigzag, 2, 0).tokens_per_rank(), 4);
}

// Decode rows are on every rank; rank 0's copy is the one that counts.
TEST(WorkedExamples, ZigzagReplicatesDecodeRows) {
  GlobalBatch batch = make_batch({2, 8}, {50, 8});
  batch.requests[0].decode = true;
  const std::vector<ShardPlan> plans = plans_of_ranks(batch, TokenSplit::kZigzag, 2);
  EXPECT_EQ(valid_rows(plans[0]), (Ints{0, 1, 2, 3, 8, 9}));
  EXPECT_EQ(valid_rows(plans[1]), (Ints{0, 1, 4, 5, 6, 7}));
  EXPECT_EQ(plans[1].restore(), (Ints{0, 1, 2, 3, 8, 9, 10, 11, 4, 5}));
  EXPECT_TRUE(plans[0].primary(0));
  EXPECT_FALSE(plans[1].primary(0));
  EXPECT_TRUE(plans[1].primary(2));
}

TEST(WorkedExamples, OwnedRequestsBySlot) {
  GlobalBatch batch = make_batch({2, 2, 2, 2}, {10, 20, 30, 40});
  batch.requests[0].slot = 5;  // slots of a server where requests came and went
  batch.requests[1].slot = 2;
  batch.requests[2].slot = 0;
  batch.requests[3].slot = 3;
  const std::vector<ShardPlan> plans = plans_of_ranks(batch, TokenSplit::kOwned, 2);
  EXPECT_EQ(valid_rows(plans[0]), (Ints{2, 3, 4, 5}));
  EXPECT_EQ(valid_rows(plans[1]), (Ints{0, 1, 6, 7}));
  EXPECT_EQ(plans[0].local().segments, (std::vector<Segment>{{2, 0, 2, 20}, {0, 2, 2, 30}}));
  EXPECT_EQ(plans[1].local().seq_lens, (Ints{10, 0, 0, 40}));
  EXPECT_EQ(plans[1].restore(), (Ints{4, 5, 0, 1, 2, 3, 6, 7}));
  EXPECT_EQ(slot_on_owner(5, 2), 2);
  EXPECT_EQ(slot_on_owner(3, 2), 1);
}

}  // namespace
}  // namespace weft

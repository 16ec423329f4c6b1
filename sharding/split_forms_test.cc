// Splits of other engines (reference, sections 3.2, 4.4, 4.6, 5.4, 5.8): their published figures as test data. Fed to
// the plan as segments they must behave like our own: consumers know segments, never the split's name.
#include <algorithm>

#include "sharding/test_support.h"

namespace weft {
namespace {

// Rows [begin, begin + len) of a request; empty ones have suffix 0.
struct Piece {
  int64_t request = 0, begin = 0, len = 0;
  int64_t suffix() const { return len > 0 ? begin + len : 0; }
};
using Pieces = std::vector<std::vector<Piece>>;  // by rank

// Exact balance: every rank takes its rows half from the front, half from the back.
Pieces exact_balance(const GlobalBatch& batch, int ranks) {
  Pieces pieces(ranks);
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const int64_t q = batch.requests[i].new_tokens;
    int64_t front = 0, back = q;
    for (int r = 0; r < ranks; ++r) {
      const int64_t n = q / ranks + (r < q % ranks ? 1 : 0), left = (n + 1) / 2, right = n / 2;
      pieces[r].push_back({static_cast<int64_t>(i), front, left});
      pieces[r].push_back({static_cast<int64_t>(i), back - right, right});
      front += left;
      back -= right;
    }
  }
  return pieces;
}

// 2P chunks whose sizes differ by at most one, the first ones longer.
Pieces even_chunks(const GlobalBatch& batch, int ranks) {
  Pieces pieces(ranks);
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const int64_t q = batch.requests[i].new_tokens, chunks = 2 * ranks;
    for (int r = 0; r < ranks; ++r) {
      for (const int64_t k : {int64_t{r}, chunks - 1 - r}) {
        const int64_t begin = k * (q / chunks) + std::min(k, q % chunks);
        pieces[r].push_back({static_cast<int64_t>(i), begin, q / chunks + (k < q % chunks ? 1 : 0)});
      }
    }
  }
  return pieces;
}

// Token j of a request on rank j mod P.
Pieces round_robin(const GlobalBatch& batch, int ranks) {
  Pieces pieces(ranks);
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    for (int64_t j = 0; j < batch.requests[i].new_tokens; ++j)
      pieces[j % ranks].push_back({static_cast<int64_t>(i), j, 1});
  }
  return pieces;
}

std::vector<ShardPlan> plans_of(const GlobalBatch& batch, const Pieces& pieces) {
  const ShardPlan global = plan_of_rank(batch, TokenSplit::kFlat, 1, 0);
  std::vector<std::vector<Segment>> by_rank;
  for (const auto& of_rank : pieces) {
    std::vector<Segment>& segments = by_rank.emplace_back();
    for (const Piece& piece : of_rank) {
      if (piece.len == 0) continue;
      const BatchRequest& request = batch.requests[piece.request];
      segments.push_back({.request = request.slot,
                          .row0 = global.global().query_start_loc[piece.request] + piece.begin,
                          .len = piece.len,
                          .kv_end = request.start_pos() + piece.suffix()});
    }
  }
  return plans_from_segments(batch, TokenSplit::kZigzag, by_rank);
}

// What every plan promises, whoever made the segments: restore and positions.
void expect_consistent(const std::vector<ShardPlan>& plans) {
  Ints gathered;
  for (const ShardPlan& plan : plans) {
    for (int64_t j = 0; j < plan.local_tokens(); ++j) {
      gathered.push_back(plan.local().rows[j]);
      EXPECT_EQ(plan.local().positions[j], plan.global().positions[plan.local().rows[j]]);
    }
  }
  for (size_t g = 0; g < plans[0].restore().size(); ++g) {
    EXPECT_EQ(gathered[plans[0].restore()[g]], static_cast<int64_t>(g));
  }
}

struct ExactRow {
  Ints rows, suffix, ctx;
};

void expect_exact_balance(const GlobalBatch& batch, const std::vector<ExactRow>& table) {
  const Pieces pieces = exact_balance(batch, static_cast<int>(table.size()));
  const std::vector<ShardPlan> plans = plans_of(batch, pieces);
  expect_consistent(plans);
  for (size_t r = 0; r < table.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "rank " << r);
    Ints suffix, ctx;
    for (const Piece& piece : pieces[r]) {
      suffix.push_back(piece.suffix());
      ctx.push_back(batch.requests[piece.request].start_pos() + piece.suffix());
    }
    EXPECT_EQ(valid_rows(plans[r]), table[r].rows);
    EXPECT_EQ(suffix, table[r].suffix);
    EXPECT_EQ(ctx, table[r].ctx);
  }
}

TEST(SplitForms, S54_ExactBalance) {
  expect_exact_balance(make_batch({10, 5, 7}, {10, 25, 7}),
                       {{{0, 1, 8, 9, 10, 14, 15, 16, 21}, {2, 10, 1, 5, 2, 7}, {2, 10, 21, 25, 2, 7}},
                        {{2, 3, 7, 11, 13, 17, 20}, {4, 8, 2, 4, 3, 6}, {4, 8, 22, 24, 3, 6}},
                        {{4, 5, 6, 12, 18, 19}, {6, 7, 3, 0, 4, 5}, {6, 7, 23, 20, 4, 5}}});
}

TEST(SplitForms, S58_ExactBalance) {
  expect_exact_balance(make_batch({4, 6, 11}, {12, 16, 32}),
                       {{{0, 4, 9, 10, 11, 20}, {1, 0, 1, 6, 2, 11}, {9, 8, 11, 16, 23, 32}},
                        {{1, 5, 8, 12, 13, 19}, {2, 0, 2, 5, 4, 10}, {10, 8, 12, 15, 25, 31}},
                        {{2, 6, 14, 15, 18}, {3, 0, 3, 0, 6, 9}, {11, 8, 13, 10, 27, 30}},
                        {{3, 7, 16, 17}, {4, 0, 4, 0, 7, 8}, {12, 8, 14, 10, 28, 29}}});
  expect_exact_balance(make_batch({16}, {16}), {{{0, 1, 14, 15}, {2, 16}, {2, 16}},
                                                {{2, 3, 12, 13}, {4, 14}, {4, 14}},
                                                {{4, 5, 10, 11}, {6, 12}, {6, 12}},
                                                {{6, 7, 8, 9}, {8, 10}, {8, 10}}});
}

// Ten tokens on three ranks: the forms are not interchangeable.
TEST(SplitForms, S32_ZigzagVariants) {
  const GlobalBatch batch = make_batch({10}, {10});
  const auto rows = [](const std::vector<ShardPlan>& plans) {
    expect_consistent(plans);
    std::vector<Ints> by_rank;
    for (const ShardPlan& plan : plans) by_rank.push_back(valid_rows(plan));
    return by_rank;
  };
  EXPECT_EQ(rows(plans_of(batch, exact_balance(batch, 3))), (std::vector<Ints>{{0, 1, 8, 9}, {2, 3, 7}, {4, 5, 6}}));
  EXPECT_EQ(rows(plans_of(batch, even_chunks(batch, 3))), (std::vector<Ints>{{0, 1, 9}, {2, 3, 8}, {4, 5, 6, 7}}));
  EXPECT_EQ(rows(plans_of_ranks(batch, TokenSplit::kZigzag, 3)),
            (std::vector<Ints>{{0, 1}, {2, 3, 8, 9}, {4, 5, 6, 7}}));
}

// The padded form: q rounded up to a multiple of 2P, virtual rows behind the real ones; a decode row is on every rank.
struct PaddedForm {
  std::vector<Ints> rows;       // by rank: rows of the padded batch
  std::vector<Ints> positions;  // by rank: position within the padded request
  Ints pads;                    // by request
  Ints restore;                 // of the padded batch, copies taken from rank 0
};

PaddedForm padded_form(const Ints& q, int ranks, bool first_is_decode) {
  PaddedForm form;
  form.rows.resize(ranks);
  form.positions.resize(ranks);
  Ints owner, place;
  int64_t row0 = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const bool decode = first_is_decode && i == 0;
    const int64_t chunk = (q[i] + 2 * ranks - 1) / (2 * ranks), padded = decode ? q[i] : chunk * 2 * ranks;
    form.pads.push_back(decode ? q[i] * (ranks - 1) : padded - q[i]);
    for (int r = 0; r < ranks; ++r) {
      for (int64_t j = 0; j < padded; ++j) {
        const int64_t k = decode ? r : j / chunk;
        if (k != r && k != 2 * ranks - 1 - r) continue;
        form.rows[r].push_back(row0 + j);
        form.positions[r].push_back(j);
      }
    }
    row0 += padded;
  }
  // Gathered rows in rank order; the order of the answer: batch order, a decode row's copies one after the other.
  for (int64_t row = 0; row < row0; ++row) {
    int64_t at = 0;
    for (int r = 0; r < ranks; ++r) {
      for (int64_t candidate : form.rows[r]) {
        if (candidate == row) form.restore.push_back(at);
        ++at;
      }
    }
  }
  return form;
}

TEST(SplitForms, S58_PaddedForm) {
  const PaddedForm even = padded_form({8, 12}, 2, false);
  EXPECT_EQ(even.rows[0], (Ints{0, 1, 6, 7, 8, 9, 10, 17, 18, 19}));
  EXPECT_EQ(even.positions[0], (Ints{0, 1, 6, 7, 0, 1, 2, 9, 10, 11}));
  EXPECT_EQ(even.restore, (Ints{0, 1, 10, 11, 12, 13, 2, 3, 4, 5, 6, 14, 15, 16, 17, 18, 19, 7, 8, 9}));
  // Where 2P divides every q it is our form.
  const std::vector<ShardPlan> plans = plans_of_ranks(make_batch({8, 12}, {8, 12}), TokenSplit::kZigzag, 2);
  EXPECT_EQ(valid_rows(plans[0]), even.rows[0]);
  EXPECT_EQ(valid_rows(plans[1]), even.rows[1]);
  EXPECT_EQ(plans[0].restore(), even.restore);

  const PaddedForm odd = padded_form({5, 7}, 2, false);
  EXPECT_EQ(odd.rows[0].size(), 8u);
  EXPECT_EQ(odd.rows[1].size(), 8u);
  EXPECT_EQ(
      std::ranges::count_if(odd.positions[0].begin(), odd.positions[0].begin() + 4, [](int64_t p) { return p < 5; }),
      2);
  EXPECT_EQ(
      std::ranges::count_if(odd.positions[0].begin() + 4, odd.positions[0].end(), [](int64_t p) { return p < 7; }), 3);

  const PaddedForm decode = padded_form({1, 5, 8}, 2, true);
  EXPECT_EQ(decode.positions[0], (Ints{0, 0, 1, 6, 7, 0, 1, 6, 7}));
  EXPECT_EQ(decode.positions[1], (Ints{0, 2, 3, 4, 5, 2, 3, 4, 5}));
  EXPECT_EQ(decode.pads, (Ints{1, 3, 0}));
  EXPECT_EQ(decode.restore, (Ints{0, 9, 1, 2, 10, 11, 12, 13, 3, 4, 5, 6, 14, 15, 16, 17, 7, 8}));

  const PaddedForm ten = padded_form({10}, 3, false);
  EXPECT_EQ(ten.rows, (std::vector<Ints>{{0, 1, 10, 11}, {2, 3, 8, 9}, {4, 5, 6, 7}}));
}

// Gathered rows are restored by looking at [P, n] as [n, P].
TEST(SplitForms, S46_RoundRobin) {
  const GlobalBatch batch = make_batch({12}, {30});
  const std::vector<ShardPlan> plans = plans_of(batch, round_robin(batch, 4));
  expect_consistent(plans);
  for (int64_t g = 0; g < 12; ++g) EXPECT_EQ(plans[0].restore()[g], g % 4 * 3 + g / 4);
  EXPECT_EQ(plans[1].local().seq_lens, (Ints{20, 24, 28}));  // one entry per row
}

// Chunk s belongs to rank s, or 2P-1-s in the second half: the segment number of a request determines rank and place.
TEST(SplitForms, S32_ChunkOwners) {
  for (int ranks : {2, 3, 4, 8}) {
    const ShardPlan plan = plan_of_rank(make_batch({2 * ranks}, {2 * ranks}), TokenSplit::kZigzag, ranks, 0);
    for (int s = 0; s < 2 * ranks; ++s) {
      EXPECT_EQ(plan.row_owner()[s], s < ranks ? s : 2 * ranks - 1 - s);
      EXPECT_EQ(plan.restore()[s], s < ranks ? 2 * s : 2 * (2 * ranks - 1 - s) + 1);
    }
  }
}

}  // namespace
}  // namespace weft

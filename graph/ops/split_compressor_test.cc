// Compressors whose rows are split over ranks fill the same caches as one rank, whatever the split; on every rank.
#include "graph/ops/split_compressor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "graph/rank_test_support.h"

namespace weft {
namespace {

constexpr int64_t kDim = 8, kSlots = 3, kPages = 7, kDrafts = 3;
constexpr MeshAxis kAxis = MeshAxis::kPcp;

struct Form {
  const char* name;
  int64_t ratio;
  bool overlap;
  DType dtype;

  int64_t width() const { return overlap ? 2 * kDim : kDim; }
  int64_t ring_rows() const { return (overlap ? 2 : 1) * ratio - 1 + kDrafts; }
  int64_t page_entries() const { return 48 / ratio; }
  Compressor op() const { return {ratio, 1e-6, {10000, 4, {}}, false, {}}; }
};
const Form kForms[] = {{"overlapping", 4, true, DType::kBF16}, {"alone", 12, false, DType::kF32}, {"of one token", 1, false, DType::kF32}};

// Rows of each request by step: prompts, chunks, decode rows, drafts that are computed again, tiny and absent requests.
struct Rows3 {
  std::vector<std::pair<int64_t, int64_t>> first_and_len;  // by slot; len 0: not in the step
};
const Rows3 kSteps[] = {{{{0, 42}, {0, 3}, {0, 1}}}, {{{42, 1}, {3, 20}, {0, 0}}}, {{{43, 4}, {23, 1}, {1, 6}}},
                        {{{44, 2}, {0, 0}, {7, 1}}}, {{{46, 5}, {24, 24}, {8, 13}}}};
const std::vector<std::vector<int32_t>> kPagesOf = {{4, 2}, {6}, {1}};

StepBatch batch_of_step(const Rows3& rows) {
  StepBatch batch;
  for (size_t slot = 0; slot < rows.first_and_len.size(); ++slot) {
    const auto [first, len] = rows.first_and_len[slot];
    if (len == 0) continue;
    batch.segments.push_back({static_cast<int32_t>(slot), batch.num_tokens(), len, first + len});
    for (int64_t j = 0; j < len; ++j) batch.positions.push_back(static_cast<int32_t>(first + j));
    batch.tokens.resize(batch.positions.size());
  }
  batch.pages = kPagesOf;
  return batch;
}

// Element of k (series 0) or s of a row of a step: rows that are computed again have other values.
float value_of(size_t step, int64_t row, int series, int64_t c) { return number_of({static_cast<int64_t>(step), row, series, c}); }

void expect_equal_bytes(const Piece& found, const HostTensor& want, const std::string& what) {
  EXPECT_EQ(found.bytes(), want.copy_bytes()) << what;
}

TEST(SplitCompressor, FillsTheCachesOfOneRank) {
  for (const Form& form : kForms) {
    const int64_t w = form.width();
    HostTensor norm(DType::kF32, {kDim});
    norm.fill(77);
    for (const TokenSplit split : {TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag}) {
      for (const int ranks : {2, 3, 4}) {
        const HostTensor ring(DType::kF32, {kSlots, form.ring_rows(), 2 * w}), entries(form.dtype, {kPages, form.page_entries(), kDim});
        std::vector<Piece> rings, caches;
        for (int r = 0; r < ranks; ++r) {
          rings.push_back(make_piece(DType::kF32, {kSlots, form.ring_rows(), 2 * w}, Rows::kStatic, {}, kSlots));
          caches.push_back(make_piece(form.dtype, {kPages, form.page_entries(), kDim}, Rows::kStatic, {}, kPages));
        }
        ThreadPool pool(1);
        for (size_t step = 0; step < std::size(kSteps); ++step) {
          SCOPED_TRACE(testing::Message() << form.name << ", " << token_split_name(split) << ", " << ranks << " ranks, step " << step);
          const StepBatch batch = batch_of_step(kSteps[step]);
          const int64_t rows = batch.num_tokens();
          HostTensor k(DType::kF32, {rows, w}, Rows::kTokens), s(DType::kF32, {rows, w}, Rows::kTokens);
          for (int64_t i = 0; i < rows * w; ++i) {
            k.set(i, value_of(step, i / w, 0, i % w));
            s.set(i, value_of(step, i / w, 1, i % w));
          }
          run_op(form.op(), {&k, &s, &norm, &ring, &entries}, {batch, pool});
          RowSetOptions options;
          options.pcp = true;
          options.pcp_split = split;
          on_ranks(ranks, [&](Communicator& comm) {
            Rank rank(comm, kAxis, batch, options);
            const auto me = static_cast<size_t>(comm.rank());
            const std::vector<int32_t>& own = rank.sets().of(Rows::kTokens, RowSet::kPcp).rows;
            const int64_t room = local_row_capacity(split, {rows, kSlots, 1 + kDrafts}, ranks);
            const Piece own_k = rank.piece(DType::kF32, {room, w}, Rows::kTokens, placed(kAxis, Placement::sharded(0))),
                        own_s = rank.piece(DType::kF32, {room, w}, Rows::kTokens, placed(kAxis, Placement::sharded(0)));
            for (int64_t i = 0; i < static_cast<int64_t>(own.size()) * w; ++i) {
              set_element(own_k, i, value_of(step, own[static_cast<size_t>(i / w)], 0, i % w));
              set_element(own_s, i, value_of(step, own[static_cast<size_t>(i / w)], 1, i % w));
            }
            const Piece own_norm = make_piece(DType::kF32, {kDim}, Rows::kStatic, {}, kDim);
            for (int64_t c = 0; c < kDim; ++c) set_element(own_norm, c, norm.get(c));
            rank.run(SplitCompressor{kAxis, ranks, form.op()}, {&own_k, &own_s, &own_norm, &rings[me], &caches[me]});
          });
          for (size_t r = 0; r < rings.size(); ++r) {
            expect_equal_bytes(rings[r], ring, "state of rank " + std::to_string(r));
            expect_equal_bytes(caches[r], entries, "entries of rank " + std::to_string(r));
          }
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// One request, whole groups on every rank: all ranks but the last one send the rows that the next one lacks.
TEST(SplitCompressor, SendsWhatTheWorkSays) {
  const Form& form = kForms[0];
  const int64_t w = form.width(), ring_rows = 12, row_bytes = 2 * w * 4;
  for (const int ranks : {2, 3, 4}) {
    const int64_t rows = 2 * form.ratio * ranks;
    const StepBatch batch = batch_of_step({{{0, rows}}});
    std::atomic<int64_t> sent = 0, expected = 0;
    RowSetOptions options;
    options.pcp = true;
    on_ranks(ranks, [&](Communicator& comm) {
      Rank rank(comm, kAxis, batch, options);
      const Piece k = rank.piece(DType::kF32, {rows / ranks, w}, Rows::kTokens, placed(kAxis, Placement::sharded(0)));
      for (int64_t i = 0; i < rows / ranks * w; ++i) set_element(k, i, 0.5f);
      const Piece norm = make_piece(DType::kF32, {kDim}, Rows::kStatic, {}, kDim),
                  ring = make_piece(DType::kF32, {kSlots, ring_rows, 2 * w}, Rows::kStatic, {}, kSlots),
                  cache = make_piece(form.dtype, {kPages, form.page_entries(), kDim}, Rows::kStatic, {}, kPages);
      for (int64_t c = 0; c < kDim; ++c) set_element(norm, c, 1);
      (void)rank.bytes_sent();
      Work work;
      rank.run(SplitCompressor{kAxis, ranks, form.op()}, {&k, &k, &norm, &ring, &cache}, &work);
      sent += rank.bytes_sent();
      expected += work.bytes_sent;
    });
    EXPECT_EQ(sent, expected - form.ratio * row_bytes) << ranks;
  }
}

}  // namespace
}  // namespace weft

// Entries of caches that lie on several ranks in turn: attention, selection and compression give what one rank gives with all of
// them; merged attention is near it, with the sink and the window counted once.
#include "graph/ops/dcp.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "comm/bytes.h"
#include "graph/cache_rows.h"
#include "graph/rank_test_support.h"

namespace weft {
namespace {

constexpr int64_t kRatio = 4, kDim = 16, kHeads = 12, kWindow = 5, kMaxContext = 120, kSlots = 3;
constexpr int64_t kPageEntries = 12, kPages = 9;  // divisible by the numbers of ranks
constexpr int64_t kTopK = 5, kIndexHeads = 2;
const int kRanks[] = {2, 3, 4};

// Requests with long, short and no prefix: 9, 22 and 1 entries.
struct Step {
  std::vector<std::vector<int32_t>> pages{{3}, {7, 1}, {5}};  // by slot
  StepBatch batch;

  Step() {
    batch.segments = {{0, 0, 3, 37}, {1, 3, 1, 90}, {2, 4, 6, 6}};
    batch.tokens.resize(10);
    for (const Segment& s : batch.segments) {
      for (int64_t j = 0; j < s.len; ++j) batch.positions.push_back(static_cast<int32_t>(s.first_position() + j));
    }
    batch.pages = pages;
  }
  int64_t rows() const { return batch.num_tokens(); }
};

// What element c of a row of a value is, on every rank.
enum Kind { kQuery = 1, kKv, kRing, kEntry, kKey, kIndexQuery, kWeight, kSink, kCandidate, kGate, kState, kNorm };

using weft::set_element;
void set_element(const HostTensor& tensor, int64_t i, float value) { const_cast<HostTensor&>(tensor).set(i, value); }

template <class Tensor>
void fill(const Tensor& tensor, int64_t count, Kind kind) {
  for (int64_t i = 0; i < count; ++i) set_element(tensor, i, number_of({kind, i}));
}
// Entries that the rank holds of what the requests see; `distinct` keys of entries, so that scores tie.
void fill_entries(const Step& step, const TensorView& cache, Kind kind, const CacheShard& shard, int64_t distinct) {
  for (const Segment& s : step.batch.segments) {
    const PagedRows rows(cache, step.batch.pages[static_cast<size_t>(s.request)], shard);
    for (int64_t g = 0; g < s.kv_end / kRatio; ++g) {
      for (int64_t c = 0; rows.holds(g) && c < kDim; ++c) {
        const float value = number_of({kind, distinct == 0 ? s.request * 1000 + g : g % distinct, c});
        if (cache.dtype() == DType::kF32) {
          reinterpret_cast<float*>(rows.row(g))[c] = value;
        } else {
          reinterpret_cast<bf16*>(rows.row(g))[c] = to_bf16(value);
        }
      }
    }
  }
}

HostTensor whole(DType dtype, Shape shape, Kind kind, Rows rows = Rows::kStatic) {
  HostTensor tensor(dtype, shape, rows);
  fill(tensor, tensor.count(), kind);
  return tensor;
}

HostTensor whole_entries(const Step& step, DType dtype, Kind kind, int64_t distinct = 0) {
  HostTensor cache(dtype, {kPages, kPageEntries, kDim});
  fill_entries(step, cache.view(), kind, {}, distinct);
  return cache;
}

Piece same(DType dtype, Shape shape, Kind kind, Rows rows, const Placements& placements, int64_t valid) {
  Piece piece = make_piece(dtype, shape, rows, placements, valid);
  fill(piece, piece.view().shape().num_elements(), kind);
  return piece;
}

CacheShard shard_of(const Rank& rank) { return {{1, rank.size()}, rank.index()}; }
Placements split_entries() { return placed(MeshAxis::kDcp, Placement::sharded(1)); }

Piece part_of_entries(const Step& step, const Rank& rank, DType dtype, Kind kind, int64_t distinct = 0) {
  Piece cache = make_piece(dtype, {kPages, kPageEntries / rank.size(), kDim}, Rows::kStatic, split_entries(), kPages);
  fill_entries(step, cache.view(), kind, shard_of(rank), distinct);
  return cache;
}

// Ascending entries that a row sees; all where there are no more than kTopK.
std::vector<int32_t> some_picks(const Step& step, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> picks;
  for (int32_t position : step.batch.positions) {
    std::vector<int32_t> all(static_cast<size_t>((position + 1) / kRatio)), row;
    std::iota(all.begin(), all.end(), 0);
    std::sample(all.begin(), all.end(), std::back_inserter(row), kTopK, random);
    row.resize(kTopK, -1);
    picks.insert(picks.end(), row.begin(), row.end());
  }
  return picks;
}

SparseAttention attention_op() { return {kWindow, kRatio, 0.25, kMaxContext}; }
SparseAttention partial_op() { return {kWindow, kRatio, 0.25, kMaxContext, false}; }

// Of one rank: [T, kHeads, kDim].
HostTensor attention_of_one_rank(const Step& step, DType dtype, const std::vector<int32_t>& picks) {
  ThreadPool pool(1);
  const HostTensor q = whole(dtype, {step.rows(), kHeads, kDim}, kQuery, Rows::kTokens), kv = whole(dtype, {step.rows(), kDim}, kKv, Rows::kTokens),
                   sink = whole(DType::kF32, {kHeads}, kSink), ring = whole(dtype, {kSlots, kWindow, kDim}, kRing),
                   entries = whole_entries(step, dtype, kEntry);
  HostTensor picked(DType::kI32, {step.rows(), kTopK}, Rows::kTokens);
  std::vector<const HostTensor*> in = {&q, &kv, &sink, &ring, &entries};
  if (!picks.empty()) {
    std::copy(picks.begin(), picks.end(), picked.as<int32_t>());
    in.push_back(&picked);
  }
  return std::move(run_op(attention_op(), in, {step.batch, pool})[0]);
}

Piece picks_piece(const Step& step, const std::vector<int32_t>& picks) {
  Piece piece = make_piece(DType::kI32, {step.rows() + kSpare, kTopK}, Rows::kTokens, {}, step.rows());
  std::copy(picks.begin(), picks.end(), piece.as<int32_t>());
  return piece;
}

TEST(Dcp, FetchedEntriesGiveTheAttentionOfOneRank) {
  const Step step;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& picks : {std::vector<int32_t>(), some_picks(step, 1)}) {
      const HostTensor want = attention_of_one_rank(step, dtype, picks);
      for (const int ranks : kRanks) {
        on_ranks(ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kDcp, step.batch, {});
          const int64_t t = step.rows(), room = t + kSpare;
          const Piece q = same(dtype, {room, kHeads, kDim}, kQuery, Rows::kTokens, {}, t), kv = same(dtype, {room, kDim}, kKv, Rows::kTokens, {}, t),
                      sink = same(DType::kF32, {kHeads}, kSink, Rows::kStatic, {}, kHeads),
                      ring = same(dtype, {kSlots, kWindow, kDim}, kRing, Rows::kStatic, {}, kSlots),
                      entries = part_of_entries(step, rank, dtype, kEntry), picked = picks_piece(step, picks.empty() ? std::vector<int32_t>() : picks);
          const FetchEntries fetch{MeshAxis::kDcp, ranks, kRatio, kMaxContext, 40};
          std::vector<const Piece*> from = {&entries}, in = {&q, &kv, &sink, &ring};
          if (!picks.empty()) from.push_back(&picked);
          const auto fetched = rank.run(fetch, from);
          for (const Piece& piece : fetched) in.push_back(&piece);
          const auto out = rank.run(attention_op(), in);
          ASSERT_EQ(out[0].bytes(), want.copy_bytes()) << ranks << " ranks, " << picks.size() << " picks";
        });
      }
    }
  }
}

// 20: every rank scores its own entries alone; what is picked is what one rank picks, also where scores are equal.
TEST(FailureModes, FailureMode20_SelectionFromEntriesOfAllRanks) {
  const Step step;
  ThreadPool pool(2);
  for (const int64_t distinct : {0, 3}) {
    for (const int64_t top_k : {int64_t{1}, kTopK, int64_t{30}}) {
      const IndexTopK op{kRatio, top_k, 0.5, kMaxContext};
      const HostTensor iq = whole(DType::kF32, {step.rows(), kIndexHeads, kDim}, kIndexQuery, Rows::kTokens),
                       w = whole(DType::kF32, {step.rows(), kIndexHeads}, kWeight, Rows::kTokens),
                       keys = whole_entries(step, DType::kF32, kKey, distinct);
      const auto want = run_op(op, {&iq, &w, &keys}, {step.batch, pool});
      for (const int ranks : kRanks) {
        on_ranks(ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kDcp, step.batch, {});
          const int64_t t = step.rows(), room = t + kSpare;
          const Piece own_iq = same(DType::kF32, {room, kIndexHeads, kDim}, kIndexQuery, Rows::kTokens, {}, t),
                      own_w = same(DType::kF32, {room, kIndexHeads}, kWeight, Rows::kTokens, {}, t),
                      own_keys = part_of_entries(step, rank, DType::kF32, kKey, distinct);
          const auto own = rank.run(IndexCandidates{ranks, op}, {&own_iq, &own_w, &own_keys});
          (void)rank.bytes_sent();
          const auto all = rank.run(AllGather{MeshAxis::kDcp, ranks, 1, room}, {&own[0]});
          EXPECT_EQ(rank.bytes_sent(), (ranks - 1) * t * top_k * 8);
          const auto picks = rank.run(MergeTopK{kRatio, top_k}, {&all[0]});
          ASSERT_EQ(picks[0].bytes(), want[0].copy_bytes()) << ranks << " ranks, top " << top_k;
        });
      }
    }
  }
}

// 19: a rank writes the entries that it owns, at their places, and nothing else.
TEST(FailureModes, FailureMode19_CompressorWritesOwnEntriesAlone) {
  const Step step;
  ThreadPool pool(1);
  const Compressor op{kRatio, 1e-6, {10000, 4, {}}, false, {}};
  const int64_t w = 2 * kDim, ring_rows = 2 * kRatio - 1;
  const HostTensor k = whole(DType::kF32, {step.rows(), w}, kCandidate, Rows::kTokens), s = whole(DType::kF32, {step.rows(), w}, kGate, Rows::kTokens),
                   norm = whole(DType::kF32, {kDim}, kNorm), state = whole(DType::kF32, {kSlots, ring_rows, 2 * w}, kState);
  const HostTensor entries(DType::kF32, {kPages, kPageEntries, kDim});
  run_op(op, {&k, &s, &norm, &state, &entries}, {step.batch, pool});
  for (const int ranks : kRanks) {
    on_ranks(ranks, [&](Communicator& comm) {
      Rank rank(comm, MeshAxis::kDcp, step.batch, {});
      const int64_t t = step.rows(), room = t + kSpare;
      const Piece own_k = same(DType::kF32, {room, w}, kCandidate, Rows::kTokens, {}, t), own_s = same(DType::kF32, {room, w}, kGate, Rows::kTokens, {}, t),
                  own_norm = same(DType::kF32, {kDim}, kNorm, Rows::kStatic, {}, kDim),
                  own_state = same(DType::kF32, {kSlots, ring_rows, 2 * w}, kState, Rows::kStatic, {}, kSlots),
                  own = make_piece(DType::kF32, {kPages, kPageEntries / ranks, kDim}, Rows::kStatic, split_entries(), kPages);
      rank.run(op, {&own_k, &own_s, &own_norm, &own_state, &own});
      EXPECT_EQ(own_state.bytes(), state.copy_bytes());
      int64_t written = 0, expected = 0;
      for (const Segment& segment : step.batch.segments) {
        const auto& pages = step.batch.pages[static_cast<size_t>(segment.request)];
        const PagedRows all(entries.view(), pages), mine(own.view(), pages, shard_of(rank));
        for (int64_t g = segment.first_position() / kRatio; g < segment.kv_end / kRatio; ++g) {
          if (!mine.holds(g)) continue;
          ++expected;
          EXPECT_EQ(std::memcmp(mine.row(g), all.row(g), static_cast<size_t>(all.row_bytes())), 0) << "entry " << g;
        }
      }
      for (int64_t i = 0; i < kPages * kPageEntries / ranks; ++i) written += std::isnan(element(own, i * kDim)) ? 0 : 1;
      EXPECT_EQ(written, expected);
    });
  }
}

TEST(Dcp, BytesOfFullStepsAreThoseOfTheWork) {
  constexpr int64_t kEntries = 24, kRow = kDim * 4;
  const std::vector<std::vector<int32_t>> pages = {{2, 6}};
  StepBatch batch;
  batch.segments = {{0, 0, 3, kEntries * kRatio}};
  batch.tokens.resize(3);
  batch.positions = {93, 94, 95};
  batch.pages = pages;
  for (const int ranks : kRanks) {
    for (const bool with_picks : {false, true}) {
      on_ranks(ranks, [&](Communicator& comm) {
        Rank rank(comm, MeshAxis::kDcp, batch, {});
        const Piece entries = same(DType::kF32, {kPages, kPageEntries / ranks, kDim}, kEntry, Rows::kStatic, split_entries(), kPages);
        Piece picks = make_piece(DType::kI32, {3, 8}, Rows::kTokens, {}, 3);  // every entry once
        std::iota(picks.as<int32_t>(), picks.as<int32_t>() + kEntries, 0);
        std::vector<const Piece*> in = {&entries};
        if (with_picks) in.push_back(&picks);
        Work work;
        rank.run(FetchEntries{MeshAxis::kDcp, ranks, kRatio, kEntries * kRatio, kEntries}, in, &work);
        EXPECT_EQ(rank.bytes_sent(), work.bytes_sent);
        EXPECT_EQ(work.bytes_sent, (ranks - 1) * kEntries / ranks * kRow);
      });
    }
  }
}

// ---- Merged

// Largest difference, in parts of the largest value.
double difference(const Piece& found, const HostTensor& want, int64_t rows, int64_t head0, int64_t heads) {
  double largest = 0, differs = 0;
  for (int64_t i = 0; i < want.count(); ++i) largest = std::max(largest, std::fabs(static_cast<double>(want.get(i))));
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < heads * kDim; ++i) {
      const double x = element(found, t * heads * kDim + i), y = want.get((t * kHeads + head0) * kDim + i);
      differs = std::max(differs, std::fabs(x - y));
    }
  }
  return differs / largest;
}

// 25: the sink of each head once, whatever the number of ranks; so do the keys of the window, which all ranks have.
TEST(FailureModes, FailureMode25_SinkAndWindowCountOnce) {
  const Step step;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& picks : {std::vector<int32_t>(), some_picks(step, 2)}) {
      const HostTensor want = attention_of_one_rank(step, dtype, picks);
      for (const int ranks : kRanks) {
        on_ranks(ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kDcp, step.batch, {});
          const int64_t t = step.rows(), room = t + kSpare, heads = kHeads / ranks, head0 = rank.index() * heads;
          const Piece q = make_piece(dtype, {room, heads, kDim}, Rows::kTokens, placed(MeshAxis::kTp, Placement::sharded(1)), t),
                      kv = same(dtype, {room, kDim}, kKv, Rows::kTokens, {}, t),
                      sink = make_piece(DType::kF32, {heads}, Rows::kStatic, placed(MeshAxis::kTp, Placement::sharded(0)), heads),
                      ring = same(dtype, {kSlots, kWindow, kDim}, kRing, Rows::kStatic, {}, kSlots),
                      entries = part_of_entries(step, rank, dtype, kEntry), picked = picks_piece(step, picks);
          for (int64_t i = 0; i < t * heads * kDim; ++i) {
            const int64_t row = i / (heads * kDim), rest = i % (heads * kDim);
            set_element(q, i, number_of({kQuery, (row * kHeads + head0) * kDim + rest}));
          }
          for (int64_t h = 0; h < heads; ++h) set_element(sink, h, number_of({kSink, head0 + h}));
          (void)rank.bytes_sent();
          Work work;
          const auto all = rank.run(GatherHeads{MeshAxis::kDcp, ranks}, {&q}, &work);
          EXPECT_EQ(rank.bytes_sent() * room, work.bytes_sent * t);
          std::vector<const Piece*> in = {&all[0], &kv, &ring, &entries};
          if (!picks.empty()) in.push_back(&picked);
          const auto partial = rank.run(PartialAttention{ranks, partial_op()}, in);
          const auto out = rank.run(MergePartials{MeshAxis::kDcp, ranks, dtype}, {&partial[0], &sink}, &work);
          EXPECT_EQ(rank.bytes_sent() * room, work.bytes_sent * t);
          EXPECT_LT(difference(out[0], want, t, head0, heads), dtype == DType::kF32 ? 1e-6 : 1.0 / 128) << ranks << " ranks";
        });
      }
    }
  }
}

// Reference 5.9; and a row that has no key anywhere.
TEST(Dcp, S59_Merge) {
  StepBatch batch;
  batch.segments = {{0, 0, 2, 2}};
  batch.tokens.resize(2);
  batch.positions = {0, 1};
  on_ranks(2, [&](Communicator& comm) {
    Rank rank(comm, MeshAxis::kDcp, batch, {});
    Placements placements = placed(MeshAxis::kTp, Placement::sharded(1));
    placements[static_cast<size_t>(MeshAxis::kDcp)] = Placement::partial();
    const Piece partial = make_piece(DType::kF32, {2, 2, 3}, Rows::kTokens, placements, 2);
    const float nothing = -std::numeric_limits<float>::infinity();
    const std::vector<std::vector<float>> of_rank = {{2, 4, std::log(2.0f)}, {6, 8, std::log(6.0f)}};
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 3; ++i) {
        set_element(partial, h * 3 + i, of_rank[static_cast<size_t>(comm.rank())][static_cast<size_t>(i)]);
        set_element(partial, 6 + h * 3 + i, i == 2 ? nothing : 0);
      }
    }
    const auto out = rank.run(MergePartials{MeshAxis::kDcp, 2, DType::kF32}, {&partial});
    EXPECT_NEAR(element(out[0], 0), 5, 1e-5);
    EXPECT_NEAR(element(out[0], 1), 7, 1e-5);
    EXPECT_EQ(element(out[0], 2), 0);
    EXPECT_EQ(element(out[0], 3), 0);
  });
}

}  // namespace
}  // namespace weft

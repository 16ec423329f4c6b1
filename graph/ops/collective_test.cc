// Every op that moves values between ranks, on threads: what each rank gets, from inputs whose tails are poisoned, into outputs
// whose tails must stay so; and the bytes that are counted for it.
#include "graph/ops/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>

#include "comm/bytes.h"
#include "comm/tree_sum.h"
#include "graph/rank_test_support.h"

namespace weft {
namespace {

// What every rank would hold of element `c` of row `row` of the whole value.
float whole(int64_t row, int64_t c) { return number_of({row + 1, c}); }

const DType kDTypes[] = {DType::kF32, DType::kBF16};

// ---- Sums

float partial(int rank, int64_t row, int64_t c) { return number_of({rank + 100, row, c}); }

float sum_of(int ranks, int64_t row, int64_t c) {
  std::vector<float> values;
  std::vector<const float*> sources;
  for (int r = 0; r < ranks; ++r) values.push_back(partial(r, row, c));
  for (const float& value : values) sources.push_back(&value);
  float sum = 0;
  tree_sum(sources, 1, &sum, DType::kF32);
  return sum;
}

TEST(Collectives, AllReduceIsTheTreeSumOnEveryRank) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t rows : {1, 5, 8}) {
      for (const DType dtype : kDTypes) {
        const StepBatch batch = batch_of({rows});
        on_ranks(ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kTp, batch, {});
          const Piece x = rank.piece(DType::kF32, {rows + kSpare, 6}, Rows::kTokens, placed(MeshAxis::kTp, Placement::partial()));
          for (int64_t i = 0; i < rows * 6; ++i) set_element(x, i, partial(comm.rank(), i / 6, i % 6));
          const auto y = rank.run(AllReduce{MeshAxis::kTp, ranks, dtype}, {&x});
          ASSERT_EQ(y[0].rows, rows);
          for (int64_t i = 0; i < rows * 6; ++i) {
            const float want = sum_of(ranks, i / 6, i % 6);
            ASSERT_EQ(element(y[0], i), dtype == DType::kF32 ? want : to_float(to_bf16(want))) << ranks << " ranks, element " << i;
          }
          EXPECT_EQ(rank.bytes_sent(), all_reduce_bytes(ranks, rows, 6, dtype_bits(dtype) / 8));
        });
      }
    }
  }
}

// ---- Rows

struct RowCase {
  MeshAxis axis;
  TokenSplit split;
  int ranks;
  std::vector<int64_t> lengths;
};

const RowCase kRowCases[] = {
    {MeshAxis::kTp, TokenSplit::kFlat, 2, {8}},
    {MeshAxis::kTp, TokenSplit::kFlat, 4, {3, 2}},  // 2 2 1 0
    {MeshAxis::kTp, TokenSplit::kFlat, 3, {1}},     // 1 0 0
    {MeshAxis::kPcp, TokenSplit::kFlat, 4, {3, 2}},
    {MeshAxis::kPcp, TokenSplit::kPerRequest, 2, {5, 1, 4}},
    {MeshAxis::kPcp, TokenSplit::kPerRequest, 3, {2, 2}},  // the last has none
    {MeshAxis::kPcp, TokenSplit::kZigzag, 2, {8, 3}},
    {MeshAxis::kPcp, TokenSplit::kZigzag, 3, {10, 1}},
    {MeshAxis::kPcp, TokenSplit::kZigzag, 3, {1, 1}},  // all on rank 0
};

RowSetOptions options_of(const RowCase& c) {
  RowSetOptions options;
  (c.axis == MeshAxis::kTp ? options.tp : options.pcp) = true;
  (c.axis == MeshAxis::kTp ? options.tp_split : options.pcp_split) = c.split;
  return options;
}

// The case's own rows on this rank, for tokens and (every second row) for logits.
void for_row_cases(const std::function<void(const RowCase&, Rank&, Rows kind, int64_t total, RowSet set)>& body) {
  for (const RowCase& c : kRowCases) {
    const int64_t rows = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
    std::vector<int32_t> logits;
    for (int32_t i = 0; i < rows; i += 2) logits.push_back(i);
    const StepBatch batch = batch_of(c.lengths, logits);
    on_ranks(c.ranks, [&](Communicator& comm) {
      Rank rank(comm, c.axis, batch, options_of(c));
      for (const Rows kind : {Rows::kTokens, Rows::kLogits}) {
        body(c, rank, kind, kind == Rows::kTokens ? rows : static_cast<int64_t>(logits.size()),
             c.axis == MeshAxis::kTp ? RowSet::kTp : RowSet::kPcp);
      }
    });
  }
}

TEST(Collectives, ReduceScatterGivesEachRankItsRows) {
  for_row_cases([](const RowCase& c, Rank& rank, Rows kind, int64_t total, RowSet set) {
    for (const DType dtype : kDTypes) {
      const Piece x = rank.piece(DType::kF32, {total + kSpare, 5}, kind, placed(c.axis, Placement::partial()));
      for (int64_t i = 0; i < total * 5; ++i) set_element(x, i, partial(rank.index(), i / 5, i % 5));
      Work work;
      (void)rank.bytes_sent();
      const auto y = rank.run(ReduceScatter{c.axis, c.ranks, dtype, total + kSpare}, {&x}, &work);
      const RowSplit& own = rank.sets().of(kind, set);
      ASSERT_EQ(y[0].rows, own.size());
      for (int64_t i = 0; i < own.size() * 5; ++i) {
        const float want = sum_of(c.ranks, own.rows[static_cast<size_t>(i / 5)], i % 5);
        ASSERT_EQ(element(y[0], i), dtype == DType::kF32 ? want : to_float(to_bf16(want)));
      }
      EXPECT_EQ(rank.bytes_sent(), own.flat ? reduce_scatter_bytes(c.ranks, total, 5) : reduce_scatter_v_bytes(own.counts, own.size(), 5));
      EXPECT_EQ(work.bytes_sent, reduce_scatter_bytes(c.ranks, total + kSpare, 5));
    }
  });
}

TEST(Collectives, AllGatherPutsRowsInOrder) {
  for_row_cases([](const RowCase& c, Rank& rank, Rows kind, int64_t total, RowSet set) {
    for (const DType dtype : kDTypes) {
      const int64_t width = 2 * 3;
      const RowSplit& own = rank.sets().of(kind, set);
      // Room for the rows of the fullest rank, whichever that is.
      const Piece x = rank.piece(dtype, {total + kSpare, 2, 3}, kind, placed(c.axis, Placement::sharded(0)));
      for (int64_t j = 0; j < own.size(); ++j) {
        for (int64_t e = 0; e < width; ++e) set_element(x, j * width + e, whole(own.rows[static_cast<size_t>(j)], e));
      }
      Work work;
      (void)rank.bytes_sent();
      const auto y = rank.run(AllGather{c.axis, c.ranks, 0, total + kSpare}, {&x}, &work);
      ASSERT_EQ(y[0].rows, total);
      for (int64_t i = 0; i < total * width; ++i) {
        const float want = whole(i / width, i % width);
        ASSERT_EQ(element(y[0], i), dtype == DType::kF32 ? want : to_float(to_bf16(want))) << "row " << i / width;
      }
      const int64_t row = width * dtype_bits(dtype) / 8;
      EXPECT_EQ(rank.bytes_sent(), own.flat ? all_gather_bytes(c.ranks, total, row) : all_gather_v_bytes(c.ranks, own.size(), row));
      EXPECT_EQ(work.bytes_sent, all_gather_bytes(c.ranks, total + kSpare, row));
    }
  });
}

TEST(Collectives, SliceRowsTakesOwnRowsAndMovesNothing) {
  for_row_cases([](const RowCase& c, Rank& rank, Rows kind, int64_t total, RowSet set) {
    const Piece x = rank.piece(DType::kBF16, {total + kSpare, 5}, kind, {});
    for (int64_t i = 0; i < total * 5; ++i) set_element(x, i, whole(i / 5, i % 5));
    Work work;
    (void)rank.bytes_sent();
    const auto y = rank.run(SliceRows{c.axis, c.ranks, total + kSpare}, {&x}, &work);
    const RowSplit& own = rank.sets().of(kind, set);
    ASSERT_EQ(y[0].rows, own.size());
    for (int64_t i = 0; i < own.size() * 5; ++i) {
      ASSERT_EQ(element(y[0], i), to_float(to_bf16(whole(own.rows[static_cast<size_t>(i / 5)], i % 5))));
    }
    EXPECT_EQ(rank.bytes_sent(), 0);
    EXPECT_EQ(work.bytes_sent, 0);
  });
}

TEST(Collectives, HeadsToRowsWithUnevenRows) {
  for_row_cases([](const RowCase& c, Rank& rank, Rows kind, int64_t total, RowSet set) {
    const RowSplit& own = rank.sets().of(kind, set);
    const int64_t heads = 2 * c.ranks, dim = 3, row = heads * dim, local_row = row / c.ranks;
    const Piece x = rank.piece(DType::kBF16, {total + kSpare, heads, dim}, kind, placed(c.axis, Placement::sharded(0)));
    for (int64_t i = 0; i < own.size() * row; ++i) set_element(x, i, whole(own.rows[static_cast<size_t>(i / row)], i % row));
    (void)rank.bytes_sent();
    const auto y = rank.run(HeadsToRows{c.axis, c.ranks, total + kSpare}, {&x});
    ASSERT_EQ(y[0].type.shape(), (Shape{total + kSpare, 2, dim}));
    ASSERT_EQ(y[0].type.placement, placed(c.axis, Placement::sharded(1)));
    ASSERT_EQ(y[0].rows, total);
    for (int64_t i = 0; i < total * local_row; ++i) {
      ASSERT_EQ(element(y[0], i), to_float(to_bf16(whole(i / local_row, rank.index() * local_row + i % local_row)))) << i;
    }
    EXPECT_EQ(rank.bytes_sent(), (c.ranks - 1) * own.size() * local_row * 2);
  });
}

// What a gather of the features and a slice of the rows give, for the bytes of the rows of others alone.
TEST(Collectives, ColumnsToRowsWithUnevenRows) {
  for_row_cases([](const RowCase& c, Rank& rank, Rows kind, int64_t total, RowSet set) {
    const RowSplit& own = rank.sets().of(kind, set);
    if (!own.unique) return;  // such rows are never brought together
    const int64_t slice = 3, width = slice * c.ranks;
    for (const DType dtype : kDTypes) {
      const Piece x = rank.piece(dtype, {total + kSpare, slice}, kind, placed(c.axis, Placement::sharded(1)));
      for (int64_t i = 0; i < total * slice; ++i) set_element(x, i, whole(i / slice, rank.index() * slice + i % slice));
      Work work;
      (void)rank.bytes_sent();
      const auto y = rank.run(ColumnsToRows{c.axis, c.ranks, total + kSpare}, {&x}, &work);
      ASSERT_EQ(y[0].type.shape(), (Shape{total + kSpare, width}));
      ASSERT_EQ(y[0].type.placement, placed(c.axis, Placement::sharded(0)));
      ASSERT_EQ(y[0].rows, own.size());
      for (int64_t i = 0; i < own.size() * width; ++i) {
        const float want = whole(own.rows[static_cast<size_t>(i / width)], i % width);
        ASSERT_EQ(element(y[0], i), dtype == DType::kF32 ? want : to_float(to_bf16(want))) << i;
      }
      const int64_t element_bytes = dtype_bits(dtype) / 8;
      EXPECT_EQ(rank.bytes_sent(), (total - own.size()) * slice * element_bytes);
      EXPECT_EQ(work.bytes_sent, (c.ranks - 1) * rows_per_rank(c.ranks, total + kSpare) * slice * element_bytes);
    }
  });
}

TEST(Collectives, AllGatherOfColumns) {
  for (const int ranks : {2, 3}) {
    for (const int64_t rows : {1, 4}) {
      for (const int dim : {1, 2}) {
        const StepBatch batch = batch_of({rows});
        on_ranks(ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kTp, batch, {});
          const Shape local = dim == 1 ? Shape{rows + kSpare, 2, 3} : Shape{rows + kSpare, 2, 5};
          const int64_t middle = dim == 1 ? 2 * ranks : 2, last = dim == 1 ? 3 : 5 * ranks;
          const Piece x = rank.piece(DType::kBF16, local, Rows::kTokens, placed(MeshAxis::kTp, Placement::sharded(dim)));
          const auto place = [&](int64_t h, int64_t d) { return h * last + d; };
          for (int64_t t = 0; t < rows; ++t) {
            for (int64_t h = 0; h < local[1]; ++h) {
              for (int64_t d = 0; d < local[2]; ++d) {
                const int64_t at = dim == 1 ? place(comm.rank() * local[1] + h, d) : place(h, comm.rank() * local[2] + d);
                set_element(x, (t * local[1] + h) * local[2] + d, whole(t, at));
              }
            }
          }
          Work work;
          const auto y = rank.run(AllGather{MeshAxis::kTp, ranks, dim, rows + kSpare}, {&x}, &work);
          ASSERT_EQ(y[0].type.shape(), (Shape{rows + kSpare, middle, last}));
          for (int64_t i = 0; i < rows * middle * last; ++i) {
            ASSERT_EQ(element(y[0], i), to_float(to_bf16(whole(i / (middle * last), i % (middle * last))))) << i;
          }
          EXPECT_EQ(rank.bytes_sent(), (ranks - 1) * rows * local[1] * local[2] * 2);
          EXPECT_EQ(work.bytes_sent, (ranks - 1) * x.type.tensor.bytes());
        });
      }
    }
  }
}

// sharding.md 12: inputs of ones give 1 where something whole is moved, the number of ranks where summands are added.
TEST(Collectives, FailureMode24_OnesAreAddedWhereTheyAreSummands) {
  constexpr int64_t kRows = 6;
  for (const int ranks : {2, 3}) {
    const StepBatch batch = batch_of({kRows});
    RowSetOptions rows;
    rows.tp = true;
    on_ranks(ranks, [&](Communicator& comm) {
      Rank rank(comm, MeshAxis::kTp, batch, rows);
      const auto expect = [&](const Op& op, const Placement& placement, float want) {
        const int64_t width = 4;
        const Piece x = rank.piece(DType::kF32, {kRows, width}, Rows::kTokens, placed(MeshAxis::kTp, placement));
        for (int64_t i = 0; i < x.rows * width; ++i) set_element(x, i, 1);
        const auto y = rank.run(op, {&x});
        const int64_t count = y[0].rows * y[0].type.shape()[1];
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(element(y[0], i), want) << op_name(op);
      };
      const int64_t own = rows_per_rank(ranks, kRows);
      expect(AllReduce{MeshAxis::kTp, ranks, DType::kF32}, Placement::partial(), static_cast<float>(ranks));
      expect(ReduceScatter{MeshAxis::kTp, ranks, DType::kF32, own}, Placement::partial(), static_cast<float>(ranks));
      expect(AllGather{MeshAxis::kTp, ranks, 0, kRows}, Placement::sharded(0), 1);
      expect(AllGather{MeshAxis::kTp, ranks, 1, kRows}, Placement::sharded(1), 1);
      expect(SliceRows{MeshAxis::kTp, ranks, own}, Placement::replicated(), 1);
      expect(ColumnsToRows{MeshAxis::kTp, ranks, own}, Placement::sharded(1), 1);
    });
  }
}

// sharding.md 3.4 and 12: rooms of `cap` rows of which all, all but one, one or none are valid. Slabs are packed by the valid rows;
// rows behind them keep their bytes (Rank::run compares them).
TEST(Collectives, FailureMode33_TailsAreKeptAndSlabsArePacked) {
  constexpr int64_t kCap = 8, kHeads = 4, kDim = 3, kRow = kHeads * kDim;
  for (const int ranks : {2, 4}) {
    for (const int64_t valid : {ranks * kCap, ranks * (kCap - 1), int64_t{ranks}, int64_t{0}}) {
      const StepBatch batch = batch_of(valid > 0 ? std::vector<int64_t>{valid} : std::vector<int64_t>{});
      RowSetOptions rows;
      rows.tp = true;
      on_ranks(ranks, [&](Communicator& comm) {
        Rank rank(comm, MeshAxis::kTp, batch, rows);
        const int64_t own = valid / ranks, first = comm.rank() * own, slice = kRow / ranks;
        const Piece x = rank.piece(DType::kBF16, {kCap, kHeads, kDim}, Rows::kTokens, placed(MeshAxis::kTp, Placement::sharded(0)));
        ASSERT_EQ(x.rows, own);
        for (int64_t i = 0; i < own * kRow; ++i) set_element(x, i, whole(first + i / kRow, i % kRow));
        const auto y = rank.run(HeadsToRows{MeshAxis::kTp, ranks, ranks * kCap}, {&x});
        ASSERT_EQ(y[0].rows, valid);
        for (int64_t i = 0; i < valid * slice; ++i) {
          ASSERT_EQ(element(y[0], i), to_float(to_bf16(whole(i / slice, comm.rank() * slice + i % slice)))) << i;
        }
        const Piece sum = rank.piece(DType::kF32, {ranks * kCap, 5}, Rows::kTokens, placed(MeshAxis::kTp, Placement::partial()));
        for (int64_t i = 0; i < valid * 5; ++i) set_element(sum, i, partial(comm.rank(), i / 5, i % 5));
        const auto back = rank.run(ReduceScatter{MeshAxis::kTp, ranks, DType::kF32, kCap}, {&sum});
        ASSERT_EQ(back[0].rows, own);
        for (int64_t i = 0; i < own * 5; ++i) ASSERT_EQ(element(back[0], i), sum_of(ranks, first + i / 5, i % 5));
      });
    }
  }
}

// ---- Shared quantisation

// x' of the rows of `x`, bit by bit through a linear layer with the identity as its weight.
std::vector<uint32_t> through_linear(const HostTensor& x, ActQuant quant) {
  const int64_t k = x.shape()[1], rows = x.shape()[0];
  HostTensor identity(DType::kF32, {k, k});
  for (int64_t i = 0; i < k * k; ++i) identity.set(i, i % (k + 1) == 0 ? 1.0F : 0.0F);
  const StepBatch batch = batch_of({rows});
  ThreadPool pool(1);
  const auto y = run_op(Linear{DType::kF32, quant}, {&x, &identity}, {batch, pool});
  std::vector<uint32_t> bits(static_cast<size_t>(rows * k));
  std::memcpy(bits.data(), y[0].as<float>(), bits.size() * 4);
  return bits;
}

TEST(Collectives, SharedQuantiseIsThatOfTheWholeRow) {
  // Widths of a slice: blocks of 128 that two, three or all ranks share, and a last block that is shorter.
  const struct {
    int ranks;
    int64_t width;
    int64_t heads = 0;  // > 0: side by side
  } cases[] = {{2, 96}, {2, 32}, {3, 64}, {4, 96}, {5, 32}, {2, 192}, {2, 96, 3}, {4, 32, 1}};  // scales of any value for odd multiples of 32
  for (const auto& c : cases) {
    for (const DType dtype : kDTypes) {
      for (const int64_t rows : {1, 7}) {
        const int64_t k = c.ranks * c.width;
        HostTensor x(DType(dtype), {rows, k}, Rows::kTokens);
        x.fill(c.width);
        for (int64_t t = 0; t < rows; ++t) {  // rows of all sizes: outliers, tiny ones below the floor, zeros
          const float scale = t == 0 ? 1 : t == 1 ? 1e-6F : t == 2 ? 3e4F : t == 3 ? 0 : std::ldexp(1.0F, static_cast<int>(t));
          for (int64_t i = 0; i < k; ++i) x.set(t * k + i, x.get(t * k + i) * scale);
          x.set(t * k + (t * 37) % k, scale * 40);
        }
        const ActQuant act_quant = c.width % 64 == 0 ? ActQuant::kFp8Block128 : ActQuant::kFp8Block128AnyScale;
        const std::vector<uint32_t> want = through_linear(x, act_quant);
        HostTensor quantised(act_quant == ActQuant::kFp8Block128 ? DType(dtype) : DType::kF32, {rows, k}, Rows::kTokens);
        const StepBatch batch = batch_of({rows});
        std::mutex mutex;
        on_ranks(c.ranks, [&](Communicator& comm) {
          Rank rank(comm, MeshAxis::kTp, batch, {});
          const Shape shape = c.heads > 0 ? Shape{rows + kSpare, c.heads, c.width / c.heads} : Shape{rows + kSpare, c.width};
          const Piece slice = rank.piece(dtype, shape, Rows::kTokens, placed(MeshAxis::kTp, Placement::sharded(1)));
          const int64_t first = comm.rank() * c.width;
          for (int64_t i = 0; i < rows * c.width; ++i) set_element(slice, i, x.get(i / c.width * k + first + i % c.width));
          Work work;
          const auto y = rank.run(SharedQuantise{MeshAxis::kTp, c.ranks, act_quant}, {&slice}, &work);
          EXPECT_EQ(rank.bytes_sent(), all_reduce_max_bytes(c.ranks, rows * ((k + 127) / 128)));
          EXPECT_EQ(work.bytes_sent, all_reduce_max_bytes(c.ranks, (rows + kSpare) * ((k + 127) / 128)));
          const std::lock_guard lock(mutex);
          for (int64_t i = 0; i < rows * c.width; ++i) quantised.set(i / c.width * k + first + i % c.width, element(y[0], i));
        });
        EXPECT_EQ(through_linear(quantised, ActQuant::kNone), want) << c.ranks << " slices of " << c.width << " " << dtype_name(dtype);
      }
    }
  }
}

// glm_moe_dsa.md 5.4: the scale of a row is that of all its inputs, also where ranks have slices of them.
TEST(Collectives, Int8RowsInSlicesAreThoseOfTheWholeRow) {
  constexpr int64_t kRows = 5, kInputs = 64, kOutputs = 6;
  for (const int ranks : {2, 4}) {
    for (const DType dtype : kDTypes) {
      HostTensor x(DType(dtype), {kRows, kInputs}, Rows::kTokens), w(DType::kI8, {kOutputs, kInputs}), scale(DType::kF32, {kOutputs, 1});
      x.fill(1);
      scale.fill(2);
      for (int64_t i = 0; i < kInputs; ++i) x.set(3 * kInputs + i, 0);
      for (int64_t i = 0; i < w.count(); ++i) w.as<int8_t>()[i] = static_cast<int8_t>(i * 37 % 255 - 127);
      const StepBatch batch = batch_of({kRows});
      ThreadPool pool(1);
      const Linear whole{DType::kF32, ActQuant::kInt8PerRow, 1, 4, 0, 1, kInputs};
      const auto want = run_op(whole, {&x, &w, &scale}, {batch, pool});
      const int64_t width = kInputs / ranks;
      std::vector<std::vector<float>> parts(static_cast<size_t>(ranks));
      on_ranks(ranks, [&](Communicator& comm) {
        Rank rank(comm, MeshAxis::kTp, batch, {});
        const int64_t first = comm.rank() * width;
        const Piece slice = rank.piece(dtype, {kRows + kSpare, width}, Rows::kTokens, placed(MeshAxis::kTp, Placement::sharded(1)));
        HostTensor mine(DType(dtype), {kRows, width}, Rows::kTokens), largest(DType::kF32, {kRows}, Rows::kTokens);
        for (int64_t i = 0; i < kRows * width; ++i) {
          set_element(slice, i, x.get(i / width * kInputs + first + i % width));
          mine.set(i, x.get(i / width * kInputs + first + i % width));
        }
        Work work;
        const auto maxima = rank.run(RowAbsmax{MeshAxis::kTp, ranks}, {&slice}, &work);
        EXPECT_EQ(rank.bytes_sent(), all_reduce_max_bytes(ranks, kRows));
        EXPECT_EQ(work.bytes_sent, all_reduce_max_bytes(ranks, kRows + kSpare));
        for (int64_t t = 0; t < kRows; ++t) largest.set(t, element(maxima[0], t));
        HostTensor columns(DType::kI8, {kOutputs, width});
        for (int64_t i = 0; i < kOutputs * width; ++i) columns.as<int8_t>()[i] = w.as<int8_t>()[i / width * kInputs + first + i % width];
        const Linear part{DType::kF32, ActQuant::kInt8PerRow, 1, 4 / ranks, 0, 1, kInputs};
        ThreadPool own(1);
        const auto y = run_op(part, {&mine, &columns, &scale, &largest}, {batch, own});
        for (int64_t i = 0; i < y[0].count(); ++i) parts[static_cast<size_t>(comm.rank())].push_back(y[0].get(i));
      });
      for (int64_t i = 0; i < want[0].count(); ++i) {
        const auto at = [&](int r) { return parts[static_cast<size_t>(r)][static_cast<size_t>(i)]; };
        EXPECT_EQ(want[0].get(i), ranks == 2 ? at(0) + at(1) : (at(0) + at(1)) + (at(2) + at(3))) << ranks << " ranks, element " << i;
      }
    }
  }
}

// ---- Experts

struct ExpertProblem {
  int ranks;
  int64_t rows, top_k, experts;  // of all ranks
  DType dtype;
  bool weight_before_w2;
  int64_t hidden = 8, inner = 12;
  std::vector<int32_t> expert{};  // [rows, top_k] ascending, -1 at the end
  std::vector<float> weight{};
};

HostTensor stacked(int64_t experts, int64_t a, int64_t b, int64_t seed) {
  HostTensor w(DType::kF32, {experts, a, b});
  return std::move(w.fill(seed, 0.25F));
}

std::vector<float> on_one_rank(const ExpertProblem& p, const std::vector<HostTensor>& weights, const HostTensor& x) {
  HostTensor expert(DType::kI32, {p.rows, p.top_k}, Rows::kTokens), weight(DType::kF32, {p.rows, p.top_k}, Rows::kTokens);
  std::copy(p.expert.begin(), p.expert.end(), expert.as<int32_t>());
  std::copy(p.weight.begin(), p.weight.end(), weight.as<float>());
  const StepBatch batch = batch_of({p.rows});
  ThreadPool pool(1);
  Experts op;
  op.swiglu_limit = 3;
  op.weight_before_w2 = p.weight_before_w2;
  const auto y = run_op(op, {&x, &expert, &weight, &weights[0], &weights[1], &weights[2]}, {batch, pool});
  return {y[0].as<float>(), y[0].as<float>() + p.rows * p.hidden};
}

// Dispatch, experts of every rank, combine: the rows of each rank, and the bytes.
void check_expert_parallel(const ExpertProblem& p) {
  const int64_t local = p.experts / p.ranks;
  std::vector<HostTensor> weights;
  weights.push_back(stacked(p.experts, p.inner, p.hidden, 1));
  weights.push_back(stacked(p.experts, p.inner, p.hidden, 2));
  weights.push_back(stacked(p.experts, p.hidden, p.inner, 3));
  HostTensor x(DType(p.dtype), {p.rows, p.hidden}, Rows::kTokens);
  x.fill(4);
  const std::vector<float> want = on_one_rank(p, weights, x);
  const StepBatch batch = batch_of({p.rows});
  const auto owner_of = [&](int32_t e) { return static_cast<int>(e / local); };

  on_ranks(p.ranks, [&](Communicator& comm) {
    // The rows of the group are the flat split over tp; here all ranks of tp are those of ep.
    Rank rank(comm, MeshAxis::kEp, batch, {});
    const int64_t first = first_row_of_rank(p.ranks, p.rows, comm.rank()), t = first_row_of_rank(p.ranks, p.rows, comm.rank() + 1) - first;
    const int64_t capacity = rows_per_rank(p.ranks, p.rows) + 1;
    Piece mine = make_piece(p.dtype, {capacity, p.hidden}, Rows::kTokens, {}, t);
    Piece expert = make_piece(DType::kI32, {capacity, p.top_k}, Rows::kTokens, {}, t);
    Piece weight = make_piece(DType::kF32, {capacity, p.top_k}, Rows::kTokens, {}, t);
    std::memcpy(mine.memory->data(), x.as<std::byte>() + first * p.hidden * dtype_bits(p.dtype) / 8, static_cast<size_t>(mine.used()));
    std::memcpy(expert.memory->data(), p.expert.data() + first * p.top_k, static_cast<size_t>(expert.used()));
    std::memcpy(weight.memory->data(), p.weight.data() + first * p.top_k, static_cast<size_t>(weight.used()));
    const auto sent = rank.run(ExpertDispatch{MeshAxis::kEp, p.ranks, local, p.ranks * capacity}, {&mine, &expert, &weight});

    // Every row once, by rank and ascending row, and only where it has an expert.
    int64_t row = 0, remote_rows = 0, remote_slots = 0;
    for (int s = 0; s < p.ranks; ++s) {
      int64_t count = 0;
      for (int64_t g = first_row_of_rank(p.ranks, p.rows, s); g < first_row_of_rank(p.ranks, p.rows, s + 1); ++g) {
        const auto* ids = &p.expert[static_cast<size_t>(g * p.top_k)];
        if (std::none_of(ids, ids + p.top_k, [&](int32_t e) { return e >= 0 && owner_of(e) == comm.rank(); })) continue;
        ASSERT_LT(row, sent[0].rows);
        for (int64_t c = 0; c < p.hidden; ++c) ASSERT_EQ(element(sent[0], row * p.hidden + c), x.get(g * p.hidden + c));
        for (int64_t j = 0; j < p.top_k; ++j) {
          const bool here = ids[j] >= 0 && owner_of(ids[j]) == comm.rank();
          ASSERT_EQ(sent[1].as<int32_t>()[row * p.top_k + j], here ? ids[j] % local : -1);
          if (here) {
            ASSERT_EQ(sent[2].as<float>()[row * p.top_k + j], p.weight[static_cast<size_t>(g * p.top_k + j)]);
          }
          if (here && s != comm.rank()) ++remote_slots;
        }
        ++row;
        ++count;
      }
      ASSERT_EQ(sent[3].as<int32_t>()[s], count);
    }
    ASSERT_EQ(sent[0].rows, row);
    for (int64_t g = first; g < first + t; ++g) {
      std::vector<bool> to(static_cast<size_t>(p.ranks));
      for (int64_t j = 0; j < p.top_k; ++j) {
        const int32_t e = p.expert[static_cast<size_t>(g * p.top_k + j)];
        if (e >= 0) to[static_cast<size_t>(owner_of(e))] = true;
      }
      to[static_cast<size_t>(comm.rank())] = false;
      remote_rows += std::count(to.begin(), to.end(), true);
    }
    EXPECT_EQ(rank.bytes_sent(), (p.ranks - 1) * 8 + remote_rows * (p.hidden * dtype_bits(p.dtype) / 8 + p.top_k * 8));

    std::vector<Piece> own;
    for (const HostTensor& w : weights) {
      const Shape& s = w.shape();
      own.push_back(make_piece(DType::kF32, {local, s[1], s[2]}, Rows::kStatic, placed(MeshAxis::kEp, Placement::sharded(0)), local));
      std::memcpy(own.back().memory->data(), w.as<float>() + comm.rank() * local * s[1] * s[2], static_cast<size_t>(own.back().used()));
    }
    ExpertSlots slots;
    slots.experts.swiglu_limit = 3;
    slots.experts.weight_before_w2 = p.weight_before_w2;
    const auto out = rank.run(slots, {&sent[0], &sent[1], &sent[2], &own[0], &own[1], &own[2]});
    const DType travel = p.weight_before_w2 ? p.dtype : DType::kF32;
    const auto y = rank.run(ExpertCombine{MeshAxis::kEp, p.ranks, local, travel}, {&out[0], &sent[1], &sent[3], &expert});
    EXPECT_EQ(rank.bytes_sent(), remote_slots * p.hidden * dtype_bits(travel) / 8);
    // Its rows are those of the dispatch: valid ones of this rank.
    ASSERT_EQ(std::memcmp(y[0].memory->data(), want.data() + first * p.hidden, static_cast<size_t>(t * p.hidden * 4)), 0)
        << "rank " << comm.rank() << " of " << p.ranks << ", " << p.rows << " rows";
  });
}

ExpertProblem random_problem(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1)); };
  ExpertProblem p{};
  p.ranks = static_cast<int>(pick(2, 4));
  p.experts = p.ranks * pick(1, 3);
  p.top_k = pick(1, std::min<int64_t>(4, p.experts));
  p.rows = pick(1, 11);
  p.dtype = random() % 2 == 0 ? DType::kF32 : DType::kBF16;
  p.weight_before_w2 = random() % 2 == 0;
  const bool masked = random() % 3 == 0;  // rows that are pads: no expert
  for (int64_t t = 0; t < p.rows; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(p.experts));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(static_cast<size_t>(p.top_k));
    std::sort(all.begin(), all.end());
    if (masked && random() % 3 == 0) std::fill(all.begin() + pick(0, p.top_k - 1), all.end(), -1);
    p.expert.insert(p.expert.end(), all.begin(), all.end());
  }
  for (size_t i = 0; i < p.expert.size(); ++i) p.weight.push_back(0.1F + std::fabs(number_of({static_cast<int64_t>(random() % 1000)})));
  return p;
}

TEST(Collectives, ExpertParallelGivesTheBitsOfOneRank) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    check_expert_parallel(random_problem(random));
    if (HasFatalFailure()) return;
  }
}

TEST(Collectives, ExpertParallelAtItsEdges) {
  for (const int64_t rows : {1, 2, 8}) {  // 1 and 2: ranks without rows of their own
    for (const int32_t only : {0, 5}) {   // all rows to one expert, of the first or of the last rank
      ExpertProblem p{4, rows, 1, 8, DType::kBF16, true};
      p.expert.assign(static_cast<size_t>(rows), only);
      p.weight.assign(static_cast<size_t>(rows), 0.75F);
      check_expert_parallel(p);
      // Nothing is routed at all: every row is a pad.
      p.expert.assign(static_cast<size_t>(rows), -1);
      check_expert_parallel(p);
      // One rank has all experts of every row.
      p.top_k = 2;
      p.expert.clear();
      for (int64_t t = 0; t < rows; ++t) p.expert.insert(p.expert.end(), {6, 7});
      p.weight.assign(static_cast<size_t>(2 * rows), 0.5F);
      check_expert_parallel(p);
    }
  }
}

// ---- What they refuse: types

struct Refusal {
  const char* what;
  Op op;
  std::vector<ValueType> in;
  const char* message;
};

ValueType tokens(DType dtype, Shape shape, const Placements& placements = {}) { return {{dtype, shape}, Rows::kTokens, placements}; }

TEST(Collectives, Refusals) {
  const MeshAxis tp = MeshAxis::kTp;
  const Placements rows = placed(tp, Placement::sharded(0)), columns = placed(tp, Placement::sharded(1)), sum = placed(tp, Placement::partial());
  const Refusal cases[] = {
      {"a sum of what is whole", AllReduce{tp, 2}, {tokens(DType::kF32, {4, 8})}, "all_reduce: the input is whole on tp, expected tp:partial"},
      {"a sum in bf16", AllReduce{tp, 2}, {tokens(DType::kBF16, {4, 8}, sum)}, "all_reduce: partial sum is BF16, expected F32"},
      {"a group of one", AllReduce{tp, 1}, {tokens(DType::kF32, {4, 8}, sum)}, "all_reduce: size of the group is 1, expected 2 to 1048576"},
      {"replicated rows reduced as if they were a sum", ReduceScatter{tp, 2, DType::kF32, 2}, {tokens(DType::kF32, {4, 8})},
       "reduce_scatter: the input is whole on tp, expected tp:partial"},
      {"a sum of another axis", ReduceScatter{tp, 2, DType::kF32, 2}, {tokens(DType::kF32, {4, 8}, placed(MeshAxis::kEp, Placement::partial()))},
       "reduce_scatter: the input is whole on tp, expected tp:partial"},
      {"a second gather", AllGather{tp, 2, 0, 8}, {tokens(DType::kF32, {4, 8})}, "all_gather: the input is whole on tp, expected tp:shard(0)"},
      {"hidden features gathered as if they were tokens", AllGather{tp, 2, 0, 8}, {tokens(DType::kF32, {4, 4}, columns)},
       "all_gather: the input is tp:shard(1), expected tp:shard(0)"},
      {"tokens gathered as if they were hidden features", AllGather{tp, 2, 1, 4}, {tokens(DType::kF32, {4, 4}, rows)},
       "all_gather: the input is tp:shard(0), expected tp:shard(1)"},
      {"rows gathered over the wrong axis", AllGather{MeshAxis::kPcp, 2, 0, 8}, {tokens(DType::kF32, {4, 8}, rows)},
       "all_gather: the input is whole on pcp, expected pcp:shard(0)"},
      {"a second slice", SliceRows{tp, 2, 2}, {tokens(DType::kF32, {4, 8}, rows)}, "slice_rows: the input is tp:shard(0), expected whole on tp"},
      {"rows of what has none", SliceRows{tp, 2, 2}, {ValueType{{DType::kF32, {4, 8}}}}, "slice_rows: F32[4,8] has no rows of the step"},
      {"heads of all rows", HeadsToRows{tp, 2, 8}, {tokens(DType::kF32, {4, 2, 8}, columns)},
       "heads_to_rows: the input is tp:shard(1), expected tp:shard(0)"},
      {"heads that do not divide", HeadsToRows{tp, 2, 8}, {tokens(DType::kF32, {4, 3, 8}, rows)}, "heads_to_rows: heads modulo size is 1, expected 0"},
      {"maxima of whole rows", SharedQuantise{tp, 2}, {tokens(DType::kF32, {4, 64})},
       "shared_quantise: the input is whole on tp, expected tp:shard(1)"},
      {"rows without their routing", ExpertDispatch{MeshAxis::kEp, 2, 1, 8},
       {tokens(DType::kF32, {4, 8}, rows), tokens(DType::kI32, {4, 1}), tokens(DType::kF32, {4, 1})},
       "expert_dispatch: x is F32[tokens 4,8] tp:shard(0), but the routing I32[tokens 4,1]"},
      {"room for fewer rows than may come", ExpertDispatch{MeshAxis::kEp, 2, 1, 7},
       {tokens(DType::kF32, {4, 8}), tokens(DType::kI32, {4, 1}), tokens(DType::kF32, {4, 1})},
       "expert_dispatch: capacity is 7, expected 8 to 8"},
  };
  for (const Refusal& c : cases) {
    Graph graph("g");
    std::vector<ValueId> ids;
    for (const ValueType& type : c.in) ids.push_back(*graph.add_value("in" + std::to_string(ids.size()), type, ValueRole::kInput));
    const auto out = graph.add_node(c.op, ids, "y");
    ASSERT_FALSE(out.ok()) << c.what;
    EXPECT_EQ(out.status().message(), "graph g: node 'y' (" + std::string(op_name(c.op)) + "): " + c.message) << c.what;
  }
}

}  // namespace
}  // namespace weft

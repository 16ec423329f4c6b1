// Causal load of ranks that split the rows of a prompt: the table of sharding.md section 8, from the work of the ops themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "graph/op.h"
#include "sharding/token_split.h"

namespace weft {
namespace {

constexpr int64_t kHeads = 64, kDim = 512, kWindow = 128;

ValueType of(DType dtype, Shape shape, Rows rows = Rows::kStatic) { return {{dtype, shape}, rows}; }

double flops_of(const auto& op, const std::vector<ValueType>& in, const std::vector<Segment>& segments) {
  WorkEnv env;
  env.segments = segments;
  const std::vector<ValueType> out = {in[0]};
  return op.work(in, out, env).flops;
}

double attention(int64_t ratio, int64_t top_k, int64_t context, const std::vector<Segment>& segments) {
  SparseAttention op;
  op.window = kWindow;
  op.ratio = ratio;
  op.max_context = context;
  std::vector<ValueType> in = {of(DType::kBF16, {1, kHeads, kDim}, Rows::kTokens),
                               of(DType::kBF16, {1, kDim}, Rows::kTokens), of(DType::kF32, {kHeads}),
                               of(DType::kBF16, {1, kWindow, kDim})};
  if (ratio > 0) in.push_back(of(DType::kBF16, {1, 64, kDim}));
  if (top_k > 0) in.push_back(of(DType::kI32, {1, top_k}, Rows::kTokens));
  return flops_of(op, in, segments);
}

// Scores of all entries, as a scorer without a shortcut for short contexts computes them.
double scores(int64_t ratio, int64_t context, const std::vector<Segment>& segments) {
  IndexTopK op;
  op.ratio = ratio;
  op.top_k = 0;
  op.max_context = context;
  return flops_of(op,
                  {of(DType::kBF16, {1, 64, 128}, Rows::kTokens), of(DType::kBF16, {1, 64}, Rows::kTokens),
                   of(DType::kBF16, {1, 64, 128})},
                  segments);
}

using Load = double (*)(int64_t context, const std::vector<Segment>& segments);

double max_over_mean(Load load, int64_t tokens, int ranks, int64_t prefix, TokenSplit split) {
  GlobalBatch batch;
  batch.requests = {{0, tokens, prefix + tokens, false}};
  batch.num_rows = tokens;
  const auto by_rank = split_tokens(batch, split, ranks);
  EXPECT_TRUE(by_rank.ok());
  double most = 0, sum = 0;
  for (const auto& segments : *by_rank) {
    const double one = load(prefix + tokens, segments);
    most = std::max(most, one);
    sum += one;
  }
  return most / (sum / ranks);
}

TEST(CausalLoad, TableOfTheShardingReference) {
  const struct {
    const char* what;
    Load load;
    double expect[5][2];  // contiguous, zigzag; by row of the table
  } columns[] = {
      {"index scores, all positions",
       [](int64_t c, const std::vector<Segment>& s) { return scores(1, c, s); },
       {{1.750, 1.000}, {1.750, 1.000}, {1.750, 1.000}, {1.875, 1.000}, {1.044, 1.000}}},
      {"index scores, CSA",
       [](int64_t c, const std::vector<Segment>& s) { return scores(4, c, s); },
       {{1.750, 1.000}, {1.750, 1.000}, {1.750, 1.000}, {1.875, 1.000}, {1.044, 1.000}}},
      {"attention, CSA of 512",
       [](int64_t c, const std::vector<Segment>& s) { return attention(4, 512, c, s); },
       {{1.255, 1.192}, {1.113, 1.113}, {1.013, 1.013}, {1.013, 1.013}, {1.000, 1.000}}},
      {"attention, HCA",
       [](int64_t c, const std::vector<Segment>& s) { return attention(128, 0, c, s); },
       {{1.099, 1.014}, {1.158, 1.006}, {1.501, 1.000}, {1.585, 1.000}, {1.036, 1.000}}},
      {"attention, window alone",
       [](int64_t c, const std::vector<Segment>& s) { return attention(0, 0, c, s); },
       {{1.016, 1.016}, {1.008, 1.008}, {1.001, 1.001}, {1.001, 1.001}, {1.000, 1.000}}},
  };
  const struct {
    int64_t tokens;
    int ranks;
    int64_t prefix;
  } rows[] = {{4096, 4, 0}, {8192, 4, 0}, {65536, 4, 0}, {65536, 8, 0}, {8192, 4, 65536}};
  constexpr double kThreeDigits = 0.00151;  // the table has three, some of them cut off
  for (const auto& column : columns) {
    for (size_t r = 0; r < std::size(rows); ++r) {
      for (const TokenSplit split : {TokenSplit::kFlat, TokenSplit::kZigzag}) {
        EXPECT_NEAR(max_over_mean(column.load, rows[r].tokens, rows[r].ranks, rows[r].prefix, split),
                    column.expect[r][split == TokenSplit::kZigzag], kThreeDigits)
            << column.what << " " << rows[r].tokens << " tokens, " << rows[r].ranks << " ranks, prefix "
            << rows[r].prefix << " " << token_split_name(split);
      }
    }
  }
}

}  // namespace
}  // namespace weft

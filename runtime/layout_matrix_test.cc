// The layout matrix on the sample model: every layout that it takes on 2 ranks, and those of 4 ranks that nest two splits.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "runtime/layout_matrix.h"

namespace weft {
namespace {

std::shared_ptr<const Model> load(const std::string& path) {
  auto checkpoint = Checkpoint::open(std::filesystem::path(WEFT_SOURCE_DIR) / "testdata" / path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*checkpoint)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

void expect_all_equal(const std::shared_ptr<const Model>& model, LayoutMatrixOptions options) {
  options.num_threads = 1;
  const auto report = verify_layouts(model, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->lines.size(), options.layouts.size() * options.dtypes.size());
  for (const LayoutLine& line : report->lines) {
    EXPECT_EQ(line.outcome, VerifyLine::Outcome::kPass) << line.layout << ": " << line.detail;
    EXPECT_EQ(line.batches_passed, line.batches) << line.layout;
    EXPECT_GT(line.rows, 1000) << line.layout;
  }
}

TEST(LayoutMatrix, EveryLayoutOfTwoRanksGivesTheBitsOfOne) {
  const auto model = load("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = runnable_layouts(*model, 2);
  EXPECT_GT(options.layouts.size(), 15u);
  options.dtypes = {DType::kBF16};
  options.tokens = 100;
  expect_all_equal(model, options);
}

TEST(LayoutMatrix, NestedSplitsOfFourRanks) {
  const auto model = load("sample/austen-v4");
  LayoutMatrixOptions options;
  for (const char* text : {"tp2pcp2", "tp2pcp2+sp+ep4", "tp2pcp2+sp+split=zigzag", "pcp4+split=per_request+ep2"}) {
    options.layouts.push_back(parse_layout(text).value());
  }
  options.tokens = 100;
  expect_all_equal(model, options);
}

TEST(LayoutMatrix, LayoutsThatTheModelRefusesAreSkippedWithTheReason) {
  const auto model = load("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = {parse_layout("tp4").value()};
  options.dtypes = {DType::kF32};
  options.tokens = 16;
  const auto report = verify_layouts(model, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->lines.size(), 1u);
  EXPECT_EQ(report->lines[0].outcome, VerifyLine::Outcome::kSkipped);
  EXPECT_NE(report->lines[0].detail.find("o_groups 2 is not divisible by tp 4"), std::string::npos) << report->lines[0].detail;
}

}  // namespace
}  // namespace weft

// The bitwise matrix finds what is wrong and names it (all of it on larger models: verify_models_test.cc).
#include "models/test_support.h"
#include "runtime/verify.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "graph/text.h"

namespace weft {
namespace {

std::shared_ptr<const Model> open(const std::string& dir) {
  auto opened = Checkpoint::open(std::filesystem::path(WEFT_SOURCE_DIR) / "testdata" / dir);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*opened)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

void expect_all_pass(const VerifyReport& report) {
  for (const VerifyLine& line : report.lines) {
    EXPECT_NE(line.outcome, VerifyLine::Outcome::kFail) << line.name << ": " << line.detail;
  }
  EXPECT_TRUE(report.ok());
}

TEST(Verify, SmallModelWithEveryKindOfLayer) {
  const auto report = verify_model(open("golden/deepseek_v4/mtp_f32"), {.tokens = 70, .generate = 8, .seed = 5});
  ASSERT_TRUE(report.ok()) << report.status().message();
  expect_all_pass(*report);
  EXPECT_GE(report->lines.size(), 2u * 14u);
}

// A model whose graphs are wrong: `node` with "{eps=1e-06" behind it gets the eps that `eps` gives for the step; "": as
// it is.
class FaultyModel : public ForwardingModel {
 public:
  using Eps = std::function<std::string(const StepShape&)>;
  FaultyModel(std::shared_ptr<const Model> model, std::string node, Eps eps)
      : ForwardingModel(std::move(model)), node_(std::move(node) + " {eps="), eps_(std::move(eps)) {}

  Result<Graph> build(const GraphOptions& options) const override {
    Result<Graph> graph = model().build(options);
    const std::string eps = eps_(options.shape);
    if (!graph.ok() || eps.empty()) return graph;
    std::string text = to_text(*graph);
    const std::string from = node_ + "1e-06";
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return parse_graph(text.replace(at, from.size(), node_ + eps));
  }

 private:
  std::string node_;
  Eps eps_;
};

VerifyReport verify_faulty(const std::string& node, FaultyModel::Eps eps) {
  const auto model = std::make_shared<FaultyModel>(open("golden/deepseek_v4/f32_small"), node, std::move(eps));
  const auto report = verify_model(model, {.dtypes = {DType::kF32}, .tokens = 40});
  EXPECT_TRUE(report.ok()) << report.status().message();
  return *report;
}

const VerifyLine& line_of(const VerifyReport& report, std::string_view name) {
  const auto at =
      std::find_if(report.lines.begin(), report.lines.end(), [&](const VerifyLine& line) { return line.name == name; });
  EXPECT_NE(at, report.lines.end()) << name;
  return *at;
}

TEST(Verify, NamesTheFirstValueThatDiffers) {
  // Steps of one token normalise a query of layer 1 otherwise.
  const VerifyReport report = verify_faulty("layers.1.q_norm = rms_norm(layers.1.wq_a, layers.1.attn.q_norm)",
                                            [](const StepShape& s) { return s.tokens == 1 ? "0.001" : ""; });
  EXPECT_FALSE(report.ok());
  const VerifyLine& line = line_of(report, "prefill whole = token by token");
  EXPECT_EQ(line.outcome, VerifyLine::Outcome::kFail);
  EXPECT_TRUE(line.detail.starts_with("layers.1.q_norm, position 0: element 0 is ")) << line.detail;
  EXPECT_NE(line.detail.find(" elements differ)"), std::string::npos) << line.detail;
  EXPECT_EQ(line_of(report, "prefill whole = in chunks of 7").outcome, VerifyLine::Outcome::kPass);
  EXPECT_EQ(line_of(report, "run = run again").outcome, VerifyLine::Outcome::kPass);
}

TEST(Verify, SeesRunsThatAreNotRepeatable) {
  // No two graphs are alike.
  auto count = std::make_shared<int>(0);
  const VerifyReport report = verify_faulty("layers.0.attn_in = rms_norm(layers.0.attn_hc_pre, layers.0.attn_norm)",
                                            [count](const StepShape&) { return fmt::format("0.{:03}", ++*count); });
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(line_of(report, "run = run again").outcome, VerifyLine::Outcome::kFail);
}

TEST(Verify, Limits) {
  const auto model = open("golden/deepseek_v4/f32_small");
  const auto report = verify_model(model, {.tokens = model->max_position_embeddings()});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().message(),
            fmt::format("--tokens {}: this model takes 2 to {}", model->max_position_embeddings(),
                        model->max_position_embeddings() - 1));
  const auto shortest = verify_model(model, {.dtypes = {DType::kBF16}, .tokens = 2});
  ASSERT_TRUE(shortest.ok()) << shortest.status().message();
  expect_all_pass(*shortest);
  EXPECT_EQ(line_of(*shortest, "prefill whole = in chunks of 64").outcome, VerifyLine::Outcome::kSkipped);
}

}  // namespace
}  // namespace weft

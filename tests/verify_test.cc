// The bitwise matrix finds what is wrong and names it (all of it on larger models: verify_models_test.cc).
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

// A model whose graph is wrong for some step sizes: `from` is replaced by `to` in its text where `applies` says so.
class FaultyModel : public Model {
 public:
  FaultyModel(std::shared_ptr<const Model> model, std::string from, std::string to,
              std::function<bool(const StepShape&)> applies)
      : model_(std::move(model)), from_(std::move(from)), to_(std::move(to)), applies_(std::move(applies)) {}

  std::string_view family() const override { return model_->family(); }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t num_layers() const override { return model_->num_layers(); }
  int64_t max_position_embeddings() const override { return model_->max_position_embeddings(); }
  std::vector<int32_t> eos_token_ids() const override { return model_->eos_token_ids(); }
  int64_t bos_token_id() const override { return model_->bos_token_id(); }
  NumericMode mode(DType dtype, std::optional<bool> act_quant) const override { return model_->mode(dtype, act_quant); }
  std::vector<CacheSpec> caches(const NumericMode& m, const CacheCapacity& c) const override {
    return model_->caches(m, c);
  }
  std::string hidden_value(int64_t layer) const override { return model_->hidden_value(layer); }
  std::optional<std::string> selection_value(int64_t layer) const override { return model_->selection_value(layer); }
  Result<Graph> build(const GraphOptions& options) const override {
    Result<Graph> graph = model_->build(options);
    if (!graph.ok() || !applies_(options.shape)) return graph;
    std::string text = to_text(*graph);
    const size_t at = text.find(from_);
    EXPECT_NE(at, std::string::npos) << from_;
    return parse_graph(text.replace(at, from_.size(), to_));
  }
  int64_t num_draft_layers() const override { return model_->num_draft_layers(); }
  Result<Graph> build_draft(const GraphOptions& options) const override { return model_->build_draft(options); }
  std::string draft_hidden_value() const override { return model_->draft_hidden_value(); }
  WeightSplit weight_split(std::string_view name) const override { return model_->weight_split(name); }
  Status check_layout(const Layout& layout) const override { return model_->check_layout(layout); }
  ModelSummary summary() const override { return model_->summary(); }
  Result<TensorView> weight(std::string_view name) const override { return model_->weight(name); }

 private:
  std::shared_ptr<const Model> model_;
  std::string from_, to_;
  std::function<bool(const StepShape&)> applies_;
};

VerifyReport verify_faulty(const std::string& from, const std::string& to,
                           std::function<bool(const StepShape&)> applies) {
  const auto model = std::make_shared<FaultyModel>(open("golden/deepseek_v4/f32_small"), from, to, std::move(applies));
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
  const std::string from = "layers.1.q_norm = rms_norm(layers.1.wq_a, layers.1.attn.q_norm) {eps=1e-06";
  const VerifyReport report =
      verify_faulty(from, from.substr(0, from.size() - 5) + "0.001", [](const StepShape& s) { return s.tokens == 1; });
  EXPECT_FALSE(report.ok());
  const VerifyLine& line = line_of(report, "prefill whole = token by token");
  EXPECT_EQ(line.outcome, VerifyLine::Outcome::kFail);
  EXPECT_TRUE(line.detail.starts_with("layers.1.q_norm, position 0: element 0 is ")) << line.detail;
  EXPECT_NE(line.detail.find(" elements differ)"), std::string::npos) << line.detail;
  EXPECT_EQ(line_of(report, "prefill whole = in chunks of 7").outcome, VerifyLine::Outcome::kPass);
  EXPECT_EQ(line_of(report, "run = run again").outcome, VerifyLine::Outcome::kPass);
}

TEST(Verify, SeesRunsThatAreNotRepeatable) {
  auto count = std::make_shared<int>(0);
  const std::string from = "layers.0.attn_in = rms_norm(layers.0.attn_hc_pre, layers.0.attn_norm) {eps=1e-06";
  const VerifyReport report = verify_faulty(from, from.substr(0, from.size() - 5) + "0.001",
                                            [count](const StepShape&) { return ++*count == 4; });
  EXPECT_FALSE(report.ok());
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

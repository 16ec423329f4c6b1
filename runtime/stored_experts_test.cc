// Experts that are stored in other ways give the logits of the same experts as they are stored usually.
#include <gtest/gtest.h>

#include <cmath>

#include "models/glm_moe_dsa/stored_model.h"
#include "runtime/engine.h"
#include "runtime/test_support.h"

namespace weft {
namespace {

using glm_moe_dsa::StoredModel;

const std::string kExperts = "model.layers.1.mlp.experts.";

int64_t experts_of(const StoredModel& stored) { return stored.config["n_routed_experts"].get<int64_t>(); }

void make_down_plain(StoredModel& stored) {
  for (int64_t e = 0; e < experts_of(stored); ++e) stored.make_plain(fmt::format("{}{}.down_proj", kExperts, e), DType::kF32);
}

std::vector<float> logits_of(StoredModel& stored, const NumericMode& mode) {
  auto opened = stored.open();
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) return {};
  const std::shared_ptr<const Model> model = std::move(*opened);
  EngineOptions options;
  options.mode = mode;
  options.num_threads = 1;
  options.max_context = 64;
  const auto engine = Engine::create(model, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<int32_t> tokens = some_tokens(20, model->vocab_size(), 7);
  const int32_t slot = (*engine)->open_sequence().value();
  const Engine::Request request{slot, tokens, Engine::Logits::kAll};
  const Status status = (*engine)->step({&request, 1});
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<float> all;
  for (int64_t row = 0; row < 20; ++row) all.insert(all.end(), (*engine)->logits(row).begin(), (*engine)->logits(row).end());
  return all;
}

TEST(StoredExperts, GiveTheSameLogits) {
  struct Case {
    const char* what;
    const char* golden;
    void (*edit)(StoredModel&);
    bool act_quant;
    double tolerance;  // 0: the same bits
  };
  const auto stack = [](StoredModel& stored) { stored.stack_experts(kExperts, experts_of(stored)); };
  const Case cases[] = {
      {"int8 in one tensor", "glm51_w8a8", stack, false, 0},
      {"int8 in one tensor, int8 activations", "glm51_w8a8", stack, true, 0},
      {"int8 with plain down_proj", "glm51_w8a8", make_down_plain, false, 1e-4},
      {"fp8 with plain down_proj", "glm5_fp8", make_down_plain, false, 1e-4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const NumericMode mode{DType::kF32, c.act_quant};
    StoredModel usual(c.golden), other(c.golden);
    c.edit(other);
    const std::vector<float> want = logits_of(usual, mode), found = logits_of(other, mode);
    ASSERT_EQ(found.size(), want.size());
    double largest = 0, difference = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(want[i])));
      difference = std::max(difference, std::fabs(static_cast<double>(want[i]) - found[i]));
    }
    EXPECT_GT(largest, 0.1);
    EXPECT_LE(difference, c.tolerance * largest);
  }
}

// Quantised activations for the half that has int8 weights.
TEST(StoredExperts, OfTwoFormatsTakeQuantisedActivationsEachAsItIsStored) {
  StoredModel usual("glm51_w8a8"), other("glm51_w8a8");
  make_down_plain(other);
  const std::vector<float> none = logits_of(other, {DType::kF32, false}), all = logits_of(usual, {DType::kF32, true}),
                           half = logits_of(other, {DType::kF32, true});
  ASSERT_EQ(none.size(), half.size());
  EXPECT_NE(none, half);
  EXPECT_NE(all, half);
  for (const float v : half) ASSERT_TRUE(std::isfinite(v));
}

}  // namespace
}  // namespace weft

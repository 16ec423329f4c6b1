#include "planner/expert_load.h"

#include <gtest/gtest.h>

#include <functional>

#include <fmt/format.h>

#include "models/layout_test_support.h"
#include "planner/plan.h"
#include "planner/test_support.h"

namespace weft {
namespace {

TEST(ExpertLoadFile, BadOnesHaveOneMessage) {
  const std::string_view head = R"("schema": "weft.expert_load", "version": 1, "family": "x", "tokens": 4)";
  const auto with_head = [](std::string_view layers, std::string_view begin) {
    return fmt::format("{{{}, \"layers\": {}}}", begin, layers);
  };
  const auto file = [&](std::string_view layers) { return with_head(layers, head); };
  const auto line = [](std::string_view picks) {
    return fmt::format(R"([{{"layer": 0, "experts_per_token": 2, "picks": [{}]}}])", picks);
  };
  const auto another = [&](std::string_view from, std::string_view to) {
    std::string other(head);
    other.replace(other.find(from), from.size(), to);
    return with_head(line("4, 4"), other);
  };
  const struct {
    std::string text, message;
  } cases[] = {
      {"", "f: byte 1"},
      {file("[]"), "f: layers: expected a list with a line for every layer with experts"},
      {another("weft.expert_load", "weft.plan"), "f: schema"},
      {another("1", "2"), "f: version"},
      {another(": 4", ": 0"), "f: tokens"},
      {another(": 4", ": 4, \"more\": 1"), "more"},
      {file(line("4, -4")), "f: layers[0].picks[1]"},
      {file(line("4, \"4\"")), "f: layers[0].picks[1]: expected a"},
      {file(line("4, 1e999")), "f: "},
      {file(line("4, 3.5")), "f: layers[0].picks[1]"},
      {file(line("5, 3")), "f: layers[0].picks[0]: 5 picks by 4 tokens"},
      {file(line("4, 3")), "f: layers[0].picks: expected 8 of 4 tokens with 2 each, their sum is 7"},
      {file(R"([{"layer": 0, "picks": [4, 4]}])"), "f: layers[0].experts_per_token is missing"},
      {file(R"([{"layer": 1, "experts_per_token": 1, "picks": [4]},
                {"layer": 1, "experts_per_token": 1, "picks": [4]}])"),
       "f: layers[1].layer: layers ascend, but 1 follows 1"},
  };
  for (const auto& c : cases) {
    const auto counts = parse_expert_load(c.text, "f");
    ASSERT_FALSE(counts.ok()) << c.text;
    EXPECT_NE(counts.status().message().find(c.message), std::string::npos) << c.text << "\n"
                                                                            << counts.status().message();
  }
}

TEST(ExpertLoadFile, BelongsToOneModel) {
  const auto model = published("deepseek-v4-flash-20260424");
  const NumericMode mode = model->mode(DType::kBF16, std::nullopt);
  ExpertCounts counts = no_picks(*model, mode).value();
  counts.tokens = 256;
  EXPECT_EQ(counts.layers.size(), static_cast<size_t>(model->num_layers()));
  for (size_t l = 0; l < counts.layers.size(); ++l) {
    for (int64_t& n : counts.picks[l]) n = counts.layers[l].top_k;
  }
  const ExpertCounts again = parse_expert_load(expert_load_json(counts), "f").value();
  EXPECT_EQ(again.picks, counts.picks);
  EXPECT_TRUE(check_expert_load(again, *model, mode).ok());
  const auto pro = published("deepseek-v4-pro"), glm = published("glm-5");
  EXPECT_NE(check_expert_load(again, *pro, mode)
                .message()
                .find("f: measured on another model: 43 layers with experts, this one has 61"),
            std::string::npos)
      << check_expert_load(again, *pro, mode).message();
  EXPECT_NE(check_expert_load(again, *glm, glm->mode(DType::kBF16, std::nullopt))
                .message()
                .find("family deepseek_v4, this one is glm_moe_dsa"),
            std::string::npos);
  ExpertCounts fewer = again;
  fewer.layers[3].experts = 128;
  EXPECT_NE(check_expert_load(fewer, *model, mode).message().find("layer 3 has 128 experts, here 256"),
            std::string::npos);
}

// Every layer waits for its busiest rank: the time of the experts is the sum over layers of the largest over ranks, and
// what the layers have in common does not depend on which of them stand for others.
TEST(ExpertLoadFile, EveryLayerWaitsForItsBusiestRank) {
  const auto model = published("deepseek-v4-flash-20260424");
  PlanRequest request = sample_request("tp2+ep2");
  request.model = model;
  request.mode = model->mode(DType::kBF16, std::nullopt);
  request.device =
      std::make_shared<const DeviceProfile>(load_device_profile("h200-sxm", {WEFT_SOURCE_DIR "/devices"}).value());
  request.prompt = 4096;
  request.gen = 16;
  request.batch = 1;
  const auto experts_s = [&](const std::function<double(int64_t layer, int64_t expert)>& weight) {
    std::map<int64_t, std::vector<double>> shares;
    const std::vector<ExpertLayer> layers = expert_layers(*model, request.mode).value();
    for (const ExpertLayer& layer : layers) {
      std::vector<double>& of_layer = shares[layer.layer];
      double sum = 0;
      for (int64_t e = 0; e < layer.experts; ++e) sum += of_layer.emplace_back(weight(layer.layer, e));
      for (double& share : of_layer) share *= static_cast<double>(layer.top_k) / sum;
    }
    request.expert_shares = std::make_shared<const std::map<int64_t, std::vector<double>>>(shares);
    const Plan plan = make_plan(request).value();
    double seconds = 0;
    for (const PlanOp& op : plan.prefill[0].stages[0].ops) {
      if (op.op == "expert_slots" || op.op == "experts") seconds += op.cost.seconds;
    }
    EXPECT_GT(seconds, 0);
    return seconds;
  };
  const auto busy_half = [](int64_t e, bool first) { return (e < 128) == first ? 3.0 : 1.0; };
  const double even = experts_s([](int64_t, int64_t) { return 1; }),
               first = experts_s([&](int64_t, int64_t e) { return busy_half(e, true); }),
               turns = experts_s([&](int64_t l, int64_t e) { return busy_half(e, l % 3 == 0); }),
               one_layer = experts_s([&](int64_t l, int64_t e) { return l == 17 ? busy_half(e, true) : 1.0; });
  EXPECT_GT(first, 1.3 * even);
  EXPECT_NEAR(turns, first, 1e-9 * first);  // over the layers both ranks have equally much
  EXPECT_NEAR(one_layer - even, (first - even) / 43, 1e-6 * first);
}

}  // namespace
}  // namespace weft

// Random layouts, models and steps: what the contract takes gives the bits of one rank.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/engine.h"
#include "runtime/test_support.h"

namespace weft {
namespace {

constexpr int kSequences = 4;

struct Outcome {
  Status status;
  std::vector<float> logits;
};

// Steps of the seed: any mix of prompts and single tokens, some sequences left out, a token taken back.
Outcome play(const std::shared_ptr<const Model>& model, const Layout& layout, const NumericMode& mode, uint64_t seed) {
  std::mt19937_64 random(seed);
  EngineOptions options;
  options.mode = mode;
  options.layout = layout;
  options.num_threads = 1;
  options.max_sequences = kSequences;
  options.max_context = 200;
  options.max_step_tokens = 64;
  options.max_drafts = model->num_draft_layers() > 0 ? 1 : 0;
  auto made = Engine::create(model, options);
  if (!made.ok()) return {made.status(), {}};
  Engine& engine = **made;
  std::vector<std::vector<int32_t>> texts(kSequences);
  std::vector<int32_t> slots;
  std::vector<size_t> fed(kSequences);
  for (auto& text : texts) {
    for (int i = 0; i < 200; ++i)
      text.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(model->vocab_size())));
    slots.push_back(*engine.open_sequence());
  }
  Outcome outcome;
  const auto keep = [&](std::span<const float> row) {
    outcome.logits.insert(outcome.logits.end(), row.begin(), row.end());
  };
  for (int step = 0; step < 7; ++step) {
    std::vector<StepRequest> requests;
    std::vector<DraftRequest> drafts;
    int64_t row = 0;
    for (size_t i = 0; i < kSequences; ++i) {
      const size_t count = random() % 3 == 0 ? 0 : step % 2 == 0 ? random() % 16 : 1 + random() % 2;
      if (count == 0) continue;
      const std::span<const int32_t> all(texts[i]);
      requests.push_back({slots[i], all.subspan(fed[i], count), static_cast<Logits>(random() % 3)});
      drafts.push_back({slots[i], row, static_cast<int64_t>(fed[i]), all.subspan(fed[i] + 1, count), Logits::kLast});
      row += static_cast<int64_t>(count);
      fed[i] += count;
    }
    if (requests.empty()) continue;
    outcome.status = engine.step(requests);
    if (!outcome.status.ok()) return outcome;
    for (int64_t i = 0; i < engine.num_logit_rows(); ++i) keep(engine.logits(i));
    if (options.max_drafts == 0) continue;
    outcome.status = engine.draft(drafts, DraftFrom::kTrunk);
    if (!outcome.status.ok()) return outcome;
    for (size_t i = 0; i < drafts.size(); ++i) keep(engine.draft_logits(static_cast<int64_t>(i)));
    const size_t back = random() % kSequences;
    if (step != 3 || fed[back] == 0) continue;
    outcome.status = engine.truncate(slots[back], static_cast<int64_t>(--fed[back]));
    if (!outcome.status.ok()) return outcome;
  }
  return outcome;
}

TEST(RandomLayouts, GiveTheBitsOfOneRank) {
  std::vector<std::shared_ptr<const Model>> models;
  for (const char* name : {"f32_pro_like", "official_r", "mtp_f32", "f32_fp8_fp4"})
    models.push_back(load_test_model(std::string("golden/deepseek_v4/") + name));
  models.push_back(load_test_model("sample/austen-v4"));
  int ran = 0;
  for (uint64_t seed = 0; ran < 15; ++seed) {
    ASSERT_LT(seed, 2000u) << "too few layouts are taken";
    std::mt19937_64 random(seed);
    const auto one_of = [&]<class T>(std::initializer_list<T> values) {
      return *(values.begin() + random() % values.size());
    };
    Layout layout;
    layout.mesh = {one_of({1, 1, 1, 2}), one_of({1, 1, 1, 2}), one_of({1, 1, 2, 3}), one_of({1, 2, 2, 4}), 1, 1};
    layout.mesh.ep = one_of({1, 1, 2, 3, static_cast<int>(layout.mesh.stage())});
    layout.attention = one_of({AttentionChoice::kHeads, AttentionChoice::kDsaCp});
    layout.sequence_parallel = one_of({false, true});
    layout.split = one_of({TokenSplit::kFlat, TokenSplit::kPerRequest, TokenSplit::kZigzag, TokenSplit::kOwned});
    layout.o_proj =
        one_of({OProjChoice::kSharded, OProjChoice::kSharded, OProjChoice::kReplicated, OProjChoice::kStreamed});
    layout.lm_head = one_of({WeightChoice::kSharded, WeightChoice::kReplicated});
    layout.shared = one_of({WeightChoice::kSharded, WeightChoice::kReplicated});
    layout.moe = one_of({MoeChoice::kEp, MoeChoice::kEp, MoeChoice::kTp});
    if (layout.mesh.pcp > 1 || layout.attention == AttentionChoice::kDsaCp) {
      layout.compressor = one_of({CompressorChoice::kFull, CompressorChoice::kSplit});
    } else {
      layout.mesh.dcp = one_of({1, layout.mesh.tp});
    }
    const auto& model = models[random() % models.size()];
    const NumericMode mode = model->mode(one_of({DType::kF32, DType::kBF16}),
                                         one_of({std::optional<bool>(), std::optional(true), std::optional(false)}));
    if (layout.mesh.world() == 1 || layout.mesh.world() > 8 || !model->check_layout(layout).ok()) continue;
    ++ran;
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << to_string(layout));
    const Outcome want = play(model, Layout(), mode, seed), got = play(model, layout, mode, seed);
    ASSERT_TRUE(want.status.ok()) << want.status.message();
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    ASSERT_EQ(got.logits.size(), want.logits.size());
    EXPECT_EQ(std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace weft

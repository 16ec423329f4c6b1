// Every layout gives the bits of one rank: logits of prefill, chunked prefill, mixed steps and decode, and the draft
// layer's.
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/engine.h"
#include "runtime/test_support.h"

namespace weft {
namespace {

void keep(std::vector<float>& all, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); }

struct Outcome {
  Status status;
  std::vector<float> logits;
};

// Two requests: prefilled in chunks of unequal length together, then decoded, with the draft layer where there is one.
Outcome play(const std::shared_ptr<const Model>& model, const std::string& layout, DType dtype) {
  Outcome outcome;
  EngineOptions options;
  options.mode = model->mode(dtype, std::nullopt);
  auto parsed = parse_layout(layout);
  if (!parsed.ok()) return {parsed.status(), {}};
  options.layout = *parsed;
  options.num_threads = 1;
  options.max_sequences = 3;
  options.max_context = 400;
  options.max_step_tokens = 256;
  options.max_drafts = model->num_draft_layers() > 0 ? 1 : 0;
  auto made = Engine::create(model, options);
  if (!made.ok()) return {made.status(), {}};
  Engine& engine = **made;
  const int64_t vocab = model->vocab_size();
  const auto a = some_tokens(190, vocab, 1), b = some_tokens(170, vocab, 2), c = some_tokens(9, vocab, 3);
  const int32_t slots[] = {*engine.open_sequence(), *engine.open_sequence(), *engine.open_sequence()};
  const std::vector<int32_t>* texts[] = {&a, &b, &c};
  size_t fed[] = {0, 0, 0};
  // By step and request: how many tokens.
  const size_t plan[][3] = {{131, 7, 0}, {5, 130, 1}, {1, 1, 2}, {40, 20, 1},
                            {1, 1, 1},   {2, 0, 2},   {0, 2, 1}, {1, 1, 1}};
  for (const auto& counts : plan) {
    std::vector<Engine::Request> requests;
    std::vector<Engine::DraftRequest> drafts;
    int64_t row = 0;
    for (size_t i = 0; i < 3; ++i) {
      if (counts[i] == 0) continue;
      const std::span<const int32_t> all(*texts[i]);
      requests.push_back({slots[i], all.subspan(fed[i], counts[i]), i == 2 ? Logits::kAll : Logits::kLast});
      drafts.push_back(
          {slots[i], row, static_cast<int64_t>(fed[i]), all.subspan(fed[i] + 1, counts[i]), Logits::kLast});
      row += static_cast<int64_t>(counts[i]);
      fed[i] += counts[i];
    }
    outcome.status = engine.step(requests);
    if (!outcome.status.ok()) return outcome;
    for (int64_t i = 0; i < engine.num_logit_rows(); ++i) keep(outcome.logits, engine.logits(i));
    if (options.max_drafts == 0) continue;
    outcome.status = engine.draft(drafts, Engine::DraftFrom::kTrunk);
    if (!outcome.status.ok()) return outcome;
    for (size_t i = 0; i < drafts.size(); ++i) keep(outcome.logits, engine.draft_logits(static_cast<int64_t>(i)));
  }
  return outcome;
}

struct Case {
  const char* model;
  DType dtype;
  std::vector<const char*> layouts;
};

// One layout of each kind, and the combinations that engines deploy. `weft verify --layouts all` has the rest.
TEST(layouts, give_the_bits_of_one_rank) {
  const Case cases[] = {
      {"sample/austen-v4",
       DType::kBF16,
       {"tp2", "tp2+sp+ep2", "tp2pcp2+sp", "pcp2+split=zigzag", "tp2+dsa_cp+sp+owned+ep2", "tp2+dsa_cp+o_proj=streamed",
        "tp2+ep2+router=full", "tp2+dsa_cp+o_proj=replicated",
        "tp2+dsa_cp+sp+ep2+o_proj=replicated+router=full+queries=full", "pp2tp2+sp", "dp2tp2+ep4"}},
      {"golden/deepseek_v4/f32_pro_like",
       DType::kF32,
       {"tp4+sp", "tp4+dsa_cp", "tp2pcp3+sp+ep6", "pcp2+split=per_request", "dp3"}},
      {"golden/deepseek_v4/f32_fp8_fp4", DType::kF32, {"tp2+lm_head=replicated+shared=replicated", "tp2pcp2+ep4"}},
      {"golden/deepseek_v4/official_r", DType::kBF16, {"tp2+sp", "tp2+dsa_cp+ep2", "tp2+sp+moe=tp"}},
      {"golden/glm_moe_dsa/glm52_mtp_f32",
       DType::kF32,
       {"tp4+sp", "tp2+dsa_cp+sp+owned+ep2", "tp4+dsa_cp", "tp2+dsa_cp+o_proj=streamed", "tp2pcp2+sp+ep2",
        "pcp2+split=zigzag", "pp2tp2+sp", "dp2tp2+ep2", "tp4+dsa_cp+sp+o_proj=replicated+queries=full"}},
      {"golden/glm_moe_dsa/glm5_fp8",
       DType::kBF16,
       {"tp2+dsa_cp+sp+o_proj=replicated", "tp2+shared=replicated", "tp2+moe=tp"}},
      {"golden/glm_moe_dsa/glm51_w8a8", DType::kBF16, {"tp2+sp", "tp2+moe=tp"}},
  };
  for (const Case& c : cases) {
    const auto model = load_test_model(c.model);
    const Outcome want = play(model, "tp1", c.dtype);
    ASSERT_TRUE(want.status.ok()) << want.status.message();
    for (const char* layout : c.layouts) {
      const Outcome got = play(model, layout, c.dtype);
      ASSERT_TRUE(got.status.ok()) << c.model << " " << layout << ": " << got.status.message();
      ASSERT_EQ(got.logits.size(), want.logits.size()) << c.model << " " << layout;
      size_t differing = 0;
      for (size_t i = 0; i < want.logits.size(); ++i) {
        differing += std::memcmp(&want.logits[i], &got.logits[i], sizeof(float)) != 0 ? 1 : 0;
      }
      EXPECT_EQ(differing, 0u) << c.model << " " << layout << " of " << want.logits.size();
    }
  }
}

}  // namespace
}  // namespace weft

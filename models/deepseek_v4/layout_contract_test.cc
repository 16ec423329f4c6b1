// The contract of DeepSeek-V4 on layouts: a message for every rule, and that what it takes can be built.
#include <gtest/gtest.h>

#include "models/deepseek_v4/deepseek_v4.h"
#include "models/layout_test_support.h"

namespace weft::deepseek_v4 {
namespace {

// The published shapes of V4-Flash, with the fields that the rules look at.
Config flash() {
  Config config;
  config.num_hidden_layers = 43;
  config.num_attention_heads = 64;
  config.o_groups = 8;
  config.o_lora_rank = 1024;
  config.vocab_size = 129280;
  config.moe_intermediate_size = 2048;
  config.n_shared_experts = 1;
  config.n_routed_experts = 256;
  return config;
}

Config with(void (*edit)(Config&)) {
  Config config = flash();
  edit(config);
  return config;
}

struct RuleCase {
  const char* what;
  Config config;
  Layout layout;
  const char* message;  // "": taken
};

TEST(DeepseekV4Contract, EveryRuleHasItsMessage) {
  const RuleCase cases[] = {
      {"one rank", flash(), Layout(), ""},
      {"the usual ones", flash(), {.mesh = {.tp = 8}, .attention = AttentionChoice::kDsaCp, .sequence_parallel = true}, ""},
      {"heads", flash(), {.mesh = {.tp = 6}},
       "layout tp6: num_attention_heads 64 is not divisible by tp 6; usable sizes: 1 2 4 8 16 32 64"},
      {"groups", flash(), {.mesh = {.tp = 16}}, "layout tp16: o_groups 8 is not divisible by tp 16; usable sizes: 1 2 4 8"},
      {"output blocks, of a power of two", with([](Config& c) { c.num_attention_heads = c.o_groups = 6; }), {.mesh = {.tp = 3}},
       "layout tp3: wo_b has 6144 inputs, a sum of 16 canonical blocks, which tp 3 does not divide; usable sizes: 1 2 4 8 16"},
      {"output blocks, of 4 inputs at least", with([](Config& c) { c.o_lora_rank = 2; }), {.mesh = {.tp = 8}},
       "layout tp8: wo_b has 16 inputs, a sum of 4 canonical blocks, which tp 8 does not divide; usable sizes: 1 2 4"},
      {"vocabulary", with([](Config& c) { c.vocab_size = 102; }), {.mesh = {.tp = 4}},
       "layout tp4: vocab_size 102 is not divisible by tp 4; usable sizes: 1 2 3 6 17 34 51 102"},
      {"... whole on every rank", with([](Config& c) { c.vocab_size = 102; }), {.mesh = {.tp = 4}, .lm_head = WeightChoice::kReplicated}, ""},
      {"shared expert", with([](Config& c) { c.moe_intermediate_size = 20; }), {.mesh = {.tp = 8}},
       "layout tp8: moe_intermediate_size x n_shared_experts 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"its blocks", with([](Config& c) { c.moe_intermediate_size = 16; }), {.mesh = {.tp = 8}},
       "layout tp8: shared_experts.w2 has 16 inputs, a sum of 4 canonical blocks, which tp 8 does not divide; usable sizes: 1 2 4"},
      {"two shared experts are one of twice the width", with([](Config& c) { c.moe_intermediate_size = 16, c.n_shared_experts = 2; }), {.mesh = {.tp = 8}}, ""},
      {"... whole on every rank", with([](Config& c) { c.moe_intermediate_size = 20; }), {.mesh = {.tp = 8}, .shared = WeightChoice::kReplicated}, ""},
      {"experts", with([](Config& c) { c.n_routed_experts = 6; }), {.mesh = {.tp = 4, .ep = 4}},
       "layout tp4+ep4: n_routed_experts 6 is not divisible by ep 4; usable sizes: 1 2 3 6"},
      {"shares of experts", flash(), {.mesh = {.tp = 8}, .moe = MoeChoice::kTp}, ""},
      {"... of a width that tp does not divide", with([](Config& c) { c.moe_intermediate_size = 20; }),
       {.mesh = {.tp = 8}, .shared = WeightChoice::kReplicated, .moe = MoeChoice::kTp},
       "layout tp8+shared=replicated+moe=tp: moe_intermediate_size 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"stages", with([](Config& c) { c.num_hidden_layers = 3; }), {.mesh = {.pp = 4}},
       "layout pp4: 4 pipeline stages for 3 layers; at most one stage per layer"},
      {"gate", flash(), {.mesh = {.tp = 2}, .gate = GateChoice::kKSharded}, "layout tp2+gate=k_sharded: DeepSeek-V4 has no gate on the attention output"},
      {"per-layer embeddings", flash(), {.mesh = {.tp = 2}, .ple = PleChoice::kSharded}, "layout tp2+ple=sharded: DeepSeek-V4 has no per-layer embeddings"},
      {"... in a file", flash(), {.mesh = {}, .ple_tier = PleTier::kMapped}, "layout tp1+ple_tier=mapped: DeepSeek-V4 has no per-layer embeddings"},
      // What weft cannot run yet, or only together with something else.
      {"dcp", flash(), {.mesh = {.tp = 4, .dcp = 2}}, ""},
      {"dcp, merged", flash(), {.mesh = {.tp = 4, .dcp = 4}, .dcp_mode = DcpMode::kMerge}, ""},
      {"dcp beside a split of tokens", flash(), {.mesh = {.tp = 4, .dcp = 2}, .attention = AttentionChoice::kDsaCp},
       "layout tp4dcp2+dsa_cp: dcp 2 spreads the caches that dsa_cp needs whole on every rank; use one of the two"},
      {"owned", flash(), {.mesh = {.tp = 4}, .split = TokenSplit::kOwned},
       "layout tp4+owned: split=owned needs dsa_cp, whose prefill fills the caches of every rank: tpN+dsa_cp+owned"},
      {"owned with dsa_cp", flash(), {.mesh = {.tp = 4}, .attention = AttentionChoice::kDsaCp, .split = TokenSplit::kOwned}, ""},
      {"compressor=split", flash(), {.mesh = {.pcp = 2}, .compressor = CompressorChoice::kSplit}, ""},
      // Rules of all families come first.
      {"a family rule and a general one", with([](Config& c) { c.num_attention_heads = 7; }), {.mesh = {.pcp = 2, .tp = 2}, .attention = AttentionChoice::kDsaCp},
       "layout tp2pcp2+dsa_cp: dsa_cp splits tokens over tp, pcp 2 would split them again; use one of the two"},
  };
  for (const RuleCase& c : cases) EXPECT_EQ(check_layout(c.config, c.layout).message(), c.message) << c.what;
}

TEST(DeepseekV4Contract, WhatIsTakenCanBeBuilt) {
  const std::shared_ptr<const Model> models[] = {load_test_model("golden/deepseek_v4/f32_pro_like"),
                                                 load_test_model("golden/deepseek_v4/official_r"),
                                                 load_test_model("golden/deepseek_v4/mtp_f32")};
  expect_taken_layouts_can_be_built(models, 1700, 200, [](Layout& layout, RandomChoice& one_of) {
    layout.prefetch = layout.o_proj == OProjChoice::kStreamed && one_of({false, true});
    if (layout.mesh.pcp > 1 || layout.attention == AttentionChoice::kDsaCp) {
      layout.compressor = one_of({CompressorChoice::kFull, CompressorChoice::kSplit});
    } else {
      layout.mesh.dcp = one_of({1, layout.mesh.tp, 2});
      if (layout.mesh.dcp > 1) layout.dcp_mode = one_of({DcpMode::kRows, DcpMode::kMerge});
    }
  });
}

}  // namespace
}  // namespace weft::deepseek_v4

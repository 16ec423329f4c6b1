#include "planner/engine_profile.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

const std::vector<std::filesystem::path> kFolders = {WEFT_SOURCE_DIR "/devices/engines"};

EngineProfile load(const std::string& name) {
  Result<EngineProfile> profile = load_engine_profile(name, kFolders);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return profile.ok() ? std::move(profile).value() : EngineProfile{};
}

Layout layout_of(const char* text) { return parse_layout(text).value(); }

TEST(EngineProfiles, ShippedOnesAreRead) {
  EXPECT_EQ(engine_profile_names(kFolders),
            (std::vector<std::string>{"tensorcast", "vllm-ascend", "vllm-hcu", "weft"}));
  for (const std::string& name : engine_profile_names(kFolders)) EXPECT_EQ(load(name).name, name);
  EXPECT_TRUE(load("weft").weights.empty() && load("weft").reserves.empty() && load("weft").exact);
  EXPECT_EQ(load_engine_profile("vllm", kFolders).status().message(),
            "engine 'vllm' is unknown; nearest: vllm-ascend, vllm-hcu, weft");
}

TEST(EngineProfiles, Patterns) {
  EXPECT_TRUE(matches("*.self_attn.kv_b_proj", "layers.3.self_attn.kv_b_proj"));
  EXPECT_FALSE(matches("*.self_attn.kv_b_proj", "layers.3.self_attn.kv_b_proj.scale"));
  EXPECT_TRUE(matches("layers.*.b*", "layers.1.a.b.bb"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_FALSE(matches("a", ""));
  EXPECT_TRUE(matches("embed_tokens", "embed_tokens"));
}

TEST(EngineProfiles, OneErrorForEachFault) {
  const std::string head =
      R"({"schema": 1, "name": "e", "description": "x", "weights": [{"name": "r", "source": "s", )";
  for (const auto& [rest, message] : {
           std::pair{R"("effect": "melt"}]})",
                     "e.json: weights[0].effect: 'melt' is unknown; known: replicate, shard, store_as, omit_scales, "
                     "omit, extra_copy, overhead"},
           std::pair{R"("effect": "store_as"}]})", "e.json: weights[0].dtype is missing: this effect needs it"},
           std::pair{R"("effect": "omit", "split": "diagonal"}]})",
                     "e.json: weights[0].split: 'diagonal' is unknown; known: whole, heads, output_groups, "
                     "output_inputs, vocabulary, "
                     "dense_inner, dense_inputs, shared_inner, shared_inputs, experts"},
           std::pair{R"("effect": "omit", "size": 3}]})", "e.json: unknown key 'weights[0].size'"},
       }) {
    EXPECT_EQ(parse_engine_profile(head + rest, "e.json").status().message(), message);
  }
}

TEST(EngineProfiles, EffectsOnOneWeight) {
  const auto engine = [](const std::string& rule) {
    return parse_engine_profile(
               R"({"schema": 1, "name": "e", "description": "x", "weights": [{"name": "r", "source": "s", )" + rule +
                   "}]}",
               "e")
        .value();
  };
  // A rank's quarter of an int8 weight [64, 32], and of its fp32 scales.
  const HeldWeight weight{.name = "layers.0.q",
                          .split = WeightSplit::kHeads,
                          .dtype = DType::kI8,
                          .elements = 512,
                          .inputs = 32,
                          .pieces = 4,
                          .over_tp = true};
  const HeldWeight scale{.name = "layers.0.q.scale",
                         .split = WeightSplit::kHeads,
                         .is_scale = true,
                         .dtype = DType::kF32,
                         .elements = 16,
                         .pieces = 4,
                         .over_tp = true};
  struct Case {
    const char* rule;
    const char* layout;
    int64_t bytes, scale_bytes, extra;
  };
  for (const Case& c : {
           Case{R"("effect": "replicate")", "tp4", 2048, 256, 0},
           Case{R"("effect": "replicate", "when": "dsa_cp")", "tp4", 512, 64, 0},
           Case{R"("effect": "replicate", "when": "dsa_cp")", "tp4+dsa_cp", 2048, 256, 0},
           Case{R"("effect": "store_as", "dtype": "BF16")", "tp4", 1024, 0, 0},
           Case{R"("effect": "store_as", "dtype": "BF16", "patterns": ["*.q"])", "tp4", 1024, 0, 0},
           Case{R"("effect": "store_as", "dtype": "BF16", "stored": "I8")", "tp4", 1024, 0, 0},
           Case{R"("effect": "omit_scales")", "tp4", 512, 0, 0},
           Case{R"("effect": "omit")", "tp4", 0, 0, 0},
           Case{R"("effect": "extra_copy", "dtype": "BF16", "factor": 0.5)", "tp4", 512, 64, 512},
           Case{R"("effect": "overhead", "bytes_per_output": 2, "bytes_per_input": 1)", "tp4", 512, 64, 2 * 16 + 32},
           Case{R"("effect": "omit", "split": "experts")", "tp4", 512, 64, 0},
           Case{R"("effect": "omit", "patterns": ["layers.*.k"])", "tp4", 512, 64, 0},
           Case{R"("effect": "shard")", "tp4", 512, 64, 0},
       }) {
    SCOPED_TRACE(c.rule);
    const EngineProfile profile = engine(c.rule);
    const EngineWeight held = engine_weight(profile, weight, layout_of(c.layout));
    EXPECT_EQ(held.bytes(), c.bytes);
    EXPECT_EQ(engine_weight(profile, scale, layout_of(c.layout)).bytes(), c.scale_bytes);
    int64_t extra = 0;
    for (const EngineWeight::Line& line : held.extra) extra += line.bytes;
    EXPECT_EQ(extra, c.extra);
  }
  const HeldWeight table{.name = "embed_tokens", .dtype = DType::kBF16, .elements = 64 * 32, .inputs = 32};
  EXPECT_EQ(engine_weight(engine(R"("effect": "shard")"), table, layout_of("tp4")).bytes(), 1024);
}

}  // namespace
}  // namespace weft

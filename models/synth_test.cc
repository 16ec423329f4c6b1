#include "models/synth.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "io/test_files.h"
#include "models/deepseek_v4/weights.h"
#include "models/model.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = WEFT_SOURCE_DIR;

Json published(const char* folder) { return *read_json_file(kRoot / "model_configs" / folder / "config.json"); }

SynthPlan plan_of(const Json& config, const SynthOptions& options) {
  auto plan = plan_synth(config, "config.json", options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : SynthPlan{};
}

// Small enough for a unit test, with every kind of layer.
SynthOptions small() {
  SynthOptions options;
  options.layers = {0, 2, 3, 4};
  options.mtp = true;
  options.hidden_size = 64;
  options.experts = 8;
  options.vocab_size = 300;
  return options;
}

Json small_config() {
  Json config = published("deepseek-v4-flash");
  for (const auto& [key, value] : std::map<std::string, int64_t>{{"num_attention_heads", 8},
                                                                 {"head_dim", 64},
                                                                 {"qk_rope_head_dim", 16},
                                                                 {"q_lora_rank", 64},
                                                                 {"o_lora_rank", 32},
                                                                 {"index_n_heads", 4},
                                                                 {"index_head_dim", 32},
                                                                 {"index_topk", 16},
                                                                 {"moe_intermediate_size", 64}}) {
    config[key] = value;
  }
  return config;
}

Status write(const SynthPlan& plan, const fs::path& out, int64_t max_shard_bytes = 5'000'000'000, int threads = 2,
             uint64_t seed = 3) {
  ThreadPool pool(threads);
  const auto progress = [](int64_t) { return Status(); };
  return write_synth(plan, out,
                     {.seed = seed, .max_shard_bytes = max_shard_bytes, .copies = {}, .on_progress = progress}, pool);
}

std::map<std::string, std::string> contents(const fs::path& dir) {
  const auto checkpoint = Checkpoint::open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::map<std::string, std::string> tensors;
  for (const auto& e : checkpoint->entries()) {
    tensors[std::string(e.name)] =
        to_string(e.type) + std::string(reinterpret_cast<const char*>(e.data), static_cast<size_t>(e.type.bytes()));
  }
  return tensors;
}

TEST(Synth, KeepsWhatTheLayersAre) {
  const SynthPlan plan = plan_of(published("deepseek-v4-flash"), {.layers = {0, 2, 3, 4}, .mtp = true});
  EXPECT_EQ(plan.config["num_hidden_layers"], 4);
  EXPECT_EQ(plan.config["compress_ratios"], Json({0, 4, 128, 4, 0}));
  EXPECT_EQ(plan.config["num_hash_layers"], 2);
  EXPECT_EQ(plan.config["num_nextn_predict_layers"], 1);
  EXPECT_EQ(plan.config["hidden_size"], 4096);

  const SynthPlan trunk = plan_of(published("deepseek-v4-flash-0731"), {.layers = {3, 4}});
  EXPECT_EQ(trunk.config["compress_ratios"], Json({128, 4}));
  EXPECT_EQ(trunk.config["num_hash_layers"], 0);
  EXPECT_EQ(trunk.config["num_nextn_predict_layers"], 0);
  EXPECT_FALSE(trunk.config.contains("dspark_target_layer_ids"));

  const SynthPlan draft = plan_of(published("deepseek-v4-flash-0731"), {.layers = {2, 40, 41, 42}, .mtp = true});
  EXPECT_EQ(draft.config["dspark_target_layer_ids"], Json({1, 2, 3}));
  EXPECT_EQ(draft.config["compress_ratios"], Json({4, 4, 128, 4, 0, 0, 0}));
}

TEST(Synth, WholeReleasesToTheByte) {  // SOURCES of the model configs
  struct Case {
    const char* folder;
    bool mtp;
    int64_t bytes;
    size_t tensors;
  };
  const Case cases[] = {{"deepseek-v4-flash", true, 159609485896, 69187},
                        {"deepseek-v4-flash", false, 156015698140, 69187 - 1575},
                        {"deepseek-v4-flash-0731", true, 166878536440, 72317},
                        {"deepseek-v4-pro", true, 864704792696, 145116}};
  for (const Case& c : cases) {
    const SynthPlan plan = plan_of(published(c.folder), {.mtp = c.mtp});
    EXPECT_EQ(plan.bytes(), c.bytes) << c.folder;
    EXPECT_EQ(plan.tensors.size(), c.tensors) << c.folder;
  }
}

TEST(Synth, Errors) {
  const Json flash = published("deepseek-v4-flash"), sparked = published("deepseek-v4-flash-0731");
  Json no_drafts = flash;
  no_drafts["num_nextn_predict_layers"] = 0;
  no_drafts["compress_ratios"].erase(43);
  struct Case {
    Json config;
    SynthOptions options;
    const char* message;
  };
  const Case cases[] = {
      {flash, {.layers = {0, 43}}, "--layers: there is no layer 43; this config has 0 to 42"},
      {flash, {.layers = {3, 2}}, "--layers: layer 2 is routed by token id and must come before 3"},
      {no_drafts, {.mtp = true}, "--mtp: this config has no draft layer"},
      {sparked, {.layers = {0, 41, 42}, .mtp = true}, "--mtp: a draft stage reads layer 40, which --layers leaves out"},
      {flash, {.hidden_size = 100}, "config.json: hidden_size 100 is not divisible by the FP4 scale block 32"},
      {flash, {.experts = 4}, "config.json: num_experts_per_tok 6 is above n_routed_experts 4"},
      {Json::object(), {}, "config.json: 'model_type' is missing; it names the model family"},
      {Json{{"model_type", "gpt2"}},
       {},
       "config.json: model_type 'gpt2' is not a family that weft knows (known: deepseek_v4 glm_moe_dsa deepseek_v32)"},
  };
  for (const Case& c : cases) {
    const auto plan = plan_synth(c.config, "config.json", c.options);
    ASSERT_FALSE(plan.ok()) << c.message;
    EXPECT_EQ(plan.status().message(), c.message);
  }
}

TEST(Synth, WritesACheckpointThatOpens) {
  const TempDir dir;
  const SynthPlan plan = plan_of(small_config(), small());
  ASSERT_TRUE(write(plan, dir.path() / "one").ok());
  auto opened = Checkpoint::open(dir.path() / "one");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const auto model = open_model(std::make_shared<const Checkpoint>(std::move(*opened)), {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->summary().bytes(), plan.bytes());
  EXPECT_EQ((*model)->num_draft_layers(), 1);
  EXPECT_FALSE(fs::exists(dir.path() / "one/model.safetensors.index.json"));

  // Shards, threads and the end of the name change no byte; neither do layers that are not there.
  ASSERT_TRUE(write(plan, dir.path() / "many" / "", 300'000, 1).ok());
  EXPECT_TRUE(fs::exists(dir.path() / "many/model.safetensors.index.json"));
  const auto whole = contents(dir.path() / "one");
  EXPECT_EQ(whole, contents(dir.path() / "many"));
  SynthOptions fewer = small();
  fewer.layers = {0, 2};
  ASSERT_TRUE(write(plan_of(small_config(), fewer), dir.path() / "fewer").ok());
  size_t same = 0;
  for (const auto& [name, bytes] : contents(dir.path() / "fewer")) same += whole.at(name) == bytes ? 1 : 0;
  EXPECT_EQ(same, contents(dir.path() / "fewer").size());
  ASSERT_TRUE(write(plan, dir.path() / "other", 5'000'000'000, 2, 4).ok());
  EXPECT_NE(whole, contents(dir.path() / "other"));
}

TEST(Synth, TouchesNothingThatIsThere) {
  const TempDir dir;
  const SynthPlan plan = plan_of(small_config(), small());
  dir.put("file", "x");
  fs::create_directory(dir.path() / "full");
  dir.put("full/x", "x");
  fs::create_directory(dir.path() / "empty");
  const std::string root = dir.path().string();
  EXPECT_EQ(write(plan, dir.path() / "file").message(), root + "/file: is a file, not a folder");
  EXPECT_EQ(write(plan, dir.path() / "full").message(), root + "/full: the folder is not empty; give a new one");
  EXPECT_EQ(write(plan, dir.path() / "nowhere/out").code(), StatusCode::kMachineFailed);
  EXPECT_TRUE(write(plan, dir.path() / "empty").ok());
}

TEST(Synth, NothingIsLeftWhenItStops) {
  const TempDir dir;
  const SynthPlan plan = plan_of(small_config(), small());
  ThreadPool pool(2);
  const auto stop = [](int64_t bytes) { return bytes > 0 ? cancelled("stopped") : Status(); };
  const Status status =
      write_synth(plan, dir.path() / "out", {.max_shard_bytes = 300'000, .copies = {}, .on_progress = stop}, pool);
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Synth, RefusesWhatDoesNotFitOnTheDisk) {
  const TempDir dir;
  SynthPlan plan = plan_of(small_config(), small());
  plan.tensors[0].random.type.shape = {int64_t{1} << 40, 128};
  const Status status = write(plan, dir.path() / "out");
  EXPECT_EQ(status.code(), StatusCode::kMachineFailed);
  EXPECT_NE(status.message().find("GiB are free on this disk"), std::string::npos) << status.message();
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace weft

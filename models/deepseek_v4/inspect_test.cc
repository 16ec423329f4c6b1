// Summaries against the published totals (SOURCES of the model configs), and folders without shards.
#include "models/deepseek_v4/inspect.h"

#include <gtest/gtest.h>

#include <numeric>

#include "io/test_files.h"

namespace weft::deepseek_v4 {
namespace {

const std::filesystem::path kSource = WEFT_SOURCE_DIR;

Config config_of(const Checkpoint& checkpoint) {
  auto config = parse_config(checkpoint.config(), checkpoint.config_name());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

ModelSummary summary_of(const std::filesystem::path& config_file) {
  const auto checkpoint = Checkpoint::open_config(config_file);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const Config config = config_of(*checkpoint);
  const Storage storage = storage_of(config);
  return summarise(config, *checkpoint, weights(config, storage), storage, nullptr);
}

bool has_note(const ModelSummary& summary, std::string_view text) {
  return std::any_of(summary.notes.begin(), summary.notes.end(),
                     [&](const std::string& n) { return n.find(text) != n.npos; });
}

TEST(Inspect, ClosureOfTheShippedConfigs) {
  struct Case {
    const char* folder;
    int64_t tensors, bytes, main, mtp, active, swa, csa, hca, drafts;
    const char* note;
  };
  const Case cases[] = {
      {"deepseek-v4-flash", 69187, 159609485896, 284332240471, 6610048891, 13270101591, 2, 21, 20, 1, ""},
      {"deepseek-v4-flash-20260424", 69187, 159609485896, 284332240471, 6610048891, 13270101591, 2, 21, 20, 1,
       "config.json has no expert_dtype: F4_E2M1 experts are assumed"},
      {"deepseek-v4-flash-0731", 72317, 166878536440, 284332240471, 19845850983, 13270101591, 2, 21, 20, 3,
       "the 3 draft stages (DSpark) are counted but not run: no drafting"},
      {"deepseek-v4-pro", 145116, 864704792696, 1572997201763, 25840145979, 48852402019, 0, 30, 31, 1, ""},
      {"deepseek-v4-pro-0813", 149782, 892727580904, 1572997201763, 0, 48852402019, 0, 30, 31, 3, "(DSpark)"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.folder);
    const ModelSummary s = summary_of(kSource / "model_configs" / c.folder / "config.json");
    EXPECT_EQ(s.tensors, c.tensors);
    EXPECT_EQ(s.bytes(), c.bytes);
    EXPECT_EQ(s.parameters_main, c.main);
    EXPECT_TRUE(c.mtp == 0 || s.parameters_mtp == c.mtp) << s.parameters_mtp;
    EXPECT_EQ(s.parameters_active, c.active);
    const int64_t layers[] = {c.swa, c.csa, c.hca, c.drafts};
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(s.layers[i].second, layers[i]) << s.layers[i].first;
    for (const auto* shares : {&s.by_component, &s.by_dtype}) {
      int64_t bytes = 0, tensors = 0;
      for (const auto& share : *shares) bytes += share.bytes, tensors += share.tensors;
      EXPECT_EQ(bytes, c.bytes);
      EXPECT_EQ(tensors, c.tensors);
    }
    EXPECT_TRUE(has_note(s, "there are no weights here"));
    EXPECT_TRUE(has_note(s, c.note));
  }
}

// A folder with an index and no shards.
class Index {
 public:
  Index() {
    const auto shipped = Checkpoint::open_config(kSource / "model_configs/deepseek-v4-flash-20260424/config.json");
    config_ = shipped->config();
    config_["num_hidden_layers"] = 2;
    config_["compress_ratios"] = {0, 4, 0};
    config_["num_hash_layers"] = 1;
    config_["n_routed_experts"] = 8;
  }
  Json& config() { return config_; }
  void add_official(DType expert) {
    const Config config = *parse_config(config_, "config.json");
    for (const FileTensor& tensor : file_tensors(weights(config, {DType::kF8E4M3, expert, false}))) {
      names_[tensor.name] = "a.safetensors";
      total_ += tensor.type.bytes();
    }
  }
  void add_transformers() {
    const Config config = *parse_config(config_, "config.json");
    for (const Weight& w : weights(config, storage_of(config))) {
      if (w.mtp) continue;
      names_[w.hf_name] = "a.safetensors";
      if (w.scale) names_[w.hf_scale_name] = "a.safetensors";
      total_ += w.bytes();
    }
  }
  Json& names() { return names_; }
  int64_t total() const { return total_; }
  Result<ModelSummary> inspect() const {
    const TempDir dir;
    dir.put("config.json", config_.dump());
    dir.put("model.safetensors.index.json",
            Json{{"metadata", {{"total_size", total_}}}, {"weight_map", names_}}.dump());
    WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open_headers_only(dir.path()));
    WEFT_ASSIGN_OR_RETURN(const Config config, parse_config(checkpoint.config(), "config.json"));
    const Storage storage = storage_of_index(config, checkpoint);
    Result<std::vector<Weight>> table = match_names(config, checkpoint, storage);
    if (!table.ok()) return invalid_argument(table.status().message().substr(dir.path().string().size()));
    return summarise(config, checkpoint, *table, storage, nullptr);
  }

 private:
  Json config_, names_ = Json::object();
  int64_t total_ = 0;
};

TEST(Inspect, IndexTellsTheExpertFormat) {
  for (DType expert : {DType::kF4E2M1, DType::kF8E4M3}) {
    Index index;
    index.add_official(expert);
    const auto s = index.inspect();
    ASSERT_TRUE(s.ok()) << s.status().message();
    EXPECT_EQ(s->bytes(), index.total());
    EXPECT_FALSE(has_note(*s, "assumed"));
    EXPECT_FALSE(has_note(*s, "the index says"));
    EXPECT_TRUE(has_note(*s, "the shards of the index are not here"));
    EXPECT_GT(s->parameters_mtp, 0);
  }
}

TEST(Inspect, TransformersIndexLeavesMtpOut) {
  Index index;
  index.add_transformers();
  const auto s = index.inspect();
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->parameters_mtp, 0);
  EXPECT_TRUE(has_note(*s, "the tensors have Transformers names"));
  EXPECT_TRUE(has_note(*s, "the index has no mtp.* tensors"));
}

TEST(Inspect, NamesThatDoNotFit) {
  Index index;
  index.add_official(DType::kF4E2M1);
  index.names().erase("layers.1.attn.wq_a.scale");
  index.names()["layers.9.attn.wq_a.weight"] = "a.safetensors";
  const auto s = index.inspect();
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().message(),
            ": the names in the index do not fit config.json; missing (1): layers.1.attn.wq_a.scale; "
            "unexpected (1): layers.9.attn.wq_a.weight");
}

TEST(Inspect, UnknownKeysAreNotes) {
  Index index;
  index.config()["surprise"] = 1;
  const auto config = parse_config(index.config(), "config.json", {.unknown_keys = UnknownKeys::kWarn});
  ASSERT_TRUE(config.ok());
  const TempDir dir;
  dir.put("c.json", index.config().dump());
  const auto checkpoint = Checkpoint::open_config(dir.path() / "c.json");
  ASSERT_TRUE(checkpoint.ok());
  const Storage storage = storage_of(*config);
  EXPECT_TRUE(has_note(summarise(*config, *checkpoint, weights(*config, storage), storage, nullptr), "surprise"));
}

TEST(Inspect, WeightFilesInOtherTypes) {
  for (const char* name : {"f32_small", "f32_fp8_fp4"}) {
    const auto checkpoint = Checkpoint::open(kSource / "testdata/golden/deepseek_v4" / name);
    ASSERT_TRUE(checkpoint.ok());
    const Config config = config_of(*checkpoint);
    const auto bound = bind(config, *checkpoint);
    ASSERT_TRUE(bound.ok());
    const ModelSummary s = summarise(config, *checkpoint, bound->weights(), bound->storage(), &*bound);
    int64_t bytes = 0;
    for (const auto& entry : checkpoint->entries()) bytes += entry.type.bytes();
    EXPECT_EQ(s.bytes(), bytes);
    EXPECT_EQ(s.tensors, static_cast<int64_t>(checkpoint->entries().size()));
    EXPECT_EQ(has_note(s, "no quantization_config"), !config.fp8);
    EXPECT_FALSE(has_note(s, "no weights here"));
  }
}

}  // namespace
}  // namespace weft::deepseek_v4

// What depends on the family and the release, through the program: the chat format, and ids that a tokenizer has no token for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/test_support.h"
#include "io/test_files.h"

namespace weft {
namespace {

const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";

// A random model of a published config with the tokenizer of the sample, to which the special tokens of GLM are added.
std::string make_model(const TempDir& dir, const std::string& config) {
  const std::string model = (dir.path() / config).string();
  run_json(fmt::format("synth {} {} --layers 0,3 --mtp --experts 16 --hidden 64 --vocab 6000", config, model));
  std::ifstream in(kSample + "/tokenizer.json", std::ios::binary);
  auto tokenizer = nlohmann::ordered_json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  int id = 4096;
  for (const char* token : {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
    auto added = tokenizer["added_tokens"][0];
    added["id"] = id++;
    added["content"] = token;
    tokenizer["added_tokens"].push_back(added);
  }
  dir.put(config + "/tokenizer.json", tokenizer.dump());
  return model;
}

TEST(CliFamily, ChatIsInTheFormatOfTheRelease) {
  struct Case {
    const char *config, *options, *prompt;  // the prompt of the chat, in full
  };
  const Case cases[] = {
      {"deepseek-v4-flash", "", "<｜begin▁of▁sentence｜><｜User｜>Good day<｜Assistant｜></think>"},
      {"deepseek-v3.2", "", "<｜begin▁of▁sentence｜><｜User｜>Good day<｜Assistant｜></think>"},
      {"deepseek-v3.2", "--system Sir --thinking max", "<｜begin▁of▁sentence｜>Sir<｜User｜>Good day<｜Assistant｜><think>"},
      {"glm-5", "", "[gMASK]<sop><|user|>Good day<|assistant|><think></think>"},
      {"glm-5.1", "--system Sir --thinking max", "[gMASK]<sop><|system|>Sir<|user|>Good day<|assistant|><think>"},
      {"glm-5.2", "", "[gMASK]<sop><|user|>Good day<|assistant|><think></think>"},
      {"glm-5.2", "--system Sir --thinking high",
       "[gMASK]<sop><|system|>Reasoning Effort: High<|system|>Sir<|user|>Good day<|assistant|><think>"},
      {"glm-5.2", "--thinking max", "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Good day<|assistant|><think>"},
  };
  const TempDir dir;
  std::string made;
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} {}", c.config, c.options));
    if (made != c.config) make_model(dir, made = c.config);
    const std::string model = (dir.path() / c.config).string();
    const std::string common = "--max-tokens 6 --temperature 0 --dtype f32 --quiet --ignore-eos";
    const Json chat = run_json(fmt::format("run {} --chat -p 'Good day' {} {}", model, c.options, common));
    const Json raw = run_json(fmt::format("run {} -p '{}' --no-bos --special {}", model, c.prompt, common));
    ASSERT_EQ(chat["turns"].size(), 1u);
    EXPECT_EQ(chat["turns"][0]["prompt_tokens"], raw["prompt_tokens"]);
    const Json& answer = chat["messages"].back();
    EXPECT_EQ(answer.value("reasoning_content", "") + answer["content"].get<std::string>(), raw["text"]);
  }
}

// The model has 6000 ids, the tokenizer 4102. Flat and greedy, with and without drafts: none of the others is ever picked.
TEST(CliFamily, IdsWithoutATokenAreNotSampled) {
  const TempDir dir;
  const std::string model = make_model(dir, "glm-5.2");
  for (const char* how : {"--temperature 100", "--temperature 0", "--temperature 100 --mtp 2", "--temperature 3 --top-k 50"}) {
    const Json out = run_json(fmt::format("run {} -p 'It is' --max-tokens 40 --ignore-eos --logprobs 2 {}", model, how));
    ASSERT_EQ(out["logprobs"].size(), 40u) << how;
    for (const Json& token : out["logprobs"]) {
      EXPECT_LT(token["id"].get<int>(), 4102) << how;
      for (const Json& other : token["top"]) EXPECT_LT(other["id"].get<int>(), 4102) << how;
    }
  }
}

}  // namespace
}  // namespace weft

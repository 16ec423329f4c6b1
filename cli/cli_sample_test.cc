// The program against the oracle's figures for the sample model (testdata/sample/austen-v4/expected.json).
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "cli/chat_session.h"
#include "cli/test_support.h"
#include "io/json.h"

namespace weft {
namespace {

const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";

std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

Json expected() { return read_json_file(kSample + "/expected.json").value(); }

TEST(CliSample, GreedyTextIsTheOracles) {
  const Json want = expected();
  for (const int drafts : {0, 1, 2}) {
    const Json got = run_json(fmt::format("run '{}' --dtype f32 --temperature 0 --max-tokens {} --mtp {} -p {}",
                                          kSample, want["greedy_ids"].size(), drafts, quoted(want["prompt"])));
    EXPECT_EQ(got["prompt_tokens"], want["prompt_ids"].size());
    EXPECT_EQ(got["tokens"], want["greedy_ids"]) << drafts << " drafts";
    EXPECT_EQ(got["text"], want["greedy_text"]) << drafts << " drafts";
    EXPECT_EQ(got["drafts"]["accepted"] > 0, drafts > 0);
  }
}

TEST(CliSample, PerplexityIsTheOracles) {
  const Json want = expected()["eval"];
  const Json got = run_json(
      fmt::format("eval '{}' '{}/eval.txt' --dtype f32 --window {}", kSample, kSample, want["window"].get<int>()));
  EXPECT_EQ(got["tokens"], want["tokens"]);
  EXPECT_EQ(got["predicted"], want["predicted"]);
  // Both sum about 8,000 values of float32 logits that agree within 1e-5.
  EXPECT_NEAR(got["nll"].get<double>(), want["nll"].get<double>(), 1e-5);
  EXPECT_NEAR(got["perplexity"].get<double>(), want["perplexity"].get<double>(), 1e-3);
}

// A second turn continues the caches of the first: the same answer as from the whole conversation, read at once.
TEST(CliSample, ChatKeepsWhatWasSaid) {
  const Tokenizer tokenizer = Tokenizer::load_directory(kSample).value();
  const auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(kSample).value());
  const std::shared_ptr<const Model> model = open_model(checkpoint, {}).value();
  EngineOptions options;
  options.mode = model->mode(DType::kF32, std::nullopt);
  options.max_sequences = 2;
  options.max_context = 512;
  options.max_drafts = 1;
  const auto engine = Engine::create(model, options).value();

  ChatSession::Settings settings;
  settings.format.thinking = false;
  settings.sampling.temperature = 0.8;
  settings.sampling.seed = 11;
  settings.stop_ids = {1};
  settings.max_tokens = 30;
  settings.drafts = 1;
  ChatSession session = ChatSession::create(*engine, tokenizer, settings).value();
  ASSERT_TRUE(session.set_system("You are a novelist.").ok());
  const auto show = [](std::string_view) {};
  const auto never = [] { return false; };
  const GenerateResult first = session.say("Who was at the ball?", show, never).value();
  const std::string first_prompt =
      render_chat(std::span(session.messages()).first(session.messages().size() - 1), settings.format).value();
  const GenerateResult second = session.say("And what did she wear?", show, never).value();
  EXPECT_GE(second.cached_tokens, first.prompt_tokens + static_cast<int64_t>(first.tokens.size()) - 1);

  const std::string whole =
      render_chat(std::span(session.messages()).first(session.messages().size() - 1), settings.format).value();
  const std::string first_answer = session.messages()[2].content;
  ASSERT_TRUE(whole.starts_with(first_prompt + first_answer)) << whole;
  GenerateRequest request;
  request.prompt = tokenizer.encode(first_prompt).value();
  for (const SampledToken& token : first.tokens) request.prompt.push_back(token.id);
  const std::vector<int32_t> rest = tokenizer.encode(whole.substr(first_prompt.size() + first_answer.size())).value();
  request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
  request.sampling = settings.sampling;
  request.max_tokens = settings.max_tokens;
  request.stop_ids = settings.stop_ids;
  Generator generator(*engine);
  const auto id = generator.submit(std::move(request)).value();
  ASSERT_TRUE(generator.run().ok());
  const GenerateResult cold = generator.take(id).value();
  EXPECT_EQ(cold.prompt_tokens, second.prompt_tokens);
  ASSERT_EQ(cold.tokens.size(), second.tokens.size());
  for (size_t i = 0; i < cold.tokens.size(); ++i) EXPECT_EQ(cold.tokens[i].id, second.tokens[i].id) << i;

  // An error takes the message back.
  const size_t count = session.messages().size();
  std::string long_text;
  for (int i = 0; i < 512; ++i) long_text += "word ";
  EXPECT_FALSE(session.say(long_text, show, never).ok());
  EXPECT_EQ(session.messages().size(), count);
  // Stopped at once: nothing was said, and the conversation goes on.
  EXPECT_EQ(session.say("Yes?", show, [] { return true; }).value().reason, FinishReason::kCancelled);
  EXPECT_FALSE(session.say("Are you there?", show, never).value().tokens.empty());
}

}  // namespace
}  // namespace weft

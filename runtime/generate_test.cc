#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "io/json.h"

namespace weft {
namespace {

using Tokens = std::vector<int32_t>;

const std::string kCase = WEFT_SOURCE_DIR "/testdata/golden/deepseek_v4/mtp_f32";
const std::string kSample = WEFT_SOURCE_DIR "/testdata/sample/austen-v4";

std::shared_ptr<const Model> open_model_in(const std::string& dir) {
  Result<Checkpoint> checkpoint = Checkpoint::open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  Result<std::unique_ptr<Model>> model =
      open_model(std::make_shared<const Checkpoint>(std::move(checkpoint).value()), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

struct Setup {
  int64_t max_sequences = 4;
  int64_t max_step_tokens = 64;
  int64_t max_drafts = 0;
  int64_t max_context = 256;
  int64_t total_context = 0;
};

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const Setup& setup) {
  EngineOptions options;
  options.mode = model->mode(DType::kF32, std::nullopt);
  options.num_threads = 1;  // thousands of tiny steps: waking threads would cost more than they save
  options.max_sequences = setup.max_sequences;
  options.max_step_tokens = setup.max_step_tokens;
  options.max_drafts = setup.max_drafts;
  options.max_context = setup.max_context;
  options.total_context = setup.total_context;
  Result<std::unique_ptr<Engine>> engine = Engine::create(std::move(model), options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

Tokens ids(const GenerateResult& result) {
  Tokens ids;
  for (const SampledToken& token : result.tokens) ids.push_back(token.id);
  return ids;
}

Tokens first(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<int64_t>(count)};
}

// The golden case with draft layer: tiny, every kind of layer.
class GenerateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = open_model_in(kCase);
    const Json json = read_json_file(kCase + "/case.json").value();
    prompts_ = json["prompts"].get<std::vector<Tokens>>();
    prompts_.erase(prompts_.end() - 2);  // one long prompt is enough
    // The oracle gives the first tokens; the rest is what one request at a time gets, without drafts.
    auto oracle = json["greedy"].get<std::vector<Tokens>>();
    oracle.erase(oracle.end() - 2);
    const auto engine = make_engine(model_, {1, 64, 0});
    for (size_t i = 0; i < prompts_.size(); ++i) {
      greedy_.push_back(ids(run_one(*engine, greedy_request(i))));
      ASSERT_EQ(first(greedy_.back(), oracle[i].size()), oracle[i]) << "prompt " << i;
    }
  }
  static void TearDownTestSuite() {
    model_.reset();
    greedy_.clear();
  }

  static GenerateRequest greedy_request(size_t prompt) {
    GenerateRequest request;
    request.prompt = prompts_[prompt];
    request.sampling.temperature = 0;
    request.max_tokens = kTokens;
    return request;
  }

  // Sampling that uses every part of the sampler; a seed for each prompt.
  static GenerateRequest sampled_request(size_t prompt) {
    GenerateRequest request = greedy_request(prompt);
    request.sampling.temperature = 0.8;
    request.sampling.top_p = 0.95;
    request.sampling.top_k = 100;
    request.sampling.repetition_penalty = 1.2;
    request.sampling.presence_penalty = 0.1;
    request.sampling.frequency_penalty = 0.1;
    request.sampling.seed = 1000 + prompt;
    return request;
  }

  static GenerateResult run_one(Engine& engine, GenerateRequest request) {
    Generator generator(engine);
    const auto id = generator.submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    const Status status = generator.run();
    EXPECT_TRUE(status.ok()) << status.message();
    return generator.take(*id).value();
  }

  static std::shared_ptr<const Model> model_;
  static std::vector<Tokens> prompts_, greedy_;
  static constexpr int64_t kTokens = 12;
};

std::shared_ptr<const Model> GenerateTest::model_;
std::vector<Tokens> GenerateTest::prompts_, GenerateTest::greedy_;

struct BatchCase {
  const char* what;
  Setup setup;
  bool mixed_drafts;  // every other request without
};
const BatchCase kBatchCases[] = {
    {"one at a time", {1, 64, 0}, false},
    {"all at once", {8, 512, 0}, false},
    {"more requests than slots", {3, 64, 0}, false},
    {"prompts in small chunks beside answers", {4, 7, 0}, false},
    {"steps too short for all answers", {8, 3, 0}, false},
    {"one token per step", {4, 1, 0}, false},
    {"one draft, one at a time", {1, 64, 1}, false},
    {"one draft, all at once", {8, 512, 1}, false},
    {"three drafts, small chunks", {4, 9, 3}, false},
    {"drafts that do not fit into a step", {8, 5, 3}, false},
    {"steps without room for drafts", {2, 1, 2}, false},
    {"with and without drafts", {8, 64, 2}, true},
    {"pages for two requests only", {8, 64, 1, 256, 300}, false},
};

TEST_F(GenerateTest, TextDependsOnPromptAndSamplingAlone) {
  std::vector<Tokens> sampled;
  {
    const auto engine = make_engine(model_, {1, 64, 0});
    for (size_t i = 0; i < prompts_.size(); ++i) sampled.push_back(ids(run_one(*engine, sampled_request(i))));
  }
  EXPECT_NE(sampled, greedy_);
  std::mt19937 random(7);
  for (const BatchCase& c : kBatchCases) {
    SCOPED_TRACE(c.what);
    const auto engine = make_engine(model_, c.setup);
    std::vector<size_t> order(2 * prompts_.size());  // each prompt greedy and sampled
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Generator generator(*engine);
    std::map<size_t, Generator::RequestId> requests;
    std::map<size_t, Tokens> streamed;
    for (const size_t i : order) {
      const size_t prompt = i / 2;
      GenerateRequest request = i % 2 == 0 ? greedy_request(prompt) : sampled_request(prompt);
      request.drafts = c.mixed_drafts && requests.size() % 2 == 0 ? 0 : c.setup.max_drafts;
      request.on_token = [&streamed, i](const SampledToken& token) {
        streamed[i].push_back(token.id);
        return TokenVerdict::kContinue;
      };
      const auto id = generator.submit(std::move(request));
      ASSERT_TRUE(id.ok()) << id.status().message();
      requests[i] = *id;
    }
    const Status status = generator.run();
    ASSERT_TRUE(status.ok()) << status.message();
    for (const auto& [i, id] : requests) {
      const size_t prompt = i / 2;
      const GenerateResult result = generator.take(id).value();
      EXPECT_EQ(ids(result), i % 2 == 0 ? greedy_[prompt] : sampled[prompt])
          << "prompt " << prompt << (i % 2 ? " sampled" : "");
      EXPECT_EQ(streamed[i], ids(result));
      EXPECT_EQ(result.reason, FinishReason::kMaxTokens);
      EXPECT_EQ(result.prompt_tokens, static_cast<int64_t>(prompts_[prompt].size()));
      EXPECT_LE(result.accepted, result.drafted);
    }
    EXPECT_EQ(engine->caches().free_pages(), engine->caches().capacity().num_pages) << "pages were lost";
  }
}

TEST_F(GenerateTest, SeedsGiveTexts) {
  const auto engine = make_engine(model_, {});
  std::set<Tokens> texts;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    GenerateRequest request = greedy_request(0);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    const Tokens text = ids(run_one(*engine, request));
    EXPECT_EQ(text, ids(run_one(*engine, request))) << "seed " << seed;
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 6u);
}

struct EndCase {
  const char* what;
  int64_t max_tokens;
  size_t stop_id_at;   // greedy token that is a stop id; 99: none
  size_t callback_at;  // callback stops with this token; 99: never
  size_t tokens;       // expected
  FinishReason reason;
};
const EndCase kEndCases[] = {
    {"one token", 1, 99, 99, 1, FinishReason::kMaxTokens},
    {"two tokens", 2, 99, 99, 2, FinishReason::kMaxTokens},
    {"stop id first", 8, 0, 99, 0, FinishReason::kStopToken},
    {"stop id", 8, 3, 99, 3, FinishReason::kStopToken},
    {"callback at the first token", 8, 99, 0, 1, FinishReason::kStopped},
    {"callback", 8, 99, 2, 3, FinishReason::kStopped},
    {"callback before a stop id", 8, 4, 2, 3, FinishReason::kStopped},
};

TEST_F(GenerateTest, EndsWhereItShould) {
  // A text without repeated tokens among the first ones, so that a stop id has one place.
  const size_t prompt = static_cast<size_t>(
      std::find_if(greedy_.begin(), greedy_.end(),
                   [](const Tokens& t) { return std::set<int32_t>(t.begin(), t.begin() + 6).size() == 6; }) -
      greedy_.begin());
  ASSERT_LT(prompt, greedy_.size());
  for (const int64_t drafts : {0, 1, 3}) {
    const auto engine = make_engine(model_, {1, 64, drafts});
    for (const EndCase& c : kEndCases) {
      SCOPED_TRACE(fmt::format("{}, {} drafts", c.what, drafts));
      GenerateRequest request = greedy_request(prompt);
      request.max_tokens = c.max_tokens;
      request.drafts = drafts;
      if (c.stop_id_at < greedy_[prompt].size()) request.stop_ids = {-1, greedy_[prompt][c.stop_id_at]};
      size_t seen = 0;
      request.on_token = [&](const SampledToken&) {
        return seen++ == c.callback_at ? TokenVerdict::kStop : TokenVerdict::kContinue;
      };
      const GenerateResult result = run_one(*engine, request);
      EXPECT_EQ(ids(result), first(greedy_[prompt], c.tokens));
      EXPECT_EQ(result.reason, c.reason);
      EXPECT_EQ(result.stop_id.has_value(), c.reason == FinishReason::kStopToken);
      EXPECT_EQ(seen, c.tokens);
    }
  }
}

TEST_F(GenerateTest, FillsTheContextAndNoMore) {
  for (const int64_t drafts : {0, 2}) {
    const auto size = static_cast<int64_t>(prompts_[2].size());
    const auto engine = make_engine(model_, {1, 64, drafts, size + 5});
    GenerateRequest request = greedy_request(2);
    request.max_tokens = std::nullopt;
    request.drafts = drafts;
    const GenerateResult result = run_one(*engine, request);
    EXPECT_EQ(result.reason, FinishReason::kContextFull);
    EXPECT_EQ(ids(result), first(greedy_[2], 5));
    // As many tokens as fit were asked for: that is the reason then.
    request.max_tokens = 4;
    EXPECT_EQ(run_one(*engine, request).reason, FinishReason::kMaxTokens);
  }
}

TEST_F(GenerateTest, GoesOnInASequence) {
  for (const int64_t drafts : {0, 1, 2}) {
    SCOPED_TRACE(fmt::format("{} drafts", drafts));
    const auto engine = make_engine(model_, {2, 16, drafts});
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const int32_t slot = engine->open_sequence().value();
      GenerateRequest request = greedy_request(i);
      request.drafts = drafts;
      request.slot = slot;
      request.max_tokens = 3;
      EXPECT_EQ(ids(run_one(*engine, request)), first(greedy_[i], 3));
      const int64_t cached = engine->length(slot);
      EXPECT_EQ(cached, static_cast<int64_t>(prompts_[i].size()) + 2);
      for (int k = 0; k < 3; ++k) request.prompt.push_back(greedy_[i][k]);
      request.max_tokens = kTokens - 3;
      const GenerateResult result = run_one(*engine, request);
      EXPECT_EQ(ids(result), Tokens(greedy_[i].begin() + 3, greedy_[i].end())) << "prompt " << i;
      EXPECT_EQ(result.cached_tokens, cached);
      engine->close_sequence(slot);
    }
  }
}

TEST_F(GenerateTest, CancelEndsOneRequestOnly) {
  const auto engine = make_engine(model_, {2, 16, 1});
  Generator generator(*engine);
  const auto submit = [&](size_t prompt) {
    GenerateRequest request = greedy_request(prompt);
    request.drafts = 1;
    return generator.submit(std::move(request)).value();
  };
  const size_t longest = prompts_.size() - 1;
  const auto answering = submit(1), reading = submit(longest), waiting = submit(2), other = submit(3);
  ASSERT_TRUE(generator.step().ok());
  ASSERT_TRUE(generator.step().ok());
  generator.cancel(answering);
  generator.cancel(reading);
  generator.cancel(waiting);
  generator.cancel(answering);  // again: nothing
  const GenerateResult answered = generator.take(answering).value();
  EXPECT_EQ(answered.reason, FinishReason::kCancelled);
  EXPECT_FALSE(answered.tokens.empty());
  EXPECT_EQ(ids(answered), first(greedy_[1], answered.tokens.size()));
  EXPECT_TRUE(generator.take(reading)->tokens.empty());
  EXPECT_EQ(generator.take(waiting)->reason, FinishReason::kCancelled);
  EXPECT_FALSE(generator.take(waiting).has_value());
  ASSERT_TRUE(generator.run().ok());
  EXPECT_EQ(ids(*generator.take(other)), greedy_[3]);
  EXPECT_EQ(engine->caches().free_pages(), engine->caches().capacity().num_pages);
}

TEST_F(GenerateTest, RefusesWhatCannotRun) {
  const auto engine = make_engine(model_, {1, 16, 1, 20, 20});
  Generator generator(*engine);
  struct BadRequest {
    std::function<void(GenerateRequest&)> change;
    const char* message;
  };
  const BadRequest kBad[] = {
      {[](auto& r) { r.prompt.clear(); }, "the prompt has no tokens; at least one is needed"},
      {[](auto& r) { r.prompt.assign(20, 1); },
       "the prompt has 20 tokens; a context of 20 takes at most 19, so that there is room for an answer; raise --ctx"},
      {[](auto& r) {
         r.prompt = {1, 256};
       },
       "token id 256 is outside the vocabulary of 256"},
      {[](auto& r) { r.prompt = {-1}; }, "token id -1 is outside the vocabulary of 256"},
      {[](auto& r) { r.max_tokens = 0; }, "max_tokens: 0 is not >= 1"},
      {[](auto& r) { r.drafts = 2; }, "2 drafts per step; the engine was opened for 0 to 1"},
      {[](auto& r) { r.sampling.top_p = 0; }, "top_p: expected a number above 0 and at most 1, found 0"},
  };
  for (const BadRequest& bad : kBad) {
    GenerateRequest request = greedy_request(0);
    bad.change(request);
    const auto id = generator.submit(std::move(request));
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(id.status().message(), bad.message);
  }
  EXPECT_TRUE(generator.idle());
}

// The trained sample: drafts are accepted, and the text is the oracle's.
TEST(GenerateSample, DraftsSaveSteps) {
  const Json expected = read_json_file(kSample + "/expected.json").value();
  const auto model = open_model_in(kSample);
  const Tokens greedy = expected["greedy_ids"].get<Tokens>();
  constexpr size_t kTokens = 32;
  for (const int64_t drafts : {0, 1, 2}) {
    const auto engine = make_engine(model, {1, 64, drafts});
    Generator generator(*engine);
    GenerateRequest request;
    request.prompt = expected["prompt_ids"].get<Tokens>();
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 2;
    request.max_tokens = kTokens;
    request.drafts = drafts;
    const auto id = generator.submit(std::move(request)).value();
    int64_t steps = 0;
    for (; !generator.idle(); ++steps) ASSERT_TRUE(generator.step().ok());
    const GenerateResult result = generator.take(id).value();
    EXPECT_EQ(ids(result), first(greedy, kTokens)) << drafts << " drafts";
    const int64_t prompt_steps = 3;  // 147 tokens by 64
    EXPECT_EQ(steps, prompt_steps + static_cast<int64_t>(kTokens) - 1 - result.accepted);
    EXPECT_GE(result.accepted, drafts > 0 ? static_cast<int64_t>(kTokens) / 4 : 0);
    for (const SampledToken& token : result.tokens) {
      ASSERT_EQ(token.top.size(), 2u);
      EXPECT_EQ(token.top[0].id, token.id);
      EXPECT_EQ(token.top[0].logprob, token.logprob);
    }
  }
}

}  // namespace
}  // namespace weft

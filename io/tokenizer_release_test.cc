// Tokenizers as the releases of DeepSeek-V3.2 and GLM-5 make them: the published split patterns, their properties on
// random text, and the tokens of their chat formats. (The vocabularies are small ones: tools/tokenizer_fixtures.py.)
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "io/chat.h"
#include "io/json.h"
#include "io/text_file.h"
#include "io/tokenizer.h"

namespace weft {
namespace {

struct Release {
  const char* name;
  const char* file;                   // in testdata/tokenizer
  std::vector<std::string> patterns;  // in order
  ChatFormat format;
  std::vector<const char*> opening, closing;  // tokens of the prompt "hello", around it
};

const std::vector<Release>& releases() {
  static const std::vector<Release> kReleases = {
      // Pre-tokenizer "deepseek-v3" of llama.cpp, "deepseek3_llm" (glm_moe_dsa.md 6); DeepSeek-V4 has the same
      // (deepseek_v4.md 6).
      {"DeepSeek-V3.2",
       "v4_like.json",
       {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        R"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       ChatFormat::kDeepseekV32,
       {"<｜begin▁of▁sentence｜>", "<｜User｜>"},
       {"<｜Assistant｜>", "<think>"}},
      // Pre-tokenizer "glm4" of llama.cpp, "chatglm4", with the group that the file of the release writes (?i:...).
      {"GLM-5",
       "variants/glm.json",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
       ChatFormat::kGlm5,
       {"[gMASK]", "<sop>", "<|user|>"},
       {"<|assistant|>", "<think>"}},
  };
  return kReleases;
}

std::string path_of(const Release& release) {
  return fmt::format("{}/testdata/tokenizer/{}", WEFT_SOURCE_DIR, release.file);
}

Tokenizer load(const Release& release) {
  auto tokenizer = Tokenizer::load(path_of(release));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

TEST(TokenizerReleases, SplitPatternsAreThePublishedOnes) {
  for (const Release& release : releases()) {
    const auto text = read_text_file(path_of(release));
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto json = parse_json(*text, release.file);
    ASSERT_TRUE(json.ok()) << json.status().message();
    std::vector<std::string> patterns;
    for (const Json& step : (*json)["pre_tokenizer"]["pretokenizers"]) {
      if (step["type"] != "Split") continue;
      EXPECT_EQ(step["behavior"], "Isolated") << release.name;
      EXPECT_EQ(step["invert"], false) << release.name;
      patterns.push_back(step["pattern"]["Regex"]);
    }
    EXPECT_EQ(patterns, release.patterns) << release.name;
    const Json& last = (*json)["pre_tokenizer"]["pretokenizers"].back();
    EXPECT_EQ(last["type"], "ByteLevel") << release.name;
    EXPECT_EQ(last["use_regex"], false) << release.name;
  }
}

// Words, digits, spaces, line ends, apostrophes, CJK, combining marks, astral code points.
std::string random_text(std::mt19937_64& random, bool ascii) {
  static const std::vector<std::string> kPieces = {"a",  "Ze", "'ll",  "'S", "0",  "42",     "9",          " ", "  ",
                                                   "\t", "\n", "\r\n", "!",  "?-", "_",      "é",          "ß", "日本",
                                                   "語", "ひ", "カ",   "ー", "一", "\u0301", "\U0001F600", "½"};
  constexpr size_t kAscii = 15;
  std::string text;
  for (auto n = static_cast<int>(random() % 40); n > 0; --n)
    text += kPieces[random() % (ascii ? kAscii : kPieces.size())];
  return text;
}

TEST(TokenizerReleases, PropertiesOfRandomText) {
  for (const Release& release : releases()) {
    const Tokenizer tokenizer = load(release);
    const TokenId user = *tokenizer.find_token(release.opening.back());
    for (uint64_t seed = 0; seed < 400; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", release.name, seed));
      std::mt19937_64 random(seed);
      const std::string a = random_text(random, seed % 2 == 0), b = random_text(random, seed % 2 == 0);
      const auto ids_a = tokenizer.encode(a), ids_b = tokenizer.encode(b);
      ASSERT_TRUE(ids_a.ok() && ids_b.ok());
      EXPECT_EQ(tokenizer.decode(*ids_a), a);
      // An added token between two texts cuts them: each is read as if it stood alone.
      std::vector<TokenId> both = *ids_a;
      both.push_back(user);
      both.insert(both.end(), ids_b->begin(), ids_b->end());
      const std::string joined = a + release.opening.back() + b;
      EXPECT_EQ(tokenizer.encode(joined).value(), both);
      // As plain text it is none, and comes back all the same.
      const auto plain = tokenizer.encode(joined, AddedTokens::kNone);
      ASSERT_TRUE(plain.ok());
      EXPECT_EQ(tokenizer.decode(*plain), joined);
      EXPECT_EQ(std::count(plain->begin(), plain->end(), user), 0);
      // Digits stand alone, three at most.
      for (const TokenId id : *ids_a) {
        const std::string_view bytes = tokenizer.token_bytes(id);
        const auto digits = std::count_if(bytes.begin(), bytes.end(), [](char c) { return c >= '0' && c <= '9'; });
        if (digits > 0) {
          EXPECT_EQ(digits, std::count_if(bytes.begin(), bytes.end(),
                                          [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
              << bytes;
          EXPECT_LE(digits, 3) << bytes;
        }
      }
    }
  }
}

TEST(TokenizerReleases, ChatPromptsAreTheirTokens) {
  for (const Release& release : releases()) {
    const Tokenizer tokenizer = load(release);
    ChatMessage hello;
    hello.role = ChatRole::kUser;
    hello.content = "hello";
    const auto ids = encode_chat(tokenizer, std::vector{hello}, {.format = release.format});
    ASSERT_TRUE(ids.ok()) << release.name << ": " << ids.status().message();
    std::vector<TokenId> want;
    for (const char* token : release.opening) want.push_back(tokenizer.find_token(token).value());
    const auto text = tokenizer.encode("hello");
    want.insert(want.end(), text->begin(), text->end());
    for (const char* token : release.closing) want.push_back(tokenizer.find_token(token).value());
    EXPECT_EQ(*ids, want) << release.name;
  }
}

}  // namespace
}  // namespace weft

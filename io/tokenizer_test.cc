#include "io/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "io/json.h"
#include "io/tokenizer_alphabet.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

// A tokenizer with all bytes (id = byte), "ab" = 256 and the special token <s> = 257.
Json minimal() {
  Json json = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [{"id": 257, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": {"ab": 256},
              "merges": ["a b"]}})");
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_to_alphabet(static_cast<uint8_t>(byte)));
    json["model"]["vocab"][text] = byte;
  }
  return json;
}

Tokenizer minimal_tokenizer() {
  auto tokenizer = Tokenizer::parse(minimal().dump(), "t");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

TEST(Tokenizer, LookUps) {
  const Tokenizer t = minimal_tokenizer();
  EXPECT_EQ(t.vocab_size(), 258);
  EXPECT_EQ(t.find_token("ab"), 256);
  EXPECT_EQ(t.find_token("\xc4\xa0"), ' ');  // U+0120 spells a space
  EXPECT_EQ(t.find_token("<s>"), 257);
  EXPECT_EQ(t.find_token("abc"), std::nullopt);
  EXPECT_TRUE(t.is_special(257) && t.is_added(257));
  for (TokenId id : {-1, 0, 256, 258}) EXPECT_FALSE(t.is_special(id) || t.is_added(id)) << id;
  EXPECT_EQ(t.token_bytes(' '), " ");
  EXPECT_EQ(t.token_bytes(-1), "");
  EXPECT_EQ(t.token_bytes(258), "");
  EXPECT_EQ(t.bos_id(), std::nullopt);
  EXPECT_TRUE(t.eos_ids().empty());
}

TEST(Tokenizer, EncodeAndDecode) {
  const Tokenizer t = minimal_tokenizer();
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(t.encode("").value(), Ids());
  EXPECT_EQ(t.encode("cab<s>").value(), (Ids{'c', 256, 257}));
  EXPECT_EQ(t.encode("<s>", AddedTokens::kNotSpecial).value(), (Ids{'<', 's', '>'}));
  EXPECT_EQ(t.encode("<s>", AddedTokens::kNone).value(), (Ids{'<', 's', '>'}));
  EXPECT_EQ(t.decode(Ids{'c', 256, 257, 9999, -5}), "cab<s>");
  EXPECT_EQ(t.decode(Ids{257, 'c'}, SpecialTokens::kSkip), "c");
  EXPECT_EQ(t.decode(Ids{0xe4, 0xb8, 257}), "\ufffd<s>");
  const auto bad = t.encode("a\xff");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "text to encode is not UTF-8: byte 1 is 0xff");
}

TEST(StreamDecoder, HoldsIncompleteCharacters) {
  const Tokenizer t = minimal_tokenizer();
  StreamDecoder stream(t, SpecialTokens::kSkip);
  const std::pair<TokenId, const char*> steps[] = {
      {'a', "a"},
      {0xf0, ""},
      {0x9f, ""},
      {257, ""},
      {0x98, ""},
      {0x80, "\xf0\x9f\x98\x80"},
      {0xe4, ""},
      {0xe4, "\ufffd"},
      {0xb8, ""},
      {'b',
       "\ufffd"
       "b"},
      {0x80, "\ufffd"},
      {0xc3, ""},
  };
  for (const auto& [id, text] : steps) EXPECT_EQ(stream.push(id), text) << id;
  EXPECT_EQ(stream.flush(), "\ufffd");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push('x'), "x");
}

TEST(Tokenizer, LoadErrors) {
  struct Case {
    const char *path, *value, *expect;  // JSON pointer, new value ("" removes)
  };
  const Json split =
      Json::parse(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false})");
  const Case cases[] = {
      {"/version", "\"2.0\"", "t: version \"2.0\" is not supported; only \"1.0\" is"},
      {"/extra", "1", "t: unknown key 'extra'"},
      {"/truncation", "{}", "t: truncation: is not supported; it must be null"},
      {"/normalizer", R"({"type": "NFC"})", "t: normalizer: type 'NFC' is not supported; only none is"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})",
       "t: normalizer: type 'NFC' is not supported; only none is"},
      {"/post_processor", R"({"type": "TemplateProcessing"})",
       "t: post_processor: type 'TemplateProcessing' is not supported; only ByteLevel is"},
      {"/decoder", "null", "t: decoder: is missing; only ByteLevel is supported"},
      {"/decoder", R"({"type": "Metaspace"})", "t: decoder: type 'Metaspace' is not supported; only ByteLevel is"},
      {"/pre_tokenizer", "null", "t: pre_tokenizer: is missing; only byte-level BPE is supported"},
      {"/pre_tokenizer", R"({"type": "Whitespace"})",
       "t: pre_tokenizer: type 'Whitespace' is not supported; supported: Sequence of Split and ByteLevel, ByteLevel"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}]})",
       "t: pre_tokenizer.pretokenizers[0]: type 'Digits' is not supported here; supported: Split, and ByteLevel at the "
       "end"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})",
       "t: pre_tokenizer: has no ByteLevel at the end; only byte-level BPE is supported"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "X"}]})",
       "t: pre_tokenizer.pretokenizers[0]: behavior \"X\" is not one of Removed, Isolated, MergedWithPrevious, "
       "MergedWithNext, Contiguous"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": "a"}]})",
       "t: pre_tokenizer.pretokenizers[0]: pattern: expected {\"Regex\": text} or {\"String\": text}"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\w"}, "behavior": "Isolated"}]})",
       "t: pre_tokenizer.pretokenizers[0]: regex '\\w' uses '\\w', which is not supported (byte 0)"},
      {"/pre_tokenizer/add_prefix_space", "1", "t: pre_tokenizer: add_prefix_space: expected true or false, found 1"},
      {"/model", "", "t: has no model"},
      {"/model/type", "\"Unigram\"", "t: model: type 'Unigram' is not supported; only BPE is"},
      {"/model/dropout", "0.1", "t: model: dropout is not supported; it must be null"},
      {"/model/byte_fallback", "true", "t: model: byte_fallback is not supported; it must be false"},
      {"/model/end_of_word_suffix", "\"</w>\"", "t: model: end_of_word_suffix is not supported; it must be null"},
      {"/model/vocab", "[]", "t: model.vocab: expected an object of tokens and their ids"},
      {"/model/vocab/ab", "-1", "t: byte N: id of 'ab': expected an integer from 0 to 16777215"},
      {"/model/vocab/ab", "1e9", "t: byte N: id of 'ab': expected an integer from 0 to 16777215"},
      {"/model/vocab/x", "", "t: model.vocab: has no token 'x' for byte 0x78"},
      {"/model/vocab/zz", "97", "t: model.vocab: id 97 is given twice, the second time to 'zz'"},
      {"/model/merges", "{}", "t: model.merges: expected a list"},
      {"/model/merges/0", "\"a b c\"", "t: byte N: merge 0: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/0", R"(["a"])", "t: byte N: merge 0: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/0", R"(["a", "b", "c"])", "t: byte N: merge 0: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/0", R"(["a", ["b"]])", "t: byte N: merge 0: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/0", "3", "t: byte N: merge 0: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/vocab/ab", "{}", "t: byte N: id of 'ab': expected an integer from 0 to 16777215"},
      {"/model/merges/0", "\"b a\"", "t: model.merges: 'b' + 'a': 'ba' is not in the vocabulary"},
      {"/model/merges/0", R"(["a", "bb"])", "t: model.merges: 'a' + 'bb': 'bb' is not in the vocabulary"},
      {"/added_tokens", "{}", "t: added_tokens: expected a list"},
      {"/added_tokens/0/content", "\"\"", "t: added_tokens[0]: content: expected a text that is not empty"},
      {"/added_tokens/0/id", "97", "t: added_tokens: id 97 is given twice, the second time to '<s>'"},
      {"/added_tokens/0/content", "\"ab\"",
       "t: added_tokens: 'ab' has id 257, but the vocabulary or another added token gives it 256"},
      {"/added_tokens/0/colour", "1", "t: added_tokens[0]: unknown key 'colour'"},
  };
  for (const Case& c : cases) {
    Json json = minimal();
    const Json::json_pointer at(c.path);
    if (*c.value == '\0') {
      json[at.parent_pointer()].erase(at.back());
    } else {
      json[at] = Json::parse(c.value);
    }
    const auto tokenizer = Tokenizer::parse(json.dump(), "t");
    ASSERT_FALSE(tokenizer.ok()) << c.expect;
    EXPECT_EQ(std::regex_replace(tokenizer.status().message(), std::regex("byte [0-9]+: "), "byte N: "), c.expect);
  }
  EXPECT_FALSE(Tokenizer::load("/nonexistent/tokenizer.json").ok());
}

// What a JSON tree cannot hold, so that the table above cannot make it.
TEST(Tokenizer, BadJson) {
  const std::string good = minimal().dump();
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::pair<std::string, const char*> cases[] = {
      {replaced("\"ab\":256", "\"ab\":256,\"ab\":258"), "t: model.vocab: 'ab' stands there twice"},
      {replaced("\"merges\":", "\"merges\":[],\"merges\":"), "key 'merges' appears twice in one object"},
      {replaced("\"dropout\":", "\"dropout\":1,\"dropout\":"), "key 'dropout' appears twice in one object"},
      {replaced("\"normalizer\":", "\"normalizer\":" + std::string(100, '[')), "nested deeper than 64 levels"},
      {good.substr(0, good.size() / 2), "t: byte "},
      {good + "x", "t: byte "},
      {replaced("\"ab\":256", "\"\xff\":256"), "t: byte "},
      {"", "t: byte "},
      {"3", "t: expected an object"},
  };
  for (const auto& [text, expect] : cases) {
    const auto tokenizer = Tokenizer::parse(text, "t");
    ASSERT_FALSE(tokenizer.ok()) << expect;
    EXPECT_NE(tokenizer.status().message().find(expect), std::string::npos) << tokenizer.status().message();
  }
}

// Models with a merged pair spelled as a list, and the sections that may be left out.
TEST(Tokenizer, OtherSpellings) {
  Json json = minimal();
  json["model"]["merges"][0] = Json::array({"a", "b"});
  json["decoder"] = Json{{"type", "Sequence"}, {"decoders", {json["decoder"]}}};
  json["normalizer"] = Json{{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (const char* key : {"version", "truncation", "padding", "post_processor", "added_tokens"}) json.erase(key);
  const auto t = Tokenizer::parse(json.dump(), "t");
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->encode("ab").value(), std::vector<TokenId>{256});
}

TEST(Tokenizer, DirectoryNamesBosAndEos) {
  const auto t = Tokenizer::load_directory(WEFT_SOURCE_DIR "/testdata/sample/austen-v4");
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->bos_id(), 0);
  ASSERT_EQ(t->eos_ids().size(), 1u);
  EXPECT_EQ(t->eos_ids()[0], 1);
  EXPECT_FALSE(t->add_bos());
  EXPECT_EQ(t->vocab_size(), 4096);
}

class ConfigFile : public testing::Test {
 protected:
  ConfigFile() : directory_(std::filesystem::path(testing::TempDir()) / "weft_tokenizer_config") {
    std::filesystem::create_directories(directory_);
    write("tokenizer.json", minimal().dump());
  }
  ~ConfigFile() override { std::filesystem::remove_all(directory_); }
  void write(const char* name, const std::string& text) { std::ofstream(directory_ / name) << text; }

  std::filesystem::path directory_;
};

TEST_F(ConfigFile, FirstNamedBosCountsAndEosAddUp) {
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "ab", "add_bos_token": true})");
  write("generation_config.json", R"({"bos_token_id": 5, "eos_token_id": [256, 7]})");
  write("config.json", R"({"eos_token_id": 8})");
  const auto t = Tokenizer::load_directory(directory_);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(t->bos_id(), 257);
  EXPECT_TRUE(t->add_bos());
  EXPECT_EQ(std::vector<TokenId>(t->eos_ids().begin(), t->eos_ids().end()), (std::vector<TokenId>{256, 7, 8}));
}

TEST_F(ConfigFile, Errors) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"bos_token": "<none>"})", "bos_token '<none>' is not a token of this tokenizer"},
      {R"({"eos_token": 3})", "eos_token: expected a text or an object with \"content\""},
      {R"({"add_bos_token": 1})", "add_bos_token: expected true or false, found 1"},
  };
  for (const auto& [text, expect] : cases) {
    write("tokenizer_config.json", text);
    const auto t = Tokenizer::load_directory(directory_);
    ASSERT_FALSE(t.ok()) << text;
    EXPECT_EQ(t.status().message(), (directory_ / "tokenizer_config.json").string() + ": " + expect);
  }
}

// The published tokenizer of DeepSeek-V4, if WEFT_V4_TOKENIZER names it.
TEST(Tokenizer, ReleasedV4) {
  const char* path = std::getenv("WEFT_V4_TOKENIZER");
  if (path == nullptr) GTEST_SKIP() << "set WEFT_V4_TOKENIZER to the release's tokenizer.json";
  const auto t = Tokenizer::load(path);
  ASSERT_TRUE(t.ok()) << t.status().message();
  const std::pair<std::string, std::vector<TokenId>> cases[] = {
      {"Hello, 世界", {19923, 14, 223, 3427}},
      {"You are concise.", {3476, 477, 47468, 16}},
      {"Answer with one word: sky color?", {7805, 418, 834, 2004, 28, 12709, 3605, 33}},
      {"    int x = 1234;\n中文かなABC\nfoo_bar?!\n",
       {361, 688, 1527, 438, 223, 6895, 22, 510, 21134, 49534, 29080, 201, 40897, 100869, 33, 8567}},
      {std::string("\xe2\x80\x8b\0", 4), {35020, 191}},
      {"OK", {11932}},
  };
  for (const auto& [text, ids] : cases) EXPECT_EQ(t->encode(text).value(), ids) << text;
}

}  // namespace
}  // namespace weft

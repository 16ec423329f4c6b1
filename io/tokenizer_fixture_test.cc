// Every fixture of testdata/tokenizer: ids and text equal to the `tokenizers` library's (tools/tokenizer_fixtures.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/tokenizer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// The format is described in the tool, class Fixture.
class FixtureReader {
 public:
  explicit FixtureReader(std::string bytes) : bytes_(std::move(bytes)) {
    constexpr std::string_view kMagic = "weft tokenizer fixture 1\n";
    EXPECT_EQ(bytes_.substr(0, kMagic.size()), kMagic);
    at_ = kMagic.size();
  }
  bool done() const { return at_ >= bytes_.size(); }
  uint8_t byte() { return static_cast<uint8_t>(bytes_.at(at_++)); }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t b = byte();
      value |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) return value;
    }
  }
  std::string text(uint64_t size) {
    std::string part = bytes_.substr(at_, size);
    at_ += size;
    return part;
  }
  std::vector<TokenId> ids(uint64_t count) {
    std::vector<TokenId> list(count);
    for (TokenId& id : list) id = static_cast<TokenId>(number());
    return list;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

std::string fnv1a(const std::vector<TokenId>& ids) {
  uint64_t value = 0xcbf29ce484222325u;
  for (TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<uint32_t>(id) >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 200)) {
    char hex[8];
    std::snprintf(hex, sizeof(hex), c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", static_cast<uint8_t>(c));
    out += hex;
  }
  return out;
}

struct Case {
  std::string what;
  fs::path tokenizer, fixture;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.what; }

std::vector<Case> all_cases() {
  const fs::path data = fs::path(WEFT_SOURCE_DIR) / "testdata";
  std::vector<Case> cases = {
      {"austen", data / "sample/austen-v4/tokenizer.json", data / "tokenizer/austen.fixture"},
      {"v4_like", data / "tokenizer/v4_like.json", data / "tokenizer/v4_like.fixture"},
  };
  std::vector<fs::path> variants;
  for (const auto& entry : fs::directory_iterator(data / "tokenizer/variants")) {
    if (entry.path().extension() == ".json") variants.push_back(entry.path());
  }
  std::sort(variants.begin(), variants.end());
  for (const fs::path& path : variants) {
    cases.push_back({path.stem().string(), path, fs::path(path).replace_extension(".fixture")});
  }
  return cases;
}

class TokenizerFixture : public testing::TestWithParam<Case> {};

void check_encode(const Tokenizer& tokenizer, FixtureReader& in) {
  constexpr AddedTokens kModes[] = {AddedTokens::kAll, AddedTokens::kNotSpecial, AddedTokens::kNone};
  const AddedTokens mode = kModes[in.number()];
  std::string text;
  for (uint64_t segments = in.number(); segments > 0; --segments) {
    const uint64_t repeat = in.number();
    const std::string unit = in.text(in.number());
    for (uint64_t i = 0; i < repeat; ++i) text += unit;
  }
  const auto ids = tokenizer.encode(text, mode);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  const uint64_t count = in.number();
  const bool hashed = in.byte() != 0;
  if (hashed) {
    EXPECT_EQ(ids->size(), count) << printable(text);
    EXPECT_EQ(fnv1a(*ids), in.text(8)) << printable(text);
  } else {
    EXPECT_EQ(*ids, in.ids(count)) << printable(text) << " mode " << static_cast<int>(mode);
  }
}

void check_decode(const Tokenizer& tokenizer, FixtureReader& in) {
  const SpecialTokens special = in.number() != 0 ? SpecialTokens::kSkip : SpecialTokens::kKeep;
  const std::vector<TokenId> ids = in.ids(in.number());
  const std::string want = in.text(in.number());
  EXPECT_EQ(tokenizer.decode(ids, special), want) << printable(want);
  StreamDecoder stream(tokenizer, special);
  std::string joined;
  for (TokenId id : ids) joined += stream.push(id);
  EXPECT_EQ(joined + stream.flush(), want) << printable(want);
}

TEST_P(TokenizerFixture, EqualsTheLibrary) {
  const auto tokenizer = Tokenizer::load(GetParam().tokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  FixtureReader in(read_bytes(GetParam().fixture));
  int cases = 0;
  while (!in.done() && !testing::Test::HasFailure()) {
    const char kind = static_cast<char>(in.byte());
    ASSERT_TRUE(kind == 'e' || kind == 'd');
    kind == 'e' ? check_encode(*tokenizer, in) : check_decode(*tokenizer, in);
    ++cases;
  }
  EXPECT_GT(cases, 500);
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture, testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace weft

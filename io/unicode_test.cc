#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "io/tokenizer_regex.h"
#include "io/unicode_stand_ins.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

struct Range {
  char32_t first, last;
  std::string category;
  bool space;
};

// testdata/tokenizer/categories.txt: what the `tokenizers` library's regex engine says of every code point.
std::vector<Range> library_ranges() {
  std::ifstream in(WEFT_SOURCE_DIR "/testdata/tokenizer/categories.txt");
  std::vector<Range> ranges;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    uint32_t first = 0, last = 0;
    std::string category;
    int space = 0;
    fields >> std::hex >> first >> last >> category >> space;
    ranges.push_back({first, last, category, space != 0});
  }
  return ranges;
}

// Offsets at which a match of `pattern`+ covers a character of `text`.
std::vector<TextRange> runs(const std::string& pattern, std::string_view text) {
  const auto regex = TokenizerRegex::compile(pattern + "+", "test");
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  RegexScratch scratch;
  std::vector<TextRange> matches;
  const Status status = regex->find_all(text, scratch, matches);
  EXPECT_TRUE(status.ok()) << status.message();
  return matches;
}

// Every property of every code point, seen through stand-ins by the installed PCRE2, is the library's.
TEST(StandIns, GiveTheLibrarysProperties) {
  const std::vector<Range> ranges = library_ranges();
  ASSERT_GT(ranges.size(), 3000u);
  std::string text;
  std::map<std::string, std::vector<TextRange>> expected;
  const auto expect = [&](const std::string& property, size_t begin) {
    auto& list = expected[property];
    if (!list.empty() && list.back().end == begin) {
      list.back().end = text.size();
    } else {
      list.push_back({begin, text.size()});
    }
  };
  size_t code_points = 0;
  for (const Range& range : ranges) {
    const size_t begin = text.size();
    for (char32_t c = range.first; c <= range.last; ++c) append_utf8(text, c);
    code_points += range.last - range.first + 1;
    expect("\\p{" + range.category + "}", begin);
    expect("\\p{" + range.category.substr(0, 1) + "}", begin);
    expect(range.space ? "\\s" : "\\S", begin);
    expect(range.category == "Nd" ? "\\d" : "\\D", begin);
  }
  ASSERT_EQ(code_points, 0x110000u - 0x800u);
  const std::string seen = with_stand_ins(text);
  ASSERT_EQ(seen.size(), text.size());
  for (const auto& [property, list] : expected) EXPECT_EQ(runs(property, seen), list) << property;
}

TEST(StandIns, Table) {
  char32_t last = 0;
  for (const StandInRange& range : stand_in_ranges()) {
    EXPECT_GT(range.first, last);
    EXPECT_GE(range.last, range.first);
    EXPECT_EQ(stand_in(range.stand_in), range.stand_in) << std::hex << static_cast<uint32_t>(range.stand_in);
    std::string a, b, c;
    append_utf8(a, range.first);
    append_utf8(b, range.stand_in);
    append_utf8(c, range.last);
    EXPECT_EQ(a.size(), b.size());
    EXPECT_EQ(c.size(), b.size());
    last = range.last;
  }
}

TEST(StandIns, TextWithoutNeedIsLeftAlone) {
  EXPECT_EQ(with_stand_ins("plain \xc3\xa9 \xe4\xb8\xad"), "");
  // U+180E, which PCRE2 counts as white space, becomes another format character.
  EXPECT_EQ(with_stand_ins("a\xe1\xa0\x8e\x62"), "a\xe0\xa2\x90\x62");
}

TEST(Utf8, InvalidParts) {
  struct Case {
    std::string_view bytes, valid;
  };
  const Case cases[] = {
      {"", ""},
      {"a\xc3\xa9", "a\xc3\xa9"},
      {"\x80", "\ufffd"},
      {"\xc3", "\ufffd"},
      {"\xc0\xaf", "\ufffd\ufffd"},            // overlong
      {"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},  // overlong
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},  // a surrogate
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xf0\x9f\x98", "\ufffd"},  // one maximal part
      {"\xf0\x9f\x98z", "\ufffdz"},
      {"\xe4\xb8\xe4\xb8\xad", "\ufffd\xe4\xb8\xad"},
      {"\xff\xfe", "\ufffd\ufffd"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(to_valid_utf8(c.bytes), c.valid);
    EXPECT_EQ(first_invalid_utf8(c.bytes) == c.bytes.size(), c.bytes == c.valid);
  }
}

}  // namespace
}  // namespace weft

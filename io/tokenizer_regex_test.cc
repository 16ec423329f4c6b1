#include "io/tokenizer_regex.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

std::vector<TextRange> find(std::string_view pattern, std::string_view text) {
  const auto regex = TokenizerRegex::compile(pattern, "test");
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  RegexScratch scratch;
  std::vector<TextRange> matches;
  const Status status = regex->find_all(text, scratch, matches);
  EXPECT_TRUE(status.ok()) << status.message();
  return matches;
}

TEST(TokenizerRegex, Matches) {
  struct Case {
    const char *pattern, *text;
    std::vector<TextRange> expect;
  };
  const Case cases[] = {
      {"a+", "aabaa", {{0, 2}, {3, 5}}},
      {"a+?", "aa", {{0, 1}, {1, 2}}},
      {"x*", "axb", {{0, 0}, {1, 2}, {3, 3}}},  // not empty at 2, where a match has just ended
      {"(ab)(?=c)|c", "abcab", {{0, 2}, {2, 3}}},
      {"(?<=a)b", "abb", {{1, 2}}},
      {"\\p{N}{1,3}", "12345", {{0, 3}, {3, 5}}},
      {"[^\\p{L}-]+", "a-1-", {{2, 3}}},
      {"[a\\-\\]]", "a-]b", {{0, 1}, {1, 2}, {2, 3}}},
      {"(?i:'S)", "'s'S'\xc5\xbf", {{0, 2}, {2, 4}, {4, 7}}},  // U+017F folds to s
      {"\\u4e00|\\x{4e8c}", "\xe4\xb8\x80\xe4\xba\x8c", {{0, 3}, {3, 6}}},
      {".", "a\n\r", {{0, 1}, {2, 3}}},
      {"a++a|b", "aab", {{2, 3}}},
  };
  for (const Case& c : cases) EXPECT_EQ(find(c.pattern, c.text), c.expect) << c.pattern << " in " << c.text;
}

TEST(TokenizerRegex, LiteralText) {
  const std::string text("a.*\n\0]\xc3\xa9", 8);
  const auto regex = TokenizerRegex::compile_literal(text, "test");
  ASSERT_TRUE(regex.ok()) << regex.status().message();
  RegexScratch scratch;
  std::vector<TextRange> matches;
  ASSERT_TRUE(regex->find_all("-" + text + "a.", scratch, matches).ok());
  EXPECT_EQ(matches, (std::vector<TextRange>{{1, 9}}));
  EXPECT_FALSE(regex->uses_properties());
}

TEST(TokenizerRegex, Unsupported) {
  const std::pair<const char*, const char*> cases[] = {
      {"\\w+", "uses '\\w', which is not supported (byte 0)"},
      {"a\\b", "uses '\\b', which is not supported (byte 1)"},
      {"(a)\\1", "uses '\\1', which is not supported (byte 3)"},
      {"^a", "uses '^' here, which is not supported (byte 0)"},
      {"a$", "uses '$' here, which is not supported (byte 1)"},
      {"\\p{Han}", "uses the property 'Han', which is not supported (byte 0)"},
      {"[a&&b]", "uses an intersection of classes, which is not supported (byte 2)"},
      {"[[:alpha:]]", "uses a set inside a class, which is not supported (byte 1)"},
      {"[]a]", "uses ']' as the first of a class, which is not supported (byte 1)"},
      {"[b-a]", "has an empty range (byte 4)"},
      {"[a", "has a class without ']' (byte 0)"},
      {"(?m:a)", "uses this kind of group, which is not supported (byte 0)"},
      {"(a", "has a group without ')' (byte 0)"},
      {"a)", "has an unmatched ')' (byte 1)"},
      {"a{,2}", "uses a '{' that is not {n}, {n,} or {n,m}, which is not supported (byte 1)"},
      {"a{2}+", "uses '?' or '+' after '}', which is not supported (byte 4)"},
      {"a+*", "uses a quantifier of a quantifier, which is not supported (byte 2)"},
      {"*a", "uses '*' here, which is not supported (byte 0)"},
      {"a\\", "ends with '\\' (byte 1)"},
      {"(?i:ss)", "uses a pair with a ligature, which is not supported (byte 5)"},
      {"(?i:\\p{L})", "uses a property without regard to case, which is not supported (byte 4)"},
      {"(?i:[ab])", "uses a class without regard to case, which is not supported (byte 4)"},
      {"\\x41", "uses '\\x' without {...}, which is not supported (byte 0)"},
  };
  for (const auto& [pattern, expect] : cases) {
    const auto regex = TokenizerRegex::compile(pattern, "file");
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().message(), "file: regex '" + std::string(pattern) + "' " + expect);
  }
  EXPECT_FALSE(TokenizerRegex::compile("[\\p{L}\\x{378}]", "file").ok()) << "U+0378 has a stand-in";
  EXPECT_TRUE(TokenizerRegex::compile("[\\x{378}]", "file").ok());
}

TEST(TokenizerRegex, MatchLimitIsAnError) {
  const auto regex = TokenizerRegex::compile("(?:a+)+[bd]", "file", 1000);
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  std::vector<TextRange> matches;
  const Status status = regex->find_all(std::string(40, 'a') + "c", scratch, matches);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.message(),
            "file: regex '(?:a+)+[bd]' gives up at byte 0 of a text of 41 bytes: match limit exceeded");
}

}  // namespace
}  // namespace weft

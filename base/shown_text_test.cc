#include "base/shown_text.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ShownText, IsOneLineThatATerminalCanPrint) {
  const struct {
    std::string_view text, shown;
  } cases[] = {
      {"", ""},
      {"tp4+sp", "tp4+sp"},
      {"tp2\ntp4", "tp2\\ntp4"},
      {"a\tb\r\x1b[31m\x7f", "a\\tb\\x0d\\x1b[31m\\x7f"},
      {std::string_view("a\0b", 3), "a\\x00b"},
      {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"\xc2\x9b" "31m", "\\xc2\\x9b" "31m"},                    // CSI of C1
      {"\xff\xc3", "\\xff\\xc3"},                                // no UTF-8, and a cut character
      {"\xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80",    // too long, a surrogate, beyond the last
       "\\xc0\\x80 \\xe0\\x80\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80"},
  };
  for (const auto& c : cases) EXPECT_EQ(shown(c.text), c.shown);
}

TEST(ShownText, LongTextIsCutInTheMiddle) {
  const std::string text = "tp4+" + std::string(99994, 'a') + "zz";
  EXPECT_EQ(shown(text, 8), "tp4+[...]aazz (100000 bytes)");
  EXPECT_EQ(shown(text).size(), kShownBytes + std::string_view("[...] (100000 bytes)").size());
  EXPECT_EQ(shown(std::string(kShownBytes, 'x')), std::string(kShownBytes, 'x'));
  EXPECT_EQ(shown("aa\xc3\xbc\xc3\xbc\xc3\xbc" "bb", 6), "aa[...]bb (10 bytes)");  // whole characters
  EXPECT_EQ(shown(std::string(1000, '\x80'), 4), "[...] (1000 bytes)");             // none at all
}

}  // namespace
}  // namespace weft

#include "runtime/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace weft {
namespace {

struct Case {
  const char* what;
  std::vector<std::string> stops, pieces;
  std::vector<std::string> shown;  // after each piece, then at the end
  int match;                       // -1: none
};

const Case kCases[] = {
    {"no stop strings: all at once", {}, {"ab", "c"}, {"ab", "c", ""}, -1},
    {"whole in one piece", {"STOP"}, {"one STOP two"}, {"one ", ""}, 0},
    {"cut in the middle", {"STOP"}, {"one ST", "OP two"}, {"one ", "", ""}, 0},
    {"beginning that comes to nothing", {"STOP"}, {"a ST", "AY"}, {"a ", "STAY", ""}, -1},
    {"beginning at the very end is given out", {"STOP"}, {"a ST"}, {"a ", "ST"}, -1},
    {"falls back to a shorter beginning", {"aab"}, {"aaa", "b!"}, {"a", "", ""}, 0},
    {"first complete one wins", {"abcd", "bc"}, {"xabcd"}, {"xa", ""}, 1},
    {"longest of those complete at one byte", {"c", "abc"}, {"xabc"}, {"x", ""}, 1},
    {"text after the stop is ignored", {"."}, {"a.", "b", "."}, {"a", "", "", ""}, 0},
    {"stop is the whole text", {"\n\n"}, {"\n", "\n"}, {"", "", ""}, 0},
    {"characters of several bytes stay whole",
     {"\u00e9t"},
     {"\u00e8", "\u00e9", "\u00e9t"},
     {"\u00e8", "", "\u00e9", ""},
     0},
};

TEST(StopStrings, Table) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    StopStrings stops = StopStrings::create(c.stops).value();
    std::vector<std::string> shown;
    for (const std::string& piece : c.pieces) shown.push_back(stops.push(piece));
    shown.push_back(stops.finish());
    EXPECT_EQ(shown, c.shown);
    EXPECT_EQ(stops.match() ? static_cast<int>(*stops.match()) : -1, c.match);
  }
}

TEST(StopStrings, EmptyStopStringIsAnError) {
  const auto stops = StopStrings::create({"a", ""});
  ASSERT_FALSE(stops.ok());
  EXPECT_EQ(stops.status().message(), "stop: a stop string is empty; leave it out or give at least one character");
  const auto bytes = StopStrings::create({"end", "a\xff"});
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().message(), "stop: a stop string is not UTF-8: byte 1 is 0xff");
}

// Against the plain definition on the whole text, for random texts, stop strings and cuts.
TEST(StopStrings, DoesNotDependOnTheCuts) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto word = [&](size_t least, size_t most) {
      std::string text(least + random() % (most - least + 1), 'a');
      for (char& letter : text) letter = "ab"[random() % 2];
      return text;
    };
    const std::vector<std::string> list = {word(1, 5), word(2, 6), word(3, 7)};
    const std::string text = word(0, 24);

    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t longest = 0;
      for (const auto& stop : list) {
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      if (longest > 0) expected = text.substr(0, end - longest);
    }

    StopStrings stops = StopStrings::create(list).value();
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 5;
      shown += stops.push(text.substr(at, length));
      ASSERT_TRUE(expected.starts_with(shown)) << "shown too early: " << shown;
      at += length;
    }
    shown += stops.finish();
    EXPECT_EQ(shown, expected) << text;
    EXPECT_EQ(stops.stopped(), expected != text);
  }
}

}  // namespace
}  // namespace weft

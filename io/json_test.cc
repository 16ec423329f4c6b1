#include "io/json.h"

#include <gtest/gtest.h>

#include "io/json_fields.h"
#include "io/test_files.h"

namespace weft {
namespace {

TEST(Json, Malformed) {
  struct Case { const char* what; std::string text; const char* message; };
  const Case cases[] = {
      {"empty", "", "f.json: byte 1: syntax error"},
      {"duplicate key", R"({"a": 1, "b": {"a": 2, "a": 3}})", "f.json: byte 26: key 'a' appears twice in one object"},
      {"bad UTF-8", "{\"a\": \"x\xff\"}",
       "f.json: byte 9: syntax error while parsing value - invalid string: ill-formed UTF-8"},
      {"overlong UTF-8", "[\"\xc0\x80\"]", "ill-formed UTF-8"},
      {"lone surrogate", R"(["\ud800"])", "surrogate"},
      {"rest", "{} x", "f.json: byte 4: syntax error"},
      {"unfinished", "{\"a\": [1,", "f.json: byte 10: syntax error"},
      {"too deep", std::string(1000000, '['), "f.json: byte 65: nested deeper than 64 levels"},
      {"too deep, objects",
       [] {
         std::string s;
         for (int i = 0; i < 100; ++i) s += "{\"a\":";
         return s;
       }(),
       "nested deeper"},
      {"number overflow", "[1e999]", "number overflow"},
      {"control character", "[\"a\nb\"]", "control character"},
      {"NaN", "[NaN]", "f.json: byte 2: syntax error"},
      {"comment", "[1 /* x */]", "syntax error"},
  };
  for (const Case& c : cases) {
    const auto json = parse_json(c.text, "f.json");
    ASSERT_FALSE(json.ok()) << c.what;
    EXPECT_NE(json.status().message().find(c.message), std::string::npos) << c.what << ": " << json.status().message();
    EXPECT_EQ(json.status().message().find("json.exception"), std::string::npos) << json.status().message();
  }
}

TEST(Json, Document) {
  const auto json = parse_json(R"({"a": [1, -2, 3.5, true, null, {}, []], "b": {"c": "é\u20ac"}})", "t");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(*json, Json::parse(R"({"a": [1, -2, 3.5, true, null, {}, []], "b": {"c": "é€"}})"));
  // Depth 64 exactly is fine.
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "t").ok());
}

TEST(Json, Files) {
  TempDir dir;
  EXPECT_EQ((*read_json_file(dir.put("a.json", "[7]")))[0], 7);
  EXPECT_NE(read_json_file(dir.path() / "none.json").status().message().find("none.json: cannot open"),
            std::string::npos);
  EXPECT_NE(read_json_file(dir.put("b.json", "")).status().message().find("b.json: byte 1: syntax error"),
            std::string::npos);
}

// One row per kind of mistake; `read` performs the read that finds it.
TEST(JsonFields, Errors) {
  struct Case { const char* text; void (*read)(JsonFields&); const char* message; };
  const Case cases[] = {
      {R"({})", [](JsonFields& f) { f.integer("a"); }, "c.json: a is missing"},
      {R"({"a": null})", [](JsonFields& f) { f.number("a", 0, 1); }, "c.json: a is missing"},
      {R"({"a": "x"})", [](JsonFields& f) { f.integer("a"); }, "c.json: a: expected an integer, found a string"},
      {R"({"a": 1.5})", [](JsonFields& f) { f.integer("a"); }, "c.json: a: expected an integer, found a number"},
      {R"({"a": 5})", [](JsonFields& f) { f.integer("a", 1, 4); }, "c.json: a: 5 is outside 1 .. 4"},
      {R"({"a": 18446744073709551615})", [](JsonFields& f) { f.integer("a", 1, 4); }, "is outside 1 .. 4"},
      {R"({"a": -0.5})", [](JsonFields& f) { f.number("a", 0, 1); }, "c.json: a: -0.5 is outside 0 .. 1"},
      {R"({"a": [1, "x"]})", [](JsonFields& f) { f.integers("a"); },
       "c.json: a[1]: expected an integer, found a string"},
      {R"({"a": 1})", [](JsonFields& f) { f.integers("a"); },
       "c.json: a: expected a list of integers, found an integer"},
      {R"({"a": [1]})", [](JsonFields& f) { f.strings("a"); }, "c.json: a[0]: expected a string, found an integer"},
      {R"({"a": "gelu"})",
       [](JsonFields& f) {
         f.one_of("a", {"silu", "relu"});
       },
       "c.json: a: 'gelu' is not supported; supported: silu, relu"},
      {R"({"a": true})", [](JsonFields& f) { f.must_be("a", false); }, "c.json: a: true is not supported"},
      {R"({"a": []})", [](JsonFields& f) { f.object("a"); }, "c.json: a: expected an object, found a list"},
      {R"([])", [](JsonFields&) {}, "c.json: expected an object, found a list"},
      {R"({"a": 1, "zz": 2})", [](JsonFields& f) { f.integer("a"); },
       "c.json: unknown key 'zz'; --allow-unknown-config"},
  };
  for (const Case& c : cases) {
    const Json json = Json::parse(c.text);
    JsonFields fields(json, "c.json");
    c.read(fields);
    const Status status = fields.finish(UnknownKeys::kError, nullptr);
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.text << ": " << status.message();
  }
}

TEST(JsonFields, ValuesAndWarnings) {
  const Json json = Json::parse(R"({"a": 10000.0, "b": 2, "c": "silu", "d": null, "e": 1, "f": 2})");
  JsonFields fields(json, "c.json");
  EXPECT_EQ(fields.integer("a"), 10000);
  EXPECT_EQ(fields.number("b", 0, 10), 2.0);
  EXPECT_EQ(fields.one_of("c", {"silu"}), "silu");
  EXPECT_EQ(fields.integer_or("d", 7), 7);
  EXPECT_FALSE(fields.has("d"));
  fields.informational({"e"});
  std::vector<std::string> warnings;
  EXPECT_TRUE(fields.finish(UnknownKeys::kWarn, &warnings).ok());
  EXPECT_EQ(warnings, std::vector<std::string>{"c.json: unknown key 'f'"});
}

}  // namespace
}  // namespace weft

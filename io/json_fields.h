// Reads the fields of one JSON object as a closed schema: every key is read, named as informational, or an error.
//
// The first error sticks and later reads return a default, so a parser reads straight down and checks status() once:
//
//   JsonFields fields(json, "config.json");
//   config.hidden_size = fields.integer("hidden_size", 1);
//   fields.one_of("hidden_act", {"silu"});
//   fields.informational({"transformers_version"});
//   WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kError, nullptr));
//
// Messages: "config.json: hidden_size is missing",
// "config.json: rope_scaling.factor: expected a number, found a string".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace weft {

enum class UnknownKeys { kError, kWarn };

class JsonFields {
 public:
  // `object` must outlive this. `prefix` goes before each key in messages ("rope_scaling."). A value that is no object
  // is an error.
  JsonFields(const Json& object, std::string where, std::string prefix = "");

  // Present and not null.
  bool has(std::string_view key) const;

  // Required unless a default is given; null counts as missing. Integers may be spelled 10000.0.
  int64_t integer(std::string_view key, int64_t min = 0, int64_t max = std::numeric_limits<int32_t>::max());
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t min = 0,
                     int64_t max = std::numeric_limits<int32_t>::max());
  double number(std::string_view key, double min, double max);
  double number_or(std::string_view key, double fallback, double min, double max);
  bool boolean_or(std::string_view key, bool fallback);
  std::string string(std::string_view key);
  std::vector<int64_t> integers(std::string_view key, int64_t min = 0,
                                int64_t max = std::numeric_limits<int32_t>::max());
  std::vector<std::string> strings(std::string_view key);
  // The sub-object; its keys are checked by a JsonFields of its own. Null when missing or wrong.
  const Json* object(std::string_view key);

  // Enum-like fields: a value outside `allowed` is an error that lists them. one_of_if leaves an absent field alone.
  std::string one_of(std::string_view key, std::initializer_list<std::string_view> allowed);
  std::optional<std::string> one_of_if(std::string_view key, std::initializer_list<std::string_view> allowed);
  // An optional boolean for which only one value is supported.
  void must_be(std::string_view key, bool value);

  // Keys that are known and have no influence here.
  void informational(std::initializer_list<std::string_view> keys);

  // An error found by the caller about a key; prefix and file are added. The first error wins.
  void fail(std::string_view key, std::string_view message);
  void absorb(const Status& status);  // takes over the error of a nested reader

  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }

  // The first error; otherwise the keys nobody asked for: an error, or one warning each.
  Status finish(UnknownKeys policy, std::vector<std::string>* warnings);

 private:
  const Json* take(std::string_view key);
  const Json* require(std::string_view key);
  int64_t to_integer(std::string_view key, const Json& value, int64_t min, int64_t max);
  double to_number(std::string_view key, const Json& value, double min, double max);

  const Json& object_;
  std::string where_, prefix_;
  std::set<std::string, std::less<>> used_;
  Status status_;
};

}  // namespace weft

#include "io/json_fields.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace weft {

JsonFields::JsonFields(const Json& object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    std::string_view name = prefix_;
    if (!name.empty()) name.remove_suffix(1);
    status_ = invalid_argument(
        fmt::format("{}: {}{}expected an object, found {}", where_, name, name.empty() ? "" : ": ", json_kind(object)));
  }
}

void JsonFields::fail(std::string_view key, std::string_view message) {
  if (status_.ok()) status_ = invalid_argument(fmt::format("{}: {}{}{}", where_, prefix_, key, message));
}

void JsonFields::absorb(const Status& status) {
  if (status_.ok() && !status.ok()) status_ = status;
}

const Json* JsonFields::take(std::string_view key) {
  used_.emplace(key);
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* JsonFields::require(std::string_view key) {
  const Json* value = take(key);
  if (value == nullptr) fail(key, " is missing");
  return value;
}

bool JsonFields::has(std::string_view key) const {
  if (!object_.is_object()) return false;
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

int64_t JsonFields::to_integer(std::string_view key, const Json& value, int64_t min, int64_t max) {
  int64_t result = 0;
  if (value.is_number_unsigned()) {
    const uint64_t v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(key, fmt::format(": {} is outside {} .. {}", v, min, max));
      return min;
    }
    result = static_cast<int64_t>(v);
  } else if (value.is_number_integer()) {
    result = value.get<int64_t>();
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 0x1p53 &&
             value.get<double>() == std::floor(value.get<double>())) {
    result = static_cast<int64_t>(value.get<double>());
  } else {
    fail(key, fmt::format(": expected an integer, found {}", json_kind(value)));
    return min;
  }
  if (result < min || result > max) {
    fail(key, fmt::format(": {} is outside {} .. {}", result, min, max));
    return min;
  }
  return result;
}

double JsonFields::to_number(std::string_view key, const Json& value, double min, double max) {
  if (!value.is_number()) {
    fail(key, fmt::format(": expected a number, found {}", json_kind(value)));
    return min;
  }
  const double result = value.get<double>();
  if (!(result >= min && result <= max)) {
    fail(key, fmt::format(": {} is outside {} .. {}", result, min, max));
    return min;
  }
  return result;
}

int64_t JsonFields::integer(std::string_view key, int64_t min, int64_t max) {
  const Json* value = require(key);
  return value == nullptr ? min : to_integer(key, *value, min, max);
}

int64_t JsonFields::integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  const Json* value = take(key);
  return value == nullptr ? fallback : to_integer(key, *value, min, max);
}

double JsonFields::number(std::string_view key, double min, double max) {
  const Json* value = require(key);
  return value == nullptr ? min : to_number(key, *value, min, max);
}

double JsonFields::number_or(std::string_view key, double fallback, double min, double max) {
  const Json* value = take(key);
  return value == nullptr ? fallback : to_number(key, *value, min, max);
}

bool JsonFields::boolean_or(std::string_view key, bool fallback) {
  const Json* value = take(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(key, fmt::format(": expected true or false, found {}", json_kind(*value)));
  return fallback;
}

std::string JsonFields::string(std::string_view key) {
  const Json* value = require(key);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    fail(key, fmt::format(": expected a string, found {}", json_kind(*value)));
    return {};
  }
  return value->get<std::string>();
}

std::vector<int64_t> JsonFields::integers(std::string_view key, int64_t min, int64_t max) {
  const Json* value = require(key);
  std::vector<int64_t> result;
  if (value == nullptr) return result;
  if (!value->is_array()) {
    fail(key, fmt::format(": expected a list of integers, found {}", json_kind(*value)));
    return result;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    result.push_back(to_integer(fmt::format("{}[{}]", key, i), (*value)[i], min, max));
  }
  return result;
}

std::vector<std::string> JsonFields::strings(std::string_view key) {
  const Json* value = require(key);
  std::vector<std::string> result;
  if (value == nullptr) return result;
  if (!value->is_array()) {
    fail(key, fmt::format(": expected a list of strings, found {}", json_kind(*value)));
    return result;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& item = (*value)[i];
    if (!item.is_string()) {
      fail(fmt::format("{}[{}]", key, i), fmt::format(": expected a string, found {}", json_kind(item)));
      return result;
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

const Json* JsonFields::object(std::string_view key) {
  const Json* value = require(key);
  if (value != nullptr && !value->is_object()) {
    fail(key, fmt::format(": expected an object, found {}", json_kind(*value)));
    return nullptr;
  }
  return value;
}

std::optional<std::string> JsonFields::one_of_if(std::string_view key,
                                                 std::initializer_list<std::string_view> allowed) {
  if (take(key) == nullptr) return std::nullopt;
  return one_of(key, allowed);
}

std::string JsonFields::one_of(std::string_view key, std::initializer_list<std::string_view> allowed) {
  std::string value = string(key);
  if (!status_.ok()) return value;
  for (std::string_view a : allowed) {
    if (a == value) return value;
  }
  fail(key, fmt::format(": '{}' is not supported; supported: {}", value, fmt::join(allowed, ", ")));
  return value;
}

void JsonFields::must_be(std::string_view key, bool expected) {
  if (boolean_or(key, expected) != expected) fail(key, fmt::format(": {} is not supported", !expected));
}

void JsonFields::informational(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) used_.emplace(key);
}

Status JsonFields::finish(UnknownKeys policy, std::vector<std::string>* warnings) {
  if (!status_.ok()) return status_;
  for (const auto& item : object_.items()) {
    if (used_.contains(item.key())) continue;
    std::string message = fmt::format("{}: unknown key '{}{}'", where_, prefix_, item.key());
    if (policy == UnknownKeys::kError) {
      return invalid_argument(message + "; --allow-unknown-config accepts it");
    }
    if (warnings != nullptr) warnings->push_back(std::move(message));
  }
  return {};
}

}  // namespace weft

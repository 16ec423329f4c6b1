#include "io/tokenizer_json.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft {

const Json* find_member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string type_name(const Json& json) {
  const Json* type = json.is_object() ? find_member(json, "type") : nullptr;
  return type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
}

Status check_known_keys(const Json& object, std::string_view where, std::initializer_list<std::string_view> known) {
  for (const auto& item : object.items()) {
    if (std::ranges::find(known, item.key()) == known.end()) {
      return invalid_argument(fmt::format("{}: unknown key '{}'", where, item.key()));
    }
  }
  return {};
}

Result<bool> read_flag(const Json& object, const char* key, std::string_view where, bool fallback) {
  const Json* value = find_member(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    return invalid_argument(fmt::format("{}: {}: expected true or false, found {}", where, key, value->dump()));
  }
  return value->get<bool>();
}

}  // namespace weft

// Reading tokenizer.json and its neighbours. null counts as missing, as it does in the `tokenizers` library.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "io/json.h"

namespace weft {

// The value under `key` of an object; nullptr if it is missing or null.
const Json* find_member(const Json& object, const char* key);

// "type" of an object; empty if there is none.
std::string type_name(const Json& json);

Status check_known_keys(const Json& object, std::string_view where, std::initializer_list<std::string_view> known);

// A boolean under `key`; `fallback` if it is missing.
Result<bool> read_flag(const Json& object, const char* key, std::string_view where, bool fallback);

}  // namespace weft

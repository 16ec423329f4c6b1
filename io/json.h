// Strict JSON: text or file in, checked document out.
//
// Refused with "FILE: byte N: what": syntax errors, bad UTF-8 (also unpaired surrogate escapes), a key twice in one
// object, nesting deeper than kMaxJsonDepth, anything after the value, numbers beyond double. No exception escapes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace weft {

using Json = nlohmann::json;

// Configs nest 3 deep, tokenizer files about 6; a bound keeps hostile input from costing memory per byte of '['.
inline constexpr int kMaxJsonDepth = 64;

// `where` starts every error message: the file, or what the text is.
Result<Json> parse_json(std::string_view text, std::string_view where);

Result<Json> read_json_file(const std::filesystem::path& path);

// "an integer", "a string", ...: the kind of a value, for error messages.
std::string_view json_kind(const Json& value);

}  // namespace weft

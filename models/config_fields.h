// Fields that config.json has in every family.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/json_fields.h"

namespace weft {

// Keys without influence on what is computed here: Python class names, training, generation helpers.
void read_informational_fields(JsonFields& fields);

// One id, or a list of them.
std::vector<int64_t> read_eos_token_ids(JsonFields& fields, const Json& json, int64_t vocab_size);

// `alias` may stand beside the published `name`, if its value is the same.
void read_alias(JsonFields& fields, std::string_view alias, std::string_view name, int64_t value);

}  // namespace weft

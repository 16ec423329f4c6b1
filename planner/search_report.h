// The result of a search for readers: text for a terminal, JSON (docs/search.md has the schema).
#pragma once

#include <string>

#include "io/json.h"
#include "planner/search.h"

namespace weft {

inline constexpr int kSearchSchemaVersion = 1;

std::string search_text(const SearchResult& result);
nlohmann::ordered_json search_json(const SearchResult& result);

}  // namespace weft

// tokenizer.json as parsed: the two large tables as lists, everything else as JSON.
//
// A release's vocabulary and merges are a quarter of a million entries; building them as a JSON tree would take most of
// the time of loading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json.h"

namespace weft {

struct TokenizerDocument {
  Json json;  // without model.vocab and model.merges

  // In the order of the file; nullopt if the member is missing or null.
  std::optional<std::vector<std::pair<std::string, int32_t>>> vocab;
  std::optional<std::vector<std::pair<std::string, std::string>>> merges;  // "a b" or ["a", "b"]
};

inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;  // bounds the tables by id; the largest release has 2^18 ids

// As strict as parse_json; ids are checked to be integers from 0 to kMaxTokenId, merges to have two halves.
Result<TokenizerDocument> parse_tokenizer_document(std::string_view text, std::string_view where);

}  // namespace weft

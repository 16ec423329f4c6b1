// Where the other files of a model directory name BOS and EOS.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "io/tokenizer_json.h"
#include "io/tokenizer_model.h"

namespace weft {
namespace {

void add_eos(std::vector<TokenId>& eos, TokenId id) {
  if (std::ranges::find(eos, id) == eos.end()) eos.push_back(id);
}

// "bos_token": text, or an object with the text as "content", or null.
Result<std::optional<TokenId>> token_of(const Json& config, const char* key, std::string_view where,
                                        const TokenMap& ids) {
  const Json* value = find_member(config, key);
  if (value == nullptr) return std::optional<TokenId>();
  const Json* text = value->is_object() ? find_member(*value, "content") : value;
  if (text == nullptr || !text->is_string()) {
    return invalid_argument(fmt::format("{}: {}: expected a text or an object with \"content\"", where, key));
  }
  const auto it = ids.find(text->get_ref<const std::string&>());
  if (it == ids.end()) {
    return invalid_argument(
        fmt::format("{}: {} '{}' is not a token of this tokenizer", where, key, text->get<std::string>()));
  }
  return std::optional<TokenId>(it->second);
}

Result<TokenId> id_of(const Json& value, const char* key, std::string_view where) {
  if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<TokenId>::max()) {
    return invalid_argument(fmt::format("{}: {}: expected a token id, found {}", where, key, value.dump()));
  }
  return value.get<TokenId>();
}

}  // namespace

Status read_tokenizer_config(const Json& config, std::string_view where, const TokenMap& ids,
                             std::optional<TokenId>& bos, std::vector<TokenId>& eos, bool& add_bos) {
  if (!config.is_object()) return invalid_argument(fmt::format("{}: expected an object", where));
  WEFT_ASSIGN_OR_RETURN(const auto named_bos, token_of(config, "bos_token", where, ids));
  if (!bos) bos = named_bos;
  WEFT_ASSIGN_OR_RETURN(const auto named_eos, token_of(config, "eos_token", where, ids));
  if (named_eos) add_eos(eos, *named_eos);
  WEFT_ASSIGN_OR_RETURN(add_bos, read_flag(config, "add_bos_token", where, false));
  return {};
}

Status read_model_config(const Json& config, std::string_view where, std::optional<TokenId>& bos,
                         std::vector<TokenId>& eos) {
  if (!config.is_object()) return invalid_argument(fmt::format("{}: expected an object", where));
  if (const Json* value = find_member(config, "bos_token_id"); value != nullptr && !bos) {
    WEFT_ASSIGN_OR_RETURN(bos, id_of(*value, "bos_token_id", where));
  }
  if (const Json* value = find_member(config, "eos_token_id")) {
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& item : list) {
      WEFT_ASSIGN_OR_RETURN(const TokenId id, id_of(item, "eos_token_id", where));
      add_eos(eos, id);
    }
  }
  return {};
}

}  // namespace weft

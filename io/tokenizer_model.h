// What a Tokenizer holds after loading. Private to io/tokenizer*.cc.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/bpe.h"
#include "io/json.h"
#include "io/tokenizer.h"
#include "io/tokenizer_added.h"
#include "io/tokenizer_document.h"
#include "io/tokenizer_split.h"

namespace weft {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

struct Tokenizer::Impl {
  Impl(AddedTokenSet added_tokens, PreTokenizer pre, BpeMerges bpe)
      : added(std::move(added_tokens)), pre_tokenizer(std::move(pre)), merges(std::move(bpe)) {}

  static Result<std::unique_ptr<Impl>> build(const TokenizerDocument& document,
                                             std::string_view where);  // tokenizer_load.cc

  struct Token {
    std::string bytes;
    bool added = false, special = false;
  };

  AddedTokenSet added;
  PreTokenizer pre_tokenizer;
  BpeMerges merges;
  std::vector<Token> tokens;      // by id
  TokenMap ids;                   // by the spelling in the file
  std::optional<TokenMap> whole;  // by bytes: tokens that a piece becomes without merging (ignore_merges)
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
  bool add_bos = false;
};

// The rest of a model directory, tokenizer_config.cc: where BOS and EOS are named. What is set already stays; EOS ids are
// added.
Status read_tokenizer_config(const Json& config, std::string_view where, const TokenMap& ids,
                             std::optional<TokenId>& bos, std::vector<TokenId>& eos, bool& add_bos);
Status read_model_config(const Json& config, std::string_view where, std::optional<TokenId>& bos,
                         std::vector<TokenId>& eos);

}  // namespace weft

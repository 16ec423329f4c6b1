// The pre_tokenizer of a tokenizer.json: cuts text into the pieces inside which bytes are merged.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "io/json.h"
#include "io/tokenizer_regex.h"

namespace weft {

class PreTokenizer {
 public:
  // `ByteLevel`, or a `Sequence` of `Split`s that ends with it.
  static Result<PreTokenizer> parse(const Json& json, std::string_view where);

  // Calls piece(bytes) for every piece of `text` (valid UTF-8), from left to right.
  Status split(std::string_view text, RegexScratch& scratch, FunctionRef<void(std::string_view)> piece) const;

 private:
  // What becomes of a match (with `invert`: of a gap between matches).
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    TokenizerRegex regex;
    Behavior behavior;
    bool invert;
  };
  // The text, and what regexes with properties see of it (the same length; equal to `text` if nothing is replaced).
  struct Views {
    std::string_view text, stand_in;
  };

  static Result<Step> parse_split(const Json& json, std::string_view where);
  static Status apply(const Step& step, const Views& views, TextRange piece, RegexScratch& scratch,
                      std::vector<TextRange>& out);
  Status parse_byte_level(const Json& json, std::string_view where);
  Status split_prefixed(std::string_view text, RegexScratch& scratch, FunctionRef<void(std::string_view)> piece) const;
  bool uses_properties() const;

  std::vector<Step> steps_;
  bool add_prefix_space_ = false;
  std::optional<Step> words_;  // ByteLevel's own regex, if it is used
};

}  // namespace weft

// The regexes of tokenizer.json: Oniguruma's syntax, run by PCRE2, with the meaning of the `tokenizers` library.
//
// Accepted is what means the same in both engines, which covers the releases' patterns: literals, classes with ranges,
// general categories (\p{L}, \P{Lu}, \p{^N}), \s \S \d \D, groups, alternation, look-around, quantifiers. Everything
// else is an error of compile() that names the construct and its place; so no pattern can silently mean something else.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weft {

// A part of a text, in bytes.
struct TextRange {
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
  bool operator==(const TextRange&) const = default;
};

// What is needed during matching; one per thread, made for each encode().
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class TokenizerRegex;
  struct State;
  std::unique_ptr<State> state_;
};

class TokenizerRegex {
 public:
  // `where` starts every message. A match that needs more than `match_limit` steps is an error of find_all.
  static Result<TokenizerRegex> compile(std::string_view pattern, std::string_view where,
                                        size_t match_limit = kDefaultMatchLimit);
  // A pattern that matches exactly this text.
  static Result<TokenizerRegex> compile_literal(std::string_view text, std::string_view where);

  TokenizerRegex(TokenizerRegex&&) noexcept;
  TokenizerRegex& operator=(TokenizerRegex&&) noexcept;
  ~TokenizerRegex();

  // Whether the text must be given with stand-ins (unicode_stand_ins.h): the pattern asks for properties.
  bool uses_properties() const;

  // Appends the matches in `subject`, valid UTF-8, from left to right. An empty match counts unless it stands where the
  // match before ended.
  Status find_all(std::string_view subject, RegexScratch& scratch, std::vector<TextRange>& out) const;

  // Per match. Backtracking over a run costs a step per character, so it bounds the length of runs, not of texts.
  static constexpr size_t kDefaultMatchLimit = 1u << 26;

 private:
  struct Impl;
  explicit TokenizerRegex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The pattern in PCRE2's syntax. Exposed for its tests.
struct TranslatedRegex {
  std::string pattern;
  bool uses_properties = false;
};
Result<TranslatedRegex> translate_regex(std::string_view pattern, std::string_view where);

}  // namespace weft

#define PCRE2_CODE_UNIT_WIDTH 8
#include "io/tokenizer_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "io/unicode_utf8.h"

namespace weft {
namespace {

// JIT code backtracks on a stack of its own; the patterns of the releases need next to none of it.
constexpr size_t kJitStackStart = 32u << 10, kJitStackMax = 16u << 20;
constexpr uint32_t kInterpreterHeapKiB = 256u << 10;

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[128];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return fmt::format("error {}", code);
  return reinterpret_cast<const char*>(text);
}

size_t character_size(std::string_view text) { return next_utf8(text).size; }

}  // namespace

struct RegexScratch::State {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};

  State() {
    // Without a stack of its own (no JIT support in this build of PCRE2) matching is interpreted.
    if (context) pcre2_set_heap_limit(context.get(), kInterpreterHeapKiB);
    if (context && stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

struct TokenizerRegex::Impl {
  Owned<pcre2_code> code;
  std::string where;
  bool uses_properties = false;
  uint32_t match_limit = 0;
};

TokenizerRegex::TokenizerRegex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenizerRegex::TokenizerRegex(TokenizerRegex&&) noexcept = default;
TokenizerRegex& TokenizerRegex::operator=(TokenizerRegex&&) noexcept = default;
TokenizerRegex::~TokenizerRegex() = default;

Result<TokenizerRegex> TokenizerRegex::compile(std::string_view pattern, std::string_view where, size_t match_limit) {
  WEFT_ASSIGN_OR_RETURN(const TranslatedRegex translated, translate_regex(pattern, where));
  Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) return machine_failed(fmt::format("{}: out of memory for a regex", where));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what '.' excludes; the default depends on how PCRE2 was built
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.pattern.data()), translated.pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get()));
  if (!impl->code) {
    return invalid_argument(fmt::format("{}: regex '{}': {} (byte {} of '{}')", where, pattern, pcre2_message(code),
                                        offset, translated.pattern));
  }
  // No JIT (not built in, or executable memory forbidden): the interpreter gives the same matches.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  impl->where = fmt::format("{}: regex '{}'", where, pattern);
  impl->uses_properties = translated.uses_properties;
  impl->match_limit = static_cast<uint32_t>(match_limit);
  return TokenizerRegex(std::move(impl));
}

Result<TokenizerRegex> TokenizerRegex::compile_literal(std::string_view text, std::string_view where) {
  std::string pattern;
  for (char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c & 0x80) != 0;
    if (!plain) pattern += '\\';
    pattern += c;
  }
  return compile(pattern, where);
}

bool TokenizerRegex::uses_properties() const { return impl_->uses_properties; }

Status TokenizerRegex::find_all(std::string_view subject, RegexScratch& scratch, std::vector<TextRange>& out) const {
  RegexScratch::State& state = *scratch.state_;
  if (!state.data || !state.context) return machine_failed(impl_->where + ": out of memory for matching");
  pcre2_set_match_limit(state.context.get(), impl_->match_limit);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data.get());
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t at = 0, last_end = kNone;
  while (at <= subject.size()) {
    const int found = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), at,
                                  PCRE2_NO_UTF_CHECK, state.data.get(), state.context.get());
    if (found == PCRE2_ERROR_NOMATCH) return {};
    if (found < 0) {
      return invalid_argument(fmt::format("{} gives up at byte {} of a text of {} bytes: {}", impl_->where, at,
                                          subject.size(), pcre2_message(found)));
    }
    const TextRange match{ends[0], ends[1]};
    if (match.size() == 0 && match.end == last_end) {
      if (at == subject.size()) return {};
      at += character_size(subject.substr(at));
      continue;
    }
    out.push_back(match);
    at = last_end = match.end;
  }
  return {};
}

}  // namespace weft

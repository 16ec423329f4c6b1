#include "io/tokenizer_split.h"

#include <algorithm>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "io/tokenizer_json.h"
#include "io/unicode_stand_ins.h"

namespace weft {
namespace {

// ByteLevel's own pattern, that of GPT-2.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  TextRange range;
  bool is_match;
};

// Joins a match with the part before it, unless that is a match too. `parts` in the order of reading.
std::vector<TextRange> merge_matches(const std::vector<Part>& parts, bool forward) {
  std::vector<TextRange> merged;
  bool previous_match = false;
  const auto take = [&](const Part& part) {
    if (part.is_match && !previous_match && !merged.empty()) {
      (forward ? merged.back().end : merged.back().begin) = forward ? part.range.end : part.range.begin;
    } else {
      merged.push_back(part.range);
    }
    previous_match = part.is_match;
  };
  if (forward) {
    std::for_each(parts.begin(), parts.end(), take);
  } else {
    std::for_each(parts.rbegin(), parts.rend(), take);
    std::ranges::reverse(merged);
  }
  return merged;
}

std::vector<TextRange> merge_runs(const std::vector<Part>& parts) {
  std::vector<TextRange> merged;
  bool previous_match = false;
  for (const Part& part : parts) {
    if (part.is_match == previous_match && !merged.empty()) {
      merged.back().end = part.range.end;
    } else {
      merged.push_back(part.range);
    }
    previous_match = part.is_match;
  }
  return merged;
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& json, std::string_view where) {
  PreTokenizer pre;
  const std::string type = type_name(json);
  if (type == "ByteLevel") {
    WEFT_RETURN_IF_ERROR(pre.parse_byte_level(json, where));
    return pre;
  }
  if (type != "Sequence") {
    return invalid_argument(fmt::format(
        "{}: type '{}' is not supported; supported: Sequence of Split and ByteLevel, ByteLevel", where, type));
  }
  WEFT_RETURN_IF_ERROR(check_known_keys(json, where, {"type", "pretokenizers"}));
  const Json* list = find_member(json, "pretokenizers");
  if (list == nullptr || !list->is_array()) {
    return invalid_argument(fmt::format("{}: pretokenizers: expected a list", where));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string here = fmt::format("{}.pretokenizers[{}]", where, i);
    const std::string step = type_name((*list)[i]);
    if (step == "ByteLevel" && i + 1 == list->size()) {
      WEFT_RETURN_IF_ERROR(pre.parse_byte_level((*list)[i], here));
      return pre;
    }
    if (step != "Split") {
      return invalid_argument(
          fmt::format("{}: type '{}' is not supported here; supported: Split, and ByteLevel at the end", here, step));
    }
    WEFT_ASSIGN_OR_RETURN(Step split, parse_split((*list)[i], here));
    pre.steps_.push_back(std::move(split));
  }
  return invalid_argument(fmt::format("{}: has no ByteLevel at the end; only byte-level BPE is supported", where));
}

Result<PreTokenizer::Step> PreTokenizer::parse_split(const Json& json, std::string_view where) {
  WEFT_RETURN_IF_ERROR(check_known_keys(json, where, {"type", "pattern", "behavior", "invert"}));
  const Json* pattern = find_member(json, "pattern");
  const bool one_string =
      pattern != nullptr && pattern->is_object() && pattern->size() == 1 && pattern->begin()->is_string();
  if (!one_string || (pattern->begin().key() != "Regex" && pattern->begin().key() != "String")) {
    return invalid_argument(fmt::format("{}: pattern: expected {{\"Regex\": text}} or {{\"String\": text}}", where));
  }
  const auto& text = pattern->begin()->get_ref<const std::string&>();
  WEFT_ASSIGN_OR_RETURN(auto regex, pattern->begin().key() == "Regex" ? TokenizerRegex::compile(text, where)
                                                                      : TokenizerRegex::compile_literal(text, where));
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous},
  };
  const Json* name = find_member(json, "behavior");
  const auto* behavior = std::ranges::find_if(kBehaviors, [&](const auto& row) {
    return name != nullptr && name->is_string() && name->get_ref<const std::string&>() == row.first;
  });
  if (behavior == std::end(kBehaviors)) {
    return invalid_argument(
        fmt::format("{}: behavior {} is not one of Removed, Isolated, MergedWithPrevious, "
                    "MergedWithNext, Contiguous",
                    where, name == nullptr ? "null" : name->dump()));
  }
  WEFT_ASSIGN_OR_RETURN(const bool invert, read_flag(json, "invert", where, false));
  return Step{std::move(regex), behavior->second, invert};
}

// trim_offsets only moves the offsets that the library reports, which are not computed here.
Status PreTokenizer::parse_byte_level(const Json& json, std::string_view where) {
  WEFT_RETURN_IF_ERROR(check_known_keys(json, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  WEFT_ASSIGN_OR_RETURN(add_prefix_space_, read_flag(json, "add_prefix_space", where, false));
  WEFT_ASSIGN_OR_RETURN(const bool use_regex, read_flag(json, "use_regex", where, true));
  if (use_regex) {
    WEFT_ASSIGN_OR_RETURN(auto regex, TokenizerRegex::compile(kByteLevelPattern, where));
    words_.emplace(Step{std::move(regex), Behavior::kIsolated, false});
  }
  return {};
}

bool PreTokenizer::uses_properties() const {
  return words_.has_value() || std::ranges::any_of(steps_, [](const Step& s) { return s.regex.uses_properties(); });
}

Status PreTokenizer::apply(const Step& step, const Views& views, TextRange piece, RegexScratch& scratch,
                           std::vector<TextRange>& out) {
  const std::string_view seen =
      (step.regex.uses_properties() ? views.stand_in : views.text).substr(piece.begin, piece.size());
  std::vector<TextRange> matches;
  WEFT_RETURN_IF_ERROR(step.regex.find_all(seen, scratch, matches));
  std::vector<Part> parts;
  size_t end = 0;
  for (const TextRange& match : matches) {
    if (end != match.begin) parts.push_back({{piece.begin + end, piece.begin + match.begin}, step.invert});
    parts.push_back({{piece.begin + match.begin, piece.begin + match.end}, !step.invert});
    end = match.end;
  }
  if (end != seen.size()) parts.push_back({{piece.begin + end, piece.end}, step.invert});

  const auto keep = [&out](const TextRange& range) {
    if (range.size() != 0) out.push_back(range);
  };
  switch (step.behavior) {
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) keep(part.range);
      }
      break;
    case Behavior::kIsolated:
      for (const Part& part : parts) keep(part.range);
      break;
    case Behavior::kMergedWithPrevious: std::ranges::for_each(merge_matches(parts, true), keep); break;
    case Behavior::kMergedWithNext: std::ranges::for_each(merge_matches(parts, false), keep); break;
    case Behavior::kContiguous: std::ranges::for_each(merge_runs(parts), keep); break;
  }
  return {};
}

Status PreTokenizer::split(std::string_view text, RegexScratch& scratch,
                           FunctionRef<void(std::string_view)> piece) const {
  const std::string replaced = uses_properties() ? with_stand_ins(text) : std::string();
  const Views views{text, replaced.empty() ? text : std::string_view(replaced)};
  std::vector<TextRange> pieces, next;
  if (!text.empty()) pieces.push_back({0, text.size()});
  const auto run = [&](const Step& step) -> Status {
    next.clear();
    for (const TextRange& range : pieces) WEFT_RETURN_IF_ERROR(apply(step, views, range, scratch, next));
    pieces.swap(next);
    return {};
  };
  for (const Step& step : steps_) WEFT_RETURN_IF_ERROR(run(step));
  if (add_prefix_space_) {
    for (const TextRange& range : pieces) {
      WEFT_RETURN_IF_ERROR(split_prefixed(text.substr(range.begin, range.size()), scratch, piece));
    }
    return {};
  }
  if (words_) WEFT_RETURN_IF_ERROR(run(*words_));
  for (const TextRange& range : pieces) piece(text.substr(range.begin, range.size()));
  return {};
}

// The space goes before each piece of the steps, not before the text as a whole.
Status PreTokenizer::split_prefixed(std::string_view text, RegexScratch& scratch,
                                    FunctionRef<void(std::string_view)> piece) const {
  std::string prefixed;
  if (!text.starts_with(' ')) prefixed = " ";
  prefixed += text;
  std::vector<TextRange> words{{0, prefixed.size()}};
  if (words_) {
    const std::string replaced = with_stand_ins(prefixed);
    words.clear();
    const Views views{prefixed, replaced.empty() ? std::string_view(prefixed) : std::string_view(replaced)};
    WEFT_RETURN_IF_ERROR(apply(*words_, views, {0, prefixed.size()}, scratch, words));
  }
  for (const TextRange& range : words) piece(std::string_view(prefixed).substr(range.begin, range.size()));
  return {};
}

}  // namespace weft

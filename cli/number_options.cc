#include "cli/number_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/shown_text.h"

namespace weft {
namespace {

// The whole text as a decimal number; false for anything else, also for numbers that T cannot hold.
template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The error, or empty.
std::string check_whole(std::string& text, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  if (!parse_number(text, value) || value < min || value > max) {
    return fmt::format("expected a whole number from {} to {}, found '{}'", min, max, shown(text));
  }
  text = fmt::format("{}", value);
  return {};
}

std::string check_real(std::string& text, const NumberRange& range) {
  const std::optional<double> value = parse_real(text, range);
  if (!value) return fmt::format("expected a number {}, found '{}'", range.to_text(), shown(text));
  text = fmt::format("{}", *value);  // as many digits as give the same double again
  return {};
}

// Items separated by commas. check: the error, or empty; it spells the item anew.
template <class T, class Check>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& values, const std::string& what,
                      Check check) {
  const auto take = [&values, name, check](const std::string& text) {
    std::vector<T> found;
    size_t begin = 0, end = 0;
    do {
      end = std::min(text.find(',', begin), text.size());
      std::string item = text.substr(begin, end - begin);
      if (const std::string error = check(item); !error.empty()) {
        throw CLI::ValidationError(name, text == item ? error : fmt::format("{} in '{}'", error, shown(text)));
      }
      parse_number(item, found.emplace_back());
      begin = end + 1;
    } while (end != text.size());
    values = std::move(found);
  };
  CLI::Option* option = app.add_option_function<std::string>(name, take, what)->type_name("N,N,...");
  if (!values.empty()) option->default_str(fmt::format("{}", fmt::join(values, ",")));
  return option;
}

}  // namespace

CLI::Validator whole_number(uint64_t min, uint64_t max) {
  return CLI::Validator([min, max](std::string& text) { return check_whole(text, min, max); },
                        max >= kMaxCount ? fmt::format(">= {}", min) : fmt::format("{} .. {}", min, max));
}

std::optional<double> parse_real(std::string_view text, const NumberRange& range) {
  double value = 0;
  if (!parse_number(text, value) || !std::isfinite(value) || !range.contains(value)) return std::nullopt;
  return value;
}

CLI::Validator number_in(const NumberRange& range) {
  return CLI::Validator([range](std::string& text) { return check_real(text, range); }, range.to_text());
}

CLI::Option* add_number_list(CLI::App& app, const std::string& name, std::vector<int64_t>& values, uint64_t min,
                             const std::string& what, uint64_t max) {
  return add_list<int64_t>(app, name, values, what,
                           [min, max](std::string& item) { return check_whole(item, min, max); });
}

CLI::Option* add_real_list(CLI::App& app, const std::string& name, std::vector<double>& values,
                           const NumberRange& range, const std::string& what) {
  return add_list<double>(app, name, values, what, [range](std::string& item) { return check_real(item, range); });
}

CLI::Validator some_text() {
  return CLI::Validator(
      [](std::string& text) { return std::string(text.empty() ? "expected some text, found ''" : ""); }, "TEXT");
}

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string list = fmt::format("{}", fmt::join(words, ", "));
  return CLI::Validator(
      [words = std::move(words), list](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("expected one of {}; found '{}'", list, shown(text));
      },
      list);
}

}  // namespace weft

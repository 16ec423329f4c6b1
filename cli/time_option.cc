#include "cli/time_option.h"

#include <charconv>

#include <fmt/format.h>

namespace weft {

Result<double> parse_time(std::string_view option, std::string_view text) {
  constexpr struct {
    std::string_view name;
    double seconds;
  } kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"min", 60}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& known : kUnits) {
    if (error == std::errc() && unit == known.name && value > 0) return value * known.seconds;
  }
  return invalid_argument(fmt::format("{}: expected a time above 0 with its unit (s, ms, us, min), e.g. 2s or 50ms; found '{}'", option, text));
}

Result<std::optional<double>> parse_optional_time(std::string_view option, std::string_view text) {
  if (text.empty()) return std::optional<double>();
  WEFT_ASSIGN_OR_RETURN(const double seconds, parse_time(option, text));
  return std::optional<double>(seconds);
}

}  // namespace weft

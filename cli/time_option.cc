#include "cli/time_option.h"

#include <string_view>

#include <fmt/format.h>

#include "cli/number_options.h"

namespace weft {
namespace {

std::optional<double> parse_time(std::string_view text) {
  constexpr struct {
    std::string_view name;
    double seconds;
  } kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"min", 60}};
  constexpr NumberRange kTimes{0, 1e9, true};
  for (const auto& known : kUnits) {
    if (!text.ends_with(known.name)) continue;
    if (const auto value = parse_real(text.substr(0, text.size() - known.name.size()), kTimes))
      return *value * known.seconds;
  }
  return std::nullopt;
}

}  // namespace

CLI::Option* add_time_option(CLI::App& app, const std::string& name, std::optional<double>& value,
                             const std::string& what) {
  const auto take = [&value, name](const std::string& text) {
    value = parse_time(text);
    if (value) return;
    throw CLI::ValidationError(
        name, fmt::format("expected a time above 0 with its unit (s, ms, us, min), e.g. 2s or 50ms; found '{}'", text));
  };
  return app.add_option_function<std::string>(name, take, what)->type_name("TIME");
}

}  // namespace weft

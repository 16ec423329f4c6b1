#include "cli/unused_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace weft {
namespace {

template <class Unused>
Status refuse(const CLI::App& app, Unused unused, std::string_view why) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && unused(*option))
      return invalid_argument(fmt::format("{} has no effect: {}", option->get_name(), why));
  }
  return {};
}

bool is_one_of(const CLI::Option& option, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return option.check_name(std::string(name)); });
}

}  // namespace

Status only_options(const CLI::App& app, std::string_view what, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    WEFT_CHECK(app.get_option_no_throw(std::string(name)) != nullptr, "no option {}", name);
  return refuse(app, [&](const CLI::Option& option) { return !is_one_of(option, names); },
                fmt::format("{} takes {}", what, fmt::join(names, ", ")));
}

Status unused_options(const CLI::App& app, std::initializer_list<std::string_view> names, std::string_view why) {
  for (const std::string_view name : names)
    WEFT_CHECK(app.get_option_no_throw(std::string(name)) != nullptr, "no option {}", name);
  return refuse(app, [&](const CLI::Option& option) { return is_one_of(option, names); }, why);
}

}  // namespace weft

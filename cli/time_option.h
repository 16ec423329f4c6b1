// A time on the command line, always with its unit: 2s, 50ms, 800us, 1.5min.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace weft {

// Seconds above 0; `value` stays empty where the option is not given.
CLI::Option* add_time_option(CLI::App& app, const std::string& name, std::optional<double>& value,
                             const std::string& what);

}  // namespace weft

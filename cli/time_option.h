// A time on the command line, always with its unit: 2s, 50ms, 800us, 1.5min.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"

namespace weft {

// Seconds. Above 0; the message names the option.
Result<double> parse_time(std::string_view option, std::string_view text);

// Nothing where the text is empty.
Result<std::optional<double>> parse_optional_time(std::string_view option, std::string_view text);

}  // namespace weft

// Options that a command knows, but that would change nothing in what it is asked to do, are refused when they are
// given.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string_view>

#include "base/status.h"

namespace weft {

// "--layout has no effect: weft bench kernels takes MODEL_DIR, --filter, ... alone", for a given option that is none of
// `names`.
Status only_options(const CLI::App& app, std::string_view what, std::initializer_list<std::string_view> names);

// "--system has no effect: it needs --chat", for a given option that is one of `names`.
Status unused_options(const CLI::App& app, std::initializer_list<std::string_view> names, std::string_view why);

}  // namespace weft

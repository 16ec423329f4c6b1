#pragma once

#include <cstddef>
#include <string_view>

namespace weft {

// Letters to insert, delete or replace that make b of a. Source: Wagner, Fischer, "The string-to-string correction problem",
// JACM 1974.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace weft

// The page of planner/html/ with its styles and scripts in place, made at build time; @title@, @text@ and @data@ are left to fill.
#pragma once

#include <string_view>

namespace weft::html {

extern const std::string_view kPage;

}  // namespace weft::html

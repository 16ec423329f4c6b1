// Integer arithmetic on sizes. Not for sources that are compiled for an instruction set (base/numeric.h says why).
#pragma once

#include <cstdint>

namespace weft {

// a / b, rounded up; a >= 0, b > 0.
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest multiple of `alignment` that is not below n; n >= 0.
inline int64_t align_up(int64_t n, int64_t alignment) { return ceil_div(n, alignment) * alignment; }

}  // namespace weft

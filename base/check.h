// Checks for faults of our own code. WEFT_CHECK is always on; WEFT_DCHECK only in debug builds (inner loops).
#pragma once

#include <fmt/format.h>

#include <string>

namespace weft {

// Prints "file:line: condition: message" to stderr and aborts.
[[noreturn]] void check_failure(const char* file, int line, const char* condition, const std::string& message);

}  // namespace weft

#define WEFT_CHECK(condition, ...)                                                             \
  do {                                                                                         \
    if (!(condition)) [[unlikely]] {                                                           \
      ::weft::check_failure(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__));    \
    }                                                                                          \
  } while (false)

#ifdef NDEBUG
#define WEFT_DCHECK(condition, ...) \
  do {                              \
  } while (false)
#else
#define WEFT_DCHECK(condition, ...) WEFT_CHECK(condition, __VA_ARGS__)
#endif

#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft {

void check_failure(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "weft: internal error: %s:%d: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace weft

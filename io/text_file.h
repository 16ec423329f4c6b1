// Whole text files.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace weft {

// The bytes of a file (a pipe is read to its end). Errors: it cannot be opened or read, it is a directory.
Result<std::string> read_text_file(const std::filesystem::path& path);

}  // namespace weft

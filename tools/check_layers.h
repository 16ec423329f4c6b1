// Includes point downwards only: which folder may include which (docs/architecture.md has the picture).
//
// All folders share one include root, so the linker alone does not see an upward include.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Complaints about one source file, "path:line: ...". `path` is relative to the root of the repository.
std::vector<std::string> check_includes(std::string_view path, std::string_view text);

struct LayersReport {
  std::vector<std::string> complaints;
  int num_files = 0;
};

// Every .h and .cc file below `root`; build and hidden folders are left out.
LayersReport check_layers(const std::filesystem::path& root);

}  // namespace weft

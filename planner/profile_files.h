// Profiles by name: files NAME.json in a list of folders.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weft {

struct ProfileFile {
  std::filesystem::path path;
  std::string text;
};

// `what` is the word for messages: "device", "engine". A name with '/' or ending in .json is a path.
Result<ProfileFile> find_profile(std::string_view what, std::string_view name_or_path,
                                 const std::vector<std::filesystem::path>& folders);

// Names of the files, ascending, each once.
std::vector<std::string> profile_names(const std::vector<std::filesystem::path>& folders);

}  // namespace weft

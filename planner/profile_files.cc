#include "planner/profile_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "io/text_file.h"
#include "planner/device_profile.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".json";

}  // namespace

Result<ProfileFile> find_profile(std::string_view what, std::string_view name_or_path,
                                 const std::vector<fs::path>& folders) {
  ProfileFile file;
  if (name_or_path.find('/') != name_or_path.npos || name_or_path.ends_with(kExtension)) {
    file.path = name_or_path;
  } else {
    std::error_code error;
    for (const fs::path& folder : folders) {
      const fs::path path = folder / fmt::format("{}{}", name_or_path, kExtension);
      if (fs::is_regular_file(path, error)) {
        file.path = path;
        break;
      }
    }
  }
  if (file.path.empty()) {
    const std::vector<std::string> near = nearest_names(name_or_path, profile_names(folders));
    return invalid_argument(fmt::format("{} '{}' is unknown{}{}", what, name_or_path,
                                        near.empty() ? "" : "; nearest: ", fmt::join(near, ", ")));
  }
  WEFT_ASSIGN_OR_RETURN(file.text, read_text_file(file.path));
  return file;
}

std::vector<std::string> profile_names(const std::vector<fs::path>& folders) {
  std::set<std::string> names;
  for (const fs::path& folder : folders) {
    std::error_code error;  // a folder that is not there has no names
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == kExtension && it->is_regular_file(error)) names.insert(it->path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

Result<DeviceProfile> load_device_profile(std::string_view name_or_path, const std::vector<fs::path>& folders) {
  WEFT_ASSIGN_OR_RETURN(const ProfileFile file, find_profile("device", name_or_path, folders));
  WEFT_ASSIGN_OR_RETURN(DeviceProfile profile, parse_device_profile(file.text, file.path.string()));
  profile.file = file.path;
  return profile;
}

std::vector<std::string> device_profile_names(const std::vector<fs::path>& folders) { return profile_names(folders); }

}  // namespace weft

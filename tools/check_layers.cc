#include "tools/check_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace weft {
namespace {

using Folders = std::set<std::string_view>;

// The arrows. A folder may also include itself and whatever those that it names may include.
const std::map<std::string_view, Folders>& arrows() {
  static const std::map<std::string_view, Folders> table = {
      {"base", {}},
      {"tensor", {"base"}},
      {"kernels", {"tensor"}},
      {"comm", {"tensor"}},
      {"io", {"tensor"}},
      {"sharding", {"tensor"}},
      {"graph", {"kernels", "comm", "sharding"}},
      {"models", {"graph", "io"}},
      {"runtime", {"models"}},
      {"planner", {"models"}},
      {"server", {"runtime", "planner"}},
      {"cli", {"runtime", "planner"}},
      {"tools", {"server", "cli"}},
      {"tests", {"server", "cli", "tools"}},
  };
  return table;
}

Folders below(std::string_view folder) {
  Folders result = {folder};
  for (const std::string_view next : arrows().at(folder)) result.merge(below(next));
  return result;
}

std::string_view first_folder(std::string_view path) {
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string_view trim_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

struct Include {
  std::string_view path;
  bool quoted = false;
};

// An empty path: the line is no include.
Include parse_include(std::string_view line) {
  line = trim_left(line);
  if (!line.starts_with('#')) return {};
  line = trim_left(line.substr(1));
  constexpr std::string_view kKeyword = "include";
  if (!line.starts_with(kKeyword)) return {};
  line = trim_left(line.substr(kKeyword.size()));
  if (!line.starts_with('"') && !line.starts_with('<')) return {};
  const bool quoted = line.front() == '"';
  line.remove_prefix(1);
  return {line.substr(0, line.find(quoted ? '"' : '>')), quoted};
}

}  // namespace

std::vector<std::string> check_includes(std::string_view path, std::string_view text) {
  const std::string_view folder = first_folder(path);
  if (!arrows().contains(folder)) {
    return {fmt::format("{}:1: folder '{}' is not in the table of tools/check_layers.cc", path, folder)};
  }
  const Folders allowed = below(folder);
  std::vector<std::string> complaints;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const Include include = parse_include(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    const std::string_view target = first_folder(include.path);
    if (arrows().contains(target)) {
      if (!allowed.contains(target)) {
        complaints.push_back(
            fmt::format("{}:{}: {}/ may not include {}/: \"{}\"", path, number, folder, target, include.path));
      }
    } else if (include.quoted) {
      complaints.push_back(fmt::format("{}:{}: \"{}\" does not start with a folder of weft; use <> for others", path,
                                       number, include.path));
    }
  }
  return complaints;
}

LayersReport check_layers(const std::filesystem::path& root) {
  LayersReport report;
  std::set<std::filesystem::path> files;  // in a fixed order
  for (std::filesystem::recursive_directory_iterator it(root), end; it != end; ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() && (name.starts_with('.') || name == "build")) it.disable_recursion_pending();
    if (it->is_regular_file() && (name.ends_with(".h") || name.ends_with(".cc"))) files.insert(it->path());
  }
  for (const auto& file : files) {
    std::ifstream stream(file);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    for (auto& complaint : check_includes(file.lexically_relative(root).string(), text)) {
      report.complaints.push_back(std::move(complaint));
    }
    ++report.num_files;
  }
  return report;
}

}  // namespace weft

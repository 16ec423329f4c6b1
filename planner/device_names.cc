// Words of the enums, and names that are close to a wrong one.
#include <algorithm>
#include <array>
#include <numeric>

#include "planner/cost_model.h"
#include "planner/device_profile.h"

namespace weft {

std::string_view link_kind_name(LinkKind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"switch", "mesh", "ring", "host_memory"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view collective_kind_name(CollectiveKind kind) {
  constexpr std::array<std::string_view, kNumCollectiveKinds> kNames = {"all_reduce", "reduce_scatter", "all_gather",
                                                                        "all_to_all", "broadcast",      "send_recv"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view collective_algorithm_name(CollectiveAlgorithm algorithm) {
  constexpr std::array<std::string_view, kNumCollectiveAlgorithms> kNames = {"ring",      "tree",     "one_shot", "two_shot",
                                                                             "recursive", "pairwise", "bruck",    "in_network"};
  return kNames[static_cast<size_t>(algorithm)];
}

std::string_view bound_name(Bound bound) {
  constexpr std::array<std::string_view, 5> kNames = {"matrix", "vector", "memory", "network", "launch"};
  return kNames[static_cast<size_t>(bound)];
}

std::string_view cost_source_name(CostSource source) {
  constexpr std::array<std::string_view, 3> kNames = {"measured", "interpolated", "roofline"};
  return kNames[static_cast<size_t>(source)];
}

namespace {

// Insertions, deletions and exchanges that make b of a.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view wanted, const std::vector<std::string>& names, size_t at_most) {
  // Part of a name counts as close ("h100" for "h100-sxm"), and its first word may stand for it.
  const auto distance = [&](const std::string& name) {
    if (!wanted.empty() && name.find(wanted) != std::string::npos) return size_t{0};
    return std::min(edit_distance(wanted, name), edit_distance(wanted, std::string_view(name).substr(0, name.find('-'))));
  };
  std::vector<std::string> sorted = names;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (sorted.size() > at_most) sorted.resize(at_most);
  return sorted;
}

}  // namespace weft

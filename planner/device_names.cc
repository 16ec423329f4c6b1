// Words of the enums, and names that are close to a wrong one.
#include <algorithm>
#include <array>

#include "base/edit_distance.h"
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
  constexpr std::array<std::string_view, kNumCollectiveAlgorithms> kNames = {
      "ring", "tree", "one_shot", "two_shot", "recursive", "pairwise", "bruck", "in_network"};
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

std::vector<std::string> nearest_names(std::string_view wanted, const std::vector<std::string>& names, size_t at_most) {
  // Part of a name counts as close ("h100" for "h100-sxm"), and its first word may stand for it.
  const auto distance = [&](const std::string& name) {
    if (!wanted.empty() && name.find(wanted) != std::string::npos) return size_t{0};
    return std::min(edit_distance(wanted, name),
                    edit_distance(wanted, std::string_view(name).substr(0, name.find('-'))));
  };
  std::vector<std::string> sorted = names;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (sorted.size() > at_most) sorted.resize(at_most);
  return sorted;
}

}  // namespace weft

#include "planner/collective_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace weft {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

double log2_steps(int64_t n) { return static_cast<double>(std::bit_width(static_cast<uint64_t>(n - 1))); }

// Ranks of one domain of a tier; 0: any number.
int64_t domain_ranks(const Link& link, int local_ranks) {
  return link.kind == LinkKind::kHostMemory ? local_ranks : link.peers * local_ranks;
}

// Part of a device's bandwidth that an algorithm can use in a group of n.
double usable_ports(const Link& link, Algorithm algorithm, int64_t n) {
  if (link.kind == LinkKind::kHostMemory) return 1.0 / static_cast<double>(n);
  if (link.kind != LinkKind::kMesh || link.peers < 2) return 1;
  const auto ports = static_cast<double>(link.peers - 1);
  switch (algorithm) {
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
    case Algorithm::kPairwise: return static_cast<double>(n - 1) / ports;
    case Algorithm::kRing: return std::min(2.0, static_cast<double>(n - 1)) / ports;
    default: return 1 / ports;
  }
}

bool fits(const Link& link, Algorithm algorithm) {
  if (!link.algorithms.empty())
    return std::find(link.algorithms.begin(), link.algorithms.end(), algorithm) != link.algorithms.end();
  if (algorithm == Algorithm::kInNetwork) return false;  // needs a switch that adds: only where the profile says so
  return link.kind != LinkKind::kRing || algorithm == Algorithm::kRing;
}

// A tier on which members of the group meet.
struct Tier {
  const Link* link;
  int64_t extent;
};

class Planner {
 public:
  explicit Planner(double reduce_bytes_per_s) : reduce_(reduce_bytes_per_s) {}

  // Cheapest algorithm on one tier.
  double on(const Tier& tier, Kind kind, double bytes) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kNumCollectiveAlgorithms; ++i) {
      const auto algorithm = static_cast<Algorithm>(i);
      if (!fits(*tier.link, algorithm)) continue;
      const Link& link = *tier.link;
      const double rate = link.bytes_per_s.value * link.efficiency * (link.full_duplex ? 1 : 0.5);
      const LinkTerms terms{link.latency_s.value, rate * usable_ports(link, algorithm, tier.extent), reduce_};
      const std::optional<double> seconds = collective_seconds(kind, algorithm, tier.extent, bytes, terms);
      if (!seconds || *seconds >= best) continue;
      best = *seconds;
      algorithm_ = algorithm;
    }
    return best;
  }

  // Tiers from the innermost. The algorithm that is left in algorithm() is that of the outermost tier.
  double over(std::span<const Tier> tiers, Kind kind, double bytes) {
    if (tiers.empty()) return 0;
    if (tiers.size() == 1) return on(tiers[0], kind, bytes);
    const auto inner = static_cast<double>(tiers[0].extent);
    const std::span<const Tier> outer = tiers.subspan(1);
    switch (kind) {
      case Kind::kAllReduce: {
        const double inside = on(tiers[0], Kind::kReduceScatter, bytes) + on(tiers[0], Kind::kAllGather, bytes);
        return inside + over(outer, kind, bytes / inner);
      }
      case Kind::kReduceScatter:
      case Kind::kAllGather: {
        const double inside = on(tiers[0], kind, bytes);
        return inside + over(outer, kind, bytes / inner);
      }
      case Kind::kBroadcast: {
        const double inside = on(tiers[0], kind, bytes);
        return inside + over(outer, kind, bytes);
      }
      case Kind::kAllToAll: return all_to_all(tiers, bytes);
      case Kind::kSendRecv: return on(tiers.back(), kind, bytes);
    }
    return 0;
  }

  Algorithm algorithm() const { return algorithm_; }

 private:
  // Either every pair by itself, or once per outer domain on the own rail and forwarded inside; inner and outer links work at the
  // same time.
  double all_to_all(std::span<const Tier> tiers, double bytes) {
    const std::span<const Tier> outer = tiers.subspan(1);
    double outer_ranks = 1;
    for (const Tier& tier : outer) outer_ranks *= static_cast<double>(tier.extent);
    const double local_share = on(tiers[0], Kind::kAllToAll, bytes / outer_ranks);
    const double forwarded = on(tiers[0], Kind::kAllToAll, bytes), forward_latency = on(tiers[0], Kind::kAllToAll, 0);
    const double rails = over(outer, Kind::kAllToAll, bytes), rail_latency = over(outer, Kind::kAllToAll, 0);
    const double direct =
        std::max(local_share, rail_latency * static_cast<double>(tiers[0].extent) + (rails - rail_latency));
    const double staged = std::max(rails + forward_latency, forwarded + rail_latency);
    return std::min(direct, staged);
  }

  double reduce_;
  Algorithm algorithm_ = Algorithm::kRing;
};

}  // namespace

GroupShape group_shape(std::span<const int> members, const DeviceProfile& device, int local_ranks) {
  GroupShape shape;
  shape.size = static_cast<int64_t>(members.size());
  std::vector<int64_t> domains(members.begin(), members.end());  // of the tier before: its members, or groups of them
  std::sort(domains.begin(), domains.end());
  int64_t inner = 1;
  for (const Link& link : device.links) {
    const int64_t ranks = domain_ranks(link, local_ranks);
    int64_t most = 0, count = 0;
    std::vector<int64_t> next;
    for (const int64_t domain : domains) {
      const int64_t id = ranks == 0 ? 0 : domain * inner / ranks;
      if (next.empty() || next.back() != id) {
        next.push_back(id);
        count = 0;
      }
      most = std::max(most, ++count);
    }
    shape.extent.push_back(most);
    domains = std::move(next);
    inner = ranks;
  }
  if (domains.size() > 1) shape.extent.push_back(static_cast<int64_t>(domains.size()));  // no link reaches so far
  return shape;
}

std::optional<double> collective_seconds(Kind kind, Algorithm algorithm, int64_t n, double bytes,
                                         const LinkTerms& link) {
  if (n <= 1) return 0;
  const double a = link.latency_s, wire = bytes / link.bytes_per_s;
  const double others = static_cast<double>(n - 1), share = others / static_cast<double>(n), steps = log2_steps(n);
  const double add = link.reduce_bytes_per_s > 0 ? bytes / link.reduce_bytes_per_s : 0;
  const bool power = std::has_single_bit(static_cast<uint64_t>(n));
  switch (kind) {
    case Kind::kAllReduce:
      switch (algorithm) {
        case Algorithm::kRing: return 2 * others * a + 2 * share * wire + share * add;
        case Algorithm::kTree: return 2 * steps * a + 2 * wire + add;
        case Algorithm::kOneShot: return a + others * (wire + add);
        case Algorithm::kTwoShot: return 2 * a + 2 * share * wire + share * add;
        case Algorithm::kRecursive:
          return power ? std::optional(2 * steps * a + 2 * share * wire + share * add) : std::nullopt;
        case Algorithm::kInNetwork: return 2 * a + wire;
        default: return std::nullopt;
      }
    case Kind::kReduceScatter:
    case Kind::kAllGather: {
      const double added = kind == Kind::kReduceScatter ? share * add : 0;
      switch (algorithm) {
        case Algorithm::kRing: return others * a + share * wire + added;
        case Algorithm::kOneShot: return a + share * wire + added;
        case Algorithm::kRecursive: return power ? std::optional(steps * a + share * wire + added) : std::nullopt;
        default: return std::nullopt;
      }
    }
    case Kind::kAllToAll:
      switch (algorithm) {
        case Algorithm::kPairwise: return others * a + share * wire;
        case Algorithm::kOneShot: return a + share * wire;
        case Algorithm::kBruck: return power ? std::optional(steps * (a + wire / 2)) : std::nullopt;
        case Algorithm::kRing: return others * (a + wire / 2);  // blocks pass through all ranks between
        default: return std::nullopt;
      }
    case Kind::kBroadcast:
      switch (algorithm) {
        case Algorithm::kTree: return steps * (a + wire);
        case Algorithm::kRing: return others * a + wire;  // a chain, in small pieces
        default: return std::nullopt;
      }
    case Kind::kSendRecv: return a + wire;
  }
  return std::nullopt;
}

Result<CollectiveCost> collective_cost(const DeviceProfile& device, Kind kind, const GroupShape& group, double bytes,
                                       double reduce_bytes_per_s) {
  CollectiveCost cost;
  if (group.size <= 1) return cost;
  std::vector<Tier> tiers;
  for (size_t i = 0; i < group.extent.size(); ++i) {
    if (group.extent[i] <= 1) continue;
    if (i >= device.links.size()) {
      return invalid_argument(fmt::format("device {}: its links do not join a group of {} ranks{}", device.name,
                                          group.size, device.links.empty() ? "; it has no 'links'" : ""));
    }
    tiers.push_back({&device.links[i], group.extent[i]});
    cost.unverified |= device.links[i].bytes_per_s.marks() | device.links[i].latency_s.marks();
  }
  Planner planner(reduce_bytes_per_s);
  cost.latency_s = planner.over(tiers, kind, 0);
  cost.seconds = planner.over(tiers, kind, bytes);
  cost.algorithm = planner.algorithm();
  cost.level = tiers.back().link->level;
  if (std::isfinite(cost.seconds)) return cost;
  return invalid_argument(fmt::format("device {}: none of the algorithms of link '{}' does {} for {} ranks",
                                      device.name, cost.level, collective_kind_name(kind), group.size));
}

}  // namespace weft

// Time of one collective over a group of ranks, by algorithm and by tiers of links (planner.md 2.5).
//
// `bytes` is what the op moves: of an all_reduce and a reduce_scatter the input of one rank, of an all_gather the output of one
// rank, of an all_to_all what one rank sends to all ranks, itself among them; of a broadcast and a send the message.
#pragma once

#include <span>

#include "planner/device_profile.h"

namespace weft {

// How a group lies over the tiers of the links: extent[i] members (or groups of them) meet on tier i. Their product is the size.
struct GroupShape {
  int64_t size = 1;
  std::vector<int64_t> extent;
  bool operator==(const GroupShape&) const = default;
};

// members: world ranks; `local_ranks` of them share a device, devices are numbered in rank order.
GroupShape group_shape(std::span<const int> members, const DeviceProfile& device, int local_ranks = 1);

// A link as one collective sees it.
struct LinkTerms {
  double latency_s = 0;
  double bytes_per_s = 0;         // one direction, per rank
  double reduce_bytes_per_s = 0;  // local additions; 0: free
};

// Closed form of one algorithm on one tier with `n` ranks; no value: the algorithm cannot do this collective (or this n).
std::optional<double> collective_seconds(CollectiveKind kind, CollectiveAlgorithm algorithm, int64_t n, double bytes,
                                         const LinkTerms& link);

struct CollectiveCost {
  double seconds = 0;                                          // without launch
  double latency_s = 0;                                        // part of it that does not depend on bytes
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;  // on the outermost tier
  std::string level;                                           // the outermost tier that it crosses
  FigureMarks unverified = 0;
};

// The cheapest of the algorithms that the links allow; over several tiers: reduce inside, exchange shards outside on all rails,
// gather inside. An error names the missing figure, or says that the links do not reach so far.
Result<CollectiveCost> collective_cost(const DeviceProfile& device, CollectiveKind kind, const GroupShape& group,
                                       double bytes, double reduce_bytes_per_s = 0);

}  // namespace weft

// From layouts at batch sizes to what is ranked: instances on a number of devices, and which of them beat which.
#pragma once

#include <span>
#include <vector>

#include "planner/search.h"

namespace weft {

// The one instance on all devices.
Deployment deploy_together(const SearchPoint& point, int64_t gen);

// Disaggregated on `devices`: for each pair of instances as many of both as give most requests per second; pairs of which not both
// fit are left out, as are pairs that miss the limit on ttft (a first token waits for the transfer and comes with the prefill).
std::vector<Deployment> deploy_apart(std::span<const SearchPoint> prefill, std::span<const SearchPoint> decode,
                                     int64_t devices, int64_t gen);

// Two figures of which more is better.
struct Merit {
  double first = 0, second = 0;
};
// Indices of those that no other one beats (at least as good in both, better in one); of equal ones the first. Ascending `first`.
std::vector<size_t> pareto_front(std::span<const Merit> merits);

// More is better. latency: negative.
double objective_value(const Deployment& deployment, Objective objective);
// The order of a ranking: by objective, then tokens/s/device, tokens/s/user, fewer devices, name.
bool ranks_before(const Deployment& a, const Deployment& b, Objective objective);

}  // namespace weft

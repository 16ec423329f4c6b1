#include "graph/routing.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

// Expected picks of an expert by one row are at most 1; what a popular one has beyond goes to the others. Gives by how much all
// weights (already scaled to sum up to 1) are stretched so that the picks of a row are top_k.
double stretch(int64_t experts, double alpha, double total, double top_k) {
  double low = top_k, high = top_k * static_cast<double>(experts);
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    double picks = 0;
    for (int64_t e = 0; e < experts; ++e) {
      picks += std::min(1.0, middle * std::pow(static_cast<double>(e + 1), -alpha) / total);
    }
    (picks < top_k ? low : high) = middle;
  }
  return high;
}

}  // namespace

ExpertLoad expert_load(const Routing& routing, int64_t rows, int64_t top_k, int64_t local_experts) {
  const auto n = static_cast<double>(rows), k = static_cast<double>(top_k), local = static_cast<double>(local_experts);
  const int64_t experts = local_experts * routing.expert_ranks;
  if (routing.kind == Routing::Kind::kWorst || rows == 0) {
    return {std::min(local, n * std::min(k, local)), n * std::min(k, local)};
  }
  if (routing.kind == Routing::Kind::kUniform || routing.alpha == 0) {
    const double share = k / static_cast<double>(experts);  // probability that a row picks one given expert
    return {local * (1 - std::pow(1 - share, n)), n * share * local};
  }
  double total = 0;
  for (int64_t e = 0; e < experts; ++e) total += std::pow(static_cast<double>(e + 1), -routing.alpha);
  const double factor = stretch(experts, routing.alpha, total, k);
  ExpertLoad load;  // of the rank that has the most popular expert: places 0, n, 2n, ...
  for (int64_t e = 0; e < experts; e += routing.expert_ranks) {
    const double share = std::min(1.0, factor * std::pow(static_cast<double>(e + 1), -routing.alpha) / total);
    load.experts_hit += 1 - std::pow(1 - share, n);
    load.picks += n * share;
  }
  return load;
}

}  // namespace weft

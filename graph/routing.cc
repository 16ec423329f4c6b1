#include "graph/routing.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"

namespace weft {
namespace {

// Expected picks of an expert by one row are at most 1; what a popular one has beyond goes to the others. Gives by how
// much all weights (already scaled to sum up to 1) are stretched so that the picks of a row are top_k.
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

// By rank, then by expert of the rank: the i-th most popular lies on rank i mod ranks.
std::vector<double> zipf_shares(double alpha, int64_t experts, int64_t ranks, double top_k) {
  double total = 0;
  for (int64_t e = 0; e < experts; ++e) total += std::pow(static_cast<double>(e + 1), -alpha);
  const double factor = stretch(experts, alpha, total, top_k);
  std::vector<double> shares(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t place = e % ranks * (experts / ranks) + e / ranks;
    shares[static_cast<size_t>(place)] = std::min(1.0, factor * std::pow(static_cast<double>(e + 1), -alpha) / total);
  }
  return shares;
}

// How often something happens on a rank: the sum of many independent events, of which mean and variance are known.
struct Count {
  double mean = 0, variance = 0;
};

double normal_cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

// Probabilities of 0, 1, ... n: those of the binomial distribution with this mean and variance (Poisson where they are
// equal).
std::vector<double> cumulative(const Count& count, int64_t n) {
  constexpr double kNearlyPoisson = 1e-9;
  const bool poisson = count.mean - count.variance < kNearlyPoisson * count.mean;
  const double fail = poisson ? 1 : count.variance / count.mean, trials = poisson ? 0 : count.mean / (1 - fail);
  double one = poisson ? std::exp(-count.mean) : std::pow(fail, trials), sum = 0;
  std::vector<double> all;
  for (int64_t x = 0; x <= n; ++x) {
    all.push_back(std::min(1.0, sum += one));
    const auto next = static_cast<double>(x + 1);
    one *= poisson ? count.mean / next : std::max(0.0, trials - next + 1) / next * (1 - fail) / fail;
  }
  return all;
}

// The expected largest of counts that are independent of each other, of `times` ranks each.
double expected_most(std::span<const Count> counts, int64_t times) {
  if (counts.size() == 1 && times == 1) return counts[0].mean;
  double low = 0, high = 0, largest_mean = 0, likeliest = 0;
  constexpr double kDeviations = 6;
  for (const Count& c : counts) {
    const double reach = kDeviations * std::sqrt(c.variance);
    low = std::max(low, c.mean - reach);
    high = std::max(high, c.mean + reach);
    largest_mean = std::max(largest_mean, c.mean);
    if (c.mean > 0) likeliest = std::max(likeliest, 1 - c.variance / c.mean);
  }
  const auto power = static_cast<double>(times);
  constexpr double kFew = 24, kRare = 0.5;  // small counts of rare events are far from normal
  if (largest_mean <= kFew && likeliest <= kRare) {
    const auto most = static_cast<int64_t>(std::ceil(high)) + static_cast<int64_t>(kDeviations);
    std::vector<double> none_above(static_cast<size_t>(most) + 1, 1.0);
    for (const Count& c : counts) {
      if (c.mean == 0) continue;
      const std::vector<double> below = cumulative(c, most);
      for (size_t x = 0; x < below.size(); ++x) none_above[x] *= std::pow(below[x], power);
    }
    double sum = 0;
    for (const double p : none_above) sum += 1 - p;
    return sum;
  }
  constexpr int kSteps = 96;
  const double step = (high - low) / kSteps;
  double below = 0;  // integral of the probability that no count is larger
  for (int i = 0; i < kSteps; ++i) {
    const double x = low + (i + 0.5) * step;
    double none_above = 1;
    for (const Count& c : counts) {
      const double deviation = std::sqrt(c.variance);
      none_above *= deviation > 0 ? std::pow(normal_cdf((x - c.mean) / deviation), power) : x >= c.mean ? 1.0 : 0.0;
    }
    below += none_above * step;
  }
  return high - below;
}

// shares: of the experts of one rank after the other; `times`: ranks that are like each.
ExpertLoad busiest(std::span<const double> shares, int64_t local_experts, int64_t times, double rows) {
  std::vector<Count> hits, picks;
  for (size_t begin = 0; begin < shares.size(); begin += static_cast<size_t>(local_experts)) {
    Count& hit = hits.emplace_back();
    Count& pick = picks.emplace_back();
    for (const double share : shares.subspan(begin, static_cast<size_t>(local_experts))) {
      const double none = std::pow(1 - share, rows);
      hit.mean += 1 - none;
      hit.variance += none * (1 - none);
      pick.mean += rows * share;
      pick.variance += rows * share * (1 - share);
    }
  }
  return {expected_most(hits, times), expected_most(picks, times)};
}

}  // namespace

ExpertLoad expert_load(const Routing& routing, int64_t rows, int64_t top_k, int64_t local_experts) {
  const auto n = static_cast<double>(rows), k = static_cast<double>(top_k), local = static_cast<double>(local_experts);
  const int64_t ranks = routing.expert_ranks, experts = local_experts * ranks;
  const ExpertLoad most = {std::min(local, n * std::min(k, local)), n * std::min(k, local)};
  if (routing.kind == Routing::Kind::kWorst || rows == 0) return most;
  ExpertLoad load;
  if (routing.kind == Routing::Kind::kMeasured) {
    WEFT_CHECK(routing.shares != nullptr && static_cast<int64_t>(routing.shares->size()) == experts,
               "shares of {} experts", experts);
    load = busiest(*routing.shares, local_experts, 1, n);
  } else if (routing.kind == Routing::Kind::kUniform || routing.alpha == 0) {
    const double share = k / static_cast<double>(experts), none = std::pow(1 - share, n);  // of one expert
    const Count hits = {local * (1 - none), local * none * (1 - none)},
                picks = {n * share * local, n * share * (1 - share) * local};
    load = {expected_most({&hits, 1}, ranks), expected_most({&picks, 1}, ranks)};
  } else {
    load = busiest(zipf_shares(routing.alpha, experts, ranks, k), local_experts, 1, n);
  }
  return {std::min(load.experts_hit, most.experts_hit), std::min(load.picks, most.picks)};
}

}  // namespace weft

// How the rows of a step pick experts: the distribution that costs are computed with (planner.md 2.2).
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

struct Routing {
  enum class Kind {
    kWorst,     // as many distinct experts, and as many picks on one rank, as there can be
    kUniform,   // all experts equally likely
    kZipf,      // the i-th most popular with a weight of i^-alpha; a rank's experts are those of every n-th place
    kMeasured,  // `shares`; a rank's experts are neighbours, as weft places them
  };
  Kind kind = Kind::kWorst;
  double alpha = 0;          // kZipf
  int64_t expert_ranks = 1;  // ranks that share the experts (ep)
  // kMeasured: by expert, the probability that a row picks it; of all experts of the layer. Borrowed.
  const std::vector<double>* shares = nullptr;
  bool operator==(const Routing&) const = default;
};

// What the experts of the busiest rank have to do, on average over steps: ranks meet after every layer, so a step waits
// for the one that the rows of this step happen to pick most. Experts are taken as independent of each other. That a
// row picks a fixed number of them makes the counts of a rank a little narrower, and those of two ranks opposed: both
// small, and against each other.
struct ExpertLoad {
  double experts_hit = 0;  // distinct local experts that get a row
  double picks = 0;        // (row, expert) pairs
};

// `rows` rows of all ranks together that pick `top_k` of `local_experts` * routing.expert_ranks experts each.
ExpertLoad expert_load(const Routing& routing, int64_t rows, int64_t top_k, int64_t local_experts);

}  // namespace weft

// How the rows of a step pick experts: the distribution that costs are computed with (planner.md 2.2).
#pragma once

#include <cstdint>

namespace weft {

struct Routing {
  enum class Kind {
    kWorst,    // as many distinct experts, and as many picks on one rank, as there can be
    kUniform,  // all experts equally likely
    kZipf,     // the i-th most popular with a weight of i^-alpha; a rank's experts are those of every n-th place
  };
  Kind kind = Kind::kWorst;
  double alpha = 0;         // kZipf
  int64_t expert_ranks = 1; // ranks that share the experts (ep)
  bool operator==(const Routing&) const = default;
};

// What the experts of one rank have to do, on average over steps; of the busiest rank where ranks differ.
struct ExpertLoad {
  double experts_hit = 0;  // distinct local experts that get a row
  double picks = 0;        // (row, expert) pairs
};

// `rows` rows of all ranks together that pick `top_k` of `local_experts` * routing.expert_ranks experts each.
ExpertLoad expert_load(const Routing& routing, int64_t rows, int64_t top_k, int64_t local_experts);

}  // namespace weft

// The batches of the layout matrix: steps of requests whose lengths are those of known hard cases (uneven requests,
// fewer rows than ranks, prefixes, decode beside prompts, drafts that are taken back), scaled to the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/rank_engine.h"

namespace weft {

struct BatchStep {
  struct Part {
    int request = 0;
    int64_t tokens = 0;
    int64_t keep = -1;  // of these tokens, the others are taken back after the step; -1: all
  };
  std::vector<Part> parts;
  Logits logits = Logits::kAll;
  bool fills = false;  // rows and logit rows are powers of two: the capacity of the graph
};

struct LayoutBatch {
  std::string name;
  std::vector<BatchStep> steps;

  int num_requests() const;
  int64_t longest() const;     // tokens of a request, those that are taken back included
  int64_t total() const;       // of all requests
  int64_t largest_step() const;
};

// `tokens`: of the longest prompt. `drafts`: tokens that can be taken back.
std::vector<LayoutBatch> layout_batches(int64_t tokens, int64_t drafts, uint64_t seed);

}  // namespace weft

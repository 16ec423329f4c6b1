// Sizes that an engine derives from what it is opened for: one place for the executor, which allocates by them, and the planner,
// which predicts.
#pragma once

#include "graph/cache_spec.h"
#include "models/layout_graph.h"

namespace weft {

struct EngineSizes {
  int64_t max_sequences = 1;    // over all data-parallel groups
  int64_t max_context = 0;      // tokens of the longest sequence
  int64_t total_context = 0;    // tokens of all sequences together
  int64_t max_step_tokens = 512;
  int64_t max_drafts = 0;       // draft tokens per sequence and step
};

// Caches of one rank.
CacheCapacity cache_capacity(const Layout& layout, const EngineSizes& sizes);

// Rows that the graph of a step has room for, of the data-parallel group that has most: powers of two, so that few graphs serve all steps, but no more than the largest step.
int64_t row_capacity(int64_t rows, int64_t largest);

// A step is cut into as many parts as keep all pipeline stages busy.
int64_t micro_batches(const Layout& layout, GraphKind kind, StepPhase phase, int64_t rows);

// What a rank of stage `stage` sends so that every rank has the logits of a step, of which `own_rows` are its data-parallel group's:
// the last stage to the others, then the groups to each other.
SentBytes logit_bytes(const Layout& layout, int64_t stage, int64_t own_rows, int64_t vocab_size);

}  // namespace weft

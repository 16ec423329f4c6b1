// Scores of the lightning indexer, row by row: what the ops that pick entries by them share.
#pragma once

#include <span>

#include "base/function_ref.h"
#include "graph/ops/attention.h"

namespace weft {

// Inputs as IndexTopK has them: index queries [T, nh, dh], head weights [T, nh], keys (a kAppend cache).
Status expect_index_inputs(std::string_view op, TypeSpan in);

// Flops, traffic and scratch where each of `ranks` ranks scores the entries that it holds of those that each row sees.
Work index_scores_work(const IndexTopK& op, int64_t ranks, TypeSpan in, TypeSpan out, const WorkEnv& env);

// count(t, position) says how many entries, from the first one that this rank holds, row t wants the scores of (0: none);
// use(t, scores, scratch) gets them and as many words of scratch. Both are called once a row, use not for 0, from several
// threads at a time.
using CountEntries = FunctionRef<int64_t(int64_t t, int64_t position)>;
using UseScores = FunctionRef<void(int64_t t, std::span<const float> scores, std::span<int32_t> scratch)>;
void score_entries(RunContext& ctx, double weight_scale, int64_t max_entries, CountEntries count, UseScores use);

}  // namespace weft

// What the graphs say about the work of a benchmark.
#include <algorithm>

#include "cli/bench_model.h"
#include "graph/graph.h"

namespace weft {
namespace {

Result<Graph> graph_of(const Engine& engine, int64_t rows, int64_t logits, int64_t context) {
  CacheCapacity capacity = engine.caches().capacity();
  // The index branch reads the keys of the whole context: count the one that the test has.
  capacity.max_context = std::min(context, capacity.max_context);
  return engine.model().build({engine.options().mode, {rows, logits}, capacity});
}

Status add_step(const Engine& engine, int64_t rows, int64_t logits, int64_t context, double times, WorkTotals& totals) {
  WEFT_ASSIGN_OR_RETURN(const Graph graph, graph_of(engine, rows, logits, context));
  const WorkEnv env{engine.options().num_threads};
  for (const Node& node : graph.nodes()) {
    const std::vector<ValueType> in = types_of(graph, node.in), out = types_of(graph, node.out);
    const Work work = std::visit([&](const auto& op) { return op.work(in, out, env); }, node.op);
    totals.flops += times * work.flops;
    totals.bytes += times * static_cast<double>(work.bytes_read + work.bytes_written);
  }
  return {};
}

}  // namespace

Result<WorkTotals> count_work(const Engine& engine, const BenchTest& test) {
  WorkTotals totals;
  const int64_t context = test.depth + test.tokens;
  if (test.kind == BenchKind::kDecode) {
    WEFT_RETURN_IF_ERROR(add_step(engine, test.batch, test.batch, context, static_cast<double>(test.tokens), totals));
    return totals;
  }
  const int64_t all = test.tokens * test.batch, step = engine.options().max_step_tokens;
  if (const int64_t full = all / step; full > 0) {
    WEFT_RETURN_IF_ERROR(add_step(engine, step, 1, context, static_cast<double>(full), totals));
  }
  if (const int64_t rest = all % step; rest > 0) WEFT_RETURN_IF_ERROR(add_step(engine, rest, 1, context, 1, totals));
  return totals;
}

Result<int64_t> count_parameters(const Engine& engine) {
  WEFT_ASSIGN_OR_RETURN(const Graph graph, graph_of(engine, 1, 1, engine.options().max_context));
  int64_t parameters = 0;
  for (const Value& value : graph.values()) {
    const DType dtype = value.type.dtype();
    if (!is_weight(value.role) || dtype == DType::kF8E8M0 || dtype == DType::kI64) continue;
    parameters += value.type.shape().num_elements();
  }
  return parameters;
}

}  // namespace weft

#include "planner/traffic.h"

#include <algorithm>

#include "comm/bytes.h"
#include "models/engine_sizes.h"
#include "planner/cost_model.h"

namespace weft {
namespace {

void add(std::vector<TrafficLine>& lines, TrafficLine line) {
  const auto at = std::find_if(lines.begin(), lines.end(),
                               [&](const TrafficLine& l) { return l.op == line.op && l.axis == line.axis; });
  if (at == lines.end()) {
    lines.push_back(std::move(line));
    return;
  }
  at->calls += line.calls;
  at->bytes_sent += line.bytes_sent;
}

// What a node sends depends on what rows picked.
template <class T>
bool follows_picks(const Node& node) {
  return std::is_same_v<T, ExpertDispatch> || std::is_same_v<T, ExpertCombine> ||
         (std::is_same_v<T, FetchEntries> && node.in.size() > 1);
}

// The view that an executor would give the op, without data.
TensorView view_of(const ValueType& type, const StepOnRank& rank) {
  TensorView view;
  view.type = type.tensor;
  if (type.rows != Rows::kTokens && type.rows != Rows::kLogits) return view;
  const RowSet set = row_set(type.placement);
  view.type.shape[0] = set != RowSet::kAll          ? rank.row_sets.of(type.rows, set).size()
                       : type.rows == Rows::kTokens ? rank.batch.num_tokens()
                                                    : static_cast<int64_t>(rank.batch.logit_rows.size());
  return view;
}

template <class T>
int64_t sent_by(const T& op, const Graph& graph, const Node& node, const StepOnRank& rank, ThreadPool& pool) {
  std::vector<TensorView> in, out;
  for (ValueId id : node.in) in.push_back(view_of(graph.value(id).type, rank));
  for (ValueId id : node.out) out.push_back(view_of(graph.value(id).type, rank));
  RunContext ctx{in, out, {}, rank.batch, pool, Isa::kScalar};
  ctx.ranks = &rank.ranks;
  ctx.row_sets = &rank.row_sets;
  ctx.rows = graph.value(node.in[0]).type.rows;
  ctx.row_set = row_set(graph.value(node.in[0]).type.placement);
  if (node.in.size() > 1) ctx.key_row_set = row_set(graph.value(node.in[1]).type.placement);
  if (!node.out.empty()) ctx.out_row_set = row_set(graph.value(node.out[0]).type.placement);
  for (ValueId id : node.in) {
    if (graph.value(id).role == ValueRole::kState)
      ctx.cache_shard = cache_shard(graph.value(id).type.placement, rank.ranks);
    if (!ctx.cache_shard.whole()) break;
  }
  return op.bytes_sent(ctx);
}

}  // namespace

std::vector<TrafficLine> traffic_of(const StepGraph& step, const WorkEnv& env, const EngineProfile* engine,
                                    const StepOnRank* rank) {
  std::vector<TrafficLine> lines;
  ThreadPool pool(1);
  const auto& nodes = step.graph.nodes();
  std::vector<int64_t> sent(nodes.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::visit(
        [&](const auto& op) {
          if constexpr (requires {
                          op.axis;
                          op.size;
                        }) {
            using T = std::decay_t<decltype(op)>;
            const bool picks = follows_picks<T>(nodes[n]);
            int64_t& bytes = sent[n];
            if (const auto first = static_cast<size_t>(step.alike[n]); first != n) {
              bytes = sent[first];
            } else {
              const std::vector<ValueType> in = types_of(step.graph, nodes[n].in),
                                           out = types_of(step.graph, nodes[n].out);
              bytes = rank == nullptr ? op.work(in, out, env).bytes_sent
                      : picks         ? op.work(in, out, with_rows(env, in, rank->batch, &rank->row_sets)).bytes_sent
                                      : sent_by(op, step.graph, nodes[n], *rank, pool);
              if (engine != nullptr) bytes = sent_bytes_of(*engine, op, in, out, bytes);
            }
            if (bytes == 0) return;  // slices move nothing
            add(lines,
                {std::string(op.kName), op.axis, op.size, step.node_repeat[n], bytes * step.node_repeat[n], picks});
          }
        },
        nodes[n].op);
  }
  return lines;
}

std::vector<TrafficLine> send_traffic(std::span<const int64_t> sent_bytes, const Layout& layout) {
  std::vector<TrafficLine> lines;
  for (const int64_t bytes : sent_bytes) add(lines, {"send", MeshAxis::kPp, layout.mesh.pp, 1, bytes});
  return lines;
}

std::vector<TrafficLine> logit_traffic(int stage, const Layout& layout, int64_t logit_rows, int64_t vocab_size) {
  std::vector<TrafficLine> lines;
  const MeshSizes& mesh = layout.mesh;
  const SentBytes logits = logit_bytes(layout, stage, logit_rows, vocab_size);
  if (mesh.pp > 1) add(lines, {"broadcast", MeshAxis::kPp, mesh.pp, 1, logits[static_cast<size_t>(MeshAxis::kPp)]});
  if (mesh.dp > 1) add(lines, {"all_gather", MeshAxis::kDp, mesh.dp, 1, logits[static_cast<size_t>(MeshAxis::kDp)]});
  return lines;
}

int64_t total_sent(const std::vector<TrafficLine>& lines) {
  int64_t bytes = 0;
  for (const TrafficLine& line : lines) bytes += line.bytes_sent;
  return bytes;
}

}  // namespace weft

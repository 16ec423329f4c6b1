#include "planner/traffic.h"

#include <algorithm>

#include "comm/bytes.h"
#include "models/engine_sizes.h"

namespace weft {
namespace {

void add(std::vector<TrafficLine>& lines, TrafficLine line) {
  const auto at = std::find_if(lines.begin(), lines.end(), [&](const TrafficLine& l) { return l.op == line.op && l.axis == line.axis; });
  if (at == lines.end()) {
    lines.push_back(std::move(line));
    return;
  }
  at->calls += line.calls;
  at->bytes_sent += line.bytes_sent;
}

// What the op's bytes are where sums travel in another dtype than fp32 and gathers in another than the value's.
template <class T>
int64_t in_dtypes_of(const EngineProfile& engine, const T& op, TypeSpan in, TypeSpan out, int64_t bytes) {
  const auto scaled = [](int64_t n, std::optional<DType> to, int64_t from_bits) { return to ? n * dtype_bits(*to) / from_bits : n; };
  constexpr int64_t kBitsOfAByte = 8;
  if constexpr (std::is_same_v<T, AllReduce> || std::is_same_v<T, ReduceScatter>) {
    const Shape& shape = in[0].shape();
    const int64_t sums = reduce_scatter_bytes(op.size, shape[0], shape[0] == 0 ? 0 : shape.num_elements() / shape[0]);
    return scaled(sums, engine.reduce_dtype, kPartialBytes * kBitsOfAByte) + scaled(bytes - sums, engine.gather_dtype, dtype_bits(out[0].dtype()));
  } else if constexpr (std::is_same_v<T, AllGather>) {
    if (in[0].rows == Rows::kStatic) return bytes;  // weights travel as they are stored
    return scaled(bytes, engine.gather_dtype, dtype_bits(in[0].dtype()));
  }
  return bytes;
}

}  // namespace

std::vector<TrafficLine> traffic_of(const StepGraph& step, const WorkEnv& env, const EngineProfile* engine) {
  std::vector<TrafficLine> lines;
  const auto& nodes = step.graph.nodes();
  for (size_t n = 0; n < nodes.size(); ++n) {
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.axis; op.size; }) {
            const std::vector<ValueType> in = types_of(step.graph, nodes[n].in), out = types_of(step.graph, nodes[n].out);
            int64_t bytes = op.work(in, out, env).bytes_sent;
            if (bytes == 0) return;  // slices move nothing
            if (engine != nullptr) bytes = in_dtypes_of(*engine, op, in, out, bytes);
            using T = std::decay_t<decltype(op)>;
            add(lines, {std::string(op.kName), op.axis, op.size, step.node_repeat[n], bytes * step.node_repeat[n],
                        std::is_same_v<T, ExpertDispatch> || std::is_same_v<T, ExpertCombine>});
          }
        },
        nodes[n].op);
  }
  return lines;
}

std::vector<TrafficLine> engine_traffic(const StepGraph& step, const Layout& layout, int64_t logit_rows, int64_t vocab_size) {
  std::vector<TrafficLine> lines;
  const MeshSizes& mesh = layout.mesh;
  const SentBytes logits = logit_bytes(layout, step.key.stage, logit_rows, vocab_size);
  if (mesh.pp > 1) {
    for (const std::string& name : step.sent) {
      add(lines, {"send", MeshAxis::kPp, mesh.pp, 1, step.graph.value(step.graph.find(name)).type.tensor.bytes()});
    }
    add(lines, {"broadcast", MeshAxis::kPp, mesh.pp, 1, logits[static_cast<size_t>(MeshAxis::kPp)]});
  }
  if (mesh.dp > 1) add(lines, {"all_gather", MeshAxis::kDp, mesh.dp, 1, logits[static_cast<size_t>(MeshAxis::kDp)]});
  return lines;
}

int64_t total_sent(const std::vector<TrafficLine>& lines) {
  int64_t bytes = 0;
  for (const TrafficLine& line : lines) bytes += line.bytes_sent;
  return bytes;
}

}  // namespace weft

#include "planner/timeline.h"

#include <algorithm>
#include <array>

namespace weft {

Timeline schedule(const StepGraph& step, const std::vector<OpCost>& costs, const TimelineOptions& options) {
  constexpr size_t kStreams = 3;
  Timeline timeline;
  std::vector<double> ready(step.graph.values().size(), 0);
  std::array<double, kStreams> free{};
  double end = 0, computed = 0, repeated = 0, repeated_computed = 0;
  // Of the layer that stands for others: when it began, and how much was computed until then.
  std::string_view region;
  int64_t repeat = 1;
  double region_start = 0, region_computed = 0;
  size_t region_events = 0;
  const auto close = [&](double at) {
    for (; region_events < timeline.events.size(); ++region_events)
      timeline.events[region_events].period_s = at - region_start;
    repeated += static_cast<double>(repeat - 1) * (at - region_start);
    repeated_computed += static_cast<double>(repeat - 1) * (computed - region_computed);
  };
  const auto& nodes = step.graph.nodes();
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    const Stream stream = node.stream;
    const auto lane = options.streams ? static_cast<size_t>(stream) : size_t{0};
    double start = free[lane];
    for (ValueId id : node.in) start = std::max(start, ready[static_cast<size_t>(id)]);
    if (stream == Stream::kPrefetch && options.streams)
      start = std::max(start, free[static_cast<size_t>(Stream::kCompute)]);
    if (!node.region.empty() && node.region != region) {
      close(start);
      region = node.region;
      repeat = step.node_repeat[n];
      region_start = start;
      region_computed = computed;
    }
    const double seconds = costs[n].seconds;
    free[lane] = start + seconds;
    for (ValueId id : node.out) ready[static_cast<size_t>(id)] = start + seconds;
    end = std::max(end, start + seconds);
    if (stream == Stream::kCompute) computed += seconds;
    if (options.events && seconds > 0) {
      timeline.events.push_back({node.out.empty() ? node.region : step.graph.value(node.out[0]).name, op_name(node.op),
                                 stream, step.node_repeat[n], 0, start + repeated, seconds, costs[n]});
    }
  }
  close(end);
  timeline.makespan_s = end + repeated;
  timeline.exposed_s = std::max(timeline.makespan_s - computed - repeated_computed, 0.0);
  std::stable_sort(timeline.events.begin(), timeline.events.end(),
                   [](const TimelineEvent& a, const TimelineEvent& b) { return a.start_s < b.start_s; });
  return timeline;
}

}  // namespace weft

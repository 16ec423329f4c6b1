#include "runtime/op_times.h"

#include <algorithm>

namespace weft {

void OpTimer::add(const Graph& graph, const Node& node, Clock::duration time, int64_t calls) {
  std::string_view name = node.out.empty() ? std::string_view() : std::string_view(graph.value(node.out[0]).name);
  if (!node.region.empty() && name.starts_with(node.region))
    name.remove_prefix(std::min(node.region.size() + 1, name.size()));
  add(op_name(node.op), name, time, calls);
}

void OpTimer::add(std::string_view op, std::string_view name, Clock::duration time, int64_t calls) {
  Entry& entry = entries_[{op, std::string(name)}];
  entry.calls += calls;
  entry.time += time;
}

std::vector<OpTime> OpTimer::times() const {
  std::vector<OpTime> times;
  for (const auto& [key, entry] : entries_) {
    times.push_back(
        {std::string(key.first), key.second, entry.calls, std::chrono::duration<double>(entry.time).count()});
  }
  std::stable_sort(times.begin(), times.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return times;
}

void put(MessageWriter& message, const std::vector<OpTime>& times) {
  message.put(static_cast<int64_t>(times.size()));
  for (const OpTime& time : times) message.put_text(time.op).put_text(time.name).put(time.calls).put(time.seconds);
}

std::vector<OpTime> get_op_times(MessageReader& message) {
  std::vector<OpTime> times(static_cast<size_t>(message.get<int64_t>()));
  for (OpTime& time : times) {
    time.op = message.get_text();
    time.name = message.get_text();
    time.calls = message.get<int64_t>();
    time.seconds = message.get<double>();
  }
  return times;
}

}  // namespace weft

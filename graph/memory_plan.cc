#include "graph/memory_plan.h"

#include <algorithm>
#include <map>

#include "base/int_math.h"

namespace weft {
namespace {

int64_t aligned(int64_t bytes) { return align_up(bytes, kArenaAlignment); }

// Free gaps by offset; grows at the end when nothing fits.
class Arena {
 public:
  int64_t allocate(int64_t bytes) {
    bytes = aligned(bytes);
    if (bytes == 0) return 0;
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [offset, size] = *gap;
      if (size < bytes) continue;
      gaps_.erase(gap);
      if (size > bytes) gaps_[offset + bytes] = size - bytes;
      return offset;
    }
    int64_t offset = end_;
    if (!gaps_.empty()) {  // a gap at the very end is used and extended
      const auto last = std::prev(gaps_.end());
      if (last->first + last->second == end_) {
        offset = last->first;
        gaps_.erase(last);
      }
    }
    end_ = offset + bytes;
    return offset;
  }

  void release(int64_t offset, int64_t bytes) {
    bytes = aligned(bytes);
    if (bytes == 0) return;
    auto [gap, inserted] = gaps_.emplace(offset, bytes);
    WEFT_CHECK(inserted, "offset {} released twice", offset);
    const auto next = std::next(gap);
    if (next != gaps_.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      gaps_.erase(next);
    }
    if (gap != gaps_.begin()) {
      const auto previous = std::prev(gap);
      if (previous->first + previous->second == gap->first) {
        previous->second += gap->second;
        gaps_.erase(gap);
      }
    }
  }

  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> gaps_;
  int64_t end_ = 0;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const WorkEnv& env) {
  const auto& nodes = graph.nodes();
  const int end = static_cast<int>(nodes.size());
  std::vector<int> last_use(graph.values().size(), -1);
  for (int n = 0; n < end; ++n) {
    for (ValueId id : nodes[n].in) last_use[id] = n;
    for (ValueId id : nodes[n].out) last_use[id] = std::max(last_use[id], n);
  }
  for (ValueId id : graph.results()) last_use[id] = end;

  MemoryPlan plan;
  plan.value_offset.assign(graph.values().size(), MemoryPlan::kNotInArena);
  plan.scratch_offset.assign(nodes.size(), 0);
  plan.scratch_bytes.assign(nodes.size(), 0);
  Arena arena;
  ArenaUse live;
  std::vector<bool> received(graph.values().size());
  const auto count = [&](ValueId id, int64_t sign) {
    (received[id] ? live.communication : live.activations) += sign * graph.value(id).type.tensor.bytes();
  };
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    const int64_t bytes = value.type.tensor.bytes();
    if (value.role == ValueRole::kWeight) plan.weight_bytes += bytes;
    if (value.role == ValueRole::kDerived) plan.derived_bytes += bytes;
    if (value.role == ValueRole::kState) plan.state_bytes += bytes;
    if (value.role != ValueRole::kInput) continue;
    plan.value_offset[id] = arena.allocate(bytes);
    count(static_cast<ValueId>(id), 1);
  }
  std::vector<std::vector<ValueId>> ends_after(nodes.size() + 1);
  for (size_t id = 0; id < last_use.size(); ++id) {
    if (last_use[id] >= 0) ends_after[last_use[id]].push_back(static_cast<ValueId>(id));
  }
  for (int n = 0; n < end; ++n) {
    const bool communicates = nodes[n].stream != Stream::kCompute;
    for (ValueId id : nodes[n].out) {
      plan.value_offset[id] = arena.allocate(graph.value(id).type.tensor.bytes());
      received[id] = communicates;
      count(id, 1);
    }
    const std::vector<ValueType> in = types_of(graph, nodes[n].in), out = types_of(graph, nodes[n].out);
    const Work work = std::visit([&](const auto& op) { return op.work(in, out, env); }, nodes[n].op);
    plan.scratch_bytes[n] = work.scratch_bytes;
    plan.scratch_offset[n] = arena.allocate(work.scratch_bytes);
    arena.release(plan.scratch_offset[n], work.scratch_bytes);
    ArenaUse now = live;
    (communicates ? now.communication : now.scratch) += work.scratch_bytes;
    if (now.total() > plan.fullest.total()) {
      plan.fullest = now;
      plan.fullest_node = n;
    }
    for (ValueId id : ends_after[n]) {
      if (plan.value_offset[id] != MemoryPlan::kNotInArena) {
        arena.release(plan.value_offset[id], graph.value(id).type.tensor.bytes());
        count(id, -1);
      }
    }
  }
  plan.arena_bytes = arena.end();
  return plan;
}

}  // namespace weft

#include "graph/memory_plan.h"

#include <algorithm>
#include <iterator>

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
      if (gap->bytes < bytes) continue;
      const int64_t offset = gap->offset;
      if (gap->bytes == bytes) {
        gaps_.erase(gap);
      } else {
        *gap = {offset + bytes, gap->bytes - bytes};
      }
      return offset;
    }
    int64_t offset = end_;
    if (!gaps_.empty() && gaps_.back().end() == end_) {  // a gap at the very end is used and extended
      offset = gaps_.back().offset;
      gaps_.pop_back();
    }
    end_ = offset + bytes;
    return offset;
  }

  void release(int64_t offset, int64_t bytes) {
    bytes = aligned(bytes);
    if (bytes == 0) return;
    const auto next = std::lower_bound(gaps_.begin(), gaps_.end(), offset, [](const Gap& gap, int64_t at) { return gap.offset < at; });
    WEFT_CHECK(next == gaps_.end() || next->offset != offset, "offset {} released twice", offset);
    const bool joins_next = next != gaps_.end() && offset + bytes == next->offset;
    const bool joins_last = next != gaps_.begin() && std::prev(next)->end() == offset;
    if (joins_last && joins_next) {
      std::prev(next)->bytes += bytes + next->bytes;
      gaps_.erase(next);
    } else if (joins_last) {
      std::prev(next)->bytes += bytes;
    } else if (joins_next) {
      *next = {offset, bytes + next->bytes};
    } else {
      gaps_.insert(next, {offset, bytes});
    }
  }

  int64_t end() const { return end_; }

 private:
  struct Gap {
    int64_t offset = 0, bytes = 0;
    int64_t end() const { return offset + bytes; }
  };
  std::vector<Gap> gaps_;  // few, ascending, none next to another
  int64_t end_ = 0;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const WorkEnv& env, std::span<const int32_t> alike) {
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
  // Values by their last use: the first one, and after each of them the next one.
  constexpr ValueId kNone = -1;
  std::vector<ValueId> first_ending(nodes.size() + 1, kNone), next_ending(last_use.size(), kNone);
  for (size_t id = last_use.size(); id-- > 0;) {
    if (last_use[id] < 0) continue;
    next_ending[id] = first_ending[last_use[id]];
    first_ending[last_use[id]] = static_cast<ValueId>(id);
  }
  for (int n = 0; n < end; ++n) {
    const bool communicates = nodes[n].stream != Stream::kCompute;
    for (ValueId id : nodes[n].out) {
      plan.value_offset[id] = arena.allocate(graph.value(id).type.tensor.bytes());
      received[id] = communicates;
      count(id, 1);
    }
    if (!alike.empty() && alike[n] != n) {
      plan.scratch_bytes[n] = plan.scratch_bytes[alike[n]];
    } else {
      const std::vector<ValueType> in = types_of(graph, nodes[n].in), out = types_of(graph, nodes[n].out);
      plan.scratch_bytes[n] = std::visit([&](const auto& op) { return op.work(in, out, env); }, nodes[n].op).scratch_bytes;
    }
    const int64_t scratch = plan.scratch_bytes[n];
    plan.scratch_offset[n] = arena.allocate(scratch);
    arena.release(plan.scratch_offset[n], scratch);
    ArenaUse now = live;
    (communicates ? now.communication : now.scratch) += scratch;
    if (now.total() > plan.fullest.total()) {
      plan.fullest = now;
      plan.fullest_node = n;
    }
    for (ValueId id = first_ending[n]; id != kNone; id = next_ending[id]) {
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

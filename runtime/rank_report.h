// What ranks tell rank 0 about themselves: memory, bytes sent, and hashes of what they computed and keep. Each is
// gathered by a collective call of all ranks (Engine).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/message.h"
#include "runtime/rank_engine.h"

namespace weft {

struct RankReport {
  int32_t num_threads = 0;
  MemoryUse memory;
  std::array<CommCounters, kNumMeshAxes> sent;  // since the engine began, by the axis of the group
  SentBytes planned;                            // RankEngine::planned_bytes

  CommCounters all_sent() const;
};

// Rows of one value of a step as they were on one rank.
struct TracedValue {
  std::string name;
  int64_t row_bytes = 0;
  std::vector<int32_t> rows;     // which rows of the step (or of its logit rows)
  std::vector<uint64_t> hashes;  // parallel to rows
};
using StepTrace = std::vector<TracedValue>;  // in graph order

// Collects a trace. Values that hold only a part of each row (a slice of the heads, a partial sum) and rows that came
// from other ranks' dispatches are left out.
class StepTracer {
 public:
  void record(const Value& value, const TensorView& view, std::span<const int32_t> rows);
  StepTrace take();

 private:
  StepTrace trace_;
};

// The rows of a sequence's caches that later steps will read.
struct CacheHashes {
  std::string name;
  int64_t first = 0;   // position (or entry) of the first row
  std::vector<uint64_t> rows;
  int64_t stride = 1;  // from one to the next
  bool operator==(const CacheHashes&) const = default;
};
std::vector<CacheHashes> hash_caches(const CacheStore& caches, int32_t slot);

void put(MessageWriter& message, const StepTrace& trace);
void put(MessageWriter& message, const std::vector<CacheHashes>& caches);
StepTrace get_step_trace(MessageReader& message);
std::vector<CacheHashes> get_cache_hashes(MessageReader& message);

}  // namespace weft

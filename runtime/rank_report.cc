#include "runtime/rank_report.h"

#include <numeric>

#include "runtime/value_trace.h"

namespace weft {
namespace {

// Whether each row of the value is whole on the rank that has it.
bool has_whole_rows(const ValueType& type) {
  if (type.rows != Rows::kTokens && type.rows != Rows::kLogits) return false;
  for (const Placement& p : type.placement) {
    if (p.kind == Placement::Kind::kPartial || (p.kind == Placement::Kind::kSharded && p.dim != 0)) return false;
  }
  return true;
}

}  // namespace

CommCounters RankReport::all_sent() const {
  CommCounters sum;
  for (const CommCounters& counters : sent) {
    for (size_t kind = 0; kind < sum.kinds.size(); ++kind) {
      sum.kinds[kind].calls += counters.kinds[kind].calls;
      sum.kinds[kind].bytes_sent += counters.kinds[kind].bytes_sent;
    }
    sum.moved_bytes += counters.moved_bytes;
  }
  return sum;
}

void StepTracer::record(const Value& value, const TensorView& view, std::span<const int32_t> rows) {
  if (!has_whole_rows(value.type)) return;
  const int64_t count = view.shape()[0];
  TracedValue traced;
  traced.name = value.name;
  traced.row_bytes = TensorType{view.dtype(), value.type.shape()}.bytes() / value.type.shape()[0];
  if (rows.empty()) {
    traced.rows.resize(static_cast<size_t>(count));
    std::iota(traced.rows.begin(), traced.rows.end(), 0);
  } else {
    WEFT_CHECK(static_cast<int64_t>(rows.size()) == count, "'{}': {} rows, named {}", value.name, count, rows.size());
    traced.rows.assign(rows.begin(), rows.end());
  }
  for (int64_t i = 0; i < count; ++i) {
    traced.hashes.push_back(
        hash_bytes({view.as<std::byte>() + i * traced.row_bytes, static_cast<size_t>(traced.row_bytes)}));
  }
  trace_.push_back(std::move(traced));
}

StepTrace StepTracer::take() { return std::exchange(trace_, {}); }

std::vector<CacheHashes> hash_caches(const CacheStore& caches, int32_t slot) {
  std::vector<CacheHashes> all;
  for (const CacheRows& cache : live_cache_rows(caches, slot)) {
    CacheHashes& hashes = all.emplace_back(CacheHashes{cache.name, cache.first, {}, cache.stride});
    for (const auto& row : cache.rows) hashes.rows.push_back(hash_bytes(row));
  }
  return all;
}

void put(MessageWriter& message, const StepTrace& trace) {
  message.put(static_cast<int64_t>(trace.size()));
  for (const TracedValue& value : trace) {
    message.put_text(value.name).put(value.row_bytes);
    message.put_list(std::span<const int32_t>(value.rows)).put_list(std::span<const uint64_t>(value.hashes));
  }
}

void put(MessageWriter& message, const std::vector<CacheHashes>& caches) {
  message.put(static_cast<int64_t>(caches.size()));
  for (const CacheHashes& cache : caches) {
    message.put_text(cache.name).put(cache.first).put(cache.stride).put_list(std::span<const uint64_t>(cache.rows));
  }
}

StepTrace get_step_trace(MessageReader& message) {
  StepTrace trace(static_cast<size_t>(message.get<int64_t>()));
  for (TracedValue& value : trace) {
    value.name = message.get_text();
    value.row_bytes = message.get<int64_t>();
    value.rows = message.get_list<int32_t>();
    value.hashes = message.get_list<uint64_t>();
  }
  return trace;
}

std::vector<CacheHashes> get_cache_hashes(MessageReader& message) {
  std::vector<CacheHashes> caches(static_cast<size_t>(message.get<int64_t>()));
  for (CacheHashes& cache : caches) {
    cache.name = message.get_text();
    cache.first = message.get<int64_t>();
    cache.stride = message.get<int64_t>();
    cache.rows = message.get_list<uint64_t>();
  }
  return caches;
}

}  // namespace weft

#include "runtime/derived_weights.h"

#include <algorithm>
#include <mutex>

namespace weft {
namespace {

// Where a rank's slices begin: a derived weight is split along dimension 0 or not at all.
int64_t first_slice(const Value& value, const RankContext& ranks) {
  int64_t first = 0, whole = value.type.shape()[0];
  for (int axis = kNumMeshAxes; axis-- > 0;) {  // the inner axes split what the outer ones left
    const Placement& p = value.type.placement[axis];
    if (p.kind != Placement::Kind::kSharded) continue;
    WEFT_CHECK(p.dim == 0, "'{}' is split along dimension {}", value.name, p.dim);
    first += ranks.index[axis] * whole;
    whole *= ranks.size[axis];
  }
  return first;
}

}  // namespace

void DerivedWeights::announce(const Graph& graph, const RankContext& ranks) {
  for (const Value& value : graph.values()) {
    if (value.role != ValueRole::kDerived) continue;
    const int64_t first = first_slice(value, ranks), end = first + value.type.shape()[0];
    Slices slices;
    slices.slice = value.type.tensor;
    slices.slice.shape[0] = 1;
    slices.first = first;
    slices.end = end;
    const auto [at, is_new] = slices_.try_emplace(value.name, std::move(slices));
    if (!is_new) {
      bytes_ -= (at->second.end - at->second.first) * at->second.slice.bytes();
      at->second.first = std::min(at->second.first, first);
      at->second.end = std::max(at->second.end, end);
    }
    bytes_ += (at->second.end - at->second.first) * at->second.slice.bytes();
  }
}

Status DerivedWeights::make(const Model& model, ThreadPool& pool) {
  constexpr int64_t kBytesPerTask = 1 << 18;
  for (auto& [name, slices] : slices_) {
    const int64_t count = slices.end - slices.first, slice_bytes = slices.slice.bytes();
    WEFT_ASSIGN_OR_RETURN(slices.data, Buffer::allocate(count * slice_bytes));
    std::mutex mutex;
    Status status;
    pool.parallel_for(count, std::max<int64_t>(kBytesPerTask / slice_bytes, 1), [&](int64_t begin, int64_t end, int) {
      TensorView rows;
      rows.type = slices.slice;
      rows.type.shape[0] = end - begin;
      rows.data = slices.data.data() + begin * slice_bytes;
      Status made = model.derive(name, slices.first + begin, rows);
      if (made.ok()) return;
      const std::lock_guard lock(mutex);
      status = std::move(made);
    });
    WEFT_RETURN_IF_ERROR(status);
  }
  return {};
}

TensorView DerivedWeights::view(const Value& value, const RankContext& ranks) const {
  const auto at = slices_.find(value.name);
  WEFT_CHECK(at != slices_.end(), "'{}' was not announced", value.name);
  const Slices& slices = at->second;
  const int64_t first = first_slice(value, ranks);
  WEFT_CHECK(first >= slices.first && first + value.type.shape()[0] <= slices.end, "'{}': slices {}.. of {}..{}",
             value.name, first, slices.first, slices.end);
  TensorView view;
  view.type = value.type.tensor;
  view.data = slices.data.data() + (first - slices.first) * slices.slice.bytes();
  return view;
}

}  // namespace weft

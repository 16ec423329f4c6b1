#include "cli/pick_counter.h"

namespace weft {

PickCounter::PickCounter(ExpertCounts none) : counts_(std::move(none)) {
  for (size_t l = 0; l < counts_.layers.size(); ++l) place_.emplace(counts_.layers[l].value, l);
}

void PickCounter::record(const Value& value, const TensorView& view) {
  const auto place = place_.find(value.name);
  if (place == place_.end()) return;
  const int64_t rows = view.shape()[0], top_k = view.shape()[1];
  if (place->second == 0) counts_.tokens += rows;
  for (int64_t i = 0; i < rows * top_k; ++i) ++counts_.picks[place->second][static_cast<size_t>(view.as<int32_t>()[i])];
}

}  // namespace weft

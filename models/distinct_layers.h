// Layers that stand for others: enough of a model to know all of it (GraphOptions::layers). Where kinds of layers repeat, alone or
// by turns, a few periods are built and the others counted with one of them. So the cost of a plan grows with the number of
// distinct layers. graph/passes/layer_repetition.h finds the same runs in a graph that has all layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

struct LayerShare {
  int64_t layer = 0;
  int64_t count = 1;  // layers that it stands for, itself among them
  bool operator==(const LayerShare&) const = default;
};

// kinds: by layer, of neighbouring layers; `first`: number of the first one. Of a run of more than `periods` equal periods that
// many are kept (one more where the parity of the count asks for it: values may change places from period to period and come back
// after two), the last but one of them stands for the rest. Ascending; counts add up to kinds.size(). periods >= 2.
std::vector<LayerShare> distinct_layers(std::span<const std::string> kinds, int64_t first, int64_t periods);

}  // namespace weft

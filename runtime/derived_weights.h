// Derived weights of one rank (ValueRole::kDerived): its slices, made once from the stored weights when the model is
// loaded.
#pragma once

#include <map>
#include <string>

#include "base/thread_pool.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace weft {

class DerivedWeights {
 public:
  // Slices along dimension 0 that some graph of the rank uses. All graphs are announced before anything is made.
  void announce(const Graph& graph, const RankContext& ranks);
  int64_t bytes() const { return bytes_; }
  Status make(const Model& model, ThreadPool& pool);
  // The value of a graph that was announced.
  TensorView view(const Value& value, const RankContext& ranks) const;

 private:
  struct Slices {
    TensorType slice;             // of one index along dimension 0, which is 1
    int64_t first = 0, end = 0;
    Buffer data;
  };
  std::map<std::string, Slices, std::less<>> slices_;
  int64_t bytes_ = 0;
};

}  // namespace weft

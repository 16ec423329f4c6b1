// Times of single ops on this machine, run as the executor runs them: through Op::run, on views, with a pool of threads.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "graph/op.h"
#include "tensor/buffer.h"

namespace weft {

// An op with what it works on. Contents are numbers around 1; integers as given, else 0.
struct OpCase {
  Op op;
  std::vector<ValueType> in;
  std::vector<char> stored = {};                         // by input: weights and caches
  std::map<size_t, std::vector<int32_t>> integers = {};  // by input
  std::map<size_t, std::optional<Quantise>> normal =
      {};  // BF16 inputs of normal numbers; of such that were rounded like that
  std::vector<Segment> segments = {};
  std::vector<std::vector<int32_t>> pages = {};  // by request slot
};

// Several ranks of some threads each, all doing the same at the same time, as ranks of one machine do.
class OpBench {
 public:
  static Result<std::unique_ptr<OpBench>> make(int ranks, int threads, Isa isa);
  ~OpBench();

  int ranks() const { return static_cast<int>(pools_.size()); }
  int threads() const { return pools_[0]->size(); }

  // Seconds of one call, the least of a few samples. Every call finds other stored inputs: cached, of a few megabytes that the
  // last-level cache holds, else such as no cache has. `seconds`: how long to measure, at least.
  Result<double> measure(const OpCase& test, bool cached, double seconds) {
    return measure_in_turn({{&test}}, cached, seconds);
  }
  // Of one call of each, one after the other, as a step runs them: an op that others ran before finds its code and its values
  // further away.
  Result<double> measure_in_turn(const std::vector<const OpCase*>& tests, bool cached, double seconds);

 private:
  OpBench() = default;
  Result<const Buffer*> store(DType dtype);

  Isa isa_ = Isa::kScalar;
  std::vector<int> cpus_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::map<DType, Buffer> stores_;  // numbers of each dtype, more than any cache holds
};

}  // namespace weft

// What an op gets when it runs: views of its inputs and outputs (first dimension = valid rows), scratch of the size that
// work() asked for, the batch of the step, and the means of this rank. Ops never allocate.
#pragma once

#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "graph/step_batch.h"
#include "tensor/tensor.h"

namespace weft {

struct RunContext {
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  std::span<std::byte> scratch;  // 64-byte aligned
  const StepBatch& batch;
  ThreadPool& pool;
  Isa isa;
};

}  // namespace weft

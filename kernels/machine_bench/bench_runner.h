// kernels/machine_bench/bench_runner.h
//
// What the tables of this folder share: timing, limits, and data to work on.
#pragma once

#include <vector>

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "kernels/machine_bench/machine_bench.h"
#include "tensor/buffer.h"

namespace weft {

// The dimensions of a model that the kernels see; deepseek_v4.md 1.1.
struct BenchModel {
  std::string_view name;
  int64_t hidden, q_lora_rank, num_heads, o_groups, inner, num_experts, index_topk;
  static constexpr int64_t kHeadDim = 512, kRotaryDims = 64, kOLoraRank = 1024, kWindow = 128, kTopK = 6, kStreams = 4;
  static constexpr int64_t kIndexHeads = 64, kIndexHeadDim = 128;
};

enum class FillPattern { kF32, kBF16, kFp8, kAnyBits, kScale };  // numbers around 1, no NaN; kAnyBits: FP4, int8; kScale: E8M0 around 2^-8
FillPattern fill_pattern(DType dtype);

// `copies` weights [rows, cols] with scales as the releases have them; next() cycles through them.
class BenchWeights {
 public:
  static Result<BenchWeights> make(DType dtype, int64_t rows, int64_t cols, int64_t copies, ThreadPool& pool);
  static int64_t bytes_of(DType dtype, int64_t rows, int64_t cols);  // with scales

  const WeightMatrix& next() { return matrices_[next_++ % matrices_.size()]; }
  const WeightMatrix& operator[](size_t i) const { return matrices_[i]; }
  const std::vector<WeightMatrix>& matrices() const { return matrices_; }

 private:
  Buffer data_, scales_;
  std::vector<WeightMatrix> matrices_;
  size_t next_ = 0;
};

class BenchRunner {
 public:
  BenchRunner(const KernelBenchOptions& options, const MachineLimits& machine, const BenchProgress& progress,
              ThreadPool& pool)
      : options_(options), machine_(machine), progress_(progress), pool_(pool) {}

  const MachineLimits& machine() const { return machine_; }
  const KernelBenchOptions& options() const { return options_; }
  ThreadPool& pool() { return pool_; }
  Isa isa() const { return options_.isa; }

  // False if the filter excludes the row, or if `memory_bytes` are not there (then it is listed as skipped).
  bool wants(const KernelBenchResult& row, int64_t memory_bytes = 0);

  void measure(KernelBenchResult row, FunctionRef<void()> call);
  // The same for two calls in turn, so that a change of the machine's speed hits both. Gives both results and lists
  // neither.
  std::pair<KernelBenchResult, KernelBenchResult> measure_pair(KernelBenchResult row_a, FunctionRef<void()> a,
                                                               KernelBenchResult row_b, FunctionRef<void()> b);
  void skip(KernelBenchResult row, std::string why);
  void add(KernelBenchResult row) { results_.push_back(std::move(row)); }

  // Enough copies of `bytes` that a cycle through them leaves the last-level cache.
  int64_t copies_beyond_cache(int64_t bytes) const;
  Result<Buffer> filled(FillPattern pattern, int64_t bytes);
  Result<Buffer> scratch(int64_t bytes);  // touched

  std::vector<KernelBenchResult> take() { return std::move(results_); }

 private:
  KernelBenchResult finished(KernelBenchResult row, std::vector<double> seconds) const;

  const KernelBenchOptions& options_;
  const MachineLimits& machine_;
  const BenchProgress& progress_;
  ThreadPool& pool_;
  std::vector<KernelBenchResult> results_;
};

int64_t element_bytes(DType dtype);
std::string_view short_name(DType dtype);  // "BF16", "FP8", ...

void fill(std::byte* data, int64_t bytes, FillPattern pattern, ThreadPool& pool);

// The tables, by folder of the kernels.
Status bench_linear(BenchRunner& runner, const BenchModel& model);
Status bench_experts(BenchRunner& runner, const BenchModel& model);
Status bench_canonical_blocks(BenchRunner& runner, const BenchModel& model);
Status bench_attention(BenchRunner& runner, const BenchModel& model);
// One decode row over a long context. The keys of as many layers as it takes to leave the cache, in turn.
struct IndexShape {
  std::string_view model;
  int64_t entries, page_entries, heads, dim, top_k;
};
enum class IndexValues { kFp4Grid, kAny };  // after the indexer's round trip: what --dtype bf16 has in its caches
Status bench_index(BenchRunner& runner, const IndexShape& shape, DType dtype, IndexValues values);
Status bench_rows(BenchRunner& runner, const BenchModel& model);
Status bench_glm(BenchRunner& runner);

}  // namespace weft

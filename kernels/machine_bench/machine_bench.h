// kernels/machine_bench/machine_bench.h
//
// What this machine can do, and what the kernels make of it.
//
// ReadBandwidth: that of memory, at once and again and again: on a machine that is shared it moves from minute to minute.
// measure_machine: read bandwidth with 1..N threads (a buffer larger than the last-level cache) and the peaks of fused
// multiply-adds in f32, of bf16 dot products and of int8 dot products, where the level has them.
// bench_kernels: the kernels at the shapes of DeepSeek-V4-Flash and -Pro, and of GLM-5 what those have not, each beside the limit that measure_machine
// found.
//
// Nothing here is used by the engine itself. Times are wall times of one call after a warm-up; weights larger than the
// last-level cache are reached by cycling through copies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace weft {

// The instructions that do most of a kernel's arithmetic.
enum class ComputePath { kF32Fma, kBf16Dot, kInt8Dot };
std::string_view compute_path_name(ComputePath path);  // "f32 FMA", "bf16 dot", "int8 dot"

struct MachineLimits {
  Isa isa = Isa::kScalar;  // the level of the loops below
  int threads = 1;
  int64_t last_level_cache_bytes = 0;
  std::vector<double> read_bytes_per_s;  // [t - 1]: with t threads
  // Operations count 2 for a multiply and an add. 0: the CPU has no such instruction (or the level excludes it).
  double f32_flops_per_s = 0, f32_flops_per_s_one_thread = 0;
  double bf16_dot_flops_per_s = 0, bf16_dot_flops_per_s_one_thread = 0;
  double int8_dot_ops_per_s = 0, int8_dot_ops_per_s_one_thread = 0;

  double best_read_bytes_per_s() const;  // over the numbers of threads
  double compute_peak(ComputePath path) const;
};

struct KernelBenchOptions {
  Isa isa = max_isa();
  std::vector<int> cpus;     // as for ThreadPool; its size is the number of threads; empty: usable_cores()
  double min_seconds = 0.4;  // per row of the table
  int min_repetitions = 5;
  std::string filter;             // only rows whose "kernel shape" contains this; empty: all
  bool flash = true, pro = true, glm = true;  // whose shapes
};

// Measures with all of these CPUs at a time; empty: usable_cores().
class ReadBandwidth {
 public:
  static Result<ReadBandwidth> create(Isa isa, std::vector<int> cpus = {});

  // Bytes per second: the median of a few passes over more than any cache holds. Tens of milliseconds.
  double measure();

 private:
  ReadBandwidth(Isa isa, std::unique_ptr<ThreadPool> pool, Buffer buffer) : isa_(isa), pool_(std::move(pool)), buffer_(std::move(buffer)) {}

  Isa isa_;
  std::unique_ptr<ThreadPool> pool_;
  Buffer buffer_;
};

enum class BenchLimit { kReadBandwidth, kF32Flops, kInt8Ops, kOneDnn, kShareOfLayer };
// "read bandwidth", "f32 FMA peak", "int8 dot peak", "oneDNN f32", "share of layer"
std::string_view bench_limit_name(BenchLimit limit);

struct KernelBenchResult {
  std::string kernel;      // "linear"
  std::string shape;       // "M=4 [4096,8192] flash o_b"
  std::string dtype;       // "FP8 x BF16": weights x activations
  Isa isa = Isa::kScalar;  // what was asked for
  int threads = 1;
  int repetitions = 0;
  double seconds = 0, seconds_min = 0, seconds_max = 0;  // median, smallest, largest
  double bytes = 0;                                      // read and written in memory, each element once
  double flops = 0;                                      // 2 per multiply-add
  BenchLimit limit = BenchLimit::kReadBandwidth;
  double ratio = 0;                             // of that limit; for kShareOfLayer the added time over the layer's
  double bandwidth_ratio = 0, flops_ratio = 0;  // of the read bandwidth and of the f32 peak; 0: not meaningful
  ComputePath path = ComputePath::kF32Fma;
  double compute_ratio = 0;  // of that path's peak: near 1 the row waits for arithmetic, not for memory
  double bar = 0;            // what the project wants (at least; for kShareOfLayer at most); 0: no bar
  std::string skipped;       // why there is no figure; otherwise empty

  bool meets_bar() const;  // true where there is no bar
};

// Called before each row with its kernel and shape.
using BenchProgress = std::function<void(std::string_view what)>;

Result<MachineLimits> measure_machine(const KernelBenchOptions& options);
Result<std::vector<KernelBenchResult>> bench_kernels(const KernelBenchOptions& options, const MachineLimits& machine,
                                                     const BenchProgress& progress);

}  // namespace weft

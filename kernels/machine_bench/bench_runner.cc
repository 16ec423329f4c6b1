#include "kernels/machine_bench/bench_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace weft {
namespace {

double time_calls(FunctionRef<void()> call, int64_t calls) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < calls; ++i) call();
  return seconds_since(start) / static_cast<double>(calls);
}

// Calls that are timed together, so that reading the clock does not count.
int64_t calls_per_sample(double seconds_of_one) {
  constexpr double kLeastSample = 50e-6;
  return std::clamp<int64_t>(static_cast<int64_t>(kLeastSample / std::max(seconds_of_one, 1e-9)), 1, 1 << 16);
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Pattern {
  uint64_t keep, set;  // random bits, fixed bits
};
Pattern pattern_bits(FillPattern pattern) {
  switch (pattern) {
    case FillPattern::kF32: return {0x807fffff807fffffu, 0x3f0000003f000000u};  // +-[0.5, 1)
    case FillPattern::kBF16: return {0x807f807f807f807fu, 0x3f003f003f003f00u};
    case FillPattern::kFp8: return {0xbfbfbfbfbfbfbfbfu, 0};  // below 2, so no NaN code
    case FillPattern::kAnyBits: return {~uint64_t{0}, 0};
    case FillPattern::kScale: return {0x0303030303030303u, 0x7474747474747474u};  // 2^-11 .. 2^-8
  }
  return {};
}

}  // namespace

std::string_view short_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return "BF16";
    case DType::kF8E4M3: return "FP8";
    case DType::kF4E2M1: return "FP4";
    default: return "F32";
  }
}

int64_t element_bytes(DType dtype) { return dtype_bits(dtype) / 8; }

FillPattern fill_pattern(DType dtype) {
  switch (dtype) {
    case DType::kF32: return FillPattern::kF32;
    case DType::kBF16: return FillPattern::kBF16;
    case DType::kF8E4M3: return FillPattern::kFp8;
    case DType::kF4E2M1:
    case DType::kI8: return FillPattern::kAnyBits;
    default: WEFT_CHECK(false, "no fill pattern for {}", dtype_name(dtype));
  }
}

void fill(std::byte* data, int64_t bytes, FillPattern pattern, ThreadPool& pool) {
  constexpr int64_t kPart = 1 << 20;
  const Pattern p = pattern_bits(pattern);
  pool.parallel_for(bytes, kPart, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i += 8) {
      const uint64_t word = (mix(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u) & p.keep) | p.set;
      std::memcpy(data + i, &word, static_cast<size_t>(std::min<int64_t>(8, end - i)));
    }
  });
}

int64_t BenchWeights::bytes_of(DType dtype, int64_t rows, int64_t cols) {
  const int64_t scales = dtype == DType::kF8E4M3   ? (rows + 127) / 128 * ((cols + 127) / 128)
                         : dtype == DType::kF4E2M1 ? rows * ((cols + 31) / 32)
                                                   : 0;
  return rows * cols * dtype_bits(dtype) / 8 + scales;
}

Result<BenchWeights> BenchWeights::make(DType dtype, int64_t rows, int64_t cols, int64_t copies, ThreadPool& pool) {
  const int64_t data_bytes = rows * cols * dtype_bits(dtype) / 8;
  const int64_t scale_bytes = bytes_of(dtype, rows, cols) - data_bytes;
  const int64_t stride = round_up(data_bytes, 4096), scale_stride = round_up(std::max<int64_t>(scale_bytes, 1), 64);
  BenchWeights weights;
  WEFT_ASSIGN_OR_RETURN(weights.data_, Buffer::allocate(stride * copies));
  WEFT_ASSIGN_OR_RETURN(weights.scales_, Buffer::allocate(scale_stride * copies));
  fill(weights.data_.data(), stride * copies, fill_pattern(dtype), pool);
  fill(weights.scales_.data(), scale_stride * copies, FillPattern::kScale, pool);
  for (int64_t i = 0; i < copies; ++i) {
    WeightMatrix w{.dtype = dtype, .data = weights.data_.data() + i * stride, .rows = rows, .cols = cols};
    if (scale_bytes > 0) {
      w.scale = weights.scales_.data() + i * scale_stride;
      w.block_rows = dtype == DType::kF8E4M3 ? 128 : 1;
      w.block_cols = dtype == DType::kF8E4M3 ? 128 : 32;
    }
    weights.matrices_.push_back(w);
  }
  return weights;
}

bool BenchRunner::wants(const KernelBenchResult& row, int64_t memory_bytes) {
  const std::string what = fmt::format("{} {} {}", row.kernel, row.shape, row.dtype);
  if (what.find(options_.filter) == std::string::npos) return false;
  if (progress_) progress_(what);
  // A part of what is free stays so: a machine that swaps measures nothing.
  constexpr double kUsable = 0.8;
  const long long available = available_memory_bytes();
  if (static_cast<double>(memory_bytes) > kUsable * static_cast<double>(available)) {
    skip(row, fmt::format("needs {:.1f} GB of memory, {:.1f} GB are free", static_cast<double>(memory_bytes) / 1e9,
                          static_cast<double>(available) / 1e9));
    return false;
  }
  return true;
}

KernelBenchResult BenchRunner::finished(KernelBenchResult row, std::vector<double> seconds) const {
  std::sort(seconds.begin(), seconds.end());
  row.isa = options_.isa;
  row.threads = machine_.threads;
  row.repetitions = static_cast<int>(seconds.size());
  row.seconds = seconds[seconds.size() / 2];
  row.seconds_min = seconds.front();
  row.seconds_max = seconds.back();
  row.bandwidth_ratio = row.bytes / row.seconds / machine_.best_read_bytes_per_s();
  row.flops_ratio = row.flops / row.seconds / machine_.f32_flops_per_s;
  const double peak = machine_.compute_peak(row.path);
  row.compute_ratio = peak > 0 ? row.flops / row.seconds / peak : 0;
  if (row.limit == BenchLimit::kReadBandwidth) row.ratio = row.bandwidth_ratio;
  if (row.limit == BenchLimit::kF32Flops) row.ratio = row.flops_ratio;
  if (row.limit == BenchLimit::kInt8Ops) row.ratio = row.flops / row.seconds / machine_.int8_dot_ops_per_s;
  return row;
}

void BenchRunner::measure(KernelBenchResult row, FunctionRef<void()> call) {
  const int64_t calls = calls_per_sample(time_calls(call, 1));
  std::vector<double> seconds;
  double total = 0;
  while (static_cast<int>(seconds.size()) < options_.min_repetitions || total < options_.min_seconds) {
    seconds.push_back(time_calls(call, calls));
    total += seconds.back() * static_cast<double>(calls);
  }
  results_.push_back(finished(std::move(row), std::move(seconds)));
}

std::pair<KernelBenchResult, KernelBenchResult> BenchRunner::measure_pair(KernelBenchResult row_a,
                                                                          FunctionRef<void()> a,
                                                                          KernelBenchResult row_b,
                                                                          FunctionRef<void()> b) {
  const int64_t calls_a = calls_per_sample(time_calls(a, 1)), calls_b = calls_per_sample(time_calls(b, 1));
  std::vector<double> seconds_a, seconds_b;
  double total = 0;
  while (static_cast<int>(seconds_a.size()) < options_.min_repetitions || total < 2 * options_.min_seconds) {
    seconds_a.push_back(time_calls(a, calls_a));
    seconds_b.push_back(time_calls(b, calls_b));
    total += seconds_a.back() * static_cast<double>(calls_a) + seconds_b.back() * static_cast<double>(calls_b);
  }
  return {finished(std::move(row_a), std::move(seconds_a)), finished(std::move(row_b), std::move(seconds_b))};
}

void BenchRunner::skip(KernelBenchResult row, std::string why) {
  row.isa = options_.isa;
  row.threads = machine_.threads;
  row.skipped = std::move(why);
  results_.push_back(std::move(row));
}

int64_t BenchRunner::copies_beyond_cache(int64_t bytes) const {
  // Four times the cache: what is evicted first is what comes next.
  return std::max<int64_t>(1, (4 * machine_.last_level_cache_bytes + bytes - 1) / bytes);
}

Result<Buffer> BenchRunner::filled(FillPattern pattern, int64_t bytes) {
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(std::max<int64_t>(bytes, 1)));
  fill(buffer.data(), bytes, pattern, pool_);
  return buffer;
}

Result<Buffer> BenchRunner::scratch(int64_t bytes) { return filled(FillPattern::kF32, round_up(bytes, 64)); }

}  // namespace weft

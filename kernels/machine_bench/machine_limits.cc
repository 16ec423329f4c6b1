#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "kernels/machine_bench/machine_bench.h"
#include "kernels/machine_bench/machine_loops.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

double ref_fma(int64_t iterations, float* sink) {
  float chain[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  for (int64_t i = 0; i < iterations; ++i) {
    for (float& x : chain) x = x * 0.999f + 0.001f;
  }
  for (const float x : chain) sink[0] += x;
  return 2.0 * 8 * static_cast<double>(iterations);
}

uint64_t ref_read(const void* data, int64_t bytes) {
  const auto* p = static_cast<const uint64_t*>(data);
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes / 8; ++i) sum ^= p[i];
  return sum;
}

MachineLoops loops_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return {.f32_fma = ref_fma, .read = ref_read};
    case Isa::kAvx2: return machine_loops_avx2();
    case Isa::kAvx512: return machine_loops_avx512();
    case Isa::kAvx512Vbmi: return machine_loops_avx512_vbmi();
    case Isa::kAvx512Bf16: return machine_loops_avx512_bf16();
  }
  return {};
}

// Size of the cache that the kernel reports for the first CPU. sysconf's value is that of the whole package.
int64_t last_level_cache_bytes() {
  for (const int index : {3, 2}) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    int64_t value = 0;
    char unit = ' ';
    if (file >> value >> unit && value > 0) return value * (unit == 'M' ? 1 << 20 : 1 << 10);
  }
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : int64_t{32} << 20;
}

// Runs body(worker) on every thread of the pool at the same time; seconds until the last one is done.
template <class Body>
double run_on_all(ThreadPool& pool, Body body) {
  const int threads = pool.size();
  std::atomic<int> waiting{threads};
  std::vector<double> seconds(threads);
  pool.parallel_for(threads, 1, [&](int64_t begin, int64_t, int) {
    // Nobody starts before all are here: so every thread takes exactly one index.
    waiting.fetch_sub(1);
    while (waiting.load() > 0) {
    }
    const auto start = Clock::now();
    body(static_cast<int>(begin));
    seconds[begin] = seconds_since(start);
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Operations per second of all threads of the pool together.
double measure_loop(MachineLoop* loop, ThreadPool& pool, const KernelBenchOptions& options) {
  if (loop == nullptr) return 0;
  std::vector<float> sinks(pool.size() * 16);  // a cache line each
  int64_t iterations = 1 << 16;
  while (run_on_all(pool, [&](int worker) { loop(iterations, &sinks[worker * 16]); }) <
         options.min_seconds / options.min_repetitions / 2) {
    iterations *= 2;
  }
  std::vector<double> rates;
  for (int i = 0; i < options.min_repetitions; ++i) {
    std::vector<double> operations(pool.size());
    const double seconds =
        run_on_all(pool, [&](int worker) { operations[worker] = loop(iterations, &sinks[worker * 16]); });
    double sum = 0;
    for (const double n : operations) sum += n;
    rates.push_back(sum / seconds);
  }
  WEFT_CHECK(std::isfinite(sinks[0]));
  return median(rates);
}

double measure_read(const MachineLoops& loops, const Buffer& buffer, ThreadPool& pool, int repetitions) {
  constexpr int64_t kPage = 4096;
  const int64_t share = buffer.size() / pool.size() / kPage * kPage;
  std::vector<double> rates;
  std::atomic<uint64_t> sum{0};
  for (int i = 0; i < repetitions + 1; ++i) {
    const double seconds =
        run_on_all(pool, [&](int worker) { sum ^= loops.read(buffer.data() + worker * share, share); });
    if (i > 0) rates.push_back(static_cast<double>(share) * pool.size() / seconds);
  }
  WEFT_CHECK(sum.load() != 1, "the sum of equal words");  // never true; keeps the loads
  return median(rates);
}

// More than the caches hold.
Result<Buffer> read_buffer() {
  constexpr int64_t kLeast = int64_t{512} << 20;
  const int64_t bytes = std::max(kLeast, 4 * last_level_cache_bytes());
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(bytes));
  std::memset(buffer.data(), 0x5a, static_cast<size_t>(bytes));  // pages of its own: reading zero pages reads no memory
  return buffer;
}

}  // namespace

Result<ReadBandwidth> ReadBandwidth::create(Isa isa, std::vector<int> cpus) {
  if (cpus.empty()) cpus = usable_cores();
  WEFT_ASSIGN_OR_RETURN(Buffer buffer, read_buffer());
  const int threads = static_cast<int>(cpus.size());
  return ReadBandwidth(isa, std::make_unique<ThreadPool>(threads, std::move(cpus)), std::move(buffer));
}

double ReadBandwidth::measure() {
  constexpr int kPasses = 4;
  return measure_read(loops_of(isa_), buffer_, *pool_, kPasses);
}

MachineLoops machine_loops_ref() { return loops_of(Isa::kScalar); }

double MachineLimits::best_read_bytes_per_s() const {
  return read_bytes_per_s.empty() ? 0 : *std::max_element(read_bytes_per_s.begin(), read_bytes_per_s.end());
}

double MachineLimits::compute_peak(ComputePath path) const {
  switch (path) {
    case ComputePath::kF32Fma: return f32_flops_per_s;
    case ComputePath::kBf16Dot: return bf16_dot_flops_per_s;
    case ComputePath::kInt8Dot: return int8_dot_ops_per_s;
  }
  return 0;
}

std::string_view compute_path_name(ComputePath path) {
  switch (path) {
    case ComputePath::kF32Fma: return "f32 FMA";
    case ComputePath::kBf16Dot: return "bf16 dot";
    case ComputePath::kInt8Dot: return "int8 dot";
  }
  return "";
}

Result<MachineLimits> measure_machine(const KernelBenchOptions& options) {
  if (options.isa > max_isa()) {
    return invalid_argument(
        fmt::format("--isa {}: this CPU has at most {}", isa_name(options.isa), isa_name(max_isa())));
  }
  const std::vector<int> cpus = options.cpus.empty() ? usable_cores() : options.cpus;
  MachineLimits limits;
  limits.isa = options.isa;
  limits.threads = static_cast<int>(cpus.size());
  limits.last_level_cache_bytes = last_level_cache_bytes();
  const MachineLoops loops = loops_of(options.isa);
  // The levels above the one that is asked for have the same f32 instructions; dot products only where it is AVX-512.
  const MachineLoops best = options.isa >= Isa::kAvx512 ? loops_of(max_isa()) : loops;

  WEFT_ASSIGN_OR_RETURN(const Buffer buffer, read_buffer());

  for (int threads = 1; threads <= limits.threads; ++threads) {
    ThreadPool pool(threads, std::vector<int>(cpus.begin(), cpus.begin() + threads));
    limits.read_bytes_per_s.push_back(measure_read(loops, buffer, pool, options.min_repetitions));
    if (threads == 1) {
      limits.f32_flops_per_s_one_thread = measure_loop(loops.f32_fma, pool, options);
      limits.bf16_dot_flops_per_s_one_thread = measure_loop(best.bf16_dot, pool, options);
      limits.int8_dot_ops_per_s_one_thread = measure_loop(best.int8_dot, pool, options);
    }
    if (threads == limits.threads) {
      limits.f32_flops_per_s = measure_loop(loops.f32_fma, pool, options);
      limits.bf16_dot_flops_per_s = measure_loop(best.bf16_dot, pool, options);
      limits.int8_dot_ops_per_s = measure_loop(best.int8_dot, pool, options);
    }
  }
  return limits;
}

}  // namespace weft

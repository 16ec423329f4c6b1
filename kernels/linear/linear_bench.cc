// Speed of kernels/linear as a ratio of what this machine can do, both measured in the same run.
//
//   weft_linear_bench [threads] [filter]
//
// With one thread, time on the CPU is counted, so that other processes disturb less.
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ctime>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Median and best seconds of `repeats` runs after one warm-up.
struct Timing {
  double median, best;
};
Timing time_of(ThreadPool& pool, int repeats, const std::function<void()>& run) {
  const auto now = [&] { return seconds_of(pool.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC); };
  run();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double begin = now();
    run();
    seconds.push_back(now() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

Buffer filled(int64_t bytes) {
  Buffer buffer = std::move(Buffer::allocate(bytes).value());
  uint64_t state = 88172645463325252u;
  auto* words = reinterpret_cast<uint64_t*>(buffer.data());
  for (int64_t i = 0; i < bytes / 8; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
  return buffer;
}

__attribute__((target("avx2"))) int64_t read_all(const std::byte* p, int64_t bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      const auto* q = reinterpret_cast<const __m256i*>(p + i) + 2 * j;
      sum[j] = _mm256_xor_si256(sum[j], _mm256_xor_si256(_mm256_load_si256(q), _mm256_load_si256(q + 1)));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return _mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 3);
}

double read_bandwidth(const Buffer& buffer, ThreadPool& pool) {
  constexpr int64_t kPiece = 1 << 20;
  volatile int64_t sink = 0;
  const Timing t = time_of(pool, 7, [&] {
    pool.parallel_for(buffer.size() / kPiece, 8, [&](int64_t begin, int64_t end, int) {
      sink = read_all(buffer.data() + begin * kPiece, (end - begin) * kPiece);
    });
  });
  return static_cast<double>(buffer.size()) / t.best;
}

__attribute__((target("avx2,fma"))) float fma_chain(int64_t n) {
  constexpr int kChains = 12;
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_set1_ps(1e-9f);
  const __m256 a = _mm256_set1_ps(1.0001f);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, a);
  }
  for (int j = 1; j < kChains; ++j) sum[0] = _mm256_add_ps(sum[0], sum[j]);
  return _mm256_cvtss_f32(sum[0]);
}

double fma_peak(ThreadPool& pool) {
  constexpr int64_t kSteps = 2'000'000;
  constexpr double kFlopsPerStep = 12 * 8 * 2;
  volatile float sink = 0;
  const Timing t = time_of(pool, 7, [&] {
    pool.parallel_for(pool.size(), 1, [&](int64_t, int64_t, int) { sink = fma_chain(kSteps); });
  });
  return kFlopsPerStep * kSteps * pool.size() / t.best;
}

struct Kind {
  const char* name;
  DType dtype;
  int64_t block_rows, block_cols;
};
constexpr Kind kBf16 = {"BF16", DType::kBF16, 1, 1}, kFp8 = {"FP8", DType::kF8E4M3, 128, 128},
               kFp4 = {"FP4", DType::kF4E2M1, 1, 32};

struct Weights {
  Kind kind;
  int64_t rows, cols, count;
  Buffer data, scale;
  int64_t data_bytes() const { return rows * cols * dtype_bits(kind.dtype) / 8; }
  int64_t scale_bytes() const {
    if (kind.dtype == DType::kBF16) return 0;
    return (rows + kind.block_rows - 1) / kind.block_rows * ((cols + kind.block_cols - 1) / kind.block_cols);
  }
  Weights(Kind k, int64_t r, int64_t c, int64_t n) : kind(k), rows(r), cols(c), count(n) {
    data = filled(data_bytes() * count);
    auto* bytes = reinterpret_cast<uint8_t*>(data.data());
    if (kind.dtype == DType::kBF16) {
      auto* w = reinterpret_cast<uint16_t*>(bytes);
      for (int64_t i = 0; i < data.size() / 2; ++i) w[i] = static_cast<uint16_t>((w[i] & 0x807f) | 0x3f00);
    } else if (kind.dtype == DType::kF8E4M3) {
      for (int64_t i = 0; i < data.size(); ++i) bytes[i] = (bytes[i] & 0x7f) == 0x7f ? 0 : bytes[i];
    }
    scale = std::move(Buffer::allocate(std::max<int64_t>(scale_bytes() * count, 1)).value());
    std::memset(scale.data(), 120, static_cast<size_t>(scale.size()));
  }
  WeightMatrix at(int64_t i) const {
    WeightMatrix w{kind.dtype, data.data() + i * data_bytes(), rows, cols};
    if (scale_bytes() == 0) return w;
    w.scale = scale.data() + i * scale_bytes();
    w.block_rows = kind.block_rows;
    w.block_cols = kind.block_cols;
    return w;
  }
};

struct Bench {
  ThreadPool pool;
  std::string filter;
  double bandwidth = 0, peak = 0;
  explicit Bench(int threads) : pool(threads, usable_cores()) {}

  void linear(const Weights& w, int64_t rows, int64_t k_blocks, int repeats) {
    const Buffer x = filled(rows * w.cols * 4), y = std::move(Buffer::allocate(rows * w.rows * 4).value());
    auto* values = reinterpret_cast<float*>(x.data());
    for (int64_t i = 0; i < rows * w.cols; ++i) values[i] = static_cast<float>(i % 17) * 0.1f - 0.8f;
    const Buffer scratch = std::move(
        Buffer::allocate(linear_scratch_bytes(rows, w.cols, w.rows, 1, w.kind.dtype, pool.size())).value());
    for (const auto& variant : linear_variants()) {
      if (variant.isa > max_isa() || variant.isa == Isa::kScalar) continue;
      const std::string label = std::string(variant.name) + " " + w.kind.name + " M=" + std::to_string(rows);
      if (label.find(filter) == std::string::npos) continue;
      LinearArgs args;
      args.x = x.data();
      args.x_stride = w.cols;
      args.num_rows = rows;
      args.k_blocks = k_blocks;
      args.y = y.data();
      args.y_stride = w.rows;
      args.scratch = scratch.data();
      const Timing t = time_of(pool, repeats, [&] {
        for (int64_t i = 0; i < w.count; ++i) {
          args.w = w.at(i);
          variant.run(args, pool);
        }
      });
      const double bytes = static_cast<double>(w.count * (w.data_bytes() + w.scale_bytes()));
      const double flops = 2.0 * static_cast<double>(rows * w.rows * w.cols * w.count);
      std::printf("%-32s N=%-6ld K=%-5ld k_blocks=%-2ld %8.3f ms  %6.1f GB/s (%3.0f %%)  %7.1f GFLOP/s (%3.0f %%)\n",
                  label.c_str(), static_cast<long>(w.rows), static_cast<long>(w.cols), static_cast<long>(k_blocks),
                  t.median * 1e3 / static_cast<double>(w.count), bytes / t.median * 1e-9,
                  100 * bytes / t.median / bandwidth, flops / t.median * 1e-9, 100 * flops / t.median / peak);
    }
  }
};

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  Bench bench(argc > 1 ? std::atoi(argv[1]) : static_cast<int>(usable_cores().size()));
  if (argc > 2) bench.filter = argv[2];
  {
    const Buffer memory = filled(512 << 20);
    bench.bandwidth = read_bandwidth(memory, bench.pool);
  }
  bench.peak = fma_peak(bench.pool);
  std::printf("threads %d  read %.1f GB/s  f32 FMA peak %.1f GFLOP/s\n", bench.pool.size(), bench.bandwidth * 1e-9,
              bench.peak * 1e-9);
  for (const Kind& kind : {kBf16, kFp8, kFp4}) {
    const Weights large(kind, 32768, 4096, kind.dtype == DType::kF4E2M1 ? 3 : 1);
    for (int64_t rows : {1, 4}) bench.linear(large, rows, 1, 5);
  }
  for (const Kind& kind : {kBf16, kFp8, kFp4}) {
    const Weights cached(kind, 64, 4096, 1);
    for (int64_t rows : {1, 2, 4, 7}) bench.linear(cached, rows, 1, 200);
  }
  for (const Kind& kind : {kBf16, kFp8, kFp4}) {
    const Weights wide(kind, 4096, 4096, 1);
    for (int64_t rows : {8, 12, 64, 256, 512}) bench.linear(wide, rows, 1, 3);
  }
  const Weights wo_b(kFp8, 4096, 8192, 4);
  for (int64_t k_blocks : {1, 16}) {
    for (int64_t rows : {1, 4, 256}) bench.linear(wo_b, rows, k_blocks, 3);
  }
  return 0;
}

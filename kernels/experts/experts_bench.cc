// Speed of kernels/experts at the shape of V4-Flash, as a ratio of the f32 FMA peak (prefill) and of the bytes read (decode).
//
//   weft_experts_bench [threads] [distinct experts in memory]
//
// With fewer distinct experts than 256, several expert ids share weights. With one thread, time on the CPU is counted.
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "kernels/experts/experts.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 4096, kInner = 2048, kExperts = 256, kTopK = 6;
constexpr int64_t kElements = kHidden * kInner;

double now(const ThreadPool& pool) {
  timespec t{};
  clock_gettime(pool.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Buffer allocate(int64_t bytes) { return std::move(Buffer::allocate(bytes).value()); }

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
  volatile float sink = 0;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double begin = now(pool);
    pool.parallel_for(pool.size(), 1, [&](int64_t, int64_t, int) { sink = fma_chain(kSteps); });
    best = std::min(best, now(pool) - begin);
  }
  return 12.0 * 8 * 2 * kSteps * pool.size() / best;
}

void bench(ThreadPool& pool, int64_t distinct, int64_t rows, double peak) {
  const Buffer data = allocate(distinct * 3 * kElements / 2), scale = allocate(distinct * 3 * kElements / 32);
  auto* words = reinterpret_cast<uint64_t*>(data.data());
  uint64_t state = 88172645463325252u;
  for (int64_t i = 0; i < data.size() / 8; ++i) words[i] = state = state * 6364136223846793005u + 1442695040888963407u;
  std::memset(scale.data(), 118, static_cast<size_t>(scale.size()));
  std::vector<WeightMatrix> w[3];
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t at = e % distinct * 3 + i;
      WeightMatrix m{DType::kF4E2M1, data.data() + at * kElements / 2, i == 2 ? kHidden : kInner,
                     i == 2 ? kInner : kHidden};
      m.scale = scale.data() + at * kElements / 32;
      m.block_cols = 32;
      w[i].push_back(m);
    }
  }
  std::mt19937 random(1);
  std::vector<int32_t> expert;
  std::vector<float> weight(static_cast<size_t>(rows * kTopK), 0.25f);
  std::vector<int32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < rows; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    std::sort(all.begin(), all.begin() + kTopK);
    expert.insert(expert.end(), all.begin(), all.begin() + kTopK);
  }
  std::vector<float> x(static_cast<size_t>(rows * kHidden), 0.5f), y(x.size());
  const Buffer scratch =
      allocate(experts_scratch_bytes(ExpertsPart::kAll, rows, kHidden, kInner, kTopK, kExperts, pool.size()));
  ExpertsArgs args;
  args.x = x.data();
  args.num_rows = rows;
  args.hidden = kHidden;
  args.inner = kInner;
  args.top_k = kTopK;
  args.expert = expert.data();
  args.weight = weight.data();
  args.w1 = w[0];
  args.w3 = w[1];
  args.w2 = w[2];
  args.swiglu_limit = 10;
  args.y = y.data();
  args.scratch = scratch.data();
  std::vector<int32_t> used(expert);
  std::sort(used.begin(), used.end());
  const auto active = static_cast<double>(std::unique(used.begin(), used.end()) - used.begin());
  for (const auto& variant : experts_variants()) {
    if (variant.isa > max_isa() || variant.isa == Isa::kScalar) continue;
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) {
      const double begin = now(pool);
      variant.run(args, pool);
      seconds.push_back(now(pool) - begin);
    }
    std::sort(seconds.begin() + 1, seconds.end());
    const double t = seconds[2], flops = 2.0 * 3 * kElements * static_cast<double>(rows * kTopK);
    const double bytes = active * 3 * kElements * (0.5 + 1.0 / 32);
    std::printf("%-12s rows %4ld  %8.1f ms  %6.1f GB/s  %6.1f GFLOP/s (%.0f %% of the FMA peak)  scratch %ld MB\n",
                variant.name.data(), static_cast<long>(rows), t * 1e3, bytes / t * 1e-9, flops / t * 1e-9,
                100 * flops / t / peak, static_cast<long>(scratch.size() >> 20));
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : static_cast<int>(usable_cores().size()), usable_cores());
  const int64_t distinct = argc > 2 ? std::atoi(argv[2]) : kExperts;
  const double peak = fma_peak(pool);
  std::printf("threads %d  f32 FMA peak %.1f GFLOP/s  %ld distinct experts of 13.4 MB\n", pool.size(), peak * 1e-9,
              static_cast<long>(distinct));
  for (int64_t rows : {1, 4, 32, 512}) bench(pool, distinct, rows, peak);
  return 0;
}

// Sparse attention, index scores, select_topk and compressor pooling on one thread, each as a ratio of the FMA peak
// that the thread reaches in between. Output: one JSON line per result.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "kernels/compressor/compressor.h"
#include "kernels/index_topk/index_topk.h"
#include "kernels/sparse_attention/fma_peak.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

// Time of this thread on a CPU: what others run meanwhile does not count.
double seconds_of(const std::function<void()>& body) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

struct Timing {
  double seconds;  // median of one call
  double spread;   // (third - first quartile) / median
  double peak;     // FMA/s measured between the calls, median
};

// Calls and peak measurements take turns, so that both see the same clock and the same neighbours.
Timing measure(Isa isa, const std::function<void()>& body) {
  body();
  const double once = std::max(seconds_of(body), 1e-7);
  const int repeats = std::max(1, static_cast<int>(0.004 / once));
  std::vector<double> times, peaks;
  for (int round = 0; round < 25; ++round) {
    times.push_back(seconds_of([&] {
                      for (int i = 0; i < repeats; ++i) body();
                    }) /
                    repeats);
    double fma = 0;
    const double seconds = seconds_of([&] { fma = run_fma_chains(isa); });
    peaks.push_back(fma / seconds);
  }
  std::sort(times.begin(), times.end());
  std::sort(peaks.begin(), peaks.end());
  return {times[times.size() / 2], (times[times.size() * 3 / 4] - times[times.size() / 4]) / times[times.size() / 2],
          peaks[peaks.size() / 2]};
}

void report(std::string_view kernel, std::string_view variant, const std::string& shape, double fma, const Timing& t) {
  fmt::print("{{\"kernel\": \"{}\", \"isa\": \"{}\", \"shape\": \"{}\", \"us\": {:.2f}, \"spread\": {:.3f}", kernel,
             variant, shape, t.seconds * 1e6, t.spread);
  if (fma > 0) {
    fmt::print(", \"gflops\": {:.1f}, \"peak_gflops\": {:.1f}, \"ratio\": {:.3f}", 2e-9 * fma / t.seconds,
               2e-9 * t.peak, fma / t.seconds / t.peak);
  }
  fmt::print("}}\n");
}

// Random normal values in F32 or BF16.
class Values {
 public:
  Values(DType dtype, int64_t size) : dtype_(dtype), f32_(size), half_(size) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < size; ++i) {
      f32_[i] = normal(random);
      half_[i] = to_bf16(f32_[i]);
    }
  }
  // With scale 1/2 throughout: a normal sample is rarely beyond 3.
  void round_to_fp4_grid() {
    for (size_t i = 0; i < f32_.size(); ++i) {
      f32_[i] = 0.5f * e2m1_to_float(float_to_e2m1(2 * f32_[i]));
      half_[i] = to_bf16(f32_[i]);
    }
  }
  void* at(int64_t i) {
    return dtype_ == DType::kBF16 ? static_cast<void*>(half_.data() + i) : static_cast<void*>(f32_.data() + i);
  }

 private:
  DType dtype_;
  std::vector<float> f32_;
  std::vector<bf16> half_;
};

Buffer scratch_of(int64_t bytes) { return Buffer::allocate(bytes).value(); }

struct AttentionCase {
  int64_t num_heads, head_dim, num_keys;
  DType dtype, kv_dtype;
};

void bench_attention(Isa limit) {
  const DType f32 = DType::kF32, half = DType::kBF16;
  const AttentionCase cases[] = {{64, 512, 640, half, half},  {64, 512, 640, f32, half}, {64, 512, 640, f32, f32},
                                 {128, 512, 640, half, half}, {8, 512, 640, half, half}, {4, 128, 80, f32, f32},
                                 {4, 128, 80, half, half},    {4, 32, 80, f32, f32}};
  for (const AttentionCase& c : cases) {
    Values q(c.dtype, c.num_heads * c.head_dim), out(c.dtype, c.num_heads * c.head_dim);
    Values keys(c.kv_dtype, c.num_keys * c.head_dim);
    std::vector<const void*> rows;
    for (int64_t n = 0; n < c.num_keys; ++n) rows.push_back(keys.at(n * 7919 % c.num_keys * c.head_dim));
    const std::vector<float> sink(c.num_heads, 0.0f);
    const Buffer scratch = scratch_of(sparse_attention_scratch_bytes(c.num_heads, c.head_dim));
    const SparseAttentionArgs args{q.at(0),       out.at(0),   c.dtype,
                                   c.kv_dtype,    c.num_heads, c.head_dim,    c.head_dim,
                                   rows,          sink.data(), 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                   scratch.data()};
    for (const auto& variant : sparse_attention_variants()) {
      if (variant.isa > limit || variant.isa == Isa::kScalar) continue;
      const Timing t = measure(variant.isa, [&] { variant.run(args); });
      report("sparse_attention", variant.name,
             fmt::format("{} heads x {}, {} keys, {}, keys {}", c.num_heads, c.head_dim, c.num_keys,
                         dtype_name(c.dtype), dtype_name(c.kv_dtype)),
             2.0 * static_cast<double>(c.num_heads * c.head_dim * c.num_keys), t);
    }
  }
}

void bench_index(Isa limit) {
  struct Case {
    int64_t num_heads, head_dim, num_entries;
    DType dtype;
    bool fp4_grid = false;  // values as after the FP4 round trip of the indexer
  };
  const Case cases[] = {{64, 128, 32768, DType::kBF16, true},
                        {64, 128, 32768, DType::kBF16},
                        {64, 128, 32768, DType::kF32},
                        {64, 128, 2048, DType::kBF16},
                        {4, 32, 64, DType::kF32}};
  for (const Case& c : cases) {
    Values iq(c.dtype, c.num_heads * c.head_dim), keys(c.dtype, c.num_entries * c.head_dim);
    if (c.fp4_grid) {
      iq.round_to_fp4_grid();
      keys.round_to_fp4_grid();
    }
    const std::vector<float> w(c.num_heads, 0.01f);
    std::vector<float> scores(c.num_entries);
    const void* page = keys.at(0);
    const Buffer scratch = scratch_of(index_scores_scratch_bytes(c.num_heads, c.head_dim));
    const IndexScoresArgs args{iq.at(0), c.dtype,       w.data(), c.num_heads,   c.head_dim,    {&page, 1},
                               c.dtype,  c.num_entries, 0,        c.num_entries, scores.data(), scratch.data()};
    for (const auto& variant : index_scores_variants()) {
      if (variant.isa > limit || variant.isa == Isa::kScalar) continue;
      const Timing t = measure(variant.isa, [&] { variant.run(args); });
      report("index_scores", variant.name,
             fmt::format("{} heads x {}, {} entries, {}{}", c.num_heads, c.head_dim, c.num_entries, dtype_name(c.dtype),
                         c.fp4_grid ? " on the FP4 grid" : ""),
             static_cast<double>(c.num_heads * c.head_dim * c.num_entries), t);
    }
    std::vector<int32_t> picks(std::min<int64_t>(512, c.num_entries / 2)), top_scratch(c.num_entries);
    const Timing t = measure(limit, [&] { select_topk(scores, picks, top_scratch); });
    report("select_topk", "ref", fmt::format("{} of {}", picks.size(), c.num_entries), 0, t);
  }
}

void bench_compressor(Isa limit) {
  for (const auto& [num_slots, width] : {std::pair<int64_t, int64_t>{8, 512}, {128, 512}, {8, 128}}) {
    Values k(DType::kF32, num_slots * width), s(DType::kF32, num_slots * width);
    std::vector<const float*> k_rows, s_rows;
    for (int64_t n = 0; n < num_slots; ++n) {
      k_rows.push_back(static_cast<const float*>(k.at(n * width)));
      s_rows.push_back(static_cast<const float*>(s.at(n * width)));
    }
    std::vector<float> u(width);
    for (const auto& variant : compressor_pool_variants()) {
      if (variant.isa > limit || variant.isa == Isa::kScalar) continue;
      const Timing t = measure(variant.isa, [&] { variant.run({k_rows, s_rows, width, u.data()}); });
      report("compressor_pool", variant.name, fmt::format("{} slots x {}", num_slots, width), 0, t);
    }
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const weft::Isa limit = weft::max_isa();
  const std::string_view only = argc > 1 ? argv[1] : "";
  if (only.empty() || only == "attention") weft::bench_attention(limit);
  if (only.empty() || only == "index") weft::bench_index(limit);
  if (only.empty() || only == "compressor") weft::bench_compressor(limit);
  return 0;
}

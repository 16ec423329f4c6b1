// Sparse attention, compressor.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/compressor/compressor.h"
#include "kernels/machine_bench/bench_runner.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {
namespace {

constexpr int64_t kHeadDim = BenchModel::kHeadDim;

// Prefill rows, each over its window and its own picks from a long cache.
Status sparse_attention_rows(BenchRunner& runner, const BenchModel& model, DType dtype, int64_t num_rows) {
  constexpr int64_t kEntries = 32768;
  constexpr double kBar = 0.6;
  const int64_t heads = model.num_heads, picks = model.index_topk, window = BenchModel::kWindow, keys = window + picks;
  KernelBenchResult row;
  row.kernel = "sparse attention";
  row.shape = fmt::format("M={} {} heads x {}, {} + {} keys, {}", num_rows, heads, kHeadDim, picks, window, model.name);
  row.dtype = fmt::format("{} x {}", short_name(dtype), short_name(dtype));
  row.limit = BenchLimit::kF32Flops;
  if (dtype == DType::kBF16 && runner.isa() >= Isa::kAvx512Bf16) row.path = ComputePath::kBf16Dot;
  row.bar = num_rows > 1 ? kBar : 0;
  row.flops = 4.0 * static_cast<double>(num_rows * heads * kHeadDim) * static_cast<double>(keys);
  row.bytes = static_cast<double>(element_bytes(dtype)) * static_cast<double>(num_rows * kHeadDim * (2 * heads + keys));
  if (!runner.wants(row)) return {};

  const int64_t row_bytes = kHeadDim * element_bytes(dtype), q_bytes = heads * row_bytes;
  WEFT_ASSIGN_OR_RETURN(const Buffer cache,
                        runner.filled(fill_pattern(dtype), (kEntries + window + num_rows) * row_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer q, runner.filled(fill_pattern(dtype), num_rows * q_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer out, runner.scratch(num_rows * q_bytes));
  const int64_t scratch_bytes = (sparse_attention_scratch_bytes(heads, kHeadDim) + 63) / 64 * 64;
  WEFT_ASSIGN_OR_RETURN(const Buffer scratch, runner.scratch(scratch_bytes * runner.pool().size()));
  const std::vector<float> sink(heads, 0.5f);
  std::vector<const void*> lists(num_rows * keys);
  uint64_t random = 1;
  for (int64_t t = 0; t < num_rows; ++t) {
    const void** list = lists.data() + t * keys;
    for (int64_t i = 0; i < window; ++i) list[i] = cache.data() + (kEntries + t + i) * row_bytes;
    for (int64_t i = 0; i < picks; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const int64_t stride = kEntries / picks;  // ascending and different, as a top-k of a long cache
      list[window + i] = cache.data() + (i * stride + static_cast<int64_t>(random >> 33) % stride) * row_bytes;
    }
  }
  const auto attend = pick_variant(sparse_attention_variants(), runner.isa());
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t t = begin; t < end; ++t) {
        attend({.q = q.data() + t * q_bytes,
                .out = out.data() + t * q_bytes,
                .dtype = dtype,
                .kv_dtype = dtype,
                .num_heads = heads,
                .head_dim = kHeadDim,
                .value_dim = kHeadDim,
                .keys = std::span(lists).subspan(t * keys, keys),
                .sink = sink.data(),
                .scale = 0.04419417f,
                .scratch = scratch.data() + worker * scratch_bytes});
      }
    });
  });
  return {};
}

// Pooling of the entries of a prefill: `slots` candidates for every one of them.
Status compressor_entries(BenchRunner& runner, const BenchModel& model, int64_t slots) {
  KernelBenchResult row;
  const int64_t entry_bytes = slots * kHeadDim * 4;
  const int64_t entries = std::max<int64_t>(runner.copies_beyond_cache(2 * entry_bytes), 2 * runner.pool().size());
  row.kernel = "compressor pool";
  row.shape = fmt::format("M={} entries of {} slots x {}, {}", entries, slots, kHeadDim, model.name);
  row.dtype = "F32";
  row.limit = BenchLimit::kReadBandwidth;
  row.bytes = static_cast<double>(entries * (2 * entry_bytes + kHeadDim * 4));
  if (!runner.wants(row, entries * 2 * entry_bytes)) return {};
  WEFT_ASSIGN_OR_RETURN(const Buffer k, runner.filled(FillPattern::kF32, entries * entry_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer s, runner.filled(FillPattern::kF32, entries * entry_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer u, runner.scratch(entries * kHeadDim * 4));
  std::vector<const float*> k_rows, s_rows;
  for (int64_t i = 0; i < entries * slots; ++i) {
    k_rows.push_back(reinterpret_cast<const float*>(k.data()) + i * kHeadDim);
    s_rows.push_back(reinterpret_cast<const float*>(s.data()) + i * kHeadDim);
  }
  const auto pool = pick_variant(compressor_pool_variants(), runner.isa());
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(entries, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        pool({.k = std::span(k_rows).subspan(i * slots, slots),
              .s = std::span(s_rows).subspan(i * slots, slots),
              .width = kHeadDim,
              .u = reinterpret_cast<float*>(u.data()) + i * kHeadDim});
      }
    });
  });
  return {};
}

}  // namespace

Status bench_attention(BenchRunner& runner, const BenchModel& model) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    WEFT_RETURN_IF_ERROR(sparse_attention_rows(runner, model, dtype, 64));
  }
  const IndexShape index{model.name, 32768, 64, BenchModel::kIndexHeads, BenchModel::kIndexHeadDim, model.index_topk};
  WEFT_RETURN_IF_ERROR(bench_index(runner, index, DType::kBF16, IndexValues::kFp4Grid));
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    WEFT_RETURN_IF_ERROR(bench_index(runner, index, dtype, IndexValues::kAny));
  }
  for (const int64_t slots : {8, 128}) WEFT_RETURN_IF_ERROR(compressor_entries(runner, model, slots));
  return {};
}

}  // namespace weft

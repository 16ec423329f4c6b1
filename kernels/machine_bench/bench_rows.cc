// Kernels that work on rows one by one: norm, RoPE, quantisation, mHC, SwiGLU. The caches are left behind by many rows.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/machine_bench/bench_runner.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"

namespace weft {
namespace {

constexpr int64_t kGrainRows = 16;
constexpr DType kDType = DType::kBF16;
constexpr int64_t kElement = 2;

KernelBenchResult row_of(std::string_view kernel, int64_t rows, std::string_view shape, const BenchModel& model) {
  KernelBenchResult row;
  row.kernel = kernel;
  row.shape = fmt::format("M={} {} {}", rows, shape, model.name);
  row.dtype = "BF16";
  return row;
}

// Rows of `bytes` each whose input and output together are larger than the caches.
int64_t rows_beyond_cache(BenchRunner& runner, int64_t bytes) {
  return std::max<int64_t>(512, (runner.copies_beyond_cache(bytes) + kGrainRows - 1) / kGrainRows * kGrainRows);
}

// y = kernel(x) on [rows, width], in parts of rows.
template <class Run>
Status map_rows(BenchRunner& runner, KernelBenchResult row, int64_t rows, int64_t width, Run run) {
  const int64_t bytes = rows * width * kElement;
  row.bytes = static_cast<double>(2 * bytes);
  if (!runner.wants(row, 2 * bytes)) return {};
  WEFT_ASSIGN_OR_RETURN(const Buffer x, runner.filled(FillPattern::kBF16, bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer y, runner.scratch(bytes));
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(rows, kGrainRows, [&](int64_t begin, int64_t end, int) {
      run(x.data() + begin * width * kElement, y.data() + begin * width * kElement, begin, end - begin);
    });
  });
  return {};
}

Status norms(BenchRunner& runner, const BenchModel& m) {
  const int64_t rows = rows_beyond_cache(runner, 2 * m.hidden * kElement);
  const auto norm = pick_variant(rms_norm_variants(), runner.isa());
  WEFT_ASSIGN_OR_RETURN(const Buffer w, runner.filled(FillPattern::kBF16, m.hidden * kElement));
  WEFT_RETURN_IF_ERROR(map_rows(runner, row_of("rms_norm", rows, fmt::format("width {}", m.hidden), m), rows, m.hidden,
                                [&](const std::byte* x, std::byte* y, int64_t, int64_t count) {
                                  norm({.x = x,
                                        .y = y,
                                        .dtype = kDType,
                                        .x_stride = m.hidden,
                                        .y_stride = m.hidden,
                                        .num_rows = count,
                                        .width = m.hidden,
                                        .w = w.data(),
                                        .w_dtype = DType::kBF16,
                                        .eps = 1e-6f});
                                }));
  const int64_t heads = m.num_heads, q_width = heads * BenchModel::kHeadDim;
  const int64_t q_rows = rows_beyond_cache(runner, 2 * q_width * kElement);
  return map_rows(
      runner,
      row_of("rms_norm", q_rows, fmt::format("{} heads x {}, each step rounded", heads, BenchModel::kHeadDim), m),
      q_rows, q_width, [&](const std::byte* x, std::byte* y, int64_t, int64_t count) {
        norm({.x = x,
              .y = y,
              .dtype = kDType,
              .x_stride = BenchModel::kHeadDim,
              .y_stride = BenchModel::kHeadDim,
              .num_rows = count * heads,
              .width = BenchModel::kHeadDim,
              .eps = 1e-6f,
              .rounding = NormRounding::kEachStep});
      });
}

Status ropes(BenchRunner& runner, const BenchModel& m) {
  constexpr int64_t kRotary = BenchModel::kRotaryDims;
  const int64_t heads = m.num_heads, width = heads * BenchModel::kHeadDim;
  const int64_t rows = rows_beyond_cache(runner, 2 * width * kElement);
  std::vector<int32_t> positions(rows);
  for (int64_t i = 0; i < rows; ++i) positions[i] = static_cast<int32_t>(i);
  std::vector<float> table(rows * kRotary);
  rope_table(positions, rope_frequencies(160000, kRotary, {.factor = 16, .original_max_position_embeddings = 65536}),
             table.data());
  const auto rope = pick_variant(rope_variants(), runner.isa());
  return map_rows(runner, row_of("rope", rows, fmt::format("{} heads x {}", heads, BenchModel::kHeadDim), m), rows,
                  width, [&](const std::byte* x, std::byte* y, int64_t begin, int64_t count) {
                    rope({.x = x,
                          .y = y,
                          .dtype = kDType,
                          .num_rows = count,
                          .num_heads = heads,
                          .head_dim = BenchModel::kHeadDim,
                          .rotary_dims = kRotary,
                          .table = table.data() + begin * kRotary});
                  });
}

Status quantisations(BenchRunner& runner, const BenchModel& m) {
  const auto quantise = pick_variant(quantise_variants(), runner.isa());
  struct Case {
    std::string_view what;
    int64_t width, end, block;
    QuantFormat format;
    bool hadamard;
  };
  constexpr int64_t kIndex = BenchModel::kIndexHeadDim, kHead = BenchModel::kHeadDim;
  for (const Case& c : {Case{"FP8 of 128, width", m.hidden, m.hidden, 128, QuantFormat::kFp8, false},
                        Case{"FP8 of 64, 448 of", kHead, kHead - BenchModel::kRotaryDims, 64, QuantFormat::kFp8, false},
                        Case{"Hadamard, FP4 of 32, width", kIndex, kIndex, 32, QuantFormat::kFp4, true}}) {
    const int64_t rows = rows_beyond_cache(runner, 2 * c.width * kElement);
    WEFT_RETURN_IF_ERROR(map_rows(runner, row_of("quantise", rows, fmt::format("{} {}", c.what, c.width), m), rows,
                                  c.width, [&](const std::byte* x, std::byte* y, int64_t, int64_t count) {
                                    quantise({.x = x,
                                              .y = y,
                                              .dtype = kDType,
                                              .x_stride = c.width,
                                              .y_stride = c.width,
                                              .num_rows = count,
                                              .width = c.width,
                                              .begin = 0,
                                              .end = c.end,
                                              .block = c.block,
                                              .format = c.format,
                                              .hadamard = c.hadamard});
                                  }));
  }
  return {};
}

Status swiglus(BenchRunner& runner, const BenchModel& m) {
  const int64_t rows = rows_beyond_cache(runner, 3 * m.inner * kElement), bytes = rows * m.inner * kElement;
  KernelBenchResult row = row_of("swiglu", rows, fmt::format("width {}", m.inner), m);
  row.bytes = static_cast<double>(3 * bytes);
  if (!runner.wants(row, 3 * bytes)) return {};
  WEFT_ASSIGN_OR_RETURN(const Buffer g, runner.filled(FillPattern::kBF16, bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer u, runner.filled(FillPattern::kBF16, bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer y, runner.scratch(bytes));
  const auto swiglu = pick_variant(swiglu_variants(), runner.isa());
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(rows, kGrainRows, [&](int64_t begin, int64_t end, int) {
      const int64_t offset = begin * m.inner * kElement;
      swiglu({.g = g.data() + offset,
              .u = u.data() + offset,
              .y = y.data() + offset,
              .dtype = kDType,
              .count = (end - begin) * m.inner,
              .limit = 10.0f});
    });
  });
  return {};
}

Status hyper_connections(BenchRunner& runner, const BenchModel& m) {
  constexpr int64_t kStreams = BenchModel::kStreams, kOutputs = (2 + kStreams) * kStreams;
  constexpr int64_t kMix = kStreams + kStreams * kStreams;
  const int64_t width = kStreams * m.hidden, fn_bytes = kOutputs * width * 4;
  const float base[kOutputs] = {}, scale[3] = {0.1f, 0.1f, 0.1f};
  for (const int64_t rows : {1, 4, 512}) {
    KernelBenchResult row = row_of("hc_pre", rows, fmt::format("{} x {}", kStreams, m.hidden), m);
    // Few rows read fn from memory (one of many sub-blocks'), many rows compute.
    row.limit = rows < kGrainRows ? BenchLimit::kReadBandwidth : BenchLimit::kF32Flops;
    row.flops = 2.0 * static_cast<double>(rows * width) * (kOutputs + 1 + 1);
    row.bytes = static_cast<double>(fn_bytes + rows * (width + m.hidden) * kElement);
    const int64_t copies = rows < kGrainRows ? runner.copies_beyond_cache(fn_bytes) : 1;
    if (!runner.wants(row, copies * fn_bytes)) continue;
    WEFT_ASSIGN_OR_RETURN(const Buffer fn, runner.filled(FillPattern::kF32, copies * fn_bytes));
    WEFT_ASSIGN_OR_RETURN(const Buffer x, runner.filled(FillPattern::kBF16, rows * width * kElement));
    WEFT_ASSIGN_OR_RETURN(const Buffer out, runner.scratch(rows * m.hidden * kElement));
    std::vector<float> mix(rows * kMix);
    int64_t copy = 0;
    runner.measure(std::move(row), [&] {
      const auto* weights = reinterpret_cast<const float*>(fn.data() + copy * fn_bytes);
      copy = (copy + 1) % copies;
      hc_pre({.x = x.data(),
              .dtype = kDType,
              .num_rows = rows,
              .streams = kStreams,
              .hidden = m.hidden,
              .weights = {weights, base, scale},
              .iterations = 20,
              .rms_eps = 1e-6f,
              .hc_eps = 1e-6f,
              .out = out.data(),
              .mix = mix.data()},
             runner.isa(), runner.pool());
    });
  }

  const int64_t rows = rows_beyond_cache(runner, (2 * width + m.hidden) * kElement);
  KernelBenchResult row = row_of("hc_post", rows, fmt::format("{} x {}", kStreams, m.hidden), m);
  row.bytes = static_cast<double>(rows * (2 * width + m.hidden) * kElement);
  row.flops = 2.0 * static_cast<double>(rows * width) * (kStreams + 1);
  if (!runner.wants(row, rows * (2 * width + m.hidden) * kElement)) return {};
  WEFT_ASSIGN_OR_RETURN(const Buffer x, runner.filled(FillPattern::kBF16, rows * width * kElement));
  WEFT_ASSIGN_OR_RETURN(const Buffer y, runner.filled(FillPattern::kBF16, rows * m.hidden * kElement));
  WEFT_ASSIGN_OR_RETURN(const Buffer out, runner.scratch(rows * width * kElement));
  const std::vector<float> mix(rows * kMix, 0.2f);
  const auto post = pick_variant(hc_post_variants(), runner.isa());
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(rows, kGrainRows, [&](int64_t begin, int64_t end, int) {
      post({.x = x.data() + begin * width * kElement,
            .y = y.data() + begin * m.hidden * kElement,
            .mix = mix.data() + begin * kMix,
            .out = out.data() + begin * width * kElement,
            .dtype = kDType,
            .num_rows = end - begin,
            .streams = kStreams,
            .hidden = m.hidden});
    });
  });
  return {};
}

}  // namespace

Status bench_rows(BenchRunner& runner, const BenchModel& model) {
  WEFT_RETURN_IF_ERROR(norms(runner, model));
  WEFT_RETURN_IF_ERROR(ropes(runner, model));
  WEFT_RETURN_IF_ERROR(quantisations(runner, model));
  WEFT_RETURN_IF_ERROR(swiglus(runner, model));
  return hyper_connections(runner, model);
}

}  // namespace weft

#include <fmt/format.h>

#include "kernels/machine_bench/bench_runner.h"

namespace weft {
namespace {

// deepseek_v4.md 1.1
constexpr BenchModel kFlash = {.name = "flash",
                               .hidden = 4096,
                               .q_lora_rank = 1024,
                               .num_heads = 64,
                               .o_groups = 8,
                               .inner = 2048,
                               .num_experts = 256,
                               .index_topk = 512};
constexpr BenchModel kPro = {.name = "pro",
                             .hidden = 7168,
                             .q_lora_rank = 1536,
                             .num_heads = 128,
                             .o_groups = 16,
                             .inner = 3072,
                             .num_experts = 384,
                             .index_topk = 1024};

Status bench_model(BenchRunner& runner, const BenchModel& model) {
  WEFT_RETURN_IF_ERROR(bench_linear(runner, model));
  WEFT_RETURN_IF_ERROR(bench_experts(runner, model));
  WEFT_RETURN_IF_ERROR(bench_canonical_blocks(runner, model));
  WEFT_RETURN_IF_ERROR(bench_attention(runner, model));
  return bench_rows(runner, model);
}

}  // namespace

std::string_view bench_limit_name(BenchLimit limit) {
  switch (limit) {
    case BenchLimit::kReadBandwidth: return "read bandwidth";
    case BenchLimit::kF32Flops: return "f32 FMA peak";
    case BenchLimit::kInt8Ops: return "int8 dot peak";
    case BenchLimit::kOneDnn: return "oneDNN f32";
    case BenchLimit::kShareOfLayer: return "share of layer";
  }
  return "";
}

bool KernelBenchResult::meets_bar() const {
  if (bar == 0) return true;
  if (!skipped.empty()) return false;
  return limit == BenchLimit::kShareOfLayer ? ratio <= bar : ratio >= bar;
}

Result<std::vector<KernelBenchResult>> bench_kernels(const KernelBenchOptions& options, const MachineLimits& machine,
                                                     const BenchProgress& progress) {
  if (options.isa > max_isa()) {
    return invalid_argument(
        fmt::format("--isa {}: this CPU has at most {}", isa_name(options.isa), isa_name(max_isa())));
  }
  const std::vector<int> cpus = options.cpus.empty() ? usable_cores() : options.cpus;
  ThreadPool pool(static_cast<int>(cpus.size()), cpus);
  BenchRunner runner(options, machine, progress, pool);
  if (options.flash) WEFT_RETURN_IF_ERROR(bench_model(runner, kFlash));
  if (options.pro) WEFT_RETURN_IF_ERROR(bench_model(runner, kPro));
  if (options.glm) WEFT_RETURN_IF_ERROR(bench_glm(runner));
  return runner.take();
}

}  // namespace weft

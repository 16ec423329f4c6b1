// Linear layers and grouped experts.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "kernels/experts/experts.h"
#include "kernels/machine_bench/bench_runner.h"
#include "kernels/machine_bench/onednn_matmul.h"

namespace weft {
namespace {

struct Matrix {
  std::string_view name;
  DType dtype;
  int64_t rows, cols;
  int64_t groups = 1;
};

std::vector<Matrix> matrices_of(const BenchModel& m) {
  return {
      {"head, an eighth", DType::kBF16, 129280 / 8, m.hidden},
      {"wo_b", DType::kF8E4M3, m.hidden, m.o_groups * BenchModel::kOLoraRank},
      {"wq_b", DType::kF8E4M3, m.num_heads * BenchModel::kHeadDim, m.q_lora_rank},
      {"expert w1", DType::kF4E2M1, m.inner, m.hidden},
      {"expert w2", DType::kF4E2M1, m.hidden, m.inner},
  };
}

// One call of the linear kernel with its own data.
class LinearCall {
 public:
  static Result<LinearCall> make(BenchRunner& runner, const Matrix& matrix, int64_t num_rows, DType x_dtype,
                                 int64_t copies) {
    LinearCall call;
    const int64_t width = matrix.groups * matrix.cols;
    const int64_t x_bytes = num_rows * width * element_bytes(x_dtype);
    const int64_t y_bytes = num_rows * matrix.rows * element_bytes(x_dtype);
    WEFT_ASSIGN_OR_RETURN(call.weights_,
                          BenchWeights::make(matrix.dtype, matrix.rows, matrix.cols, copies, runner.pool()));
    WEFT_ASSIGN_OR_RETURN(call.x_, runner.filled(fill_pattern(x_dtype), x_bytes));
    WEFT_ASSIGN_OR_RETURN(call.y_, runner.scratch(y_bytes));
    WEFT_ASSIGN_OR_RETURN(call.scratch_,
                          runner.scratch(linear_scratch_bytes(num_rows, width, matrix.rows, matrix.groups, matrix.dtype,
                                                              runner.pool().size())));
    call.args_ = {.x = call.x_.data(),
                  .x_dtype = x_dtype,
                  .x_stride = width,
                  .num_rows = num_rows,
                  .w = {},
                  .groups = matrix.groups,
                  .y = call.y_.data(),
                  .y_dtype = x_dtype,
                  .y_stride = matrix.rows,
                  .scratch = call.scratch_.data()};
    call.bytes_ = BenchWeights::bytes_of(matrix.dtype, matrix.rows, matrix.cols) + x_bytes + y_bytes;
    return call;
  }

  LinearArgs& args() { return args_; }
  int64_t bytes() const { return bytes_; }
  void run(Isa isa, ThreadPool& pool) {
    args_.w = weights_.next();
    linear(args_, isa, pool);
  }

 private:
  BenchWeights weights_;
  Buffer x_, y_, scratch_;
  LinearArgs args_;
  int64_t bytes_ = 0;
};

// Every weight of these tables is one that dot products of bf16 can take.
ComputePath path_of(DType x_dtype, Isa isa) {
  return x_dtype == DType::kBF16 && isa >= Isa::kAvx512Bf16 ? ComputePath::kBf16Dot : ComputePath::kF32Fma;
}

KernelBenchResult linear_row(const BenchModel& model, const Matrix& matrix, int64_t num_rows, DType x_dtype, Isa isa) {
  KernelBenchResult row;
  row.path = path_of(x_dtype, isa);
  row.kernel = "linear";
  row.shape = fmt::format("M={} [{},{}] {} {}", num_rows, matrix.rows, matrix.cols, model.name, matrix.name);
  row.dtype = fmt::format("{} x {}", short_name(matrix.dtype), short_name(x_dtype));
  row.flops = 2.0 * static_cast<double>(num_rows * matrix.rows) * static_cast<double>(matrix.cols);
  return row;
}

// Few rows: the stored bytes are the limit. Activations as --dtype bf16 has them.
Status few_rows(BenchRunner& runner, const BenchModel& model, const Matrix& matrix, int64_t num_rows) {
  KernelBenchResult row = linear_row(model, matrix, num_rows, DType::kBF16, runner.isa());
  row.limit = BenchLimit::kReadBandwidth;
  row.bar = matrix.dtype == DType::kF4E2M1 && runner.isa() < Isa::kAvx512 ? 0.6 : 0.8;
  const int64_t weight_bytes = BenchWeights::bytes_of(matrix.dtype, matrix.rows, matrix.cols);
  const int64_t copies = runner.copies_beyond_cache(weight_bytes);
  if (!runner.wants(row, copies * weight_bytes)) return {};
  WEFT_ASSIGN_OR_RETURN(LinearCall call, LinearCall::make(runner, matrix, num_rows, DType::kBF16, copies));
  call.args().act_quant = matrix.dtype == DType::kBF16 ? ActQuant::kNone : ActQuant::kFp8Block128;
  row.bytes = static_cast<double>(call.bytes());
  runner.measure(std::move(row), [&] { call.run(runner.isa(), runner.pool()); });
  return {};
}

// Many rows: the FMA peak is the limit, and oneDNN on the same product in f32 stands beside it, call by call.
Status many_rows(BenchRunner& runner, const BenchModel& model, const Matrix& matrix, int64_t num_rows) {
  KernelBenchResult row = linear_row(model, matrix, num_rows, DType::kF32, runner.isa());
  row.limit = BenchLimit::kF32Flops;
  const bool has_bar = matrix.dtype != DType::kF4E2M1;
  row.bar = has_bar ? 0.7 : 0;
  const int64_t f32_bytes = matrix.rows * matrix.cols * 4;
  if (!runner.wants(row, 3 * f32_bytes)) return {};
  WEFT_ASSIGN_OR_RETURN(LinearCall call, LinearCall::make(runner, matrix, num_rows, DType::kF32, 1));
  row.bytes = static_cast<double>(call.bytes());

  KernelBenchResult peer = linear_row(model, matrix, num_rows, DType::kF32, runner.isa());
  peer.kernel = "oneDNN matmul";
  peer.dtype = "F32 x F32";
  peer.limit = BenchLimit::kF32Flops;
  KernelBenchResult against = row;
  against.limit = BenchLimit::kOneDnn;
  against.bar = has_bar ? 0.85 : 0;
  WEFT_ASSIGN_OR_RETURN(const Buffer w, runner.filled(FillPattern::kF32, f32_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer y, runner.scratch(num_rows * matrix.rows * 4));
  const auto onednn = make_onednn_matmul(static_cast<const float*>(call.args().x),
                                         reinterpret_cast<const float*>(w.data()), reinterpret_cast<float*>(y.data()),
                                         num_rows, matrix.rows, matrix.cols, runner.machine().threads, runner.isa());
  if (!onednn.ok()) {
    runner.measure(std::move(row), [&] { call.run(runner.isa(), runner.pool()); });
    runner.skip(std::move(against), onednn.status().message());
    return {};
  }
  auto [ours, theirs] = runner.measure_pair(
      row, [&] { call.run(runner.isa(), runner.pool()); }, peer, [&] { onednn.value()->run(); });
  const double ratio = theirs.seconds / ours.seconds;
  KernelBenchResult compared = ours;
  compared.limit = against.limit;
  compared.bar = against.bar;
  compared.ratio = ratio;
  runner.add(std::move(ours));
  runner.add(std::move(theirs));
  runner.add(std::move(compared));
  return {};
}

// Experts of a layer. Their bytes are cycled through storage far beyond the cache, not all held: an expert's weights
// come from memory either way.
struct ExpertStorage {
  BenchWeights w1, w3, w2;
  std::vector<WeightMatrix> by_expert_w1, by_expert_w3, by_expert_w2;
};

int64_t expert_bytes(const BenchModel& m) { return 3 * BenchWeights::bytes_of(DType::kF4E2M1, m.inner, m.hidden); }

int64_t stored_experts(const BenchModel& m) {
  constexpr int64_t kStoredBytes = int64_t{2} << 30;
  return std::min(m.num_experts, std::max<int64_t>(1, kStoredBytes / expert_bytes(m)));
}

Result<ExpertStorage> make_experts(const BenchModel& m, ThreadPool& pool) {
  const int64_t stored = stored_experts(m);
  ExpertStorage s;
  WEFT_ASSIGN_OR_RETURN(s.w1, BenchWeights::make(DType::kF4E2M1, m.inner, m.hidden, stored, pool));
  WEFT_ASSIGN_OR_RETURN(s.w3, BenchWeights::make(DType::kF4E2M1, m.inner, m.hidden, stored, pool));
  WEFT_ASSIGN_OR_RETURN(s.w2, BenchWeights::make(DType::kF4E2M1, m.hidden, m.inner, stored, pool));
  for (int64_t e = 0; e < m.num_experts; ++e) {
    s.by_expert_w1.push_back(s.w1.next());
    s.by_expert_w3.push_back(s.w3.next());
    s.by_expert_w2.push_back(s.w2.next());
  }
  return s;
}

class ExpertsCall {
 public:
  static Result<ExpertsCall> make(BenchRunner& runner, const BenchModel& m, int64_t num_rows, DType x_dtype) {
    ExpertsCall call;
    WEFT_ASSIGN_OR_RETURN(call.storage_, make_experts(m, runner.pool()));
    WEFT_ASSIGN_OR_RETURN(call.x_, runner.filled(fill_pattern(x_dtype), num_rows * m.hidden * element_bytes(x_dtype)));
    WEFT_ASSIGN_OR_RETURN(call.y_, runner.scratch(num_rows * m.hidden * 4));
    WEFT_ASSIGN_OR_RETURN(call.scratch_,
                          runner.scratch(experts_scratch_bytes(ExpertsPart::kAll, num_rows, m.hidden, m.inner, BenchModel::kTopK,
                                                               m.num_experts, runner.pool().size())));
    call.num_experts_ = m.num_experts;
    call.weight_.assign(num_rows * BenchModel::kTopK, 0.25f);
    call.expert_.resize(num_rows * BenchModel::kTopK);
    call.route();
    call.args_ = {.x = call.x_.data(),
                  .x_dtype = x_dtype,
                  .num_rows = num_rows,
                  .hidden = m.hidden,
                  .inner = m.inner,
                  .top_k = BenchModel::kTopK,
                  .w1 = {},
                  .w3 = {},
                  .w2 = {},
                  .swiglu_limit = 10.0f,
                  .y = reinterpret_cast<float*>(call.y_.data()),
                  .scratch = call.scratch_.data()};
    return call;
  }

  // Other experts for every row: equally likely, all different.
  void route() {
    for (size_t first = 0; first < expert_.size(); first += BenchModel::kTopK) {
      int32_t* picks = expert_.data() + first;
      for (int64_t j = 0; j < BenchModel::kTopK;) {
        random_ = random_ * 6364136223846793005u + 1442695040888963407u;
        const auto e = static_cast<int32_t>((random_ >> 33) % static_cast<uint64_t>(num_experts_));
        if (std::find(picks, picks + j, e) == picks + j) picks[j++] = e;
      }
      std::sort(picks, picks + BenchModel::kTopK);
    }
  }

  ExpertsArgs& args() { return args_; }
  void run(Isa isa, ThreadPool& pool) {
    args_.expert = expert_.data();
    args_.weight = weight_.data();
    args_.w1 = storage_.by_expert_w1;
    args_.w3 = storage_.by_expert_w3;
    args_.w2 = storage_.by_expert_w2;
    experts(args_, isa, pool);
  }

 private:
  ExpertStorage storage_;
  Buffer x_, y_, scratch_;
  std::vector<int32_t> expert_;
  std::vector<float> weight_;
  int64_t num_experts_ = 0;
  uint64_t random_ = 1;
  ExpertsArgs args_;
};

KernelBenchResult experts_row(const BenchModel& m, int64_t num_rows, DType x_dtype, Isa isa) {
  KernelBenchResult row;
  row.path = path_of(x_dtype, isa);
  row.kernel = "experts";
  row.shape = fmt::format("M={} {} experts top-{} [{},{}] {}", num_rows, m.num_experts, BenchModel::kTopK, m.inner,
                          m.hidden, m.name);
  row.dtype = fmt::format("FP4 x {}", short_name(x_dtype));
  const double slots = static_cast<double>(num_rows * BenchModel::kTopK);
  row.flops = slots * 6.0 * static_cast<double>(m.inner) * static_cast<double>(m.hidden);
  const double used = std::min(slots, static_cast<double>(m.num_experts));
  row.bytes = used * static_cast<double>(expert_bytes(m)) +
              static_cast<double>(num_rows * m.hidden * (element_bytes(x_dtype) + 4));
  return row;
}

// A linear of the layer, and whether a layout may split its sum over ranks.
struct LayerLinear {
  Matrix matrix;
  bool row_parallel = false;
};

// A CSA layer of the model without its routed experts: deepseek_v4.md 5.1.
std::vector<LayerLinear> layer_linears(const BenchModel& m) {
  const DType fp8 = DType::kF8E4M3, bf16 = DType::kBF16;
  return {
      {{"wq_a", fp8, m.q_lora_rank, m.hidden}},
      {{"wq_b", fp8, m.num_heads * BenchModel::kHeadDim, m.q_lora_rank}},
      {{"wkv", fp8, BenchModel::kHeadDim, m.hidden}},
      {{"compressor wkv", bf16, 2 * BenchModel::kHeadDim, m.hidden}},
      {{"compressor wgate", bf16, 2 * BenchModel::kHeadDim, m.hidden}},
      {{"indexer wq_b", fp8, BenchModel::kIndexHeads * BenchModel::kIndexHeadDim, m.q_lora_rank}},
      {{"indexer compressor wkv", bf16, 2 * BenchModel::kIndexHeadDim, m.hidden}},
      {{"indexer compressor wgate", bf16, 2 * BenchModel::kIndexHeadDim, m.hidden}},
      {{"weights_proj", bf16, BenchModel::kIndexHeads, m.hidden}},
      {{"wo_a", fp8, m.o_groups * BenchModel::kOLoraRank, m.num_heads * BenchModel::kHeadDim / m.o_groups, m.o_groups}},
      {{"wo_b", fp8, m.hidden, m.o_groups * BenchModel::kOLoraRank}, true},
      {{"gate", bf16, m.num_experts, m.hidden}},
      {{"shared w1", fp8, m.inner, m.hidden}},
      {{"shared w3", fp8, m.inner, m.hidden}},
      {{"shared w2", fp8, m.hidden, m.inner}, true},
  };
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Status bench_linear(BenchRunner& runner, const BenchModel& model) {
  for (const Matrix& matrix : matrices_of(model)) {
    for (const int64_t m : {1, 4}) WEFT_RETURN_IF_ERROR(few_rows(runner, model, matrix, m));
    for (const int64_t m : {256, 512}) WEFT_RETURN_IF_ERROR(many_rows(runner, model, matrix, m));
  }
  return {};
}

Status bench_experts(BenchRunner& runner, const BenchModel& model) {
  struct Case {
    int64_t rows;
    DType dtype;
    BenchLimit limit;
    double bar;
  };
  for (const auto& [rows, dtype, limit, bar] : {Case{1, DType::kBF16, BenchLimit::kReadBandwidth, 0},
                                                {4, DType::kBF16, BenchLimit::kReadBandwidth, 0},
                                                {512, DType::kF32, BenchLimit::kF32Flops, 0.6},
                                                {512, DType::kBF16, BenchLimit::kF32Flops, 0.6}}) {
    KernelBenchResult row = experts_row(model, rows, dtype, runner.isa());
    row.limit = limit;
    row.bar = bar;
    if (!runner.wants(row, stored_experts(model) * expert_bytes(model))) continue;
    WEFT_ASSIGN_OR_RETURN(ExpertsCall call, ExpertsCall::make(runner, model, rows, dtype));
    if (dtype == DType::kBF16) call.args().act_quant = ActQuant::kFp8Block128;
    runner.measure(std::move(row), [&] {
      call.route();
      call.run(runner.isa(), runner.pool());
    });
  }
  return {};
}

Status bench_canonical_blocks(BenchRunner& runner, const BenchModel& model) {
  constexpr int64_t kBlocks = 16;
  for (const int64_t num_rows : {1, 512}) {
    KernelBenchResult row;
    row.kernel = "canonical blocks";
    row.shape = fmt::format("M={} wo_b and shared w2 in {} blocks, {} layer", num_rows, kBlocks, model.name);
    row.dtype = "FP8 x BF16";
    row.limit = BenchLimit::kShareOfLayer;
    row.bar = 0.03;
    if (!runner.wants(row, stored_experts(model) * expert_bytes(model))) continue;
    const std::vector<LayerLinear> linears = layer_linears(model);
    std::vector<LinearCall> calls;
    for (const LayerLinear& l : linears) {
      WEFT_ASSIGN_OR_RETURN(LinearCall call, LinearCall::make(runner, l.matrix, num_rows, DType::kBF16, 1));
      // The grouped projection's input is not quantised (deepseek_v4.md 2.5.8).
      const bool quantised = l.matrix.dtype == DType::kF8E4M3 && l.matrix.groups == 1;
      call.args().act_quant = quantised ? ActQuant::kFp8Block128 : ActQuant::kNone;
      calls.push_back(std::move(call));
    }
    WEFT_ASSIGN_OR_RETURN(ExpertsCall routed, ExpertsCall::make(runner, model, num_rows, DType::kBF16));
    routed.args().act_quant = ActQuant::kFp8Block128;

    // The layer's linears in their order, so that each finds the caches as in a real step; once with one block, once
    // with all blocks. The difference is taken from the row-parallel calls alone: the others only add their noise.
    std::vector<double> layer_seconds, one_block, all_blocks;
    for (int i = 0; i <= runner.options().min_repetitions; ++i) {
      for (const int64_t blocks : {int64_t{1}, kBlocks}) {
        double layer = 0, parallel = 0;
        const auto timed = [&](auto run) {
          const auto start = Clock::now();
          run();
          const double seconds = seconds_since(start);
          layer += seconds;
          return seconds;
        };
        for (size_t l = 0; l < linears.size(); ++l) {
          if (linears[l].row_parallel) calls[l].args().k_blocks = blocks;
          const double seconds = timed([&] { calls[l].run(runner.isa(), runner.pool()); });
          if (linears[l].row_parallel) parallel += seconds;
        }
        routed.route();
        timed([&] { routed.run(runner.isa(), runner.pool()); });
        if (i == 0) continue;  // warm-up
        (blocks == 1 ? one_block : all_blocks).push_back(parallel);
        if (blocks == 1) layer_seconds.push_back(layer);
      }
    }
    row.isa = runner.isa();
    row.threads = runner.machine().threads;
    row.repetitions = static_cast<int>(layer_seconds.size());
    row.seconds = median(layer_seconds);
    row.seconds_min = *std::min_element(layer_seconds.begin(), layer_seconds.end());
    row.seconds_max = *std::max_element(layer_seconds.begin(), layer_seconds.end());
    row.ratio = (median(all_blocks) - median(one_block)) / row.seconds;
    runner.add(std::move(row));
  }
  return {};
}

}  // namespace weft

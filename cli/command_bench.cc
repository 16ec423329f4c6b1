// weft bench: speed of a model, or of the kernels.
#include <filesystem>

#include "base/shown_text.h"
#include "cli/bench_model.h"
#include "cli/bench_report.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory_report.h"
#include "cli/model_options.h"
#include "cli/pick_counter.h"
#include "cli/unused_options.h"
#include "io/safetensors_writer.h"

namespace weft {
namespace {

constexpr char kExamples[] =
    "  weft bench MODEL_DIR\n"
    "  weft bench MODEL_DIR --prompt 512,2048 --gen 64 --depth 0,4096,32768 -r 3\n"
    "  weft bench MODEL_DIR --prompt 0 --gen 128 --batch 1,4 --mtp 1 --json\n"
    "  weft bench MODEL_DIR --prompt 0 --gen 32 --depth 1024,131072 --depth-computed 1024\n"
    "  weft bench MODEL_DIR --layout tp2+sp --memory\n"
    "  weft bench MODEL_DIR --expert-load picks.json && weft plan MODEL_DIR --expert-load picks.json --layout tp2+ep2 "
    "--device machine.json\n"
    "  weft bench MODEL_DIR --layout pcp2+split=zigzag --prompt 32768 --gen 0 --ops\n"
    "  weft bench kernels --filter linear\n";

Result<MachineLimits> measure(const KernelBenchOptions& options, Console& console) {
  console.progress("measuring the machine ...");
  Result<MachineLimits> machine = measure_machine(options);
  console.progress("");
  return machine;
}

KernelBenchOptions bench_options(const ModelArgs& args) {
  KernelBenchOptions options;
  options.isa = args.isa_level();
  options.cpus = usable_cores();
  if (args.threads > 0 && args.threads < static_cast<int>(options.cpus.size())) options.cpus.resize(args.threads);
  return options;
}

class BenchCommand : public Command {
 public:
  void declare(CLI::App& app) override;
  Status run(Console& console) override;

 private:
  Status bench_kernels(Console& console);
  Status bench_model(Console& console);
  std::vector<BenchTest> tests() const;
  Status print(const std::vector<BenchResult>& results, const LoadedEngine& loaded, const MachineLimits& machine,
               Console& console);

  const CLI::App* app_ = nullptr;
  ModelArgs model_;
  std::vector<int64_t> prompts_ = {512}, gens_ = {64}, batches_ = {1}, depths_ = {0};
  int64_t step_tokens_ = 512, drafts_ = 0, computed_ = 0;
  int repetitions_ = 5;
  uint64_t seed_ = 0;
  bool no_limits_ = false, memory_ = false, ops_ = false, bandwidth_ = false;
  std::string filter_, expert_load_;
  double kernel_seconds_ = KernelBenchOptions().min_seconds;
};

void BenchCommand::declare(CLI::App& app) {
  app_ = &app;
  add_model_options(app, model_);
  app.get_option("MODEL_DIR")
      ->description("model folder; the word `kernels`: the kernels at the shapes of V4-Flash and V4-Pro");
  const auto list = [&](const char* name, std::vector<int64_t>& values, uint64_t least, const char* what) {
    add_number_list(app, name, values, least, what);
  };
  list("--prompt", prompts_, 0, "lengths of prompts; 0: none");
  list("--gen", gens_, 0, "tokens to generate; 0: none");
  list("--batch", batches_, 1, "sequences at a time");
  list("--depth", depths_, 0, "tokens that are in the context before");
  app.add_option("--depth-computed", computed_,
                 "tokens of a depth to compute; the caches' other rows are drawn from theirs; 0: all")
      ->check(whole_number(0))
      ->capture_default_str();
  app.add_option("-r,--repetitions", repetitions_, "of each test")->check(whole_number(1))->capture_default_str();
  app.add_option("--step-tokens", step_tokens_, "longest step; longer prompts are cut")
      ->check(whole_number(1))
      ->capture_default_str();
  app.add_option("--mtp", drafts_, "drafts per step; then the generated tokens are greedy ones")
      ->check(whole_number(0, kMaxDrafts))
      ->capture_default_str();
  app.add_option("--seed", seed_, "of the random tokens")->check(whole_number(0, kMaxSeed))->capture_default_str();
  app.add_flag("--no-limits", no_limits_, "do not measure the machine");
  app.add_flag("--memory", memory_, "a table of the memory of each rank and what it sent");
  app.add_flag("--bandwidth", bandwidth_,
               "read bandwidth of memory before the first repetition of a test and after each");
  app.add_flag("--ops", ops_, "a table of the time of each op on each rank");
  app.add_option(
      "--expert-load", expert_load_,
      "file for how often each expert was picked in the tests, for weft plan --expert-load; one rank, no --mtp");
  app.add_option("--filter", filter_, "with `kernels`: only rows whose kernel and shape contain this");
  app.add_option("--seconds", kernel_seconds_, "with `kernels`: least time of each row")
      ->check(number_in({0, 3600}))
      ->capture_default_str();
}

Status BenchCommand::run(Console& console) {
  return model_.model_dir == "kernels" ? bench_kernels(console) : bench_model(console);
}

Status BenchCommand::bench_kernels(Console& console) {
  WEFT_RETURN_IF_ERROR(only_options(*app_, "weft bench kernels",
                                    {"MODEL_DIR", "--filter", "--seconds", "--threads", "--isa", "--json", "--quiet"}));
  KernelBenchOptions options = bench_options(model_);
  options.filter = filter_;
  options.min_seconds = kernel_seconds_;
  WEFT_ASSIGN_OR_RETURN(const MachineLimits machine, measure(options, console));
  const auto progress = [&](std::string_view what) { console.progress(fmt::format("{} ...", what)); };
  WEFT_ASSIGN_OR_RETURN(const std::vector<KernelBenchResult> results, weft::bench_kernels(options, machine, progress));
  console.progress("");
  if (results.empty()) {
    return invalid_argument(
        fmt::format("--filter: '{}' is in the name of no kernel and shape; nothing was measured", shown(filter_)));
  }
  if (console.json) {
    OrderedJson json = {{"machine", machine_json(machine)}, {"kernels", OrderedJson::array()}};
    for (const KernelBenchResult& result : results) json["kernels"].push_back(kernel_json(result));
    console.print_json(json);
  } else {
    console.print(machine_text(machine) + "\n\n" + kernel_table(results));
  }
  return {};
}

// By depth, so that each context is computed once.
std::vector<BenchTest> BenchCommand::tests() const {
  std::vector<BenchTest> tests;
  for (const int64_t depth : depths_) {
    for (const int64_t batch : batches_) {
      for (const int64_t n : prompts_) {
        if (n > 0) tests.push_back({BenchKind::kPrefill, n, batch, depth, 0, computed_});
      }
      for (const int64_t n : gens_) {
        if (n > 0) tests.push_back({BenchKind::kDecode, n, batch, depth, drafts_, computed_});
      }
    }
  }
  return tests;
}

Status BenchCommand::bench_model(Console& console) {
  WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--filter", "--seconds"}, "it is of `weft bench kernels`"));
  const auto none = [](const std::vector<int64_t>& values) { return std::all_of(values.begin(), values.end(), [](int64_t n) { return n == 0; }); };
  if (none(depths_)) WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--depth-computed"}, "it needs a --depth above 0"));
  if (none(gens_)) WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--mtp"}, "drafts are of generated tokens; it needs a --gen above 0"));
  if (none(prompts_) && none(depths_)) {
    WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--step-tokens"}, "it needs a --prompt or a --depth above 0"));
  }
  const std::vector<BenchTest> all = tests();
  if (all.empty()) return invalid_argument("nothing to measure: --prompt and --gen are 0");
  EngineNeeds needs;
  needs.max_step_tokens = step_tokens_;
  needs.max_drafts = drafts_;
  needs.context = 0;
  needs.context_from = "--depth with --prompt or --gen";
  for (const BenchTest& test : all) {
    needs.max_sequences = std::max(needs.max_sequences, test.batch);
    needs.context =
        std::max(*needs.context, test.depth + test.tokens + 2);  // with drafts: a first token, and the last one
  }
  needs.max_step_tokens = std::max(needs.max_step_tokens, needs.max_sequences * (drafts_ + 1));
  MachineLimits machine;
  if (!no_limits_) {
    WEFT_ASSIGN_OR_RETURN(machine, measure(bench_options(model_), console));
  }
  // Before the weights fill the memory: what is left then lies in small pieces, which are read more slowly.
  std::optional<ReadBandwidth> memory;
  if (bandwidth_) {
    WEFT_ASSIGN_OR_RETURN(memory, ReadBandwidth::create(model_.isa_level()));
  }
  WEFT_ASSIGN_OR_RETURN(LoadedEngine loaded, open_engine(model_, needs, console));
  std::optional<PickCounter> picks;
  if (!expert_load_.empty()) {
    if (drafts_ > 0 || loaded.engine->options().layout.mesh.world() > 1) {
      return invalid_argument(
          "--expert-load: picks are counted on one rank without drafts (they are the same in every layout): leave "
          "--layout and --mtp out");
    }
    WEFT_ASSIGN_OR_RETURN(ExpertCounts no_counts, no_picks(loaded.engine->model(), loaded.engine->options().mode));
    picks.emplace(std::move(no_counts));
  }
  const auto see = [&](const Value& value, const TensorView& view, std::span<const int32_t>) {
    picks->record(value, view);
  };
  const ValueObserver observer(see);
  InterruptGuard interrupt;
  const std::function<bool()> interrupted = [&] { return interrupt.pending(); };
  ModelBench::Options options{.seed = seed_, .time_ops = ops_, .observer = picks ? &observer : nullptr};
  if (memory) options.bandwidth = [&] { return memory->measure(); };
  ModelBench bench(*loaded.engine, std::move(options));
  std::vector<BenchResult> results;
  for (const BenchTest& test : all) {
    console.progress(fmt::format("{} ...", test.name()));
    WEFT_ASSIGN_OR_RETURN(BenchResult result, bench.run(test, repetitions_, interrupted));
    results.push_back(std::move(result));
  }
  console.progress("");
  if (picks) {
    WEFT_RETURN_IF_ERROR(write_file(expert_load_, expert_load_json(picks->counts())));
    console.note(fmt::format("{}: picks of {} tokens; weft plan MODEL_DIR --expert-load {}", expert_load_,
                             picks->counts().tokens, expert_load_));
  }
  return print(results, loaded, machine, console);
}

Status BenchCommand::print(const std::vector<BenchResult>& results, const LoadedEngine& loaded,
                           const MachineLimits& machine, Console& console) {
  constexpr double kMillion = 1e6, kPercent = 100;
  WEFT_ASSIGN_OR_RETURN(const int64_t parameters, count_parameters(*loaded.engine));
  const EngineOptions& options = loaded.engine->options();
  if (console.json) {
    OrderedJson json = describe(model_, *loaded.engine);
    json["file_bytes"] = loaded.checkpoint->file_bytes();
    json["parameters"] = parameters;
    if (!no_limits_) json["machine"] = machine_json(machine);
    json["results"] = OrderedJson::array();
    for (const BenchResult& result : results) json["results"].push_back(bench_json(result, machine));
    WEFT_ASSIGN_OR_RETURN(json["memory"], memory_json(*loaded.engine));
    console.print_json(json);
    return {};
  }
  std::filesystem::path dir(model_.model_dir);
  if (!dir.has_filename()) dir = dir.parent_path();
  const std::string name = dir.filename().string();
  std::vector<std::vector<std::string>> rows = {
      {"model", "size", "params", "dtype", "isa", "layout", "threads", "test", "t/s", "+-", "of limit"}};
  if (drafts_ > 0) rows[0].push_back("accepted");
  if (bandwidth_) rows[0].push_back("read GB/s");
  for (const BenchResult& result : results) {
    std::string limit;
    if (!no_limits_ && result.test.drafts == 0) {
      limit = fmt::format("{:.1f} % {}", kPercent * share_of_limit(result, machine),
                          result.test.kind == BenchKind::kPrefill ? "FMA" : "BW");
    }
    rows.push_back({name, bytes_text(static_cast<double>(loaded.checkpoint->file_bytes())),
                    fmt::format("{:.2f} M", static_cast<double>(parameters) / kMillion),
                    options.mode.dtype == DType::kF32 ? "f32" : "bf16", std::string(isa_name(options.isa)),
                    to_string(options.layout), fmt::format("{}", options.num_threads), result.test.name(),
                    fmt::format("{:.2f}", result.tokens_per_s()), fmt::format("{:.2f}", result.tokens_per_s_spread()),
                    limit});
    if (drafts_ > 0)
      rows.back().push_back(result.drafted > 0 ? fmt::format("{} of {}", result.accepted, result.drafted) : "");
    if (bandwidth_) rows.back().push_back(spread_text(result.read_bytes_per_s));
  }
  console.print(markdown_table(rows));
  if (!no_limits_) console.note(machine_text(machine));
  for (const BenchResult& result : results) {
    if (ops_) console.print(fmt::format("\n{}\n{}", result.test.name(), op_table(result)));
  }
  if (!memory_) return note_memory(*loaded.engine, console);
  WEFT_ASSIGN_OR_RETURN(const std::string table, memory_table(*loaded.engine));
  console.print("\n" + table);
  return {};
}

}  // namespace

CommandEntry bench_command() {
  return make_command<BenchCommand>("bench", "speed of a model, or of the kernels", kExamples);
}

}  // namespace weft

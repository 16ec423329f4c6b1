#include "cli/plan_options.h"

#include "cli/number_options.h"
#include "io/text_file.h"
#include "planner/expert_load.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_of(const char* installed, const char* source) {
  std::vector<fs::path> folders;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / installed);
  folders.emplace_back(source);
  return folders;
}

Result<Routing> routing_of(const std::string& text) {
  Routing routing;
  if (text == "uniform") {
    routing.kind = Routing::Kind::kUniform;
    return routing;
  }
  if (text == "worst") return routing;
  constexpr std::string_view kZipf = "zipf";
  if (text.starts_with(kZipf)) {
    routing.kind = Routing::Kind::kZipf;
    routing.alpha = 1;
    if (text.size() == kZipf.size()) return routing;
    const std::string_view exponent = std::string_view(text).substr(kZipf.size());
    const auto alpha = exponent.starts_with(':') ? parse_real(exponent.substr(1), {0, 8}) : std::nullopt;
    if (alpha) routing.alpha = *alpha;
    if (alpha) return routing;
  }
  return invalid_argument(
      fmt::format("--routing: expected uniform, worst, zipf or zipf:EXPONENT (0 to 8), found '{}'", text));
}

}  // namespace

std::vector<fs::path> device_folders() { return folders_of(WEFT_DEVICE_FOLDER, WEFT_SOURCE_DEVICE_FOLDER); }
std::vector<fs::path> engine_folders() {
  std::vector<fs::path> folders = device_folders();
  for (fs::path& folder : folders) folder /= "engines";
  return folders;
}

void add_plan_workload_options(CLI::App& app, PlanArgs& args) {
  const char* group = "Workload";
  const auto count = [&](const char* name, int64_t& value, uint64_t least, const char* what) {
    app.add_option(name, value, what)->check(whole_number(least))->capture_default_str()->group(group);
  };
  count("--prompt", args.prompt, 1, "tokens of every prompt");
  count("--gen", args.gen, 1, "tokens of every answer");
  count("--batch", args.batch, 1, "requests at a time, over all data-parallel groups");
  count("--cached", args.cached, 0, "tokens of every prompt that the caches hold already");
  app.add_option("--chunk", args.chunk, "most rows of a prefill step; default: 512 on CPUs, 8192 on accelerators")
      ->check(whole_number(1))
      ->group(group);
  app.add_option("--phase", args.phase, "an instance that does both, or prefill or decode alone")
      ->check(one_of({"both", "prefill", "decode"}))
      ->capture_default_str()
      ->group(group);
  count("--mtp", args.drafts, 0, "draft tokens per request and step");
  add_real_list(
      app, "--acceptance", args.acceptance, {0, 1},
      "conditional acceptance of drafts by depth, separated by commas; the last one holds further on; default: 0.7")
      ->group(group);
  app.add_option("--expert-load", args.expert_load,
                 "measured picks of every expert, in place of --routing: the file of weft bench --expert-load")
      ->check(some_text())
      ->group(group);
  app.add_option("--dp-imbalance", args.dp_imbalance, "work of the data-parallel group that has most, over the mean")
      ->check(number_in({1, 1e6}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--routing", args.routing, "how rows pick experts: uniform, zipf, zipf:EXPONENT, worst")
      ->capture_default_str()
      ->group(group);
}

void add_plan_device_options(CLI::App& app, PlanArgs& args) {
  const char* group = "Devices";
  app.add_option("--device", args.device,
                 "device profile: a shipped name, or a file (weft calibrate makes one of this machine)")
      ->check(some_text())
      ->group(group);
  app.add_option("--engine", args.engine, "engine profile: weft, or what another engine does differently")
      ->check(some_text())
      ->capture_default_str()
      ->group(group);
  app.add_option("--memory-bandwidth", args.memory_gb_per_s,
                 "GB/s of memory in place of the profile's figure, as weft bench --bandwidth measures it beside a test")
      ->check(number_in({1e-3, 1e6}))
      ->group(group);
  app.add_option("--reserve", args.reserve_gib, "GiB of every device that are left alone")
      ->check(number_in({0, 1e6}))
      ->group(group);
  app.add_option("--local-ranks", args.local_ranks, "CPUs: ranks that share one device")
      ->check(whole_number(1, 65536))
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", args.threads,
                 "CPUs: threads of one rank; default: the cores, shared by the ranks of a device")
      ->check(whole_number(1, kMaxThreads))
      ->group(group);
  app.add_flag("--eager", args.eager, "kernels are issued one by one, not as a captured graph")->group(group);
}

Result<PlanRequest> plan_request(const PlanArgs& args, Console& console) {
  if (args.model.model_dir.empty()) {
    return invalid_argument(fmt::format("MODEL is missing: a model folder, a config file, or a shipped config ({})",
                                        fmt::join(shipped_configs(), ", ")));
  }
  if (args.device.empty()) {
    return invalid_argument(fmt::format("--device is missing: a profile file, or one of {}",
                                        fmt::join(device_profile_names(device_folders()), ", ")));
  }
  PlanRequest request;
  WEFT_ASSIGN_OR_RETURN(DeviceProfile device, load_device_profile(args.device, device_folders()));
  WEFT_ASSIGN_OR_RETURN(EngineProfile engine, load_engine_profile(args.engine, engine_folders()));
  WEFT_ASSIGN_OR_RETURN(request.routing, routing_of(args.routing));
  request.acceptance = args.acceptance;
  WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_location(args.model, console));
  request.model = loaded.model;
  request.model_name = args.model.model_dir;
  request.has_weights = loaded.checkpoint->contents() == Checkpoint::Contents::kTensors;
  if (args.memory_gb_per_s > 0) {
    if (!device.memory_bytes_per_s)
      return invalid_argument(
          fmt::format("--memory-bandwidth: device {} has no memory.bytes_per_s to replace", device.name));
    constexpr double kGiga = 1e9;
    request.memory_bytes_per_s = args.memory_gb_per_s * kGiga;
    set_memory_bandwidth(device, {request.memory_bytes_per_s, true, "--memory-bandwidth"});
  }
  request.device = std::make_shared<const DeviceProfile>(std::move(device));
  request.engine = std::make_shared<const EngineProfile>(std::move(engine));
  request.mode = args.model.mode(*loaded.model);
  if (!args.expert_load.empty()) {
    WEFT_ASSIGN_OR_RETURN(const std::string text, read_text_file(args.expert_load));
    WEFT_ASSIGN_OR_RETURN(const ExpertCounts counts, parse_expert_load(text, args.expert_load));
    WEFT_RETURN_IF_ERROR(check_expert_load(counts, *request.model, request.mode));
    request.expert_shares = std::make_shared<const std::map<int64_t, std::vector<double>>>(counts.shares());
    request.expert_load = args.expert_load;
  }
  request.phase = args.phase == "prefill"  ? PlanPhase::kPrefill
                  : args.phase == "decode" ? PlanPhase::kDecode
                                           : PlanPhase::kBoth;
  request.prompt = args.prompt;
  request.gen = args.gen;
  request.batch = args.batch;
  request.dp_imbalance = args.dp_imbalance;
  request.cached = args.cached;
  request.chunk = args.chunk;
  request.drafts = args.drafts;
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  request.reserve_bytes = args.reserve_gib * kGiB;
  request.local_ranks = args.local_ranks;
  if (!request.device->is_cpu() && args.threads > 0) {
    return invalid_argument(fmt::format("--threads has no effect: {} is no CPU", request.device->name));
  }
  request.threads = args.threads > 0 ? args.threads : std::max(request.device->cores / args.local_ranks, 1);
  request.eager = args.eager;
  return request;
}

Result<Layout> plan_layout(const std::string& text, int64_t devices, int local_ranks) {
  std::optional<int64_t> ranks;
  if (devices > 0) ranks = devices * local_ranks;
  const Result<Layout> layout = parse_layout(text, ranks);
  if (!layout.ok()) {
    return Status(layout.status().code(),
                  fmt::format("--layout{}: {}", ranks ? " with --devices" : "", layout.status().message()));
  }
  if (ranks && layout->mesh.world() != *ranks) {
    return invalid_argument(
        fmt::format("--devices {}: layout {} has {} ranks", devices, to_string(*layout), layout->mesh.world()));
  }
  return layout;
}

}  // namespace weft

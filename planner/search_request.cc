// What a search may be asked for, and the commands that its result names.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "planner/search.h"

namespace weft {
namespace {

// Above that, listing the layouts of a number of devices means little.
constexpr int64_t kMostDevices = 1 << 16;

std::string seconds_text(double seconds) { return fmt::format("{:g}s", seconds); }

}  // namespace

std::string_view objective_name(Objective objective) {
  switch (objective) {
    case Objective::kThroughput: return "throughput";
    case Objective::kCost: return "cost";
    case Objective::kLatency: return "latency";
  }
  return "";
}

std::string_view loss_reason_name(LossReason reason) {
  switch (reason) {
    case LossReason::kMemory: return "memory";
    case LossReason::kTtft: return "ttft";
    case LossReason::kTpot: return "tpot";
    case LossReason::kError: return "error";
    case LossReason::kBeaten: return "beaten";
  }
  return "";
}

Status check_search(const SearchRequest& request) {
  if (request.devices.empty())
    return invalid_argument("--devices: expected numbers of devices to look at, e.g. --devices 8,16,32");
  std::set<int64_t> seen;
  for (const int64_t devices : request.devices) {
    if (devices < 1 || devices > kMostDevices)
      return invalid_argument(fmt::format("--devices: expected 1 to {}, found {}", kMostDevices, devices));
    if (!seen.insert(devices).second) return invalid_argument(fmt::format("--devices: {} is there twice", devices));
  }
  const struct {
    const char* option;
    const std::optional<double>& seconds;
  } limits[] = {{"--ttft", request.ttft_s}, {"--tpot", request.tpot_s}};
  for (const auto& limit : limits) {
    if (limit.seconds && !(*limit.seconds > 0)) {
      return invalid_argument(
          fmt::format("{}: expected a time above 0, found {}", limit.option, seconds_text(*limit.seconds)));
    }
  }
  if (request.max_batch < 1)
    return invalid_argument(fmt::format("--max-batch: expected at least 1, found {}", request.max_batch));
  for (const int64_t chunk : request.chunks) {
    if (chunk < 1) return invalid_argument(fmt::format("--chunks: expected at least 1 row, found {}", chunk));
  }
  if (!request.together && !request.apart) return invalid_argument("--mode: nothing is left to look at");
  if (!request.together && request.plan.gen < 2) {
    return invalid_argument(fmt::format(
        "--mode apart with --gen {}: the first token comes with the prefill, decode instances have nothing to do",
        request.plan.gen));
  }
  PlanRequest one = request.plan;  // the sizes that every layout shares
  one.layout = Layout();
  one.layout.mesh.tp = one.local_ranks;
  one.batch = 1;
  one.dp_imbalance = 1;
  return check_request(one);
}

std::string plan_command(const SearchRequest& request, const SearchPoint& point) {
  const PlanRequest& plan = request.plan;
  const std::string& device = request.device_text.empty() ? plan.device->name : request.device_text;
  const std::string& engine = request.engine_text.empty() ? plan.engine->name : request.engine_text;
  std::string text =
      fmt::format("weft plan {} --layout {} --device {}", plan.model_name, to_string(point.layout), device);
  if (engine != "weft") text += fmt::format(" --engine {}", engine);
  text += fmt::format(" --prompt {} --gen {} --batch {}", plan.prompt, plan.gen, point.batch);
  if (point.phase != PlanPhase::kBoth) text += fmt::format(" --phase {}", plan_phase_name(point.phase));
  const auto add = [&](std::string_view option, int64_t value, int64_t usual) {
    if (value != usual) text += fmt::format(" {} {}", option, value);
  };
  add("--cached", plan.cached, 0);
  add("--chunk", point.chunk, 0);
  add("--mtp", plan.drafts, 0);
  if (!plan.acceptance.empty()) text += fmt::format(" --acceptance {:g}", fmt::join(plan.acceptance, ","));
  switch (plan.routing.kind) {
    case Routing::Kind::kUniform:
    case Routing::Kind::kMeasured: break;  // by --expert-load alone
    case Routing::Kind::kZipf: text += fmt::format(" --routing zipf:{:g}", plan.routing.alpha); break;
    case Routing::Kind::kWorst: text += " --routing worst"; break;
  }
  if (const double factor = std::min(plan.dp_imbalance, static_cast<double>(point.layout.mesh.dp)); factor > 1) {
    text += fmt::format(" --dp-imbalance {:g}", factor);
  }
  if (!plan.expert_load.empty()) text += fmt::format(" --expert-load {}", plan.expert_load);
  if (plan.reserve_bytes > 0) text += fmt::format(" --reserve {:g}", plan.reserve_bytes / (1 << 30));
  if (plan.memory_bytes_per_s > 0) text += fmt::format(" --memory-bandwidth {:g}", plan.memory_bytes_per_s / 1e9);
  add("--local-ranks", plan.local_ranks, 1);
  if (plan.device->is_cpu()) add("--threads", plan.threads, std::max(plan.device->cores / plan.local_ranks, 1));
  if (plan.eager) text += " --eager";
  if (plan.mode.dtype == DType::kF32) text += " --dtype f32";
  if (plan.mode.act_quant != plan.model->mode(plan.mode.dtype, std::nullopt).act_quant)
    text += fmt::format(" --act-quant {}", plan.mode.act_quant ? "on" : "off");
  if (plan.mode.output_quant == OutputQuant::kInt8) text += " --output-quant int8";
  return text;
}

std::string run_command(const SearchRequest& request, const SearchPoint& point) {
  const PlanRequest& plan = request.plan;
  const int64_t ranks = point.layout.mesh.world();
  std::string text =
      fmt::format("weft run {} --layout {}", plan.has_weights ? plan.model_name : "MODEL_DIR", to_string(point.layout));
  if (point.devices > 1) text = fmt::format("mpirun -n {} {}", ranks, text);
  text += fmt::format(" --ctx {} --threads {}", plan.context(), plan.threads);
  if (plan.drafts > 0) text += fmt::format(" --mtp {}", plan.drafts);
  if (plan.mode.dtype == DType::kF32) text += " --dtype f32";
  if (plan.mode.act_quant != plan.model->mode(plan.mode.dtype, std::nullopt).act_quant)
    text += fmt::format(" --act-quant {}", plan.mode.act_quant ? "on" : "off");
  if (plan.mode.output_quant == OutputQuant::kInt8) text += " --output-quant int8";
  return text;
}

std::string why_not_run(const SearchRequest& request, const SearchPoint& point) {
  const PlanRequest& plan = request.plan;
  if (plan.engine->name != "weft")
    return fmt::format("weft plans the engine {}, and does not start it", plan.engine->name);
  if (!plan.device->is_cpu())
    return fmt::format("weft runs on CPUs, not on {}: this is a plan alone", plan.device->name);
  if (point.phase != PlanPhase::kBoth)
    return "weft has no server that hands caches from one instance to another: this is a plan alone";
  const Status allowed = plan.model->check_layout(point.layout);
  return allowed.ok() ? "" : allowed.message();
}

}  // namespace weft
